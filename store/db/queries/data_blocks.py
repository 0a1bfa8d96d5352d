"""Reads of the blocks in which the data of events is stored, and of the events whose data is not in a block."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, cast, func, literal, select
from sqlalchemy.types import BigInteger, Text

from store.db.data_blocks import MARK
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables

_AT_ONCE = 100


async def last_position(session: ReadSession) -> int:
    """Return the position of the last event of the last block; 0 if there is no block."""

    def build() -> Select[Any]:
        block = core_tables.data_blocks.c
        return select(block.last_position).order_by(block.first_position.desc()).limit(1)

    rows = await session.fetch(compiled(session, "last_block", build), {})
    return rows[0].last_position if rows else 0


async def events_after(session: ReadSession, position: int, until: int, limit: int) -> Sequence[NamedRow]:
    """Return position, type and data of at most `limit` events above `position` and up to `until`, in order."""

    def build() -> Select[Any]:
        event = core_tables.events.c
        columns: list[ColumnElement[Any]] = [event.position, event.type, event.data]
        return (
            select(*columns)
            .where(
                event.position > bindparam("after", type_=BigInteger),
                event.position <= bindparam("until", type_=BigInteger),
            )
            .order_by(event.position)
            .limit(bindparam("most", type_=BigInteger))
        )

    params = {"after": position, "until": until, "most": limit}
    return await session.fetch(compiled(session, "data_after", build), params)


async def last_block_start(session: ReadSession) -> int:
    """Return the position of the first event of the last block; 0 if there is no block."""
    first = core_tables.data_blocks.c.first_position
    rows = await session.fetch(
        session.dialect.sql(select(func.coalesce(func.max(first), 0).label("first_position"))), {}
    )
    return rows[0].first_position


async def rows_at(session: ReadSession, firsts: Sequence[int]) -> Sequence[NamedRow]:
    """Return the rows of the blocks that begin at the positions `firsts`, in ascending order."""
    block = core_tables.data_blocks.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = list(block)
        return (
            select(*columns)
            .where(session.dialect.any_of(block.first_position, "firsts"))
            .order_by(block.first_position)
        )

    params = {"firsts": session.dialect.list_param(list(firsts))}
    return await session.fetch(compiled(session, "blocks_at", build), params)


async def all_blocks(session: ReadSession) -> AsyncIterator[NamedRow]:
    """Yield the rows of all blocks in ascending order. The session must be a snapshot."""

    def build() -> Select[Any]:
        table = core_tables.data_blocks
        columns: list[ColumnElement[Any]] = list(table.c)
        return select(*columns).order_by(table.c.first_position)

    async for rows in session.stream(compiled(session, "all_blocks", build), {}, batch=_AT_ONCE):
        for row in rows:
            yield row


async def unused(session: ReadSession) -> list[int]:
    """Return the first positions of the blocks to which no event refers, in ascending order."""
    block, event = core_tables.data_blocks.c, core_tables.events.c
    refers = (
        select(event.position)
        .where(
            event.position.between(block.first_position, block.last_position),
            event.data == literal(MARK, Text).concat(cast(block.first_position, Text)),
        )
        .exists()
    )
    columns: list[ColumnElement[Any]] = [block.first_position]
    statement: Select[Any] = select(*columns).where(~refers).order_by(block.first_position)
    return [row.first_position for row in await session.fetch(session.dialect.sql(statement), {})]
