"""Reads of the log for indexes: events with their bodies in limited memory, and removals of payload."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, select
from sqlalchemy.types import BigInteger

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables


def _int(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=BigInteger)


async def body_sizes(
    session: ReadSession, types: Sequence[str], *, after: int, until: int, limit: int, stream: str | None = None
) -> Sequence[NamedRow]:
    """Return position, commit_id and raw_len of events of some types, in order, without reading their bodies.

    Args:
        session: a session that reads.
        types: the types of the events.
        after: the position after which the events are.
        until: the last position.
        limit: the maximum number of events.
        stream: only events of this stream; None for all.
    """

    def build() -> Select[Any]:
        event, body = core_tables.events.c, core_tables.bodies.c
        joined = and_(body.position == event.position, body.position > _int("after"))
        columns: list[ColumnElement[Any]] = [event.position, event.commit_id, body.raw_len]
        statement = (
            select(*columns)
            .outerjoin(core_tables.bodies, joined)
            .where(event.position > _int("after"), event.position <= _int("until"))
            .where(session.dialect.any_of(event.type, "of_types"))
        )
        if stream is not None:
            statement = statement.where(event.stream == bindparam("of_stream"))
        order = event.position if stream is None else event.version
        return statement.order_by(order).limit(_int("at_most"))

    params: dict[str, Any] = {"after": after, "until": until, "at_most": limit, "of_stream": stream}
    params["of_types"] = session.dialect.list_param(list(types))
    return await session.fetch(compiled(session, ("body_sizes", stream is None), build), params)


async def events_with_bodies(session: ReadSession, positions: Sequence[int], largest: int) -> Sequence[NamedRow]:
    """Return the events at some positions in order, with codec and bytes of bodies of at most `largest` bytes."""

    def build() -> Select[Any]:
        event, body = core_tables.events.c, core_tables.bodies.c
        joined = and_(body.position == event.position, body.raw_len <= _int("largest"))
        columns: list[ColumnElement[Any]] = [event.position, event.stream, event.version, event.type, event.at]
        columns += [event.data, event.body_hash, body.codec, body.body]
        return (
            select(*columns)
            .outerjoin(core_tables.bodies, joined)
            .where(session.dialect.any_of(event.position, "numbers"))
            .order_by(event.position)
        )

    params = {"numbers": session.dialect.list_param(list(positions)), "largest": largest}
    return await session.fetch(compiled(session, "events_with_bodies", build), params)


async def last_removal(session: ReadSession) -> int:
    """Return the position of the last event of the stream `store`, which orders removals; 0 if there is none."""

    def build() -> Select[Any]:
        event = core_tables.events.c
        return select(event.position).where(event.stream == "store").order_by(event.version.desc()).limit(1)

    rows = await session.fetch(compiled(session, "last_removal", build), {})
    return rows[0].position if rows else 0


async def streams_without_payload(session: ReadSession, *, after: int, until: int) -> list[str]:
    """Return the streams of the events up to `until` whose payload was removed by an event after `after`, sorted."""

    def build() -> Select[Any]:
        event, dropped = core_tables.events.c, core_tables.dropped.c
        return (
            select(event.stream)
            .join(core_tables.dropped, dropped.position == event.position)
            .where(dropped.event_position > _int("after"), event.position <= _int("until"))
            .group_by(event.stream)
            .order_by(event.stream)
        )

    rows = await session.fetch(compiled(session, "streams_without_payload", build), {"after": after, "until": until})
    return [row.stream for row in rows]
