"""Reads of the log: events by position and by stream, commits, and the bodies of events.

The shape of a fact is the version of its fields. Long reads fetch one page after another by key. They need little
memory and no cursor, on SQLite and Postgres, inside and outside of a transaction. Functions return rows of the tables.
`event_of` converts a row to an `Event`.
"""

from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, literal_column, select, tuple_
from sqlalchemy.types import BigInteger, Text

from store.db.data_blocks import json_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.pages import TOTALS
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.events import FACTS, Event, Fact, Json, encode, upcast

EVENT_COLUMNS = tuple(column.name for column in core_tables.events.columns)
BATCH = 5000

_totals = attrgetter(*TOTALS)
_POSITIONS_AT_ONCE = 500
_END = 2**62


def fact_of(row: NamedRow) -> Fact:
    """Return the fact in a row of `events`. A fact of an older shape is converted to the current shape.

    Raises:
        Incompatible: a newer version of this program wrote a type or a shape that this version does not know.
        Corrupt: the data is not JSON, or its block is missing or damaged.
    """
    return upcast(row.type, row.shape, json_of(row.data))


def event_of(row: NamedRow) -> Event:
    """Return the event of a row of `events`, without its body.

    Raises:
        Incompatible: a newer version of this program wrote a type or a shape that this version does not know.
        Corrupt: the data is not JSON, or its block is missing or damaged.
    """
    fact = fact_of(row)
    return Event(row.position, row.stream, row.version, row.command, row.at, row.actor, row.cause, fact)


def described(row: NamedRow, body: Json | None) -> Json:
    """Return the fields of `HistoryEvent` for a row of `events` and its payload.

    Raises:
        Incompatible: a newer version of this program wrote a type or a shape that this version does not know.
        Corrupt: the data is not JSON, or its block is missing or damaged.
    """
    fact = FACTS.get(row.type)
    is_current = fact is not None and fact.shape == row.shape
    return {
        "number": row.version,
        "position": row.position,
        "at": row.at / 1_000_000,
        "type": row.type,
        "shape": row.shape,
        "actor": row.actor,
        "cause": row.cause,
        "data": json_of(row.data) if is_current else orjson.loads(encode(fact_of(row))),
        "body": body,
        "body_hash": None if row.body_hash is None else bytes(row.body_hash).hex(),
    }


def _int(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=BigInteger)


def _text(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text)


def _with_body(statement: Select[Any], *beyond: ColumnElement[bool]) -> Select[Any]:
    body, event = core_tables.bodies.c, core_tables.events.c
    joined = statement.outerjoin(core_tables.bodies, and_(body.position == event.position, *beyond))
    return joined.add_columns(body.codec, body.body)


async def events(
    session: ReadSession,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int = BATCH,
    stream: str | None = None,
    types: Sequence[str] | None = None,
    bodies: bool = False,
) -> Sequence[NamedRow]:
    """Return rows of `events` in the order of the log.

    Args:
        session: a connection to the database.
        after: only events with greater positions than this one.
        until: only events with positions up to this one; None for all.
        limit: the maximum number of rows.
        stream: only events of this stream; None for all.
        types: only events of these types; None for all.
        bodies: whether to add codec and bytes of each event's body. They are null if the event has no body.
    """

    def build() -> Select[Any]:
        event = core_tables.events.c
        statement = select(*event).where(event.position > _int("after"), event.position <= _int("until"))
        if stream is not None:
            statement = statement.where(event.stream == _text("of_stream"))
        if types is not None:
            statement = statement.where(session.dialect.any_of(event.type, "of_types"))
        # Versions of a stream ascend with positions, and the order by version uses the index of streams.
        order = event.position if stream is None else event.version
        statement = statement.order_by(order).limit(_int("at_most"))
        # This condition also limits the bodies. Otherwise Postgres would read all bodies from the first one on.
        return _with_body(statement, core_tables.bodies.c.position > _int("after")) if bodies else statement

    sql = compiled(session, ("events", stream is None, types is None, bodies), build)
    params: dict[str, Any] = {"after": after, "until": _END if until is None else until, "at_most": limit}
    if stream is not None:
        params["of_stream"] = stream
    if types is not None:
        params["of_types"] = session.dialect.list_param(list(types))
    return await session.fetch(sql, params)


async def all_events(
    session: ReadSession, *, after: int = 0, until: int | None = None, batch: int = BATCH
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield the rows of `events` in the order of the log, in batches."""
    while rows := await events(session, after=after, until=until, limit=batch):
        yield rows
        after = rows[-1].position


async def stream_events(
    session: ReadSession,
    stream: str,
    *,
    types: Sequence[str] = (),
    after: int = 0,
    until: int | None = None,
    limit: int = BATCH,
    newest: bool = False,
    bodies: bool = False,
) -> Sequence[NamedRow]:
    """Return rows of `events` of one stream, in the order of versions.

    Args:
        session: a connection to the database.
        stream: the name of the stream, such as `rollout/ro-…`.
        types: only events of these types; an empty sequence means all types.
        after: only events with greater versions than this one.
        until: only events with positions up to this one; None for all.
        limit: the maximum number of rows.
        newest: whether to return the last rows instead of the first ones. The order is the same.
        bodies: whether to add codec and bytes of each event's body. They are null if the event has no body.
    """

    def build() -> Select[Any]:
        event = core_tables.events.c
        statement = (
            select(*event)
            .where(event.stream == _text("of_stream"), event.version > _int("after"), event.position <= _int("until"))
            .order_by(event.version.desc() if newest else event.version)
            .limit(_int("at_most"))
        )
        if types:
            statement = statement.where(session.dialect.any_of(event.type, "types"))
        return _with_body(statement) if bodies else statement

    sql = compiled(session, ("stream_events", bool(types), newest, bodies), build)
    params = {
        "of_stream": stream,
        "types": session.dialect.list_param(list(types)),
        "after": after,
        "until": _END if until is None else until,
        "at_most": limit,
    }
    rows = await session.fetch(sql, params)
    return rows[::-1] if newest else rows


async def events_by_stream(
    session: ReadSession,
    prefix: str,
    *,
    after: tuple[str, int] = ("", 0),
    until: int | None = None,
    batch: int = BATCH,
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield, in batches, the rows of `events` of all streams whose names have a prefix, ordered by stream and version.

    Args:
        session: a connection to the database.
        prefix: the prefix, such as `rollout/`. Its last character must be below U+10FFFF.
        after: the stream and version after which to continue.
        until: only events with positions up to this one; None for all.
        batch: the number of rows in a batch. The events of a stream may continue in the next batch.
    """

    def build() -> Select[Any]:
        event = core_tables.events.c
        return (
            select(*event)
            .where(
                tuple_(event.stream, event.version) > tuple_(_text("stream"), _int("version")),
                event.stream < _text("end"),
                event.position <= _int("until"),
            )
            .order_by(event.stream, event.version)
            .limit(_int("at_most"))
        )

    sql = compiled(session, "events_by_stream", build)
    stream, version = max(after, (prefix, 0))
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    params: dict[str, Any] = {"end": end, "until": _END if until is None else until, "at_most": batch}
    while rows := await session.fetch(sql, params | {"stream": stream, "version": version}):
        yield rows
        stream, version = rows[-1].stream, rows[-1].version


async def events_of_streams(
    session: ReadSession, streams: Sequence[str], *, until: int, batch: int = BATCH
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield, in batches, the rows of `events` of some streams up to a position, ordered by stream and version."""

    def build() -> Select[Any]:
        event = core_tables.events.c
        return (
            select(*event)
            .where(session.dialect.any_of(event.stream, "streams"), event.position <= _int("until"))
            .order_by(event.stream, event.version)
        )

    sql = compiled(session, "events_of_streams", build)
    params = {"streams": session.dialect.list_param(list(streams)), "until": until}
    async for rows in session.stream(sql, params, batch=batch):
        yield rows


async def last_event(session: ReadSession, until: int | None = None) -> NamedRow | None:
    """Return the row of the last event of the log, or of the last event up to a position; None if there is no event."""

    def build() -> Select[Any]:
        event = core_tables.events.c
        return select(*event).where(event.position <= _int("until")).order_by(event.position.desc()).limit(1)

    rows = await session.fetch(
        compiled(session, "last_event", build), {"until": _END if until is None else min(until, _END)}
    )
    return rows[0] if rows else None


async def last_before_command(session: ReadSession, position: int, commit_id: int, command: int) -> int:
    """Return the position of the last event before the events of a command; 0 if there is none.

    A command is one call; a commit may contain the events of several commands.

    Args:
        session: a connection to the database.
        position: the position of any event of the command.
        commit_id: the id of the commit that contains the command.
        command: the number of the command in the commit.
    """

    def build() -> Select[Any]:
        event = core_tables.events.c
        return (
            select(event.position)
            .where(
                event.position < _int("before"),
                (event.commit_id != _int("commit")) | (event.command != _int("ordinal")),
            )
            .order_by(event.position.desc())
            .limit(1)
        )

    params = {"before": position, "commit": commit_id, "ordinal": command}
    rows = await session.fetch(compiled(session, "last_before_command", build), params)
    return rows[0].position if rows else 0


async def position_of(session: ReadSession, stream: str, version: int) -> int | None:
    """Return the position of the event that has this version in a stream; None if there is no such event."""

    def build() -> Select[Any]:
        event = core_tables.events.c
        return select(event.position).where(event.stream == _text("of_stream"), event.version == _int("number"))

    rows = await session.fetch(compiled(session, "position_of", build), {"of_stream": stream, "number": version})
    return rows[0].position if rows else None


async def start_of_attempt(session: ReadSession, rollout_id: str, attempt_id: str) -> int | None:
    """Return the position of the event that started an attempt; None if there is no such attempt."""

    def build() -> Select[Any]:
        attempt = core_tables.attempts.c
        return select(attempt.first_position).where(
            attempt.rollout_id == _text("of_rollout"), attempt.attempt_id == _text("of_attempt")
        )

    params = {"of_rollout": rollout_id, "of_attempt": attempt_id}
    rows = await session.fetch(compiled(session, "start_of_attempt", build), params)
    return rows[0].first_position if rows else None


async def event_sizes(
    session: ReadSession, *, after: int = 0, until: int | None = None, limit: int = BATCH
) -> Sequence[NamedRow]:
    """Return position, type and uncompressed size of the body of events, in order. The size is null without a body."""

    def build() -> Select[Any]:
        event, body = core_tables.events.c, core_tables.bodies.c
        columns: list[ColumnElement[Any]] = [event.position, event.type, body.raw_len]
        return (
            select(*columns)
            .select_from(
                core_tables.events.outerjoin(
                    core_tables.bodies, and_(body.position == event.position, body.position > _int("after"))
                )
            )
            .where(event.position > _int("after"), event.position <= _int("until"))
            .order_by(event.position)
            .limit(_int("at_most"))
        )

    params = {"after": after, "until": _END if until is None else until, "at_most": limit}
    return await session.fetch(compiled(session, "event_sizes", build), params)


async def commits(
    session: ReadSession, *, after: int = 0, until: int | None = None, limit: int = BATCH
) -> Sequence[NamedRow]:
    """Return the rows of `commits` with ids greater than `after` and up to `until`, in order."""

    def build() -> Select[Any]:
        commit = core_tables.commits.c
        return (
            select(*commit)
            .where(commit.commit_id > _int("after"), commit.commit_id <= _int("until"))
            .order_by(commit.commit_id)
            .limit(_int("at_most"))
        )

    params = {"after": after, "until": _END if until is None else until, "at_most": limit}
    return await session.fetch(compiled(session, "commits", build), params)


async def all_commits(
    session: ReadSession, *, after: int = 0, until: int | None = None, batch: int = BATCH
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield the rows of `commits` in their order, in batches."""
    while rows := await commits(session, after=after, until=until, limit=batch):
        yield rows
        after = rows[-1].commit_id


async def last_commit(session: ReadSession, until: int | None = None) -> NamedRow | None:
    """Return the row of the last commit, or of the last commit up to this id; None if there is none."""

    def build() -> Select[Any]:
        commit = core_tables.commits.c
        return select(*commit).where(commit.commit_id <= _int("until")).order_by(commit.commit_id.desc()).limit(1)

    rows = await session.fetch(compiled(session, "last_commit", build), {"until": _END if until is None else until})
    return rows[0] if rows else None


async def last_commit_ids(session: ReadSession, limit: int) -> list[int]:
    """Return the ids of the last commits, at most `limit`, in descending order."""

    def build() -> Select[Any]:
        commit_id = core_tables.commits.c.commit_id
        statement: Any = select(commit_id).order_by(commit_id.desc()).limit(_int("at_most"))
        return statement

    rows = await session.fetch(compiled(session, "last_commit_ids", build), {"at_most": limit})
    return [row.commit_id for row in rows]


async def commit_at(session: ReadSession, position: int) -> NamedRow | None:
    """Return the row of the commit that contains the last event up to a position; None before the first event."""
    event = await last_event(session, position)
    return None if event is None else await last_commit(session, event.commit_id)


async def commit_by_time(session: ReadSession, at: int) -> NamedRow | None:
    """Return the row of the last commit recorded up to a time (µs); None before the first commit.

    Times ascend with the ids of commits, so a binary search finds the row. An index of the times is avoided, because
    each commit would then write one more page.
    """
    latest: NamedRow | None = None
    newest = await last_commit(session)
    low, high = 1, 0 if newest is None else newest.commit_id
    while low <= high:
        middle = (low + high) // 2
        commit = await last_commit(session, middle)
        if commit is None or commit.commit_id < low:
            # There is no commit with these ids. A transaction that was rolled back may have used them.
            low = middle + 1
        elif commit.recorded_at <= at:
            latest, low = commit, middle + 1
        else:
            high = commit.commit_id - 1
    return latest


def totals_of(commit: NamedRow | None) -> tuple[int, ...]:
    """Return the totals of the log up to a commit, in the order of `pages.TOTALS`; zeros for None."""
    return (0,) * len(TOTALS) if commit is None else _totals(commit)


async def bodies_at(session: ReadSession, positions: Sequence[int]) -> dict[int, tuple[int, bytes]]:
    """Return codec and bytes of bodies, by the position of their event. Positions without a body are left out."""
    bodies: dict[int, tuple[int, bytes]] = {}
    body = core_tables.bodies.c
    for chunk in _chunks(sorted(set(positions))):
        # List parameters can contain only texts. Positions come from the database, so it is safe to make them a part of
        # the statement.
        literals: list[ColumnElement[int]] = [literal_column(str(int(position))) for position in chunk]
        sql = session.dialect.sql(select(body.position, body.codec, body.body).where(body.position.in_(literals)))
        for row in await session.fetch(sql, {}):
            bodies[row.position] = (row.codec, row.body)
    return bodies


def _chunks(positions: Sequence[int]) -> list[Sequence[int]]:
    return [positions[at : at + _POSITIONS_AT_ONCE] for at in range(0, len(positions), _POSITIONS_AT_ONCE)]


async def all_bodies(
    session: ReadSession, *, after: int = 0, until: int | None = None, batch: int = 500
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield the rows of `bodies` (position, codec, raw_len, body) in the order of the log, in batches."""

    def build() -> Select[Any]:
        return _rising(core_tables.bodies)

    sql = compiled(session, "all_bodies", build)
    params: dict[str, Any] = {"until": _END if until is None else until, "at_most": batch}
    while rows := await session.fetch(sql, params | {"after": after}):
        yield rows
        after = rows[-1].position


def _rising(table: Table) -> Select[Any]:
    position = table.c.position
    return (
        select(*table.c)
        .where(position > _int("after"), position <= _int("until"))
        .order_by(position)
        .limit(_int("at_most"))
    )
