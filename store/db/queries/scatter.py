"""Numbers of the rollouts of a selection, of all or of a sample. Decision 124."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import ColumnElement, func, literal, select

from store.db.columns import Str
from store.db.dialect import ReadSession
from store.db.queries.expressions import ONE, big
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_list import RolloutListQuery, listing_of
from store.db.tables import core as core_tables

COLUMNS: Final[Mapping[str, str]] = {
    "reward": "last_reward",
    "step": "step",
    "tokens": "tokens_out",
    "tokens_in": "tokens_in",
    "duration": "duration",
    "spans": "spans",
    "attempts": "attempt_count",
}
"""The columns of numbers, by the names of their range filters."""
_UNKNOWN_AS_ZERO: Final = frozenset({"tokens", "tokens_in", "spans"})


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """The numbers of one rollout. The duration is in microseconds; unknown tokens are 0."""

    rollout_id: str
    status: str
    mode: str | None
    group_id: str | None
    resources_id: str | None
    resources_version: int | None
    last_reward: float | None
    step: int | None
    tokens_out: int
    tokens_in: int
    duration: int | None
    spans: int
    attempt_count: int


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Some rollouts of a selection, by rollout id."""

    rows: list[MeasuredRow]
    matching: int
    """The number of rollouts of the selection that have the required numbers."""


async def measured_rows(
    session: ReadSession, query: RolloutListQuery, names: Collection[str], dimensions: Collection[str], most: int
) -> MeasuredRows:
    """Return the rollouts of a selection that have all numbers, or a sample of them.

    A sample takes every n-th rollout in the order of the ids, so that each call returns the same rollouts.

    Args:
        session: a session that reads one state of the store.
        query: the selection, regardless of its page and order.
        names: the required columns, as `COLUMNS` names them.
        dimensions: the required dimensions of rewards.
        most: the maximum number of rollouts.
    """
    dialect = session.dialect
    unpaged = replace(query, limit=-1, offset=0, after=None, before=None, sort="started")
    listing = listing_of(dialect, unpaged, MeasuredRow)
    rollout_id, reward = core_tables.rollouts.c.rollout_id, core_tables.rewards.c
    terms: list[ColumnElement[bool]] = [listing.matching(dialect)]
    for name in sorted(names):
        column = listing.columns[COLUMNS[name]]
        terms.append(column >= ONE if name in _UNKNOWN_AS_ZERO else column.is_not(None))
    terms += [
        rollout_id.in_(select(reward.rollout_id).where(reward.name == literal(name, Str)))
        for name in sorted(dimensions)
    ]
    params = listing.params(dialect)
    counts = await session.fetch(
        dialect.sql(select(func.count().label("total")).select_from(core_tables.rollouts).where(*terms)), params
    )
    total: int = counts[0].total
    columns = columns_of(MeasuredRow, listing.columns)
    statement = select(*columns).where(*terms)
    if total > most:
        place = func.row_number().over(order_by=rollout_id).label("place")
        numbered = select(rollout_id, place).where(*terms).subquery("numbered")
        # Of the places 1 to `total`, exactly `most` are the first ones at which the quotient increases.
        reached, before = (
            (numbered.c.place - back) * big(most) // big(total) for back in (big(0), big(1))
        )  # fmt: skip
        chosen = select(numbered.c.rollout_id).where(reached > before)
        statement = select(*columns).where(rollout_id.in_(chosen))
    rows = await session.fetch(dialect.sql(statement.order_by(rollout_id)), params)
    return MeasuredRows(records(MeasuredRow, rows), total)
