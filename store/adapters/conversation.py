"""Messages and tool uses in the attributes of spans, for all common conventions of attribute names.

The conventions are:

- OpenTelemetry's old GenAI convention, such as `gen_ai.prompt.0.content`, which Traceloop and AgentOps also use;
- OpenTelemetry's new GenAI convention, such as `gen_ai.input.messages`;
- OpenInference, such as `llm.input_messages.0.message.content`;
- the attributes of LiteLLM and of this package's proxy.

Functions return malformed values unchanged or ignore them; they raise no exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from store.adapters.calls import read
from store.adapters.nested import below, decoded, indexed

__all__ = ["ChatMessage", "ModelExchange", "ToolCall", "ToolUse", "exchange_of", "tool_use_of"]

_INPUT: Final = ("gen_ai.input.messages",)
_OUTPUT: Final = ("gen_ai.output.messages",)
_SYSTEM: Final = "gen_ai.system_instructions"
_THINKING: Final = ("reasoning_content", "reasoning", "thinking")
_THOUGHTS: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
_CALLS: Final = frozenset({"tool_call", "tool_use", "function_call"})
_RESPONSES: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})

_TOOL_NAMES: Final = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name", "agentops.entity.name")
_TOOL_INPUTS: Final = (
    "gen_ai.tool.call.arguments",
    "tool.parameters",
    "input.value",
    "traceloop.entity.input",
    "agentops.entity.input",
)
_TOOL_OUTPUTS: Final = (
    "gen_ai.tool.call.result",
    "tool.result",
    "output.value",
    "traceloop.entity.output",
    "agentops.entity.output",
)
_KINDS: Final = ("openinference.span.kind", "traceloop.span.kind", "agentops.span.kind", "gen_ai.operation.name")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a model's message."""

    name: str
    arguments: str
    """The arguments as text, usually JSON."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """For example `system`, `user`, `assistant` or `tool`; empty if the span contains no role."""
    text: str
    thinking: str = ""
    """The model's reasoning before its response, if it was recorded."""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    """The id of the tool call whose result the message contains."""
    attached: int = 0
    """The number of parts that are not text, such as images, audio or files."""

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal if a client sends a message again. It omits reasoning and ids, which clients may omit."""
        return (self.role, self.text.strip(), tuple((call.name, call.arguments) for call in self.tool_calls))


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """The messages of a prompt, and the messages of the model's response."""

    prompt: tuple[ChatMessage, ...]
    answer: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One execution of a tool."""

    name: str
    arguments: str
    result: str


def exchange_of(attributes: Mapping[str, Any]) -> ModelExchange | None:
    """Return the messages in a span's attributes; None if there are no messages."""
    prompt = _system(attributes) + (_json(attributes, _INPUT) or _inference(attributes, "llm.input_messages"))
    answer = _json(attributes, _OUTPUT) or _inference(attributes, "llm.output_messages")
    if not prompt or not answer:
        reading = read(attributes)
        prompt = prompt or _messages(reading.prompt)
        answer = answer or _messages(reading.response, role="assistant")
    if not prompt and not answer:
        return None
    return ModelExchange(tuple(prompt), tuple(answer))


def tool_use_of(attributes: Mapping[str, Any]) -> ToolUse | None:
    """Return the execution of a tool that a span records; None if the span does not record a tool."""
    kinds = {str(attributes.get(name, "")).lower() for name in _KINDS}
    is_tool = bool(kinds & {"tool", "execute_tool"}) or not {"gen_ai.tool.name", "tool.name"}.isdisjoint(attributes)
    if not is_tool:
        return None
    name = next((text for each in _TOOL_NAMES if isinstance(text := attributes.get(each), str) and text), "tool")
    given, came = _first(attributes, _TOOL_INPUTS), _first(attributes, _TOOL_OUTPUTS)
    return ToolUse(name, _plain(given), _plain(came))


# -- the conventions -------------------------------------------------------------------------------------------------


def _json(attributes: Mapping[str, Any], names: Sequence[str]) -> list[ChatMessage]:
    for name in names:
        found = _messages(decoded(attributes.get(name)))
        if found:
            return found
    return []


def _system(attributes: Mapping[str, Any]) -> list[ChatMessage]:
    given = decoded(attributes.get(_SYSTEM))
    if not given:
        return []
    message = _chat_message({"role": "system", "content": given}, "system")
    return [message] if message is not None else []


def _inference(attributes: Mapping[str, Any], prefix: str) -> list[ChatMessage]:
    found: list[ChatMessage] = []
    for each in indexed(below(attributes, prefix)):
        fields = _object(_object(each).get("message"))
        calls = [_object(_object(call).get("tool_call")) for call in indexed(fields.get("tool_calls"))]
        contents = [_object(_object(part).get("message_content")) for part in indexed(fields.get("contents"))]
        flat = {**fields, "tool_calls": calls, "content": fields.get("content") or contents}
        message = _chat_message(flat, "")
        if message is not None:
            found.append(message)
    return found


def _messages(value: Any, role: str = "") -> list[ChatMessage]:
    if isinstance(value, str):
        return [ChatMessage(role or "user", value)] if value else []
    each = indexed(value) or ([value] if isinstance(value, Mapping) else [])
    return [message for one in each if (message := _chat_message(_unwrapped(decoded(one)), role)) is not None]


def _unwrapped(value: Any) -> Any:
    """Return the fields of a choice and of its message as one object; a value without a message is unchanged."""
    inner = _object(value).get("message")
    return {**_object(value), **_object(inner)} if isinstance(inner, Mapping) else value


def _chat_message(value: Any, role: str) -> ChatMessage | None:
    if isinstance(value, str):
        return ChatMessage(role or "user", value) if value else None
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    parts = _Parts()
    parts.add(given.get("content"))
    parts.add(given.get("parts"))
    thinking = [text for name in _THINKING if isinstance(text := given.get(name), str) and text]
    listed = [call for each in indexed(given.get("tool_calls")) if (call := _tool_call(each)) is not None]
    legacy = _tool_call(given.get("function_call"))
    calls = (*parts.calls, *listed, *([legacy] if legacy is not None else []))
    role_given = given.get("role")
    call_id = given.get("tool_call_id") or parts.call_id
    message = ChatMessage(
        role_given if isinstance(role_given, str) and role_given else ("tool" if call_id else role),
        "\n".join(parts.texts),
        "\n".join((*thinking[:1], *parts.thoughts)),
        calls,
        call_id if isinstance(call_id, str) else None,
        parts.attached,
    )
    is_empty = not (message.text or message.thinking or message.tool_calls or message.attached)
    return None if is_empty and not message.role else message


class _Parts:
    """Collector of the parts of a message's content."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.call_id: str | None = None
        self.attached = 0

    def add(self, content: Any) -> None:
        """Add the content of a message: text, one part, or a list of parts. The list may be encoded as JSON text."""
        if isinstance(content, str):
            inner = decoded(content) if content.lstrip()[:1] == "[" else content
            # JSON text that is not a list of parts is plain text.
            is_parts = isinstance(inner, list) and all("type" in _object(each) for each in cast("list[Any]", inner))
            if not is_parts:
                self._say(content)
                return
            content = cast("list[Any]", inner)
        for part in indexed(content) or ([content] if isinstance(content, Mapping) else []):
            self._part(part)

    def _part(self, part: Any) -> None:
        if isinstance(part, str):
            self._say(part)
            return
        given = _object(part)
        kind = _text(given.get("type"))
        text = _first(given, ("text", "content", "thinking", "reasoning"))
        if kind in _CALLS:
            call = _tool_call(given)
            if call is not None:
                self.calls.append(call)
        elif kind in _RESPONSES:
            answer = _first(given, ("response", "result", "content", "output"))
            self._say(_plain(answer))
            self.call_id = _text(_first(given, ("id", "tool_use_id", "call_id"))) or self.call_id
        elif kind in _THOUGHTS:
            self.thoughts.append(_plain(text))
        elif isinstance(text, str):
            self._say(text)
        elif given:
            self.attached += 1

    def _say(self, text: str) -> None:
        if text:
            self.texts.append(text)


def _tool_call(value: Any) -> ToolCall | None:
    given = _object(value)
    function = _object(given.get("function")) or given
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return None
    arguments = _first(function, ("arguments", "input", "parameters"))
    return ToolCall(name, _plain(arguments), _text(given.get("id")))


# -- values ----------------------------------------------------------------------------------------------------------


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _first(attributes: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((value for name in names if (value := attributes.get(name)) not in (None, "")), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)
