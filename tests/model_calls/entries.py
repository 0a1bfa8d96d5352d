"""Form of the corpus: a request, its response or stream, and the facts that follow from the format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

Json = dict[str, Any]
PromptPart = tuple[str, ...]
"""A part of the prompt: its role, its kind and its text. A tool call has the kind of tool, the name and the arguments
in place of the text; a tool result has an empty role, and the id of its call before its text. Of media, the text must
occur in the part."""

MODEL = "m"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The facts of one choice."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tools: tuple[tuple[str, str, Any], ...] = ()
    """The kind of tool, the name and the arguments of each call: text for raw text, an object for its JSON, and None
    if the format has no arguments for this kind of tool."""
    results: tuple[str, ...] = ()
    """Text that each tool result contains."""
    media: tuple[str, ...] = ()
    """The kinds of the media."""
    unknown: tuple[str, ...] = ()
    """The types of the items of an unknown kind."""
    fragments: tuple[str, ...] = ()
    """Texts that some part contains, in any field."""
    kinds: tuple[str, ...] | None = None
    """The kinds of the parts in their order, where the format has an order."""
    finish: str | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    role: str = "assistant"
    call_ids: tuple[str | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One request with a response, a stream, or both. The facts hold for both."""

    name: str
    protocol: str
    request: Json
    answers: tuple[Answer, ...] = ()
    response: Json | None = None
    frames: tuple[bytes, ...] = ()
    """The stream, cut after each event."""
    response_id: str | None = None
    model: str | None = MODEL
    usage: dict[str, int] = field(default_factory=dict[str, int])
    """The counts; a name that is missing is unknown."""
    prompt_token_ids: tuple[int, ...] = ()
    prompt: tuple[PromptPart, ...] | None = None
    tools: tuple[str, ...] | None = None
    """The names of the tools in the request; the types of tools without names."""
    settings: Json | None = None
    ends: bool = True
    """Whether the stream has its end."""
    error: str | None = None
    """Text of the error in the stream."""
    is_readable: bool = True
    """Whether all events of the stream are JSON in UTF-8."""
    is_storable: bool = True
    """Whether a database can store all values. If not, the attributes contain other values in their place."""

    @property
    def stream(self) -> bytes:
        """The bytes of the stream."""
        return b"".join(self.frames)

    @property
    def body(self) -> bytes:
        """The bytes of the response without streaming."""
        # Half an emoji and Unicode are escaped, as Python's servers do it.
        return json.dumps(self.response).encode()


def event(value: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def raw_event(value: Any) -> bytes:
    """Return one server-sent event with Unicode that is not escaped."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def named_event(value: Json) -> bytes:
    """Return one server-sent event with its type as its name."""
    return b"event: " + value["type"].encode() + b"\n" + event(value)


DONE = b"data: [DONE]\n\n"


def function(name: str = "get_weather", **properties: Any) -> Json:
    """Return a function as the Chat API describes it."""
    schema = {"type": "object", "properties": properties or {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": f"Calls {name}.", "parameters": schema}}


def flat(events: Any) -> list[Json]:
    """Return the events of nested lists in their order."""
    if isinstance(events, list | tuple):
        return [event for inner in cast("list[Any]", events) for event in flat(inner)]
    return [events]
