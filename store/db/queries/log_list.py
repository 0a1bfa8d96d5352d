"""The log as shown on pages: events without payload, newest first, and a summary of the whole log.

The log is the list of all events of a store, and a position is the place of an event in the log. A stream contains the
events of one object, such as a rollout. A partition is one independent store in a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, and_, bindparam, func, select
from sqlalchemy.types import Text

from store.db.dialect import NamedRow, ReadSession
from store.db.tables import core as core_tables

LOOKED_AT: Final = 50_000
"""The maximum number of positions that are searched for events of a type or an actor, which have no index."""
SHOWN: Final = 2000
"""The maximum number of characters that are read of an event's data. `rollbook history` shows the complete data."""

_BEYOND: Final = 2**62


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
    data: str
    """The data as JSON, truncated after `SHOWN` characters."""
    length: int
    """The length of the complete data in characters."""


@dataclass(frozen=True, slots=True)
class Sought:
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


async def log_rows(session: ReadSession, sought: Sought) -> LogRows:
    """Return the newest matching events.

    If a stream is selected, the whole stream is searched. Otherwise at most `LOOKED_AT` positions are searched.
    """
    event = core_tables.events.c
    before = _BEYOND if sought.before is None else sought.before
    ((last,),) = await session.fetch(session.dialect.sql(select(func.coalesce(func.max(event.position), 0))), {})
    # New events are only added after `last`, so the events in the searched range do not change.
    floor = 0 if sought.stream is not None else max(0, min(before, last + 1) - 1 - LOOKED_AT)
    terms = [event.position < bindparam("before", type_=BigInteger)]
    if floor:
        terms.append(event.position > bindparam("floor", type_=BigInteger))
    for column, value in ((event.stream, sought.stream), (event.type, sought.type), (event.actor, sought.actor)):
        if value is not None:
            terms.append(column == bindparam(f"of_{column.name}", type_=Text))
    order = event.position if sought.stream is None else event.version
    statement: Select[Any] = select(*_shown()).where(and_(*terms)).order_by(order.desc()).limit(sought.limit + 1)
    params = {"before": before, "floor": floor, "of_type": sought.type, "of_actor": sought.actor}
    found = await session.fetch(session.dialect.sql(statement), params | {"of_stream": sought.stream})
    rows = [_log_row(row) for row in found[: sought.limit]]
    if len(found) > sought.limit:
        return LogRows(rows, rows[-1].position, rows[-1].position)
    return LogRows(rows, floor + 1 if floor else None, floor + 1)


def _log_row(row: NamedRow) -> LogRow:
    *columns, stored = row
    # SQLite does not enforce the types of columns.
    data = stored if isinstance(stored, str) else repr(stored)
    return LogRow(*columns, data=data[:SHOWN], length=len(data))


def _shown() -> Sequence[ColumnElement[Any]]:
    event = core_tables.events.c
    names = ("position", "commit_id", "stream", "version", "type", "at", "actor", "cause", "data")
    return [event[name] for name in names]


@dataclass(frozen=True, slots=True)
class LogSummary:
    """Summary of a partition, of its log and of its database. Times are microseconds since the epoch."""

    store_id: str
    created_at: int
    log_format: int
    database: str
    """The URL of the partition without the password."""
    size_bytes: int
    commit_id: int
    position: int
    recorded_at: int | None
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


async def whole(session: ReadSession) -> LogSummary:
    """Return the summary of a partition. The totals are read from the last commit."""
    info, commit = core_tables.store_info.c, core_tables.commits.c
    about: list[ColumnElement[Any]] = [info.store_id, info.created_at, info.log_format]
    named = await session.fetch(session.dialect.sql(select(*about)), {})
    totals: list[ColumnElement[Any]] = [commit[name] for name in _TOTALS]
    statement = select(*totals).order_by(commit.commit_id.desc()).limit(1)
    rows = await session.fetch(session.dialect.sql(statement), {})
    commit_id, position, at, head, *counts = rows[0] if rows else (0, 0, None, b"", *[0] * 7)
    place = session.dialect.url.shown, await session.dialect.size_bytes()
    found: list[Any] = [*named[0], *place, commit_id, position, at, bytes(head).hex(), *counts]
    return LogSummary(*found)


_TOTALS: Final = (
    "commit_id",
    "last_position",
    "recorded_at",
    "chain_hash",
    "events",
    "rollouts",
    "attempts",
    "spans",
    "resources",
    "workers",
    "body_bytes",
)
