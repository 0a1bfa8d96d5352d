"""The first reads of a caller that follows a run: the last event, and the events that determine its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, literal_column, select
from sqlalchemy.types import BigInteger, Integer, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables


async def last_of(session: ReadSession, stream: str) -> tuple[int, int] | None:
    """Return the version and the position of the last event of a stream; None if the stream has no events."""
    event = core_tables.events.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [event.version, event.position]
        is_in_stream = event.stream == bindparam("of_stream", type_=Text)
        return select(*columns).where(is_in_stream).order_by(event.version.desc()).limit(literal_column("1", Integer))

    rows = await session.fetch(compiled(session, "stream_end", build), {"of_stream": stream})
    return (rows[0].version, rows[0].position) if rows else None


async def turns(session: ReadSession, stream: str, types: Sequence[str], until: int) -> Sequence[NamedRow]:
    """Return the rows of `events` of a stream with one of these types, up to the version `until`, in order."""
    event = core_tables.events.c

    def build() -> Select[Any]:
        is_in_stream = event.stream == bindparam("of_stream", type_=Text)
        upto = event.version <= bindparam("until", type_=BigInteger)
        return (
            select(*event)
            .where(is_in_stream, upto, session.dialect.any_of(event.type, "types"))
            .order_by(event.version)
        )

    params = {"of_stream": stream, "until": until, "types": session.dialect.list_param(list(types))}
    return await session.fetch(compiled(session, "stream_turns", build), params)
