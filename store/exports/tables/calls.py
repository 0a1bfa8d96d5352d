"""The tables `model_calls` and `messages`: calls that generate text, in every convention of attributes.

Several spans may record the same call, which is then one row. Its texts come from the span of a tracer in the agent.
Values that this span lacks, such as token ids that a proxy recorded, come from the other spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from store.adapters.openai_form import tool_call
from store.exports.records import ExportedCall, RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, SPAN_ID, json_text
from store.model_calls import Message
from store.model_calls.attributes import VERSION


def call_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's calls."""
    return [_call_row(call) for call in record.calls]


def _call_row(call: ExportedCall) -> Row:
    span, value, usage = call.spans[0], call.value, call.value.usage
    first = value.choices[0] if value.choices else None
    versions = (version for span in call.spans if isinstance(version := span.attributes.get(VERSION), str))
    return (
        span.rollout_id,
        span.attempt_id,
        call.number,
        span.span_id,
        json_text([span.span_id for span in call.spans]),
        span.start_time,
        span.end_time,
        span.status.status_code,
        value.protocol,
        value.model,
        value.response_model,
        next(versions, None),
        value.response_id,
        json_text(value.settings),
        json_text(list(value.tools)),
        len(value.messages),
        len(value.choices),
        None if first is None else first.finish_reason,
        value.is_streaming,
        value.is_incomplete,
        usage.prompt,
        usage.completion,
        usage.total,
        usage.cached,
        usage.cache_write,
        usage.reasoning,
        value.prompt_token_ids or None,
        (first.token_ids or None) if first is not None else None,
    )


def message_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of the messages of a rollout's calls."""
    return [row for call in record.calls for row in _rows_of_call(call)]


def _rows_of_call(call: ExportedCall) -> Iterator[Row]:
    span = call.spans[0]
    answers: list[tuple[Message, int | None]] = [
        *((message, None) for message in call.value.messages),
        *((choice.message, number) for number, choice in enumerate(call.value.choices)),
    ]
    for place, (message, choice) in enumerate(answers, start=1):
        calls = [form for part in message.tool_calls if (form := tool_call(part)) is not None]
        media: list[Any] = [part.item for part in message.media]
        yield (
            span.rollout_id,
            span.attempt_id,
            call.number,
            place,
            span.span_id,
            choice is not None,
            choice,
            message.role,
            message.name,
            message.text,
            message.thinking or None,
            json_text(calls or None),
            message.call_id,
            json_text(media or None),
        )


_CALL: Final = TableColumn("call", "int64", "The number of the call in its attempt, from 1.", is_nullable=False)

MODEL_CALLS: Final = Table(
    "model_calls",
    "One row for each call of a model that generates text.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        _CALL,
        SPAN_ID,
        TableColumn("span_ids", "json", "All spans that record the call."),
        TableColumn("start_time", "timestamp", "The start of the span."),
        TableColumn("end_time", "timestamp", "The end of the span."),
        TableColumn("status_code", "text", "`ERROR` if the call failed.", is_nullable=False),
        TableColumn("protocol", "text", "`chat`, `completions`, `responses` or `messages`."),
        TableColumn("model", "text", "The model in the request."),
        TableColumn("response_model", "text", "The model in the response."),
        TableColumn("model_version", "text", "The version of the weights, if a proxy recorded it."),
        TableColumn("response_id", "text", "The id of the response."),
        TableColumn("settings", "json", "Settings of the request, such as `temperature`."),
        TableColumn("tools", "json", "The tools that the model could call."),
        TableColumn("prompt_messages", "int64", "The number of messages of the prompt.", is_nullable=False),
        TableColumn("choices", "int64", "The number of choices of the response.", is_nullable=False),
        TableColumn("finish_reason", "text", "Why the first choice ended."),
        TableColumn("is_streaming", "bool", "Whether the response was a stream.", is_nullable=False),
        TableColumn("is_incomplete", "bool", "Whether the end of the response is missing.", is_nullable=False),
        TableColumn("prompt_tokens", "int64", "Tokens of the prompt, cached ones included."),
        TableColumn("completion_tokens", "int64", "Tokens of the response, those of reasoning included."),
        TableColumn("total_tokens", "int64", "Tokens of both."),
        TableColumn("cached_tokens", "int64", "Tokens of the prompt that were read from a cache."),
        TableColumn("cache_write_tokens", "int64", "Tokens of the prompt that were written to a cache."),
        TableColumn("reasoning_tokens", "int64", "Tokens of the reasoning."),
        TableColumn("prompt_token_ids", "int64s", "The token ids of the prompt."),
        TableColumn("response_token_ids", "int64s", "The token ids of the first choice."),
    ),
    call_rows,
    reads=frozenset({READ_SPANS}),
    bulk=(14,),
)
MESSAGES: Final = Table(
    "messages",
    "One row for each message of a call: those of the prompt, then those of the response.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        _CALL,
        TableColumn("place", "int64", "The number of the message in its call, from 1.", is_nullable=False),
        SPAN_ID,
        TableColumn("is_response", "bool", "Whether the model generated the message in this call.", is_nullable=False),
        TableColumn("choice", "int64", "The number of the choice of the response, from 0."),
        TableColumn("role", "text", "`system`, `user`, `assistant` or `tool`; empty if unknown.", is_nullable=False),
        TableColumn("name", "text", "The name of the participant."),
        TableColumn("content", "text", "The text of the message and of its tool results."),
        TableColumn("reasoning", "text", "The reasoning of the model."),
        TableColumn("tool_calls", "json", "The tool calls in OpenAI's form."),
        TableColumn("tool_call_id", "text", "The first tool call whose result the message contains."),
        TableColumn("media", "json", "Images and other parts that are not text."),
    ),
    message_rows,
    reads=frozenset({READ_SPANS}),
    bulk=(9, 13),
)
