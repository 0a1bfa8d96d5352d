"""Rewards, costs and outcomes of rollouts by training step or by time, for charts.

The axis of a chart is divided into buckets, and the range of rewards is divided into bins by a list of edges. A
dimension is one of several named values of a reward. The mode of a rollout is, for example, `train` or `val`.
"""

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
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.counted_rewards import has_ended, squares_of
from store.db.queries.expressions import ONE, big, bounded, one_of
from store.db.queries.pages import rollouts_recorded
from store.db.queries.records import columns_of, records
from store.db.queries.scores import scored_rewards
from store.db.tables import core as core_tables
from store.models import RolloutMode
from store.validation.scores import VersionKey

By = Literal["step", "time"]
MOST_BUCKETS: Final = 300
"""The maximum number of buckets: a chart as wide as a screen can show this number of points."""
SAMPLE: Final = 4_000
"""The maximum number of rewards that are read to choose the bins."""
MOST_NAMES: Final = 20
"""The maximum number of dimensions that `reward_names` returns."""
_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_SECOND: Final = 1_000_000
_MODES: Final[tuple[str | None, ...]] = (None, *get_args(RolloutMode))
_MOST_EDGES: Final = 62


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of a chart, divided into buckets of equal width.

    The values are training steps, or end times of rollouts in microseconds since the epoch.
    """

    by: By
    start: int
    """The lowest value of the first bucket."""
    width: int
    """The width of one bucket, in the unit of the axis."""
    count: int
    """The number of buckets from the lowest value to the highest value."""

    def low(self, bucket: int) -> int:
        """Return the lowest value of a bucket."""
        return self.start + bucket * self.width


@dataclass(frozen=True, slots=True)
class Cell:
    """The rollouts of one line in one bucket whose rewards are in one bin, and which have ended or are all open."""

    bucket: int
    """The number of the bucket, from 0."""
    mode: str | None
    """The mode of the rollouts; None for rollouts without a mode."""
    bin: int | None
    """The number of edges that are less than or equal to the reward; None for rollouts without a reward."""
    is_ended: bool
    rollouts: int
    reward_sum: float | None
    """The sum of the rewards; None for rollouts without a reward."""
    reward_squares: float | None
    """The sum of the squares of the distances of the rewards from the centre of the source."""
    reward_min: float | None
    reward_max: float | None
    measured: int
    """The number of rollouts with known usage, which is a sum of tokens above 0."""
    tokens_out: float
    """The sum of the output tokens of these rollouts."""
    succeeded: int
    failed: int
    seconds: float
    """The total time from enqueue to end of rollouts that ended, in seconds."""
    version: int | None = None
    """The version of the resources, if the source separates versions."""

    @property
    def ended(self) -> int:
        """The number of rollouts that have ended."""
        return self.rollouts if self.is_ended else 0


@dataclass(frozen=True, slots=True)
class CurveSource:
    """The selection of the rewards for a chart."""

    name: str | None = None
    """The name of the dimension. None selects the last primary reward of each rollout, which lists also show."""
    version: VersionKey | None = None
    """The version of the rewards. If it is not None, `name` must be None."""
    modes: Sequence[str] = ()
    """Only rollouts with one of these modes; an empty sequence means all rollouts."""
    resources_id: str | None = None
    """Only rollouts with this id of resources, separated by version; None for all rollouts, not separated."""
    task: str | None = None
    """Only rollouts whose input has this SHA-256 hash."""
    centre: float = 0.0
    """A number near the rewards, so that sums of squares keep their digits."""


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A version of resources, and the place of its first rollout on the axes."""

    resources_id: str
    version: int
    rollouts: int
    first_step: int | None
    first_end_at: int | None
    """The end of the first rollout that ended, in microseconds since the epoch."""


async def version_uses(session: ReadSession, modes: Sequence[str] = ()) -> list[VersionUse]:
    """Return the versions of resources that rollouts with these modes use, by id and version."""
    rollout = core_tables.rollouts.c
    figures = {
        "version": rollout.resources_version,
        "rollouts": func.count(),
        "first_step": func.min(rollout.step),
        "first_end_at": func.min(rollout.end_at),
    }
    keys = (rollout.resources_id, rollout.resources_version)
    statement = (
        select(*columns_of(VersionUse, dict(rollout), figures))
        .where(rollout.resources_id.is_not(None), rollout.resources_version.is_not(None), _of_modes(modes))
        .group_by(*keys)
        .order_by(*keys)
    )
    return records(VersionUse, await session.fetch(session.dialect.sql(statement), {}))


async def reward_names(session: ReadSession) -> list[tuple[str, int]]:
    """Return the most frequent dimensions, each with its number of rewards, at most `MOST_NAMES`."""
    reward = core_tables.rewards.c
    times = func.count()
    statement = select(reward.name, times.label("times")).where(reward.name.is_not(None)).group_by(reward.name)
    rows = await session.fetch(session.dialect.sql(statement.order_by(times.desc(), reward.name).limit(MOST_NAMES)), {})
    return [(row.name, row.times) for row in rows]


async def total(session: ReadSession) -> int:
    """Return the number of rollouts."""
    rows = await session.fetch(session.dialect.sql(rollouts_recorded()), {})
    return rows[0].total if rows else 0


async def axis(session: ReadSession, by: By, modes: Sequence[str], task: str | None = None) -> Axis | None:
    """Return an axis with at most `MOST_BUCKETS` buckets for the rollouts with these modes, or of one task.

    Return None if no rollout has a value on the axis.
    """
    column = _along(by)
    statement = select(func.min(column).label("lowest"), func.max(column).label("highest"))
    statement = statement.where(_of_modes(modes), _of_task(task))
    ends = (await session.fetch(session.dialect.sql(statement), {}))[0]
    lowest, highest = ends.lowest, ends.highest
    if lowest is None:
        return None
    if by == "step":
        width = -(-(highest - lowest + 1) // MOST_BUCKETS)
        return Axis(by, lowest, width, (highest - lowest) // width + 1)
    span = (highest - lowest) / _SECOND
    seconds = next((width for width in _WIDTHS if span / width < MOST_BUCKETS / 2), None)
    # If buckets of one day would be too many, the width of a bucket is several whole days.
    width = (seconds or 86400 * -(-int(span) // (86400 * MOST_BUCKETS // 2))) * _SECOND
    start = lowest // width * width
    return Axis(by, start, width, (highest - start) // width + 1)


async def sample(session: ReadSession, source: CurveSource) -> list[float]:
    """Return at most `SAMPLE` rewards, from the rollouts with the smallest ids."""
    value, table = _values(source)
    rollout = core_tables.rollouts.c
    terms = (value.is_not(None), _of_modes(source.modes), _of_task(source.task))
    statement: Select[Any] = select(value.label("reward")).select_from(table).where(*terms)
    rows = await session.fetch(session.dialect.sql(statement.order_by(rollout.rollout_id).limit(SAMPLE)), {})
    return [row.reward for row in rows]


async def cells(session: ReadSession, source: CurveSource, along: Axis, edges: Sequence[float]) -> list[Cell]:
    """Return the figures of the rollouts that have a value on an axis, by bucket, line and bin."""
    value, table = _values(source)
    rollout = core_tables.rollouts.c
    column = _along(along.by)
    terms = [column.is_not(None), _of_modes(source.modes), _of_task(source.task)]
    if source.resources_id is not None:
        terms.append(rollout.resources_id == literal(source.resources_id, Str))
    # Rows are grouped by the column `cell` of a subquery, because Postgres would consider an expression with parameters
    # in GROUP BY and the same expression in the SELECT list different. The column combines its parts in one number,
    # because SQLite sorts one number twice as fast as three.
    bucket = (column - big(along.start)) // big(along.width)
    line = (bucket * _digits(len(_MODES)) + _mode()) * _digits(2) + case((has_ended(), ONE), else_=_digits(0))
    rollout_cells = (
        select(
            (line * _digits(_MOST_EDGES + 2) + _bin(value, edges)).label("cell"),
            value.label("value"),
            (rollout.tokens_in + rollout.tokens_out).label("tokens"),
            rollout.tokens_out,
            rollout.status,
            rollout.resources_version,
            (rollout.end_at - rollout.start_at).label("lasted"),
        )
        .select_from(table)
        .where(*terms)
        .subquery("placed")
    )
    rollouts = rollout_cells.c
    distance = bounded(rollouts.value) - literal(source.centre, Number)
    figures = {
        "rollouts": func.count(),
        "reward_sum": func.sum(bounded(rollouts.value)),
        "reward_squares": func.sum(squares_of(distance)),
        "reward_min": func.min(rollouts.value),
        "reward_max": func.max(rollouts.value),
        "measured": func.count(case((rollouts.tokens > _digits(0), ONE))),
        "tokens_out": func.sum(cast(rollouts.tokens_out, Double)),
        "succeeded": func.count(case((rollouts.status == "succeeded", ONE))),
        "failed": func.count(case((rollouts.status == "failed", ONE))),
        "seconds": func.coalesce(func.sum(cast(rollouts.lasted, Double)), _digits(0)) / float(_SECOND),
    }
    keys: list[ColumnElement[Any]] = [rollouts.cell]
    if source.resources_id is not None:
        keys.append(rollouts.resources_version)
    statement = select(*keys, *[figure.label(name) for name, figure in figures.items()]).group_by(*keys)
    return [_cell(row) for row in await session.fetch(session.dialect.sql(statement), {})]


def _cell(row: NamedRow) -> Cell:
    figures = row._asdict()
    rest, bin_ = divmod(figures.pop("cell"), _MOST_EDGES + 2)
    rest, is_ended = divmod(rest, 2)
    bucket, mode = divmod(rest, len(_MODES))
    version = figures.pop("resources_version", None)
    index = None if bin_ > _MOST_EDGES else bin_
    return Cell(bucket, _MODES[mode], index, bool(is_ended), version=version, **figures)


def _mode() -> ColumnElement[int]:
    mode = core_tables.rollouts.c.mode
    return case(
        *((mode == name, _digits(number)) for number, name in enumerate(_MODES) if name is not None), else_=_digits(0)
    )


def _along(by: By) -> ColumnElement[int]:
    return core_tables.rollouts.c.step if by == "step" else core_tables.rollouts.c.end_at


def _of_modes(modes: Sequence[str]) -> ColumnElement[bool]:
    if not modes:
        return true()
    return one_of(core_tables.rollouts.c.mode, modes)


def _of_task(task: str | None) -> ColumnElement[bool]:
    return true() if task is None else core_tables.rollouts.c.input_sha256 == literal(task, Str)


def _values(source: CurveSource) -> tuple[ColumnElement[float], FromClause]:
    """Return the expression for the reward of a rollout, and the tables that this expression needs."""
    if source.version is not None:
        scored = scored_rewards(source.version)
        return scored.c.reward, core_tables.rollouts.outerjoin(
            scored, scored.c.rollout_id == core_tables.rollouts.c.rollout_id
        )
    if source.name is None:
        return core_tables.rollouts.c.last_reward, core_tables.rollouts
    reward, later = core_tables.rewards.c, core_tables.rewards.alias("later")
    is_later = or_(
        later.c.position > reward.position,
        and_(later.c.position == reward.position, later.c.ordinal > reward.ordinal),
    )
    name = literal(source.name, Str)
    is_last = ~exists().where(later.c.rollout_id == reward.rollout_id, later.c.name == name, is_later)
    last = select(reward.rollout_id, reward.value).where(reward.name == name, is_last).subquery("last_of_name")
    return last.c.value, core_tables.rollouts.outerjoin(last, last.c.rollout_id == core_tables.rollouts.c.rollout_id)


def _bin(value: ColumnElement[float], edges: Sequence[float]) -> ColumnElement[int]:
    """Return an expression for the number of edges that are less than or equal to a value, found by binary search.

    For null, the expression gives a number that is greater than the number of every bin.
    """
    assert len(edges) <= _MOST_EDGES

    def between(low: int, high: int) -> ColumnElement[int]:
        if low == high:
            return _digits(low)
        middle = (low + high) // 2
        is_below = value < literal(edges[middle], Number)
        return case((is_below, between(low, middle)), else_=between(middle + 1, high))

    return case((value.is_(None), _digits(_MOST_EDGES + 1)), else_=between(0, len(edges)))


def _digits(number: int) -> ColumnElement[int]:
    """Return a constant that is written into the statement. A parameter would only make the call longer."""
    return literal_column(str(number), Integer)
