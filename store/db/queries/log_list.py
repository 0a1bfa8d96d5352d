"""The log as shown on pages: events without payload, newest first, and a summary of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, func, literal, select
from sqlalchemy.types import Text

from store.db.dialect import ReadSession
from store.db.queries.pages import TOTALS
from store.db.queries.records import columns_of, records
from store.db.queries.run_views import END
from store.db.tables import core as core_tables

LOOKED_AT: Final = 50_000
"""The maximum number of positions that are searched for events of a type or an actor, which have no index."""
SHOWN: Final = 2000
"""The maximum number of characters that are read of an event's data. `rollbook history` shows the complete data."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One event of a list. Times are microseconds since the epoch."""

    position: int
    commit_id: int
    stream: str
    version: int
    type: str
    at: int
    actor: str | None
    cause: int | None
    """The position of the earlier event that caused this event; None if there is no such event."""
    data: str
    """The data as JSON, truncated after `SHOWN` characters."""
    length: int
    """The length of the complete data in characters."""


@dataclass(frozen=True, slots=True)
class EventListQuery:
    """A selection of events. None in a field means that the field does not restrict the selection."""

    stream: str | None = None
    type: str | None = None
    actor: str | None = None
    before: int | None = None
    """Only events before this position."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class LogRows:
    """Some events, newest first."""

    events: list[LogRow]
    next_before: int | None
    """The value of `before` for the next search; None if the search has reached the beginning of the log."""
    looked_back_to: int
    """The position up to which the search went back. `events` contains all matching events from this position on."""


async def log_rows(session: ReadSession, query: EventListQuery) -> LogRows:
    """Return the newest matching events.

    If a stream is selected, the whole stream is searched. Otherwise at most `LOOKED_AT` positions are searched.
    """
    event = core_tables.events.c
    before = END if query.before is None else query.before
    ends = await session.fetch(
        session.dialect.sql(select(func.coalesce(func.max(event.position), 0).label("last"))), {}
    )
    # New events are only added after `last`, so the events in the searched range do not change.
    floor = 0 if query.stream is not None else max(0, min(before, ends[0].last + 1) - 1 - LOOKED_AT)
    terms = [event.position < bindparam("before", type_=BigInteger)]
    if floor:
        terms.append(event.position > bindparam("floor", type_=BigInteger))
    for column, value in ((event.stream, query.stream), (event.type, query.type), (event.actor, query.actor)):
        if value is not None:
            terms.append(column == bindparam(f"of_{column.name}", type_=Text))
    order = event.position if query.stream is None else event.version
    # The length is computed from the data, because SQLite does not enforce the types of columns.
    columns = columns_of(LogRow, dict(event), {"length": literal(0)})
    statement = select(*columns).where(and_(*terms)).order_by(order.desc()).limit(query.limit + 1)
    params = {"before": before, "floor": floor, "of_type": query.type, "of_actor": query.actor}
    rows = await session.fetch(session.dialect.sql(statement), params | {"of_stream": query.stream})
    events = [_cut(row) for row in records(LogRow, rows[: query.limit])]
    if len(rows) > query.limit:
        return LogRows(events, events[-1].position, events[-1].position)
    return LogRows(events, floor + 1 if floor else None, floor + 1)


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The number of an attempt, and its start in µs since the epoch."""

    attempt_id: str
    sequence_id: int
    start_at: int


async def attempt_starts(session: ReadSession, rollout_ids: Sequence[str]) -> list[AttemptStart]:
    """Return the numbers and the starts of all attempts of some rollouts."""
    if not rollout_ids:
        return []
    attempt = core_tables.attempts.c
    statement = select(*columns_of(AttemptStart, dict(attempt))).where(
        session.dialect.any_of(attempt.rollout_id, "rollouts")
    )
    params = {"rollouts": session.dialect.list_param(list(rollout_ids))}
    return records(AttemptStart, await session.fetch(session.dialect.sql(statement), params))


def _cut(row: LogRow) -> LogRow:
    stored: Any = row.data
    data = stored if isinstance(stored, str) else repr(stored)
    return replace(row, data=data[:SHOWN], length=len(data))


@dataclass(frozen=True, slots=True)
class LogSummary:
    """Summary of a partition, of its log and of its database. Times are microseconds since the epoch."""

    store_id: str
    created_at: int
    log_format: int
    """The version of the format of the log."""
    database: str
    """The URL of the partition without the password."""
    size_bytes: int
    """The size of the partition on disk, in bytes."""
    commit_id: int
    """The id of the last commit."""
    position: int
    """The position of the last event."""
    recorded_at: int | None
    """The time of the last commit; None for an empty log."""
    chain_head: str
    """The hash of the last commit in hex. The hash covers all earlier commits too. Empty for an empty log."""
    events: int
    rollouts: int
    attempts: int
    spans: int
    resources: int
    workers: int
    body_bytes: int
    """The total size of all payload before compression, in bytes."""


async def log_summary(session: ReadSession) -> LogSummary:
    """Return the summary of a partition. The totals are read from the last commit."""
    info, commit = core_tables.store_info.c, core_tables.commits.c
    columns: list[ColumnElement[Any]] = [info.store_id, info.created_at, info.log_format]
    store = (await session.fetch(session.dialect.sql(select(*columns)), {}))[0]
    statement = select(*commit).order_by(commit.commit_id.desc()).limit(1)
    commits = await session.fetch(session.dialect.sql(statement), {})
    last = commits[0] if commits else None
    return LogSummary(
        store_id=store.store_id,
        created_at=store.created_at,
        log_format=store.log_format,
        database=session.dialect.url.shown,
        size_bytes=await session.dialect.size_bytes(),
        commit_id=0 if last is None else last.commit_id,
        position=0 if last is None else last.last_position,
        recorded_at=None if last is None else last.recorded_at,
        chain_head="" if last is None else bytes(last.chain_hash).hex(),
        **{name: 0 if last is None else getattr(last, name) for name in TOTALS},
    )
