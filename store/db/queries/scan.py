"""Reads of whole tables for `verify`, in the order of keys and in limited memory.

The session must read from one snapshot of the database.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, bindparam, func, select, tuple_
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.log import BATCH
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables

FOLDED = ("position", "stream", "version", "type", "shape", "at", "data")
"""The columns of `events` that a fold needs. To read all columns would take a third longer."""

_NUMBERS_AT_ONCE = 1000


def _int(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=BigInteger)


def _text(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text)


async def events_and_bodies(
    session: ReadSession, *, after: int, until: int, limit: int, as_stored: bool = False
) -> Sequence[NamedRow]:
    """Return rows of `events` in the order of the log, each with codec, raw_len and bytes of its body.

    The last three columns are null if there is no body. Only events with positions after `after` and up to `until` are
    returned. With `as_stored`, values that are stored in another form are not converted.
    """

    def build() -> Select[*tuple[Any, ...]]:
        event, body = core_tables.events.c, core_tables.bodies.c
        return (
            select(*event, body.codec, body.raw_len, body.body)
            .outerjoin(core_tables.bodies, _body_of_event())
            .where(event.position > _int("after"), event.position <= _int("until"))
            .order_by(event.position)
            .limit(_int("at_most"))
        )

    params = {"after": after, "until": until, "at_most": limit}
    sql = compiled(session, "events_and_bodies", build)
    return await session.fetch(replace(sql, places=None) if as_stored else sql, params)


def _body_of_event() -> ColumnElement[bool]:
    # Postgres merges both tables in order. Without the second condition, each read would begin with the first body of
    # the table.
    body = core_tables.bodies.c
    return (body.position == core_tables.events.c.position) & (body.position > _int("after"))


async def events_and_bodies_at(session: ReadSession, positions: Sequence[int]) -> Sequence[NamedRow]:
    """Return the rows of `events_and_bodies` for the events at some positions, in the order of the log."""

    def build() -> Select[*tuple[Any, ...]]:
        event, body = core_tables.events.c, core_tables.bodies.c
        return (
            select(*event, body.codec, body.raw_len, body.body)
            .outerjoin(core_tables.bodies, body.position == event.position)
            .where(session.dialect.any_of(event.position, "numbers"))
            .order_by(event.position)
        )

    params = {"numbers": session.dialect.list_param(list(positions))}
    return await session.fetch(compiled(session, "events_and_bodies_at", build), params)


async def positions_of(session: ReadSession, names: Sequence[str]) -> list[int]:
    """Return the positions of the events of some streams, in any order."""

    def build() -> Select[*tuple[Any, ...]]:
        event = core_tables.events.c
        return select(event.position).where(session.dialect.any_of(event.stream, "streams"))

    params = {"streams": session.dialect.list_param(list(names))}
    return [row.position for row in await session.fetch(compiled(session, "positions_of", build), params)]


async def events_of(session: ReadSession, names: Sequence[str], types: Sequence[str]) -> Sequence[NamedRow]:
    """Return position and data of the events of some streams that have one of these types, in any order."""

    def build() -> Select[*tuple[Any, ...]]:
        event, any_of = core_tables.events.c, session.dialect.any_of
        columns: list[ColumnElement[Any]] = [event.position, event.data]
        return select(*columns).where(any_of(event.stream, "streams"), any_of(event.type, "types"))

    list_param = session.dialect.list_param
    params = {"streams": list_param(list(names)), "types": list_param(list(types))}
    return await session.fetch(compiled(session, "events_of", build), params)


async def streams(session: ReadSession, *, after: int, until: int, limit: int) -> list[str]:
    """Return the sorted names of at most `limit` streams with events after the position `after` and up to `until`."""

    def build() -> Select[*tuple[Any, ...]]:
        event = core_tables.events.c
        return (
            select(event.stream)
            .where(event.position > _int("after"), event.position <= _int("until"))
            .group_by(event.stream)
            .order_by(event.stream)
            .limit(_int("at_most"))
        )

    params = {"after": after, "until": until, "at_most": limit}
    return [row.stream for row in await session.fetch(compiled(session, "streams", build), params)]


async def stream_before(session: ReadSession, name: str, first: str) -> str | None:
    """Return the greatest name of a stream that is less than `name` and at least `first`; None if there is none."""

    def build() -> Select[*tuple[Any, ...]]:
        stream = core_tables.events.c.stream
        return select(func.max(stream).label("stream")).where(stream < _text("name"), stream >= _text("first"))

    rows = await session.fetch(compiled(session, "stream_before", build), {"name": name, "first": first})
    return rows[0].stream if rows else None


async def events_between(
    session: ReadSession,
    after: tuple[str, int],
    before: str | None,
    last: str | None = None,
    *,
    limit: int = BATCH,
) -> Sequence[NamedRow]:
    """Return the columns `FOLDED` of events, ordered by stream and version.

    Args:
        session: a connection to the database.
        after: a stream and a version. Only later events in this order are returned.
        before: only streams whose names are smaller than this name; None for all.
        last: only streams whose names are smaller than or equal to this name; None for all.
        limit: the maximum number of rows.
    """
    event = core_tables.events.c

    def build() -> Select[*tuple[Any, ...]]:
        statement = select(*(event[name] for name in FOLDED)).where(
            tuple_(event.stream, event.version) > tuple_(_text("stream"), _int("number"))
        )
        if before is not None:
            statement = statement.where(event.stream < _text("before"))
        if last is not None:
            statement = statement.where(event.stream <= _text("last"))
        return statement.order_by(event.stream, event.version).limit(_int("at_most"))

    params = {"stream": after[0], "number": after[1], "before": before, "last": last, "at_most": limit}
    return await session.fetch(compiled(session, ("events_between", before is None, last is None), build), params)


async def events_since(
    session: ReadSession, streams: Sequence[str], position: int
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield the columns `FOLDED` of the events of some streams after a position, ordered by stream and version."""

    def build() -> Select[*tuple[Any, ...]]:
        event = core_tables.events.c
        return (
            select(*(event[name] for name in FOLDED))
            .where(session.dialect.any_of(event.stream, "streams"), event.position > _int("after"))
            .order_by(event.stream, event.version)
        )

    sql = compiled(session, "events_since", build)
    async for rows in session.stream(sql, {"streams": session.dialect.list_param(list(streams)), "after": position}):
        yield rows


async def events_at(session: ReadSession, positions: Sequence[int]) -> list[NamedRow]:
    """Return the rows of `events` at some positions, in any order."""
    return await _at(session, core_tables.events, "position", positions)


async def bodies_without_event(session: ReadSession, limit: int) -> list[int]:
    """Return the positions of at most `limit` bodies that no event claims, in order.

    An event that has a body hash claims the body at its position.
    """

    def build() -> Select[*tuple[Any, ...]]:
        event, body = core_tables.events.c, core_tables.bodies.c
        claimed = select(event.position).where(event.position == body.position, event.body_hash.is_not(None)).exists()
        return select(body.position).where(~claimed).order_by(body.position).limit(_int("at_most"))

    return [
        row.position for row in await session.fetch(compiled(session, "unclaimed_bodies", build), {"at_most": limit})
    ]


async def drops_between(session: ReadSession, first: int, last: int) -> Sequence[NamedRow]:
    """Return the positions of removed bodies from `first` to `last`, each with the event that ordered the removal.

    The columns are the position of the body, and position, type and data of the event. The last three are null if there
    is no such event.
    """

    def build() -> Select[*tuple[Any, ...]]:
        event, dropped = core_tables.events.c, core_tables.dropped.c
        columns: list[ColumnElement[Any]] = [dropped.position, event.position, event.type, event.data]
        return (
            select(*columns)
            .outerjoin(core_tables.events, event.position == dropped.event_position)
            .where(dropped.position >= _int("first"), dropped.position <= _int("last"))
        )

    return await session.fetch(compiled(session, "drops_between", build), {"first": first, "last": last})


async def drops_at(session: ReadSession, positions: Sequence[int]) -> list[NamedRow]:
    """Return the rows of `dropped` at some positions, in any order."""
    return await _at(session, core_tables.dropped, "position", positions)


async def drops_ordered_at(session: ReadSession, positions: Sequence[int]) -> list[NamedRow]:
    """Return the rows of `dropped` that refer to the events at some positions, in any order. Read the whole table."""
    return await _at(session, core_tables.dropped, "event_position", positions)


async def has_drops_after(session: ReadSession, position: int) -> bool:
    """Return whether an event after a position ordered the removal of bodies. Read the whole table."""

    def build() -> Select[*tuple[Any, ...]]:
        dropped = core_tables.dropped.c
        return select(dropped.position).where(dropped.event_position > _int("after")).limit(1)

    return bool(await session.fetch(compiled(session, "drops_after", build), {"after": position}))


async def drops(session: ReadSession) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield all rows of `dropped` by position, each with position, type and data of the event to which it refers.

    The last three columns are null if there is no such event.
    """

    def build() -> Select[*tuple[Any, ...]]:
        event, dropped = core_tables.events.c, core_tables.dropped.c
        columns: list[ColumnElement[Any]] = [*dropped, event.position, event.type, event.data]
        joined = select(*columns).outerjoin(core_tables.events, event.position == dropped.event_position)
        return joined.order_by(dropped.position)

    async for rows in session.stream(compiled(session, "drops", build), {}):
        yield rows


async def logged(
    session: ReadSession,
    *,
    after: int,
    until: int,
    limit: int,
    stream: str | None = None,
    types: Sequence[str] | None = None,
) -> Sequence[NamedRow]:
    """Return rows of `events` in order, each with codec and bytes of its body and the chain hash of its commit.

    Only events with positions after `after` and up to `until` are returned. `stream` and `types` further restrict the
    events; None means no restriction. Codec and bytes are null if there is no body.
    """

    def build() -> Select[*tuple[Any, ...]]:
        event, body, commit = core_tables.events.c, core_tables.bodies.c, core_tables.commits.c
        statement = (
            select(*event, body.codec, body.body, commit.chain_hash)
            .outerjoin(core_tables.bodies, _body_of_event())
            .join(core_tables.commits, commit.commit_id == event.commit_id)
            .where(event.position > _int("after"), event.position <= _int("until"))
        )
        if stream is not None:
            statement = statement.where(event.stream == _text("of_stream"))
        if types is not None:
            statement = statement.where(session.dialect.any_of(event.type, "of_types"))
        order = event.position if stream is None else event.version
        return statement.order_by(order).limit(_int("at_most"))

    params: dict[str, Any] = {"after": after, "until": until, "at_most": limit, "of_stream": stream}
    params["of_types"] = session.dialect.list_param(list(types or ()))
    return await session.fetch(compiled(session, ("logged", stream is None, types is None), build), params)


async def rows_between(
    session: ReadSession,
    table: Table,
    after: str | None,
    until: str | None,
    *,
    inclusive: bool = True,
) -> Sequence[NamedRow]:
    """Return the rows whose first key column is greater than `after` and at most `until`, in the order of the key.

    If `inclusive` is False, rows whose first key column equals `until` are left out. If `after` is None, the rows begin
    with the first row of the table. If `until` is None, the rows end with the last row of the table.
    """

    def build() -> Select[*tuple[Any, ...]]:
        key = next(iter(table.primary_key))
        statement = select(*table.c)
        if after is not None:
            statement = statement.where(key > _text("after"))
        if until is not None:
            statement = statement.where(key <= _text("until") if inclusive else key < _text("until"))
        return statement.order_by(*table.primary_key)

    shape = ("rows_between", table.name, after is None, until is None, inclusive)
    return await session.fetch(compiled(session, shape, build), {"after": after, "until": until})


async def rows_of(
    session: ReadSession, table: Table, key: str, *, batch: int = BATCH
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield, in batches, the rows whose first key column has the value `key`, in the order of the whole key."""

    def build() -> Select[*tuple[Any, ...]]:
        first, *rest = table.primary_key
        return select(*table.c).where(first == _text("of")).order_by(*rest)

    sql = compiled(session, ("rows_of", table.name), build)
    async for rows in session.stream(sql, {"of": key}, batch=batch):
        yield rows


async def count(session: ReadSession, table: Table) -> int:
    """Return the number of rows of a table."""
    sql = compiled(session, ("count", table.name), lambda: select(func.count().label("total")).select_from(table))
    return (await session.fetch(sql, {}))[0].total


async def key_at(session: ReadSession, key: Column[Any], index: int) -> str:
    """Return a key by its index. Indexes count from 0, in the order of keys."""

    def build() -> Select[*tuple[Any, ...]]:
        return select(key.label("key")).order_by(key).limit(1).offset(_int("place"))

    return (await session.fetch(compiled(session, ("key_at", key.table), build), {"place": index}))[0].key


async def queue_between(
    session: ReadSession, after: str | None, until: str | None, *, batch: int = BATCH
) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield the rows of `queue` for rollout ids after `after` and up to `until`, ordered by id. None means no limit."""

    def build() -> Select[*tuple[Any, ...]]:
        waiting = core_tables.queue.c
        statement = select(*waiting)
        if after is not None:
            statement = statement.where(waiting.rollout_id > _text("after"))
        if until is not None:
            statement = statement.where(waiting.rollout_id <= _text("until"))
        return statement.order_by(waiting.rollout_id, waiting.position)

    sql = compiled(session, ("queue_between", after is None, until is None), build)
    async for rows in session.stream(sql, {"after": after, "until": until}, batch=batch):
        yield rows


async def all_rows(session: ReadSession, table: Table, *, batch: int = BATCH) -> AsyncIterator[Sequence[NamedRow]]:
    """Yield all rows of a table in the order of its key, in batches."""
    statement = select(*table.c).order_by(*table.primary_key)
    async for rows in session.stream(session.dialect.sql(statement), {}, batch=batch):
        yield rows


async def rows_with(session: ReadSession, column: Column[Any], values: Sequence[str]) -> Sequence[NamedRow]:
    """Return the rows of the column's table that have one of these texts in the column."""
    table: Any = column.table

    def build() -> Select[*tuple[Any, ...]]:
        return select(*table.c).where(session.dialect.any_of(column, "values"))

    sql = compiled(session, ("rows_with", table.name, column.key), build)
    return await session.fetch(sql, {"values": session.dialect.list_param(list(values))})


async def spans_with(session: ReadSession, keys: Sequence[tuple[str, str, str]]) -> Sequence[NamedRow]:
    """Return the rows of `spans` with these keys, in any order."""

    def build() -> Select[*tuple[Any, ...]]:
        span = core_tables.spans.c
        return select(*span).where(session.dialect.any_key((span.rollout_id, span.attempt_id, span.span_id), "spans"))

    return await session.fetch(
        compiled(session, "spans_with", build), {"spans": session.dialect.keys_param(list(keys))}
    )


async def rewards_between(session: ReadSession, rollout_id: str, after: int, until: int | None) -> Sequence[NamedRow]:
    """Return a rollout's rows of `rewards` with positions after `after` and up to `until`, in order."""

    def build() -> Select[*tuple[Any, ...]]:
        reward = core_tables.rewards.c
        columns: list[ColumnElement[Any]] = list(reward)
        return (
            select(*columns)
            .where(reward.rollout_id == _text("of"), reward.position > _int("after"), reward.position <= _int("until"))
            .order_by(reward.position, reward.ordinal)
        )

    # A manipulated position can be any 64-bit number, so the default end is the greatest 64-bit number.
    params = {"of": rollout_id, "after": after, "until": 2**63 - 1 if until is None else until}
    return await session.fetch(compiled(session, "rewards_between", build), params)


async def run_events_between(
    session: ReadSession, rollout_id: str, after: int, until: int | None
) -> Sequence[NamedRow]:
    """Return a rollout's rows of `run_events` with versions after `after` and up to `until`, in order."""

    def build() -> Select[*tuple[Any, ...]]:
        row = core_tables.run_events.c
        columns: list[ColumnElement[Any]] = list(row)
        return (
            select(*columns)
            .where(row.rollout_id == _text("of"), row.version > _int("after"), row.version <= _int("until"))
            .order_by(row.version)
        )

    params = {"of": rollout_id, "after": after, "until": 2**63 - 1 if until is None else until}
    return await session.fetch(compiled(session, "run_events_between", build), params)


async def queue_at(session: ReadSession, positions: Sequence[int]) -> list[NamedRow]:
    """Return the rows of `queue` at some positions, in any order."""
    return await _at(session, core_tables.queue, "position", positions)


async def _at(session: ReadSession, table: Table, column: str, numbers: Sequence[int]) -> list[NamedRow]:
    def build() -> Select[*tuple[Any, ...]]:
        return select(*table.c).where(session.dialect.any_of(table.c[column], "numbers"))

    sql = compiled(session, ("rows_at", table.name, column), build)
    rows: list[NamedRow] = []
    for start in range(0, len(numbers), _NUMBERS_AT_ONCE):
        part = session.dialect.list_param(list(numbers[start : start + _NUMBERS_AT_ONCE]))
        rows.extend(await session.fetch(sql, {"numbers": part}))
    return rows
