"""Conversion of spans to chat messages in OpenAI's form, with tool calls and tools, for fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict

from store.adapters.base import TraceAdapter
from store.adapters.intake import Timed, sort_in
from store.adapters.openai_form import answer_message, function_call, openai_tool, prompt_messages
from store.adapters.selection import has_failed, is_of_a_proxy
from store.model_calls import call_of
from store.model_calls.json_values import as_object, to_json
from store.model_calls.nested import below
from store.model_calls.recorded import RESPONSE_IDS, response_id
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
    return [
        conversation
        for call in _calls(spans)
        for conversation in _conversations(call.span.attributes, children.get(call.span.span_id, ()))
    ]


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


def _conversations(attributes: Mapping[str, Any], children: Iterable[Mapping[str, Any]]) -> list[OpenAIMessages]:
    """Return one conversation for each choice of a call; all of them have the same prompt."""
    call = call_of(attributes)
    prompt = [message for part in call.messages for message in prompt_messages(part)]
    used = [tool for child in children if (tool := _tool_span_call(below(child, "tool"))) is not None]
    answers = [answer for choice in call.choices if (answer := answer_message(choice.message, used)) is not None]
    tools = [openai_tool(tool) for tool in call.tools if "name" in tool] or None
    return [{"messages": [*prompt, *each], "tools": tools} for each in ([[answer] for answer in answers] or [[]])]


def _tool_span_call(tool: Any) -> dict[str, Any] | None:
    """Return the tool call that the attributes of a tool's span describe."""
    if not isinstance(tool, Mapping):
        return None
    fields = as_object(tool)
    ids, arguments = as_object(fields.get("call")), fields.get("parameters")
    call = function_call(ids.get("id"), fields.get("name"), "{}" if arguments is None else to_json(arguments))
    return call and {**call, "type": ids.get("type") or "function"}
