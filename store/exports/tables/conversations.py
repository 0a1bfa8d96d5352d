"""The table `conversations` of the format sft: the messages of the latest attempt of each rollout, for fine-tuning.

A call continues a conversation if its prompt begins with all messages of the conversation, and its tools are the same.
Any other call begins a new conversation. In a new conversation, the messages of the prompt have no loss, even if an
earlier conversation contains them. So each response has a loss in exactly one conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from store.adapters.messages import TraceToMessages
from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, json_text

_ADAPTER: Final = TraceToMessages()


@dataclass(slots=True)
class _Conversation:
    """The messages of calls that continue each other."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    mask: list[int]
    """For each message, 1 if the loss includes the message, else 0. The loss includes the responses of the calls."""
    keys: list[bytes] = field(default_factory=list[bytes])
    """For each message, a key that is equal for repetitions of the message."""


def conversations(record: RolloutRecord) -> list[_Conversation]:
    """Return the conversations of the latest attempt, in the order of their first calls."""
    latest = record.latest_attempt
    spans = [span for span in record.span_models if latest is not None and span.attempt_id == latest.attempt_id]
    lines: list[_Conversation] = []
    for call in _ADAPTER.adapt(spans):
        messages = [_trainable(message) for message in call["messages"]]
        if not messages or messages[-1].get("role") != "assistant":
            continue  # the call has no response
        keys = [_key(message) for message in messages]
        before = next((one for one in reversed(lines) if _continues(one, keys, call["tools"])), None)
        mask = [0] * (len(messages) - 1) + [1]
        if before is None:
            lines.append(_Conversation(messages, call["tools"], mask, keys))
        else:
            added = len(before.messages)
            before.messages += messages[added:]
            before.mask += mask[added:]
            before.keys = keys
    return lines


def _continues(before: _Conversation, keys: Sequence[bytes], tools: Any) -> bool:
    length = len(before.keys)
    return length < len(keys) and keys[:length] == before.keys and before.tools == tools


def _key(message: dict[str, Any]) -> bytes:
    # A client may repeat a response with empty text instead of null, or without the refusal.
    parts = (message.get("role"), message.get("content") or "", message.get("tool_calls") or None)
    return orjson.dumps(parts)


def _trainable(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which arguments of tool calls are objects instead of JSON text, as chat templates expect."""
    calls = message.get("tool_calls")
    return message if not calls else {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    try:
        arguments: Any = orjson.loads(function["arguments"])  # pyright: ignore[reportUnknownArgumentType]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def conversation_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of the conversations of a rollout's latest attempt."""
    rollout = record.rollout
    return [
        (
            json_text(
                [
                    {**message, "weight": loss} if message.get("role") == "assistant" else message
                    for message, loss in zip(one.messages, one.mask, strict=True)
                ]
            ),
            json_text(one.tools),
            one.mask,
            rollout.reward,
            json_text(rollout.rewards),
            rollout.rollout_id,
            record.latest_attempt.attempt_id if record.latest_attempt is not None else "",
            record.group,
            record.step,
        )
        for one in conversations(record)
    ]


CONVERSATIONS: Final = Table(
    "conversations",
    "One row for each conversation of the latest attempt of a rollout.",
    (
        TableColumn("messages", "json", "The messages in OpenAI's form. Those of the model have a `weight`, 0 or 1."),
        TableColumn("tools", "json", "The tools that the model could call."),
        TableColumn("loss_mask", "int64s", "For each message, 1 if the loss includes it, else 0."),
        TableColumn("reward", "float64", "The final reward of the attempt."),
        TableColumn("rewards", "json", "By name, the last value of each reward."),
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("group_id", "text", "`rollbook.group` of the metadata."),
        TableColumn("step", "int64", "`rollbook.step` of the metadata."),
    ),
    conversation_rows,
    reads=frozenset({READ_SPANS}),
    bulk=(0,),
)
