"""Blocks of rollouts, by which sums over all rollouts are cached. Only changed blocks are read again. Decision 125.

A block is a range of positions of the log. A rollout always belongs to the block of its first event. A training changes
its latest rollouts, which are in the last blocks.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, literal_column, select, true
from sqlalchemy.types import Integer

from store.db.dialect import ReadSession
from store.db.queries.expressions import big
from store.db.tables import core as core_tables
from store.domain.events import MetricsLogged

_POSITIONS: Final = 8_192
"""The number of positions of a block, which is also the maximum number of its rollouts."""
_MOST_EVENTS: Final = 20_000
_MOST_BLOCKS: Final = 12
"""With more changed blocks, one statement over all rollouts takes less time."""
_STORE: Final = "store"
_ROLLOUT: Final = "rollout/"
"""The name of the stream of the store, and the prefix of the streams of rollouts."""


def block_of() -> ColumnElement[int]:
    """Return the number of the block of a rollout. It has no parameter, so it can be in SELECT and in GROUP BY."""
    return core_tables.rollouts.c.first_position.op("/")(literal_column(str(_POSITIONS), Integer)).label("block")


def in_block(block: int | None) -> ColumnElement[bool]:
    """Return the condition that a rollout is in a block; with None, that it is in any."""
    if block is None:
        return true()
    position = core_tables.rollouts.c.first_position
    return and_(position >= big(block * _POSITIONS), position < big((block + 1) * _POSITIONS))


def from_block(block: int) -> ColumnElement[bool]:
    """Return the condition that a rollout is in a block or in a later one."""
    return core_tables.rollouts.c.first_position >= big(block * _POSITIONS)


async def changed_blocks(session: ReadSession, after: int, until: int) -> set[int] | None:
    """Return the blocks of the rollouts that have new events; None if all blocks must be read again.

    Removals of payload are events of the store, and can change any row.
    """
    if until - after > _MOST_EVENTS:
        return None
    event, rollout = core_tables.events.c, core_tables.rollouts.c
    # Logged numbers change no rollout, and a training logs some at each step.
    changes = (event.position > big(after), event.position <= big(until), event.type != MetricsLogged.type)
    streams = select(event.stream).where(*changes).distinct()
    names = [row.stream for row in await session.fetch(session.dialect.sql(streams), {})]
    if _STORE in names:
        return None
    ids = [name.removeprefix(_ROLLOUT) for name in names if name.startswith(_ROLLOUT)]
    if not ids:
        return set()
    blocks = select(func.min(rollout.first_position).label("position"), block_of())
    blocks = blocks.where(session.dialect.any_of(rollout.rollout_id, "ids")).group_by(block_of())
    params: dict[str, Any] = {"ids": session.dialect.list_param(ids)}
    numbers = {row.block for row in await session.fetch(session.dialect.sql(blocks), params)}
    return None if len(numbers) > _MOST_BLOCKS else numbers
