"""Rollouts of a selection for a comparison, and the steps at which versions of resources were used. Decision 111."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, cast, func, select
from sqlalchemy.types import Text

from store.db.dialect import ReadSession
from store.db.queries.counted_rewards import counted_figures
from store.db.queries.expressions import big, one_of
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_list import RolloutListQuery, listing_of
from store.db.tables import core as core_tables
from store.errors import TooLarge
from store.models.missing_rewards import MissingReward

MOST_COMPARED: Final = 100_000
"""The maximum number of rollouts of one side of a comparison."""
_IDS_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """The figures of one rollout. Times are microseconds since the epoch."""

    rollout_id: str
    status: str
    step: int | None
    resources_id: str | None
    resources_version: int | None
    input_sha256: str
    start_at: int
    end_at: int | None
    attempts: int
    last_reward: float | None
    spans: int
    tokens_in: int
    tokens_out: int
    error: str | None
    """The error as JSON text."""


@dataclass(frozen=True, slots=True)
class VersionStep:
    """The rollouts of one step with one version of resources."""

    resources_id: str
    resources_version: int
    step: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class StepMean:
    """The mean of the rewards of one step."""

    step: int
    ended: int
    rewarded_ended: int
    """The number of ended rollouts that have a reward."""
    mean_counted: float | None


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Steps with one version of resources, in ascending order."""

    resources_id: str
    version: int
    steps: Sequence[int]


async def compared_rows(session: ReadSession, query: RolloutListQuery, side: str) -> list[ComparedRow]:
    """Return all rollouts of a selection, regardless of the page that `query` gives.

    Raises:
        TooLarge: there are more than `MOST_COMPARED`; the error names the side.
    """
    unpaged = replace(query, limit=-1, offset=0, after=None, before=None, sort="started")
    listing = listing_of(session.dialect, unpaged, ComparedRow)
    columns = columns_of(ComparedRow, listing.columns, {"attempts": core_tables.rollouts.c.attempt_count})
    statement = select(*columns).where(listing.matching(session.dialect)).limit(big(MOST_COMPARED + 1))
    params = listing.params(session.dialect)
    rows = await session.fetch(session.dialect.sql(statement), params)
    if len(rows) > MOST_COMPARED:
        counts = await session.fetch(session.dialect.sql(listing.count(session.dialect)), params)
        raise TooLarge(f"selection {side}", counts[0].total, MOST_COMPARED, "rollouts")
    return records(ComparedRow, rows)


async def dimensions_of(session: ReadSession, rollout_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return by name of a reward and by rollout id the last value of each dimension."""
    reward = core_tables.rewards.c
    columns: list[ColumnElement[Any]] = [reward.rollout_id, reward.name, reward.value]
    statement = (
        select(*columns)
        .where(session.dialect.any_of(reward.rollout_id, "ids"), reward.name.is_not(None))
        .order_by(reward.rollout_id, reward.position, reward.ordinal)
    )
    sql = session.dialect.sql(statement)
    values: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for start in range(0, len(rollout_ids), _IDS_AT_ONCE):
        part = session.dialect.list_param(list(rollout_ids[start : start + _IDS_AT_ONCE]))
        for row in await session.fetch(sql, {"ids": part}):
            values[row.name][row.rollout_id] = row.value
    return dict(values)


async def version_steps(session: ReadSession, mode: str | None, resources_id: str | None = None) -> list[VersionStep]:
    """Return the steps at which rollouts of a mode used each version of resources, in ascending order."""
    rollout = core_tables.rollouts.c
    keys = (rollout.resources_id, rollout.resources_version, rollout.step)
    terms: list[ColumnElement[bool]] = [column.is_not(None) for column in keys]
    if mode is not None:
        terms.append(one_of(rollout.mode, [mode]))
    if resources_id is not None:
        terms.append(one_of(rollout.resources_id, [resources_id]))
    columns = columns_of(VersionStep, dict(rollout), {"rollouts": func.count()})
    statement = select(*columns).where(*terms).group_by(*keys).order_by(*keys)
    return records(VersionStep, await session.fetch(session.dialect.sql(statement), {}))


async def step_means(
    session: ReadSession, missing: MissingReward, mode: str | None, resources_id: str
) -> list[StepMean]:
    """Return the mean of the rewards of the rollouts with any version of some resources, by step in ascending order."""
    rollout = core_tables.rollouts.c
    columns = columns_of(StepMean, {"step": rollout.step}, counted_figures(missing))
    statement = select(*columns).where(rollout.step.is_not(None), one_of(rollout.resources_id, [resources_id]))
    if mode is not None:
        statement = statement.where(one_of(rollout.mode, [mode]))
    statement = statement.group_by(rollout.step).order_by(rollout.step)
    return records(StepMean, await session.fetch(session.dialect.sql(statement), {}))


async def window_rows(session: ReadSession, mode: str | None, windows: Sequence[StepWindow]) -> list[ComparedRow]:
    """Return the rollouts of a mode whose resources and steps are those of any of the windows, with any version."""
    rollout = core_tables.rollouts.c
    columns = columns_of(ComparedRow, dict(rollout), {"attempts": rollout.attempt_count})
    statement = select(*columns).where(
        session.dialect.any_of(rollout.resources_id, "ids"), session.dialect.any_of(cast(rollout.step, Text), "steps")
    )
    if mode is not None:
        statement = statement.where(one_of(rollout.mode, [mode]))
    ids = sorted({window.resources_id for window in windows})
    steps = sorted({str(step) for window in windows for step in window.steps})
    params = {"ids": session.dialect.list_param(ids), "steps": session.dialect.list_param(steps)}
    return records(ComparedRow, await session.fetch(session.dialect.sql(statement), params))
