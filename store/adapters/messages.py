"""Conversion of spans to chat messages in OpenAI's form, with tool calls and tools, for fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, cast

import orjson

from store.adapters.base import TraceAdapter
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
    """One model call as a line of a fine-tuning file."""

    messages: list[Message]
    """The messages of the prompt, followed by the response."""
    tools: list[dict[str, Any]] | None
    """The functions that the model could call, or None if the request contained no functions."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Adapter that converts the spans of model calls to chat messages as plain dicts.

    Spans with the same response id are one call. A call that failed without a response is left out. If some direct
    children of a call's span describe tools, these children are the tool calls of the response. Otherwise, the tool
    calls are those that the call's span lists. Malformed values are skipped. A message of the prompt without a role
    gets the role that its fields imply. If the fields imply no role, the message is left out.
    """

    def adapt(self, source: Iterable[Any], /) -> list[OpenAIMessages]:
        """Return the messages of every call, in the order of time.

        Args:
            source: spans of the store or of the OpenTelemetry SDK. The spans may belong to several attempts, executions
                of a task by an agent; the messages of each attempt are then together.

        Raises:
            Invalid: the source is not a sequence.
        """
        attempts, _ = sort_in(source)
        return [each for attempt in attempts for each in _attempt_messages(attempt.spans)]


def _attempt_messages(spans: list[Timed]) -> list[OpenAIMessages]:
    children: dict[str, list[Mapping[str, Any]]] = {}
    for timed in spans:
        if timed.span.parent_id is not None:
            children.setdefault(timed.span.parent_id, []).append(timed.span.attributes)
    return [_conversation(call.span.attributes, children.get(call.span.span_id, ())) for call in _calls(spans)]


def _calls(spans: list[Timed]) -> list[Timed]:
    """Return one span for each response: the span of a tracer in the agent if there is one, else a proxy's span."""
    calls = [timed for timed in spans if _is_call(timed.span.attributes) and not _is_unanswered(timed.span)]
    first: dict[str, Timed] = {}
    for call in sorted(calls, key=lambda call: (is_of_a_proxy(call.span), call.place)):
        first.setdefault(_answer(call), call)
    return [call for call in calls if first[_answer(call)] is call]


def _is_call(attributes: Mapping[str, Any]) -> bool:
    # The input of an embedding is no conversation.
    if attributes.get("gen_ai.operation.name") == "embeddings":
        return False
    return any(name.startswith(_OF_A_CALL) for name in attributes)


def _is_unanswered(span: Span) -> bool:
    return has_failed(span) and not any(name.startswith("gen_ai.completion.") for name in span.attributes)


def _answer(call: Timed) -> str:
    """Return a key that is equal for all spans of one call: the response id, or without it the span's own id."""
    found = response_id(call.span.attributes, RESPONSE_IDS)
    return f"span {call.span.span_id}" if found is None else f"response {found}"


def _conversation(call: Mapping[str, Any], children: Iterable[Mapping[str, Any]]) -> OpenAIMessages:
    prompts = [_prompt_message(message) for message in _entries(raw_content(call, "gen_ai.prompt"))]
    used = [tool for child in children if (tool := _tool_span_call(below(child, "tool"))) is not None]
    answers = [_answer_message(choice, used) for choice in _entries(raw_content(call, "gen_ai.completion"))]
    request = raw_content(call, "gen_ai.request")
    functions: Any = cast("Mapping[str, Any]", request).get("functions") if isinstance(request, Mapping) else None
    tools = [_function(each) for each in _entries(functions) if "name" in each]
    return {
        "messages": [message for message in (*prompts, *answers) if message is not None],
        "tools": tools or None,
    }


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; a single object is returned in a list."""
    each: list[Any] = indexed(value) or [value]
    return [cast("Mapping[str, Any]", one) for one in each if isinstance(one, Mapping)]


def _prompt_message(fields: Mapping[str, Any]) -> Message | None:
    calls = [call for each in _entries(fields.get("tool_calls")) if (call := _listed_call(each)) is not None]
    role = fields.get("role") or ("assistant" if calls else "tool" if fields.get("tool_call_id") else None)
    if not isinstance(role, str) or role not in _ROLES:
        return None
    if role == "assistant" and calls:
        return {"role": role, "content": fields.get("content") or None, "tool_calls": calls}
    message: Message = {"role": role, "content": fields.get("content", "")}
    if role == "tool":
        message["tool_call_id"] = fields.get("tool_call_id")
    if role == "function":
        message["name"] = fields.get("name")
    return message


def _answer_message(fields: Mapping[str, Any], used: list[dict[str, Any]]) -> Message | None:
    if fields.get("role") != "assistant":
        return None
    message: Message = {"role": "assistant", "content": fields.get("content")}
    calls = used or [call for each in _entries(fields.get("tool_calls")) if (call := _listed_call(each)) is not None]
    return {**message, "tool_calls": calls} if calls else message


def _tool_span_call(tool: Any) -> dict[str, Any] | None:
    """Return the tool call that the attributes of a tool's span describe."""
    if not isinstance(tool, Mapping):
        return None
    fields = cast("Mapping[str, Any]", tool)
    call: Any = fields.get("call")
    ids = cast("Mapping[str, Any]", call) if isinstance(call, Mapping) else dict[str, Any]()
    return _call(ids.get("id"), ids.get("type"), fields.get("name"), fields.get("parameters"))


def _listed_call(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tool call from the list in a message.

    The name and the arguments are either below `function` or on the same level as the id.
    """
    nested: Any = fields.get("function")
    function = cast("Mapping[str, Any]", nested) if isinstance(nested, Mapping) else fields
    return _call(fields.get("id"), "function", function.get("name"), function.get("arguments"))


def _call(call_id: Any, kind: Any, name: Any, arguments: Any) -> dict[str, Any] | None:
    """Return a tool call in OpenAI's form; None if the id or the name is missing, because OpenAI requires both."""
    if not isinstance(call_id, str) or not isinstance(name, str):
        return None
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return {"id": call_id, "type": kind or "function", "function": {"name": name, "arguments": text}}


def _function(fields: Mapping[str, Any]) -> dict[str, Any]:
    parameters = fields.get("parameters")
    if isinstance(parameters, str):
        try:
            parameters = orjson.loads(parameters)
        except (ValueError, RecursionError):
            parameters = None
    return {
        "type": "function",
        "function": {
            "name": fields["name"],
            "description": fields.get("description", ""),
            "parameters": dict[str, Any]() if parameters is None else parameters,
        },
    }


def _json(value: Any) -> str:
    try:
        return "{}" if value is None else orjson.dumps(value).decode()
    except (TypeError, ValueError, RecursionError):
        return "{}"
