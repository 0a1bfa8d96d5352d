"""Spans as rows of a waterfall chart. A span is a step of an attempt to execute a rollout (a task for an agent).

The values come from the table `spans` and from the data of the spans' events. Bodies, which contain the payload of
events, are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, bindparam, select
from sqlalchemy.types import BigInteger, Text

from store import semconv
from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.pages import LONGEST_ID
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.events import SpanRecorded, upcast
from store.validation.json_limits import check_text

_KINDS: Final = {
    semconv.MESSAGE_SPAN: "message",
    semconv.OBJECT_SPAN: "object",
    semconv.EXCEPTION_SPAN: "exception",
    semconv.OPERATION_SPAN: "operation",
    semconv.ANNOTATION_SPAN: "annotation",
}
KINDS: Final = ("model", "tool", "reward", "annotation", "message", "object", "operation", "exception", "span")
"""The values of `SpanRow.kind`."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One span of a waterfall chart. Times are float seconds since the epoch, exactly as the sender gave them."""

    position: int
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    """One of `KINDS`. `model` and `tool` stand for a call of a model and a call of a tool."""
    start: float | None
    end: float | None
    status: str
    sequence_id: int
    reward: float | None
    tokens_in: int | None
    tokens_out: int | None
    model: str | None
    response_id: str | None = None
    """The id of the model's response. The spans of one attempt with the same id record the same call."""


@dataclass(frozen=True, slots=True)
class SpansWanted:
    """A selection of the spans of one attempt."""

    rollout_id: str
    attempt_id: str
    after: int = 0
    """Only spans whose events are after this position of the log."""
    until: int | None = None
    """Only spans whose events are at or before this position of the log; None for all."""
    limit: int = 200


async def span_rows(session: ReadSession, wanted: SpansWanted) -> list[SpanRow]:
    """Return the selected spans in the order in which the store recorded them."""

    def build() -> Select[Any]:
        span, event = core_tables.spans.c, core_tables.events.c
        columns: list[ColumnElement[Any]] = [
            event.position,
            *(span[name] for name in _COLUMNS),
            event.type,
            event.shape,
            event.data,
        ]
        return (
            select(*columns)
            .select_from(core_tables.spans.join(core_tables.events, event.position == span.position))
            .where(
                span.rollout_id == bindparam("of_rollout", type_=Text),
                span.attempt_id == bindparam("of_attempt", type_=Text),
                span.position > bindparam("after", type_=BigInteger),
                span.position <= bindparam("until", type_=BigInteger),
            )
            .order_by(span.position)
            .limit(bindparam("most", type_=BigInteger))
        )

    params = {
        "of_rollout": check_text(wanted.rollout_id, "rollout_id", LONGEST_ID),
        "of_attempt": check_text(wanted.attempt_id, "attempt_id", LONGEST_ID),
        "after": wanted.after,
        "until": 2**62 if wanted.until is None else wanted.until,
        "most": wanted.limit,
    }
    return [_row(row) for row in await session.fetch(compiled(session, "waterfall", build), params)]


_COLUMNS: Final = (
    "span_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
    "status_code",
    "sequence_id",
)


def _row(row: NamedRow) -> SpanRow:
    position, span_id, parent_id, name, start, end, status, sequence_id, type_, shape, data = row
    fact = upcast(type_, shape, json_of(data))
    assert isinstance(fact, SpanRecorded)  # the position of a span is that of the event that recorded it
    reward = _reward(fact.rewards)
    return SpanRow(
        position,
        span_id,
        parent_id,
        name,
        _kind(name, fact, reward),
        start,
        end,
        status,
        sequence_id,
        reward,
        fact.tokens_in,
        fact.tokens_out,
        fact.model,
        fact.response_id,
    )


def _reward(rewards: Sequence[Sequence[Any]] | None) -> float | None:
    """Return the value of a span's first reward, which is the primary one."""
    return float(rewards[0][1]) if rewards else None


def _kind(name: str, fact: SpanRecorded, reward: float | None) -> str:
    if reward is not None:
        return "reward"
    if fact.kind and fact.kind.startswith("tool"):
        return "tool"
    if fact.model or fact.response_id or fact.tokens_out is not None:
        return "model"
    return _KINDS.get(name, "span")
