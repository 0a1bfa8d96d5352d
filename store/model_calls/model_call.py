"""Call of a model as a value: the request and the response, in the same form for every protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from store.model_calls.json_values import Json

PartKind = Literal[
    "text",
    "reasoning",
    "refusal",
    "tool_call",
    "tool_result",
    "image",
    "audio",
    "video",
    "document",
    "unknown",
]
FUNCTION = "function"
"""The kind of a tool that the calling program executes, with arguments that follow a JSON schema."""


class Protocol(StrEnum):
    """The protocols whose requests and responses can be read."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    """Anthropic's Messages API."""
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class MessagePart:
    """One part of a message. A field is empty if parts of this kind have no such value."""

    kind: PartKind
    text: str = ""
    """The text of the part.

    For a tool call: the arguments as the model wrote them. For a tool result: its text, or its JSON if there is no
    text.
    """
    name: str = ""
    """The name of the tool."""
    call_id: str | None = None
    """The id of the tool call."""
    tool: str = ""
    """The kind of tool: `function`, `custom`, or else the type of the item, such as `mcp_call`."""
    parts: tuple[MessagePart, ...] = ()
    """The parts of a tool result that is a list."""
    item: Json = field(default_factory=dict[str, Any])
    """The item as received; empty if the other fields represent the item completely."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    """For example `system`, `user`, `assistant` or `tool`; empty if it is unknown."""
    parts: tuple[MessagePart, ...] = ()
    name: str | None = None
    """The name of the participant or of the function."""

    @property
    def text(self) -> str:
        """The text of the message and of its tool results, without reasoning and tool calls."""
        kinds = {"text", "refusal", "audio", "tool_result", "unknown"}
        return "\n".join(part.text for part in self.parts if part.kind in kinds and part.text)

    @property
    def thinking(self) -> str:
        """The reasoning of the model."""
        return "\n".join(part.text for part in self.parts if part.kind == "reasoning" and part.text)

    @property
    def tool_calls(self) -> tuple[MessagePart, ...]:
        """The tool calls, of every kind of tool."""
        return tuple(part for part in self.parts if part.kind == "tool_call")

    @property
    def call_id(self) -> str | None:
        """The id of the first tool call whose result the message contains."""
        return next((part.call_id for part in self.parts if part.kind == "tool_result"), None)

    @property
    def media(self) -> tuple[MessagePart, ...]:
        """The images and other media, including the media in tool results, and the unknown parts without text."""
        parts = [inner for part in self.parts for inner in (part, *part.parts)]
        kinds = {"image", "audio", "video", "document"}
        return tuple(part for part in parts if part.kind in kinds or (part.kind == "unknown" and not part.text))

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for repetitions of a message. It excludes reasoning and ids, which clients may drop."""
        return (self.role, self.text.strip(), tuple((call.name, call.text) for call in self.tool_calls))


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a response."""

    message: Message
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: Json = field(default_factory=dict[str, Any])
    """Log probabilities by `content` and `refusal`: a list with one object for each token, as in the Chat API."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens; None if a number is unknown."""

    prompt: int | None = None
    """All tokens of the prompt, including the tokens that were read from a cache or written to a cache."""
    completion: int | None = None
    """All tokens of the response, including the tokens of the reasoning."""
    total: int | None = None
    cached: int | None = None
    """The tokens of the prompt that were read from a cache."""
    cache_write: int | None = None
    """The tokens of the prompt that were written to a cache."""
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model. Values that are missing or cannot be read are empty or None."""

    protocol: Protocol | None = None
    model: str | None = None
    """The model in the request."""
    settings: Json = field(default_factory=dict[str, Any])
    """Settings of the request, such as `temperature`, by their name below `gen_ai.request.`."""
    tools: tuple[Json, ...] = ()
    """The tools that the model may call: `name`, `description` and `parameters` of a function, or else `definition`,
    the tool as received."""
    messages: tuple[Message, ...] = ()
    """The prompt, system prompts first."""
    response_id: str | None = None
    response_model: str | None = None
    choices: tuple[Choice, ...] = ()
    usage: Usage = field(default_factory=Usage)
    prompt_token_ids: list[int] = field(default_factory=list[int])
    is_streaming: bool = False
    is_incomplete: bool = False
    """Whether the end of the response is missing."""
    fingerprint: str | None = None
    """`system_fingerprint`, which identifies the configuration of the model server."""

    @property
    def answers(self) -> tuple[Message, ...]:
        """The messages of the response, one for each choice."""
        return tuple(choice.message for choice in self.choices)

    @property
    def unknown_items(self) -> list[str]:
        """The types of the response items that this package does not support: sorted, without duplicates."""
        parts = (part for message in self.answers for part in message.parts if part.kind == "unknown")
        return sorted({str(part.item.get("type")) for part in parts})
