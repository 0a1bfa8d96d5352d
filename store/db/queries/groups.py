"""Groups of rollouts, such as the rollouts for one prompt, and the rollouts of one group.

A rollout is a task for an agent, and an attempt is one execution of a rollout by a worker. The values come from the
summary columns of the table `rollouts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, case, cast, func, select
from sqlalchemy.types import BigInteger

from store.db.dialect import ReadSession
from store.db.queries.pages import LONGEST_ID, joins_latest
from store.db.reports.conditions import big, bounded, mean_of, one_of
from store.db.tables import core as core_tables
from store.validation.json_limits import check_text

SORTS: Final = ("newest", "rollouts", "failed", "mean", "least", "most", "spread", "step")
"""The supported sort orders of groups."""
SPREADS: Final = ("any", "some", "none")
"""The filters by rewards: `any` selects all groups, `some` groups with different rewards, `none` with equal rewards.

Some training algorithms learn nothing from a group with equal rewards.
"""
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
    step: int | None
    """The greatest training step of the group's rollouts; None if no rollout has a step."""
    tokens_out: int
    newest_at: int
    """The time at which the newest rollout of the group began, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class GroupsWanted:
    """A selection of groups, and their order."""

    id_contains: str | None = None
    step: int | None = None
    spread: str = "any"
    has_siblings: bool = False
    """Whether to return only groups of more than one rollout."""
    sort: str = "newest"
    is_descending: bool = True
    limit: int = 50
    offset: int = 0


async def group_rows(session: ReadSession, wanted: GroupsWanted) -> tuple[list[GroupRow], int]:
    """Return a page of groups, and the number of all matching groups."""
    rollout = core_tables.rollouts.c
    columns = _columns()
    matching: list[ColumnElement[bool]] = [rollout.group_id.is_not(None)]
    if wanted.id_contains:
        matching.append(session.dialect.contains(rollout.group_id, wanted.id_contains))
    if wanted.step is not None:
        # A group is selected if one of its rollouts has the step. The columns and the sort then cover all rollouts of
        # the group.
        of_step = select(rollout.group_id).where(rollout.step == big(wanted.step), rollout.group_id.is_not(None))
        matching.append(rollout.group_id.in_(of_step))
    newest: ColumnElement[Any] = func.max(rollout.first_position)
    order = {"newest": newest}.get(wanted.sort, columns.get(wanted.sort, newest))
    ordered = order.desc().nulls_last() if wanted.is_descending else order.asc().nulls_last()
    # The groups of the page are selected first, and their sums are computed afterwards. To sort all groups together
    # with their sums would take twice as long.
    which: list[ColumnElement[Any]] = [rollout.group_id, func.count().over()]
    cut = (
        select(*which)
        .where(and_(*matching))
        .group_by(rollout.group_id)
        .having(and_(True, *_having(wanted)))
        .order_by(ordered, newest.desc())
        .limit(big(wanted.limit))
        .offset(big(wanted.offset))
    )
    found = await session.fetch(session.dialect.sql(cut), {})
    if not found:
        every = select(rollout.group_id).where(and_(*matching)).group_by(rollout.group_id)
        every = every.having(and_(True, *_having(wanted)))
        return [], await _count(session, every) if wanted.offset else 0
    ids = [row[0] for row in found]
    whole = select(*columns.values()).where(session.dialect.any_of(rollout.group_id, "ids")).group_by(rollout.group_id)
    rows = await session.fetch(session.dialect.sql(whole), {"ids": session.dialect.list_param(ids)})
    by_id = {row[0]: GroupRow(*row) for row in rows}
    return [by_id[each] for each in ids if each in by_id], int(found[0][1])


async def _count(session: ReadSession, every: Select[Any]) -> int:
    statement: Select[Any] = select(func.count()).select_from(every.subquery())
    return int((await session.fetch(session.dialect.sql(statement), {}))[0][0])


async def group_row(session: ReadSession, group_id: str) -> GroupRow | None:
    """Return one group; None if no rollout belongs to a group with this id."""
    check_text(group_id, "group_id", LONGEST_ID)
    rollout = core_tables.rollouts.c
    statement: Select[Any] = select(*_columns().values()).where(rollout.group_id == group_id).group_by(rollout.group_id)
    rows = await session.fetch(session.dialect.sql(statement), {})
    return GroupRow(*rows[0]) if rows else None


def _columns() -> dict[str, ColumnElement[Any]]:
    """Return the aggregates of a group's rollouts, by the field names of `GroupRow`."""
    rollout = core_tables.rollouts.c
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
    }


def _having(wanted: GroupsWanted) -> list[ColumnElement[bool]]:
    reward = core_tables.rollouts.c.last_reward
    demands: list[ColumnElement[bool]] = []
    if wanted.has_siblings:
        demands.append(func.count() > 1)
    if wanted.spread == "some":
        demands.append(func.max(reward) > func.min(reward))
    elif wanted.spread == "none":
        demands += [func.count(reward) > 1, func.max(reward) == func.min(reward)]
    return demands


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


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
    spans: int
    tokens_in: int
    tokens_out: int
    attempt_id: str | None
    worker_id: str | None


MEMBER_SORTS: Final = {
    "reward": "last_reward",
    "started": "first_position",
    "tokens": "tokens_out",
    "spans": "spans",
    "attempts": "attempt_count",
}
"""The supported sort orders of a group's rollouts, each with the column by which it sorts."""


@dataclass(frozen=True, slots=True)
class MembersWanted:
    """A selection of a group's rollouts, and their order."""

    group_id: str
    sort: str = "reward"
    is_descending: bool = True
    limit: int = 50
    offset: int = 0


async def member_rows(session: ReadSession, wanted: MembersWanted) -> list[MemberRow]:
    """Return a page of a group's rollouts, each with its latest attempt."""
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    order = rollout[MEMBER_SORTS[wanted.sort]]
    ordered = order.desc().nulls_last() if wanted.is_descending else order.asc().nulls_last()
    statement: Select[Any] = (
        select(*(rollout[name] for name in _MEMBER), attempt.attempt_id, attempt.worker_id)
        .select_from(core_tables.rollouts.outerjoin(core_tables.attempts, joins_latest(dict(rollout))))
        .where(rollout.group_id == wanted.group_id)
        .order_by(ordered, rollout.first_position)
        .limit(big(wanted.limit))
        .offset(big(wanted.offset))
    )
    return [MemberRow(*row) for row in await session.fetch(session.dialect.sql(statement), {})]


_MEMBER: Final = (
    "rollout_id",
    "status",
    "mode",
    "step",
    "start_at",
    "end_at",
    "attempt_count",
    "last_reward",
    "spans",
    "tokens_in",
    "tokens_out",
)
