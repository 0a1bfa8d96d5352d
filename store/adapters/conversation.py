"""What was said in a call to a model, in whichever convention its span tells it.

Read are OpenTelemetry's GenAI conventions, old (`gen_ai.prompt.0.content`, as Traceloop and AgentOps write them too)
and new (`gen_ai.input.messages`), OpenInference (`llm.input_messages.0.message.content`) and what our own proxy and
LiteLLM's record. Nothing raises: what is malformed is shown as it stands, or says nothing.
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
    """A tool that a model asked for."""

    name: str
    arguments: str
    """As text, JSON mostly."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message."""

    role: str
    """system, user, assistant, tool …; empty where the span does not say."""
    text: str
    thinking: str = ""
    """What a model thought before it answered, where that was recorded."""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    """Of the call that a tool's message answers."""
    attached: int = 0
    """How many parts are no text: images, audio, files."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for a message that is said again; thoughts and ids are seldom repeated with it."""
        return (self.role, self.text.strip(), tuple((call.name, call.arguments) for call in self.tool_calls))


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """A call to a model."""

    asked: tuple[ChatMessage, ...]
    answered: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool at work."""

    name: str
    arguments: str
    result: str


def exchange_of(attributes: Mapping[str, Any]) -> ModelExchange | None:
    """Return what was asked and answered; None for a span that tells of neither."""
    asked = _system(attributes) + (_json(attributes, _INPUT) or _inference(attributes, "llm.input_messages"))
    answered = _json(attributes, _OUTPUT) or _inference(attributes, "llm.output_messages")
    if not asked or not answered:
        reading = read(attributes)
        asked = asked or _messages(reading.prompt)
        answered = answered or _messages(reading.response, role="assistant")
    if not asked and not answered:
        return None
    return ModelExchange(tuple(asked), tuple(answered))


def tool_use_of(attributes: Mapping[str, Any]) -> ToolUse | None:
    """Return what a tool was given and what came of it; None for a span of something else."""
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
    said = _said({"role": "system", "content": given}, "system")
    return [said] if said is not None else []


def _inference(attributes: Mapping[str, Any], prefix: str) -> list[ChatMessage]:
    found: list[ChatMessage] = []
    for each in indexed(below(attributes, prefix)):
        message = _object(_object(each).get("message"))
        calls = [_object(_object(call).get("tool_call")) for call in indexed(message.get("tool_calls"))]
        contents = [_object(_object(part).get("message_content")) for part in indexed(message.get("contents"))]
        flat = {**message, "tool_calls": calls, "content": message.get("content") or contents}
        said = _said(flat, "")
        if said is not None:
            found.append(said)
    return found


def _messages(value: Any, role: str = "") -> list[ChatMessage]:
    if isinstance(value, str):
        return [ChatMessage(role or "user", value)] if value else []
    each = indexed(value) or ([value] if isinstance(value, Mapping) else [])
    return [said for one in each if (said := _said(_unwrapped(decoded(one)), role)) is not None]


def _unwrapped(value: Any) -> Any:
    """Return the message of a choice."""
    inner = _object(value).get("message")
    return {**_object(value), **_object(inner)} if isinstance(inner, Mapping) else value


def _said(value: Any, role: str) -> ChatMessage | None:
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
    named = given.get("role")
    call_id = given.get("tool_call_id") or parts.call_id
    said = ChatMessage(
        named if isinstance(named, str) and named else ("tool" if call_id else role),
        "\n".join(parts.texts),
        "\n".join((*thinking[:1], *parts.thoughts)),
        calls,
        call_id if isinstance(call_id, str) else None,
        parts.attached,
    )
    is_empty = not (said.text or said.thinking or said.tool_calls or said.attached)
    return None if is_empty and not said.role else said


class _Parts:
    """What the content of a message consists of."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.call_id: str | None = None
        self.attached = 0

    def add(self, content: Any) -> None:
        """Take a text, a part, or a list of them; one that was written as JSON too."""
        if isinstance(content, str):
            inner = decoded(content) if content.lstrip()[:1] == "[" else content
            # A text that is JSON is a text, unless it is a list of parts.
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
