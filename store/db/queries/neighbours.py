"""The rollouts before and after a rollout: in its group, or among all rollouts if it has no group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The place of a rollout among the rollouts of its group, or among all rollouts, in the order of their creation."""

    group_id: str | None
    """The group; None if the neighbours are of all rollouts."""
    previous: str | None
    """The id of the rollout before this one; None for the first."""
    next: str | None
    """The id of the rollout after this one; None for the last."""
    number: int | None = None
    """The number of this rollout in its group, from 1; None without a group."""
    total: int | None = None
    """The number of rollouts in the group; None without a group."""


async def neighbours(session: ReadSession, group_id: str | None, first_position: int) -> Neighbours:
    """Return the neighbours of the rollout whose first event is at a position of the log."""
    rollout = core_tables.rollouts.c
    place = bindparam("place", type_=BigInteger)

    def build() -> Select[Any]:
        position = rollout.first_position
        before, after = case((position < place, position)), case((position > place, position))
        columns: list[ColumnElement[Any]] = [
            func.max(before).label("previous"),
            func.min(after).label("next"),
            func.count(before).label("earlier"),
            func.count().label("total"),
        ]
        return select(*columns).where(rollout.group_id == bindparam("group", type_=Text))

    def build_all() -> Select[Any]:
        position = rollout.first_position
        columns: list[ColumnElement[Any]] = [
            select(func.max(position)).where(position < place).scalar_subquery().label("previous"),
            select(func.min(position)).where(position > place).scalar_subquery().label("next"),
        ]
        return select(*columns)

    if group_id is None:
        (row,) = await session.fetch(compiled(session, "neighbours", build_all), {"place": first_position})
    else:
        params = {"place": first_position, "group": group_id}
        (row,) = await session.fetch(compiled(session, "neighbours of group", build), params)
    previous, following = row.previous, row.next

    def build_ids() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [rollout.first_position, rollout.rollout_id]
        return select(*columns).where(rollout.first_position.in_([place, bindparam("other", type_=BigInteger)]))

    params = {"place": previous or 0, "other": following or 0}
    rows = await session.fetch(compiled(session, "neighbour ids", build_ids), params)
    ids = {row.first_position: row.rollout_id for row in rows}
    number, total = (None, None) if group_id is None else (row.earlier + 1, row.total)
    return Neighbours(group_id, ids.get(previous), ids.get(following), number, total)
