"""Rewards, costs and outcomes of rollouts by step or by time, read in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from sqlalchemy import (
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from store.db.columns import Number, Str
from store.db.dialect import Dialect, ReadSession
from store.db.reports.conditions import big, bounded, one_of
from store.db.tables import core as core_tables
from store.models import RolloutMode

By = Literal["step", "time"]
MOST_BUCKETS: Final = 300
"""So many places a chart of a screen's width can tell apart."""
SAMPLE: Final = 4_000
"""Of how many rewards the bins are made."""
MOST_NAMES: Final = 20
_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_SECOND: Final = 1_000_000
_MODES: Final[tuple[str | None, ...]] = (None, *get_args(RolloutMode))
_MOST_EDGES: Final = 62


@dataclass(frozen=True, slots=True)
class Axis:
    """What the rollouts are grouped along: steps, or microseconds since the epoch in which they ended."""

    by: By
    start: int
    width: int
    """Of one bucket."""
    count: int
    """How many buckets there are from the first rollout to the last."""

    def low(self, bucket: int) -> int:
        """Return where a bucket begins."""
        return self.start + bucket * self.width


@dataclass(frozen=True, slots=True)
class Cell:
    """The rollouts of one mode in one bucket whose rewards fall into one bin."""

    bucket: int
    mode: str | None
    bin: int | None
    """How many of the edges do not exceed the reward; None where there is no reward."""
    rollouts: int
    reward_sum: float | None
    reward_min: float | None
    reward_max: float | None
    tokens_out: float
    succeeded: int
    failed: int
    ended: int
    seconds: float
    """From being enqueued to the end, of all that ended together."""


@dataclass(frozen=True, slots=True)
class CurveSource:
    """Whose rewards are meant."""

    name: str | None = None
    """Of the dimension; None for the last primary reward of each rollout, as the lists show it."""
    modes: Sequence[str] = ()
    """Of the rollouts; none for all."""


async def reward_names(dialect: Dialect, session: ReadSession) -> list[tuple[str, int]]:
    """Return the dimensions of rewards and how often each was given, the most frequent first."""
    reward = core_tables.rewards.c
    times = func.count()
    statement = select(reward.name, times).where(reward.name.is_not(None)).group_by(reward.name)
    rows = await session.fetch(dialect.sql(statement.order_by(times.desc(), reward.name).limit(MOST_NAMES)), {})
    return [(name, count) for name, count in rows]


async def total(dialect: Dialect, session: ReadSession) -> int:
    """Return how many rollouts there are."""
    statement = select(func.count()).select_from(core_tables.rollouts)
    return (await session.fetch(dialect.sql(statement), {}))[0][0]


async def axis(dialect: Dialect, session: ReadSession, by: By, modes: Sequence[str]) -> Axis | None:
    """Return buckets that hold all rollouts, at most `MOST_BUCKETS`; None where no rollout has such a place."""
    column = _along(by)
    statement = select(func.min(column), func.max(column)).where(_of_modes(modes))
    lowest, highest = (await session.fetch(dialect.sql(statement), {}))[0]
    if lowest is None:
        return None
    if by == "step":
        width = -(-(highest - lowest + 1) // MOST_BUCKETS)
        return Axis(by, lowest, width, (highest - lowest) // width + 1)
    span = (highest - lowest) / _SECOND
    seconds = next((width for width in _WIDTHS if span / width < MOST_BUCKETS / 2), None)
    # Whole days where even days are too many.
    width = (seconds or 86400 * -(-int(span) // (86400 * MOST_BUCKETS // 2))) * _SECOND
    start = lowest // width * width
    return Axis(by, start, width, (highest - start) // width + 1)


async def sample(dialect: Dialect, session: ReadSession, source: CurveSource) -> list[float]:
    """Return some rewards, in the order of the ids of their rollouts: for all that matters, any."""
    value, table = _values(source)
    rollout = core_tables.rollouts.c
    statement: Select[Any] = select(value).select_from(table).where(value.is_not(None), _of_modes(source.modes))
    rows = await session.fetch(dialect.sql(statement.order_by(rollout.rollout_id).limit(SAMPLE)), {})
    return [row[0] for row in rows]


async def cells(
    dialect: Dialect, session: ReadSession, source: CurveSource, along: Axis, edges: Sequence[float]
) -> list[Cell]:
    """Return the rollouts that have a place on an axis, counted by bucket, mode and bin."""
    value, table = _values(source)
    rollout = core_tables.rollouts.c
    column = _along(along.by)
    # Grouped by a name, not by an expression: to Postgres two with parameters are never the same. By one number, not by
    # bucket, mode and bin: what SQLite has to sort is compared in half the time.
    bucket = (column - big(along.start)) // big(along.width)
    placed = (
        select(
            ((bucket * _digits(len(_MODES)) + _mode()) * _digits(_MOST_EDGES + 2) + _bin(value, edges)).label("cell"),
            value.label("value"),
            rollout.tokens_out,
            rollout.status,
            (rollout.end_at - rollout.start_at).label("lasted"),
        )
        .select_from(table)
        .where(column.is_not(None), _of_modes(source.modes))
        .subquery("placed")
    )
    each = placed.c
    counted: Sequence[ColumnElement[Any]] = (
        each.cell,
        func.count(),
        func.sum(bounded(each.value)),
        func.min(each.value),
        func.max(each.value),
        func.sum(cast(each.tokens_out, Double)),
        func.count(case((each.status == "succeeded", _digits(1)))),
        func.count(case((each.status == "failed", _digits(1)))),
        func.count(each.lasted),
        func.coalesce(func.sum(cast(each.lasted, Double)), _digits(0)) / float(_SECOND),
    )
    statement = select(*counted).group_by(each.cell)
    return [Cell(*_where(row[0]), *row[1:]) for row in await session.fetch(dialect.sql(statement), {})]


def _where(cell: int) -> tuple[int, str | None, int | None]:
    """Return the bucket, the mode and the bin that a number stands for."""
    rest, bin_ = divmod(cell, _MOST_EDGES + 2)
    bucket, mode = divmod(rest, len(_MODES))
    return bucket, _MODES[mode], None if bin_ > _MOST_EDGES else bin_


def _mode() -> ColumnElement[int]:
    mode = core_tables.rollouts.c.mode
    return case(*((mode == each, _digits(_MODES.index(each))) for each in _MODES if each is not None), else_=_digits(0))


def _along(by: By) -> ColumnElement[int]:
    return core_tables.rollouts.c.step if by == "step" else core_tables.rollouts.c.end_at


def _of_modes(modes: Sequence[str]) -> ColumnElement[bool]:
    if not modes:
        return true()
    return one_of(core_tables.rollouts.c.mode, modes)


def _values(source: CurveSource) -> tuple[ColumnElement[float], FromClause]:
    """Return the reward of a rollout, and the tables that have it."""
    if source.name is None:
        return core_tables.rollouts.c.last_reward, core_tables.rollouts
    given, later = core_tables.rewards.c, core_tables.rewards.alias("later")
    is_later = or_(
        later.c.position > given.position,
        and_(later.c.position == given.position, later.c.ordinal > given.ordinal),
    )
    name = literal(source.name, Str)
    is_last = ~exists().where(later.c.rollout_id == given.rollout_id, later.c.name == name, is_later)
    table = core_tables.rollouts.join(
        core_tables.rewards,
        and_(given.rollout_id == core_tables.rollouts.c.rollout_id, given.name == name, is_last),
    )
    return given.value, table


def _bin(value: ColumnElement[float], edges: Sequence[float]) -> ColumnElement[int]:
    """Return how many edges do not exceed a value, found by halving; one more than all of them where there is none."""
    assert len(edges) <= _MOST_EDGES

    def between(low: int, high: int) -> ColumnElement[int]:
        if low == high:
            return _digits(low)
        middle = (low + high) // 2
        is_below = value < literal(edges[middle], Number)
        return case((is_below, between(low, middle)), else_=between(middle + 1, high))

    return case((value.is_(None), _digits(_MOST_EDGES + 1)), else_=between(0, len(edges)))


def _digits(number: int) -> ColumnElement[int]:
    """Return a number of our own as part of the statement: more parameters only make it longer."""
    return literal_column(str(number), Integer)
