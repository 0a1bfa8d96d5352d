"""From spans to chat messages in OpenAI's form, with tool calls and tools: what fine-tuning on transcripts reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, cast

import orjson

from store.adapters.calls import RESPONSE_IDS, raw_content, response_id
from store.adapters.intake import Timed, sort_in
from store.adapters.nested import below, indexed
from store.adapters.selection import has_failed, is_of_a_proxy
from store.models import Span

__all__ = ["OpenAIMessages", "TraceToMessages"]

_OF_A_CALL: Final = ("gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request.", "gen_ai.response.")
_ROLES: Final = frozenset({"assistant", "developer", "function", "system", "tool", "user"})

Message = dict[str, Any]


class OpenAIMessages(TypedDict):
    """One call to a model: a line of a fine-tuning file."""

    messages: list[Message]
    """What was asked and, last, what was answered."""
    tools: list[dict[str, Any]] | None
    """The functions the model could call, or None if there were none."""


class TraceToMessages:
    """Makes chat messages of the spans of calls, as plain dicts.

    Tool calls of an answer are the direct children of its span that name a tool, else those the span itself lists. Two
    spans with the same response id are one call; one that failed without an answer is none. What is malformed is
    passed over: a message without a role is taken for the one that its parts belong to, and left out if they do not
    tell.
    """

    def __call__(self, source: Iterable[Any], /) -> list[OpenAIMessages]:
        return self.adapt(source)

    def adapt(self, source: Iterable[Any], /) -> list[OpenAIMessages]:
        """Return the messages of every call, in the order of time.

        Args:
            source: spans of the store or of the OpenTelemetry SDK; of several attempts, one after the other.

        Raises:
            Invalid: it is no sequence.
        """
        attempts, _ = sort_in(source)
        return [each for attempt in attempts for each in _of_an_attempt(attempt.spans)]


def _of_an_attempt(spans: list[Timed]) -> list[OpenAIMessages]:
    children: dict[str, list[Mapping[str, Any]]] = {}
    for timed in spans:
        if timed.span.parent_id is not None:
            children.setdefault(timed.span.parent_id, []).append(timed.span.attributes)
    return [_conversation(call.span.attributes, children.get(call.span.span_id, ())) for call in _calls(spans)]


def _calls(spans: list[Timed]) -> list[Timed]:
    """Return the spans of calls, one for each answer: that of the agent's tracer if there is one."""
    calls = [timed for timed in spans if _is_call(timed.span.attributes) and not _is_unanswered(timed.span)]
    first: dict[str, Timed] = {}
    for call in sorted(calls, key=lambda call: (is_of_a_proxy(call.span), call.place)):
        first.setdefault(_answer(call), call)
    return [call for call in calls if first[_answer(call)] is call]


def _is_call(attributes: Mapping[str, Any]) -> bool:
    return any(name.startswith(_OF_A_CALL) for name in attributes)


def _is_unanswered(span: Span) -> bool:
    return has_failed(span) and not any(name.startswith("gen_ai.completion.") for name in span.attributes)


def _answer(call: Timed) -> str:
    """Return what is equal for spans of one call: the response id, else the span's own, which no other has."""
    found = response_id(call.span.attributes, RESPONSE_IDS)
    return f"span {call.span.span_id}" if found is None else f"response {found}"


def _conversation(call: Mapping[str, Any], children: Iterable[Mapping[str, Any]]) -> OpenAIMessages:
    asked = [_asked(message) for message in _entries(raw_content(call, "gen_ai.prompt"))]
    used = [tool for child in children if (tool := _used(below(child, "tool"))) is not None]
    answers = [_answered(choice, used) for choice in _entries(raw_content(call, "gen_ai.completion"))]
    request = raw_content(call, "gen_ai.request")
    functions: Any = cast("Mapping[str, Any]", request).get("functions") if isinstance(request, Mapping) else None
    tools = [_function(each) for each in _entries(functions) if "name" in each]
    return {
        "messages": [message for message in (*asked, *answers) if message is not None],
        "tools": tools or None,
    }


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list, or an object that stands alone as one."""
    each: list[Any] = indexed(value) or [value]
    return [cast("Mapping[str, Any]", one) for one in each if isinstance(one, Mapping)]


def _asked(said: Mapping[str, Any]) -> Message | None:
    calls = [call for each in _entries(said.get("tool_calls")) if (call := _listed(each)) is not None]
    role = said.get("role") or ("assistant" if calls else "tool" if said.get("tool_call_id") else None)
    if not isinstance(role, str) or role not in _ROLES:
        return None
    if role == "assistant" and calls:
        return {"role": role, "content": said.get("content") or None, "tool_calls": calls}
    message: Message = {"role": role, "content": said.get("content", "")}
    if role == "tool":
        message["tool_call_id"] = said.get("tool_call_id")
    if role == "function":
        message["name"] = said.get("name")
    return message


def _answered(said: Mapping[str, Any], used: list[dict[str, Any]]) -> Message | None:
    if said.get("role") != "assistant":
        return None
    message: Message = {"role": "assistant", "content": said.get("content")}
    calls = used or [call for each in _entries(said.get("tool_calls")) if (call := _listed(each)) is not None]
    return {**message, "tool_calls": calls} if calls else message


def _used(tool: Any) -> dict[str, Any] | None:
    """Return the call that the span of a tool is of."""
    if not isinstance(tool, Mapping):
        return None
    said = cast("Mapping[str, Any]", tool)
    call: Any = said.get("call")
    ids = cast("Mapping[str, Any]", call) if isinstance(call, Mapping) else dict[str, Any]()
    return _call(ids.get("id"), ids.get("type"), said.get("name"), said.get("parameters"))


def _listed(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a call as a message lists it: its function's parts beside its id, or below `function`."""
    nested: Any = said.get("function")
    function = cast("Mapping[str, Any]", nested) if isinstance(nested, Mapping) else said
    return _call(said.get("id"), "function", function.get("name"), function.get("arguments"))


def _call(call_id: Any, kind: Any, name: Any, arguments: Any) -> dict[str, Any] | None:
    """Return a tool call in OpenAI's form; without an id nothing could answer it, without a name it calls nothing."""
    if not isinstance(call_id, str) or not isinstance(name, str):
        return None
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return {"id": call_id, "type": kind or "function", "function": {"name": name, "arguments": text}}


def _function(said: Mapping[str, Any]) -> dict[str, Any]:
    parameters = said.get("parameters")
    if isinstance(parameters, str):
        try:
            parameters = orjson.loads(parameters)
        except (ValueError, RecursionError):
            parameters = None
    return {
        "type": "function",
        "function": {
            "name": said["name"],
            "description": said.get("description", ""),
            "parameters": dict[str, Any]() if parameters is None else parameters,
        },
    }


def _json(value: Any) -> str:
    try:
        return "{}" if value is None else orjson.dumps(value).decode()
    except (TypeError, ValueError, RecursionError):
        return "{}"
