"""Conversion of spans to chat messages in OpenAI's form, with tool calls and tools, for fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, TypedDict

from store.adapters.base import TraceAdapter
from store.adapters.intake import Timed, sort_in
from store.adapters.openai_form import answer_message, function_call, openai_tool, prompt_messages
from store.adapters.recordings import group_recordings, has_failed, is_of_a_proxy
from store.model_calls import ModelCall, Usage, call_of
from store.model_calls.json_values import as_object, to_json
from store.model_calls.nested import below
from store.models import Span

__all__ = ["OpenAIMessages", "TraceToMessages", "merged_call", "recorded_calls"]

_OF_A_CALL: Final = ("gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request.", "gen_ai.response.")
_OPERATION: Final = "gen_ai.operation.name"
_CALL_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content", "responses"})
_OTHER_OPERATIONS: Final = frozenset(
    {"create_agent", "embeddings", "execute_tool", "invoke_agent", "invoke_workflow", "plan", "retrieval"}
)
_KINDS: Final = ("openinference.span.kind", "traceloop.span.kind", "agentops.span.kind")
_MESSAGES: Final = ("gen_ai.input.messages", "gen_ai.output.messages")

Message = dict[str, Any]


class OpenAIMessages(TypedDict):
    """One model call as a line of a fine-tuning file."""

    messages: list[Message]
    """The messages of the prompt, followed by the response."""
    tools: list[dict[str, Any]] | None
    """The tools that the model could call, or None if the request contained no tools."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Adapter that converts the spans of model calls to chat messages as plain dicts.

    Spans that record the same call are one conversation. A call that failed without a response is left out, and so are
    spans of agents, tools and embeddings. If some direct children of a call's span describe tools, these children are
    the tool calls of the response. Otherwise, the tool calls are those that the call's span lists. Malformed values are
    skipped. A message of the prompt without a role gets the role that its fields imply. If the fields imply no role,
    the message is left out.
    """

    def adapt(self, source: Iterable[Any], /) -> list[OpenAIMessages]:
        """Return the messages of every call, in the order of time.

        Args:
            source: spans of the store or of the OpenTelemetry SDK. The spans may belong to several attempts. The
                result has the messages of one attempt after those of another.

        Raises:
            Invalid: the source is not a sequence.
        """
        attempts, _ = sort_in(source)
        return [conversation for attempt in attempts for conversation in _attempt_messages(attempt.spans)]


def _attempt_messages(spans: list[Timed]) -> list[OpenAIMessages]:
    children: dict[str, list[Mapping[str, Any]]] = {}
    for timed in spans:
        if timed.span.parent_id is not None:
            children.setdefault(timed.span.parent_id, []).append(timed.span.attributes)
    return [
        conversation
        for call, *_ in recorded_calls(spans)
        if not _is_unanswered(call.span)
        for conversation in _conversations(call.span.attributes, children.get(call.span.span_id, ()))
    ]


def recorded_calls(spans: list[Timed]) -> list[list[Timed]]:
    """Return the spans of each call that generates text, calls in the order of time.

    The first span of a call is that of a tracer in the agent if there is one, else a proxy's; the first without a
    failure if there is one. The other spans record the same call.
    """
    calls = [timed for timed in spans if _is_call(timed.span.attributes)]
    call_of = {timed.span.span_id: number for number, call in enumerate(group_recordings(spans)) for timed in call}
    recordings: dict[int | str, list[Timed]] = {}
    for call in sorted(calls, key=lambda call: (_is_unanswered(call.span), is_of_a_proxy(call.span), call.place)):
        recordings.setdefault(call_of.get(call.span.span_id, call.span.span_id), []).append(call)
    return sorted(recordings.values(), key=lambda call: call[0].place)


def merged_call(recordings: Sequence[Timed]) -> ModelCall:
    """Return the call that the first of some spans records, with values that it lacks from the others."""
    first, *others = [call_of(recording.span.attributes) for recording in recordings]
    for other in others:
        usage = {name: count for name, count in asdict(first.usage).items() if count is not None}
        choices = first.choices or other.choices
        if choices and other.choices:
            choice, reserve = choices[0], other.choices[0]
            filled = replace(
                choice, token_ids=choice.token_ids or reserve.token_ids, logprobs=choice.logprobs or reserve.logprobs
            )
            choices = (filled, *choices[1:])
        first = replace(
            first,
            model=first.model or other.model,
            response_model=first.response_model or other.response_model,
            response_id=first.response_id or other.response_id,
            messages=first.messages or other.messages,
            tools=first.tools or other.tools,
            choices=choices,
            prompt_token_ids=first.prompt_token_ids or other.prompt_token_ids,
            usage=Usage(**{**asdict(other.usage), **usage}),
        )
    return first


def _is_call(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span is a call that generates text: not a call for embeddings, and no agent or tool."""
    operation = attributes.get(_OPERATION)
    kinds = {kind.lower() for name in _KINDS if isinstance(kind := attributes.get(name), str)} - {"", "unknown"}
    if operation in _CALL_OPERATIONS or operation in _OTHER_OPERATIONS:
        return operation in _CALL_OPERATIONS
    if kinds:
        return "llm" in kinds
    # An operation with an unknown name is a call if it has attributes of a completion, which only calls have.
    names = ("gen_ai.completion.",) if isinstance(operation, str) else (*_OF_A_CALL, *_MESSAGES)
    return any(name.startswith(names) for name in attributes)


def _is_unanswered(span: Span) -> bool:
    return has_failed(span) and not any(name.startswith("gen_ai.completion.") for name in span.attributes)


def _conversations(attributes: Mapping[str, Any], children: Iterable[Mapping[str, Any]]) -> list[OpenAIMessages]:
    """Return one conversation for each choice of a call; all of them have the same prompt."""
    call = call_of(attributes)
    prompt = [message for part in call.messages for message in prompt_messages(part)]
    used = [tool for child in children if (tool := _tool_span_call(below(child, "tool"))) is not None]
    answers = [answer for choice in call.choices if (answer := answer_message(choice.message, used)) is not None]
    tools = [openai_tool(tool) for tool in call.tools if "name" in tool] or None
    conversations = [[*prompt, answer] for answer in answers] or [prompt]
    return [{"messages": messages, "tools": tools} for messages in conversations]


def _tool_span_call(tool: Any) -> dict[str, Any] | None:
    """Return the tool call that the attributes of a tool's span describe."""
    if not isinstance(tool, Mapping):
        return None
    fields = as_object(tool)
    ids, arguments = as_object(fields.get("call")), fields.get("parameters")
    call = function_call(ids.get("id"), fields.get("name"), "{}" if arguments is None else to_json(arguments))
    return call and {**call, "type": ids.get("type") or "function"}
