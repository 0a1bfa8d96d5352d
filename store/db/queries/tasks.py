"""Tasks, which are rollouts with equal inputs: their rewards by step, as cells of a heat map, and their rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import distinct, func, select

from store.db.dialect import ReadSession
from store.db.queries.counted_rewards import counted_figures
from store.db.queries.curves import Axis
from store.db.queries.expressions import big, one_of
from store.db.queries.pages import LONGEST_ID
from store.db.queries.records import columns_of, records
from store.db.tables import core as core_tables
from store.models.missing_rewards import MissingReward
from store.validation.json_limits import check_text

MOST_TASKS: Final = 60
"""The maximum number of rows of the heat map."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task. The mean is of ended rollouts, in which those without a reward count as the request says."""

    input_sha256: str
    rollout_id: str
    """One of the rollouts."""
    rollouts: int
    steps: int
    """The number of different steps."""
    first_step: int
    last_step: int
    ended: int
    rewarded_ended: int
    counted: int
    mean_counted: float | None


@dataclass(frozen=True, slots=True)
class TaskCell:
    """The rollouts of one task in one bucket of steps."""

    input_sha256: str
    bucket: int
    rollouts: int
    ended: int
    rewarded_ended: int
    counted: int
    mean_counted: float | None


@dataclass(frozen=True, slots=True)
class TaskRollout:
    """One rollout of a task. Times are microseconds since the epoch."""

    rollout_id: str
    status: str
    mode: str | None
    step: int | None
    group_id: str | None
    resources_id: str | None
    resources_version: int | None
    last_reward: float | None
    tokens_in: int
    tokens_out: int
    start_at: int
    end_at: int | None


async def recurring_tasks(
    session: ReadSession, missing: MissingReward, modes: Sequence[str], limit: int = MOST_TASKS
) -> list[TaskRow]:
    """Return the tasks with rollouts in at least two steps, those with most rollouts first."""
    rollout = core_tables.rollouts.c
    steps = func.count(distinct(rollout.step))
    figures = {
        "rollout_id": func.min(rollout.rollout_id),
        "rollouts": func.count(),
        "steps": steps,
        "first_step": func.min(rollout.step),
        "last_step": func.max(rollout.step),
        **counted_figures(missing),
    }
    statement = select(*columns_of(TaskRow, dict(rollout), figures)).where(rollout.step.is_not(None))
    if modes:
        statement = statement.where(one_of(rollout.mode, modes))
    statement = (
        statement.group_by(rollout.input_sha256)
        .having(func.min(rollout.step) < func.max(rollout.step))
        .order_by(func.count().desc(), rollout.input_sha256)
        .limit(big(limit))
    )
    return records(TaskRow, await session.fetch(session.dialect.sql(statement), {}))


async def task_cells(
    session: ReadSession, tasks: Sequence[str], along: Axis, missing: MissingReward, modes: Sequence[str]
) -> list[TaskCell]:
    """Return the figures of tasks in the buckets of an axis of steps."""
    rollout = core_tables.rollouts.c
    # Rows are grouped by step and added up here, because Postgres would consider an expression with parameters in GROUP
    # BY and the same expression in the SELECT list different.
    figures = {"bucket": rollout.step, "rollouts": func.count(), **counted_figures(missing)}
    statement = select(*columns_of(TaskCell, dict(rollout), figures)).where(
        rollout.step.is_not(None), session.dialect.any_of(rollout.input_sha256, "tasks")
    )
    if modes:
        statement = statement.where(one_of(rollout.mode, modes))
    rows = await session.fetch(
        session.dialect.sql(statement.group_by(rollout.input_sha256, rollout.step)),
        {"tasks": session.dialect.list_param(list(tasks))},
    )
    by_place: defaultdict[tuple[str, int], list[TaskCell]] = defaultdict(list)
    for cell in records(TaskCell, rows):
        by_place[cell.input_sha256, (cell.bucket - along.start) // along.width].append(cell)
    cells: list[TaskCell] = []
    for (task, bucket), parts in by_place.items():
        counted = sum(part.counted for part in parts)
        total = sum((part.mean_counted or 0.0) * part.counted for part in parts)
        ended, rewarded = sum(part.ended for part in parts), sum(part.rewarded_ended for part in parts)
        mean = total / counted if counted else None
        cells.append(TaskCell(task, bucket, sum(part.rollouts for part in parts), ended, rewarded, counted, mean))
    return cells


async def task_rollouts(session: ReadSession, task: str, limit: int, offset: int) -> tuple[list[TaskRollout], int]:
    """Return a page of the rollouts of a task, the last steps first, and the number of all."""
    rollout = core_tables.rollouts.c
    check_text(task, "task", LONGEST_ID)
    is_task = rollout.input_sha256 == task
    statement = (
        select(*columns_of(TaskRollout, dict(rollout)))
        .where(is_task)
        .order_by(rollout.step.desc().nulls_last(), rollout.first_position.desc())
        .limit(big(limit))
        .offset(big(offset))
    )
    rows = records(TaskRollout, await session.fetch(session.dialect.sql(statement), {}))
    counts = await session.fetch(session.dialect.sql(select(func.count().label("total")).where(is_task)), {})
    return rows, counts[0].total
