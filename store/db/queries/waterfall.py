"""Spans as rows of a waterfall chart, from the table `spans` and the data of the spans' events, without payload."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import FromClause, Select, select

from store import semconv
from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.filters import SPANS, Columns, FilterQuery
from store.db.queries.input_starts import body_starts
from store.db.queries.pages import LONGEST_ID, spans_within
from store.db.queries.paging import Listing, read_rows
from store.db.queries.run_views import END
from store.db.tables import core as core_tables
from store.domain.events import SpanRecorded, upcast
from store.model_calls.span_kinds import KIND_ATTRIBUTES, kind_of_attributes, kind_of_name
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
_STORED_BYTES: Final = 8 * 1024
"""How much of a body is read to find the attribute that states the kind of its span."""
_STATED: Final = re.compile(rb'"(%s)":"([^"\\]{1,60})"' % "|".join(map(re.escape, KIND_ATTRIBUTES)).encode())


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
    span_kind: str = "other"
    """One of `store.model_calls.span_kinds.SPAN_KINDS`."""
    attempt_id: str = ""


@dataclass(frozen=True, slots=True)
class SpanRowQuery:
    """A selection of the spans of one attempt, or of all attempts of a rollout."""

    rollout_id: str
    attempt_id: str | None
    """None for all attempts."""
    after: int = 0
    """Only spans whose events are after this position of the log."""
    until: int | None = None
    """Only spans whose events are at or before this position of the log; None for all."""
    limit: int = 200


async def span_rows(session: ReadSession, query: SpanRowQuery) -> list[SpanRow]:
    """Return the selected spans in the order in which the store recorded them."""
    params: dict[str, Any] = {
        "rollout": check_text(query.rollout_id, "rollout_id", LONGEST_ID),
        "after": query.after,
        "until": END if query.until is None else query.until,
    }
    if query.attempt_id is not None:
        params["attempt"] = check_text(query.attempt_id, "attempt_id", LONGEST_ID)
    listing = Listing(
        FilterQuery(SPANS, limit=query.limit),
        dict(core_tables.spans.c),
        core_tables.spans,
        _with_events,
        within=lambda: spans_within(session.dialect, params, is_latest=False),
        within_params=tuple(params.items()),
        shape=("waterfall", *params),
    )
    recorded: list[tuple[NamedRow, SpanRecorded]] = []
    for row in await read_rows(session, listing):
        fact = upcast(row.type, row.shape, json_of(row.data))
        assert isinstance(fact, SpanRecorded)  # the position of a span is the position of the event that recorded it
        recorded.append((row, fact))
    unclear = [row.position for row, fact in recorded if not fact.rewards and kind_of_name(fact.name) is None]
    starts = await body_starts(session, unclear, _STORED_BYTES)
    return [_span_row(row, fact, starts.get(row.position, b"")) for row, fact in recorded]


def _with_events(span: Columns, source: FromClause) -> Select[Any]:
    event = core_tables.events.c
    of_span = [column for name, column in span.items() if name != "position"]
    columns = [*of_span, event.position, event.type, event.shape, event.data]
    return select(*columns).select_from(source.join(core_tables.events, event.position == span["position"]))


def _span_row(row: NamedRow, fact: SpanRecorded, body_start: bytes) -> SpanRow:
    reward = _reward(fact.rewards)
    kind = _kind(row.name, fact, reward)
    return SpanRow(
        position=row.position,
        span_id=row.span_id,
        parent_id=row.parent_id,
        name=row.name,
        kind=kind,
        start=row.start_time,
        end=row.end_time,
        status=row.status_code,
        sequence_id=row.sequence_id,
        reward=reward,
        tokens_in=fact.tokens_in,
        tokens_out=fact.tokens_out,
        model=fact.model,
        response_id=fact.response_id,
        span_kind=_span_kind(row.name, kind, body_start),
        attempt_id=row.attempt_id,
    )


def _reward(rewards: Sequence[Sequence[Any]] | None) -> float | None:
    """Return the first value of a span's reward, which is the primary value; None if the span has no reward."""
    return float(rewards[0][1]) if rewards else None


def _kind(name: str, fact: SpanRecorded, reward: float | None) -> str:
    if reward is not None:
        return "reward"
    if fact.kind and fact.kind.startswith("tool"):
        return "tool"
    if fact.model or fact.response_id or fact.tokens_out is not None:
        return "model"
    return _KINDS.get(name, "span")


def _span_kind(name: str, kind: str, body_start: bytes) -> str:
    """Return the kind of a span by the rules of `span_kind`, from the beginning of its body instead of all of it."""
    if kind == "reward":
        return kind
    if (stated := kind_of_name(name)) is not None:
        return stated
    attributes = {name.decode(): value.decode("utf-8", "replace") for name, value in _STATED.findall(body_start)}
    if (stated := kind_of_attributes(attributes)) is not None:
        return stated
    return {"tool": "tool", "model": "llm"}.get(kind, "other")
