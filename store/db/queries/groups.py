"""Groups of rollouts, such as the rollouts for one prompt, and the rollouts of one group.

The values come from the summary columns of the table `rollouts`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, case, cast, false, func, literal, select
from sqlalchemy.types import BigInteger

from store.db.columns import Number
from store.db.dialect import NamedRow, ReadSession
from store.db.queries.counted_rewards import counted_figures, counted_reward
from store.db.queries.expressions import big, bounded, mean_of, one_of
from store.db.queries.filters import FilterCondition, FilterQuery
from store.db.queries.pages import LONGEST_ID
from store.db.queries.paging import read_rows
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.queries.rollout_list import LISTED, listed_rollouts
from store.db.tables import core as core_tables
from store.models.missing_rewards import FAILED_AS_ZERO, MissingReward
from store.validation.json_limits import check_text

SORTS: Final = ("newest", "rollouts", "failed", "mean", "least", "most", "spread", "step")
"""The supported sort orders of groups."""
SPREADS: Final = ("any", "some", "none")
"""The filters by rewards: `any` selects all groups, `some` groups with different rewards, `none` with equal rewards.

Some training algorithms learn nothing from a group with equal rewards.
"""
PASS: Final = 0.5
"""The default of the least reward that passes."""
_OPEN: Final = ("queuing", "preparing", "running", "requeuing")


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group. `mean`, `least`, `most` and `spread` are computed from the last primary reward of each rollout.

    They are None if no rollout has a reward.
    """

    group_id: str
    rollouts: int
    open: int
    """The number of rollouts that have not ended."""
    succeeded: int
    failed: int
    cancelled: int
    rewarded: int
    """The number of rollouts that have a reward."""
    mean: float | None
    least: float | None
    most: float | None
    spread: float | None
    """The difference between `most` and `least`."""
    step: int | None
    """The greatest training step of the group's rollouts; None if no rollout has a step."""
    tokens_out: int
    newest_at: int
    """The time at which the newest rollout of the group began, in microseconds since the epoch."""
    input_sha256: str
    """The hash of the input of one of the rollouts."""
    rollout_id: str
    """One of the rollouts."""
    ended: int
    rewarded_ended: int
    """The number of ended rollouts that have a reward."""
    counted: int
    """The number of rollouts in `mean_counted`."""
    mean_counted: float | None
    """The mean reward of ended rollouts, in which those without a reward count as the query says."""
    passed: int
    """The number of these rollouts whose value is at least the threshold of the query."""
    has_variance: bool
    """Whether these values differ, so that the group gives a training signal."""
    deviation: float | None
    """The standard deviation of the sample of these values; None for fewer than two."""


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A selection of groups, and their order."""

    id_contains: str | None = None
    """Only groups whose ids contain this text."""
    step: int | None = None
    """Only groups with a rollout of this training step."""
    spread: str = "any"
    """One of `SPREADS`."""
    has_siblings: bool = False
    """Whether to return only groups of more than one rollout."""
    sort: str = "newest"
    """One of `SORTS`."""
    is_descending: bool = True
    limit: int = 50
    offset: int = 0
    missing: MissingReward = FAILED_AS_ZERO
    """How ended rollouts without a reward count in the mean and the spread."""
    threshold: float = PASS
    """The least value that passes."""


async def group_rows(session: ReadSession, query: GroupQuery) -> tuple[list[GroupRow], int]:
    """Return a page of groups, and the number of all matching groups."""
    rollout = core_tables.rollouts.c
    columns = _columns(query.missing, query.threshold)
    matching: list[ColumnElement[bool]] = [rollout.group_id.is_not(None)]
    if query.id_contains:
        matching.append(session.dialect.contains(rollout.group_id, query.id_contains))
    if query.step is not None:
        # A group is selected if one of its rollouts has the step. The columns and the sort then cover all rollouts of
        # the group.
        of_step = select(rollout.group_id).where(rollout.step == big(query.step), rollout.group_id.is_not(None))
        matching.append(rollout.group_id.in_(of_step))
    newest: ColumnElement[Any] = func.max(rollout.first_position)
    order = {"newest": newest, "mean": columns["mean_counted"]}.get(query.sort, columns.get(query.sort, newest))
    ordered = order.desc().nulls_last() if query.is_descending else order.asc().nulls_last()
    # The groups of the page are selected first, and their sums are computed afterwards. To sort all groups together
    # with their sums would take twice as long.
    page: list[ColumnElement[Any]] = [rollout.group_id, func.count().over().label("total")]
    cut = (
        select(*page)
        .where(and_(*matching))
        .group_by(rollout.group_id)
        .having(and_(True, *_having(query)))
        .order_by(ordered, newest.desc())
        .limit(big(query.limit))
        .offset(big(query.offset))
    )
    groups = await session.fetch(session.dialect.sql(cut), {})
    if not groups:
        matches = select(rollout.group_id).where(and_(*matching)).group_by(rollout.group_id)
        matches = matches.having(and_(True, *_having(query)))
        return [], await _count(session, matches) if query.offset else 0
    ids = [group.group_id for group in groups]
    sums = _sums(session.dialect.any_of(rollout.group_id, "ids"), query.missing, query.threshold)
    rows = await session.fetch(session.dialect.sql(sums), {"ids": session.dialect.list_param(ids)})
    deviations = await _deviations(session, ids, query.missing)
    by_id = {row.group_id: _group(row, deviations.get(row.group_id)) for row in rows}
    return [by_id[group_id] for group_id in ids if group_id in by_id], groups[0].total


async def _count(session: ReadSession, groups: Select[Any]) -> int:
    statement = select(func.count().label("total")).select_from(groups.subquery())
    rows = await session.fetch(session.dialect.sql(statement), {})
    return rows[0].total


async def group_row(
    session: ReadSession, group_id: str, missing: MissingReward = FAILED_AS_ZERO, threshold: float = PASS
) -> GroupRow | None:
    """Return one group; None if no rollout belongs to a group with this id."""
    check_text(group_id, "group_id", LONGEST_ID)
    sums = _sums(core_tables.rollouts.c.group_id == group_id, missing, threshold)
    deviations = await _deviations(session, [group_id], missing)
    rows = await session.fetch(session.dialect.sql(sums), {})
    return next((_group(row, deviations.get(group_id)) for row in rows), None)


def _group(row: NamedRow, deviation: float | None) -> GroupRow:
    figures = row._asdict()
    figures["has_variance"] = bool(figures["has_variance"])
    return GroupRow(**figures, deviation=deviation)


async def group_values(session: ReadSession, group_id: str, missing: MissingReward) -> list[float]:
    """Return the values of the rollouts that count in the mean of a group, in ascending order."""
    value = counted_reward(missing)
    statement = select(value.label("value")).where(core_tables.rollouts.c.group_id == group_id, value.is_not(None))
    return sorted(row.value for row in await session.fetch(session.dialect.sql(statement), {}))


async def groups_with_variance(session: ReadSession, ids: Sequence[str], missing: MissingReward) -> frozenset[str]:
    """Return the ids of the groups whose counted rewards differ."""
    group_id, value = core_tables.rollouts.c.group_id, counted_reward(missing)
    statement = select(group_id).where(session.dialect.any_of(group_id, "ids")).group_by(group_id)
    statement = statement.having(func.max(value) > func.min(value))
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))})
    return frozenset(row.group_id for row in rows)


def _sums(condition: ColumnElement[bool], missing: MissingReward, threshold: float) -> Select[Any]:
    columns = _columns(missing, threshold)
    return select(*columns_of(GroupRow, columns)).where(condition).group_by(core_tables.rollouts.c.group_id)


async def _deviations(session: ReadSession, ids: Sequence[str], missing: MissingReward) -> dict[str, float | None]:
    """Return the standard deviations of the values that count in groups, by group id."""
    rollout, value = core_tables.rollouts.c, bounded(counted_reward(missing))
    of_groups = session.dialect.any_of(rollout.group_id, "ids")
    statement = select(rollout.group_id, value.label("value")).where(of_groups, value.is_not(None))
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))}):
        values[row.group_id].append(row.value)
    deviations: dict[str, float | None] = {}
    for group_id, numbers in values.items():
        mean = sum(numbers) / len(numbers)
        squares = sum((number - mean) * (number - mean) for number in numbers)
        is_sample = len(numbers) > 1 and isfinite(squares)
        deviations[group_id] = sqrt(squares / (len(numbers) - 1)) if is_sample else None
    return deviations


def _columns(missing: MissingReward, threshold: float) -> dict[str, ColumnElement[Any]]:
    """Return the aggregates of a group's rollouts, by the field names of `GroupRow`."""
    rollout, value = core_tables.rollouts.c, counted_reward(missing)
    return {
        "group_id": rollout.group_id,
        "rollouts": func.count(),
        "open": _how_many(one_of(rollout.status, _OPEN)),
        "succeeded": _how_many(rollout.status == "succeeded"),
        "failed": _how_many(rollout.status == "failed"),
        "cancelled": _how_many(rollout.status == "cancelled"),
        "rewarded": func.count(rollout.last_reward),
        "mean": mean_of(rollout.last_reward),
        "least": func.min(rollout.last_reward),
        "most": func.max(rollout.last_reward),
        "spread": func.max(bounded(rollout.last_reward)) - func.min(bounded(rollout.last_reward)),
        "step": func.max(rollout.step),
        # On Postgres, the sum of 64-bit integers has the type numeric, so it is converted.
        "tokens_out": cast(func.coalesce(func.sum(rollout.tokens_out), 0), BigInteger),
        "newest_at": func.max(rollout.start_at),
        "input_sha256": func.max(rollout.input_sha256),
        "rollout_id": func.min(rollout.rollout_id),
        **counted_figures(missing),
        "passed": _how_many(value >= literal(threshold, Number)),
        "has_variance": func.coalesce(func.max(value) > func.min(value), false()),
    }


def _having(query: GroupQuery) -> list[ColumnElement[bool]]:
    value = counted_reward(query.missing)
    demands: list[ColumnElement[bool]] = []
    if query.has_siblings:
        demands.append(func.count() > 1)
    if query.spread == "some":
        demands.append(func.max(value) > func.min(value))
    elif query.spread == "none":
        demands += [func.count(value) > 1, func.max(value) == func.min(value)]
    return demands


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


@dataclass(frozen=True, slots=True)
class SignalCell:
    """The groups of one step with equal counts."""

    step: int
    counted: int
    """The number of rollouts of each group that count in its mean."""
    passed: int
    """The number of these rollouts whose value is at least the threshold."""
    has_variance: bool
    groups: int


@dataclass(frozen=True, slots=True)
class GroupValues:
    """The counted rewards of the rollouts of one block, group and step."""

    block: int
    group_id: str
    step: int
    counted: int
    passed: int
    """The number of rewards that are at least the threshold."""
    least: float
    most: float


async def group_values_by_step(
    session: ReadSession,
    block: int | None = None,
    *,
    missing: MissingReward,
    threshold: float,
    modes: Sequence[str],
) -> list[GroupValues]:
    """Return the counted rewards of groups by step, in one block or in all blocks."""
    rollout, value = core_tables.rollouts.c, counted_reward(missing)
    terms: list[ColumnElement[bool]] = [
        rollout.group_id.is_not(None),
        rollout.step.is_not(None),
        value.is_not(None),
        in_block(block),
    ]
    if modes:
        terms.append(one_of(rollout.mode, modes))
    figures: dict[str, ColumnElement[Any]] = {
        "block": block_of(),
        "counted": func.count(value),
        "passed": _how_many(value >= literal(threshold, Number)),
        "least": func.min(value),
        "most": func.max(value),
    }
    statement = select(*columns_of(GroupValues, dict(rollout), figures)).where(*terms)
    statement = statement.group_by(block_of(), rollout.group_id, rollout.step)
    return records(GroupValues, await session.fetch(session.dialect.sql(statement), {}))


def signal_cells(values: Iterable[GroupValues]) -> list[SignalCell]:
    """Return the numbers of groups by step and counts, sorted by step, from the values of all blocks.

    A group that has rollouts of two steps is a group of each.
    """
    groups: dict[tuple[int, str], GroupValues] = {}
    for part in values:
        place = part.step, part.group_id
        groups[place] = _merge(groups[place], part) if place in groups else part
    cells = Counter((group.step, group.counted, group.passed, group.most > group.least) for group in groups.values())
    return [SignalCell(*cell, count) for cell, count in sorted(cells.items())]


def _merge(values: GroupValues, other: GroupValues) -> GroupValues:
    """Return the values of one group and step in two blocks as one."""
    return replace(
        values,
        counted=values.counted + other.counted,
        passed=values.passed + other.passed,
        least=min(values.least, other.least),
        most=max(values.most, other.most),
    )


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One rollout of a group, with its latest attempt. Times are microseconds since the epoch."""

    rollout_id: str
    status: str
    mode: str | None
    step: int | None
    start_at: int
    end_at: int | None
    attempts: int
    reward: float | None
    """The last primary reward of the rollout, from any attempt."""
    spans: int
    tokens_in: int
    tokens_out: int
    attempt_id: str | None
    worker_id: str | None


MEMBER_SORTS: Final = ("reward", "started", "tokens", "spans", "attempts")
"""The supported sort orders of a group's rollouts. Lists of rollouts support these orders too."""


@dataclass(frozen=True, slots=True)
class MemberQuery:
    """A selection of a group's rollouts, and their order."""

    group_id: str
    sort: str = "reward"
    """One of `MEMBER_SORTS`."""
    is_descending: bool = True
    limit: int = 50
    offset: int = 0


async def member_rows(session: ReadSession, query: MemberQuery) -> list[MemberRow]:
    """Return a page of a group's rollouts, each with its latest attempt."""
    of_group = FilterCondition("group", "is", query.group_id)
    filter_query = FilterQuery(LISTED, (of_group,), "and", query.sort, query.is_descending, query.limit, query.offset)
    return records(MemberRow, await read_rows(session, listed_rollouts(filter_query, MemberRow)))
