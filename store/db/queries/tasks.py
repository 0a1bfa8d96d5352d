"""Tasks, which are rollouts with equal inputs: their rewards by step, as cells of a heat map, and their rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, select, true

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
class TaskStep:
    """The rollouts of one task in one step."""

    input_sha256: str
    rollout_id: str
    """One of the rollouts."""
    step: int
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


async def recurring_tasks(session: ReadSession, modes: Sequence[str], limit: int = MOST_TASKS) -> list[str]:
    """Return the hashes of the tasks with rollouts in at least two steps, those with most rollouts first."""
    rollout = core_tables.rollouts.c
    statement = select(rollout.input_sha256).where(rollout.step.is_not(None), _of_modes(modes))
    statement = (
        statement.group_by(rollout.input_sha256)
        .having(func.min(rollout.step) < func.max(rollout.step))
        .order_by(func.count().desc(), rollout.input_sha256)
        .limit(big(limit))
    )
    return [row.input_sha256 for row in await session.fetch(session.dialect.sql(statement), {})]


async def task_steps(
    session: ReadSession, tasks: Sequence[str], missing: MissingReward, modes: Sequence[str]
) -> list[TaskStep]:
    """Return the figures of tasks by step."""
    rollout = core_tables.rollouts.c
    figures = {"rollout_id": func.min(rollout.rollout_id), "rollouts": func.count(), **counted_figures(missing)}
    statement = select(*columns_of(TaskStep, dict(rollout), figures)).where(
        rollout.step.is_not(None), session.dialect.any_of(rollout.input_sha256, "tasks"), _of_modes(modes)
    )
    rows = await session.fetch(
        session.dialect.sql(statement.group_by(rollout.input_sha256, rollout.step)),
        {"tasks": session.dialect.list_param(list(tasks))},
    )
    return records(TaskStep, rows)


def _of_modes(modes: Sequence[str]) -> ColumnElement[bool]:
    return one_of(core_tables.rollouts.c.mode, modes) if modes else true()


def task_rows(tasks: Sequence[str], steps: Iterable[TaskStep]) -> list[TaskRow]:
    """Return the sums of tasks over all steps, in the order of their hashes."""
    by_task: defaultdict[str, list[TaskStep]] = defaultdict(list)
    for step in steps:
        by_task[step.input_sha256].append(step)
    return [
        TaskRow(
            task,
            min(part.rollout_id for part in by_task[task]),
            sum(part.rollouts for part in by_task[task]),
            len(by_task[task]),
            min(part.step for part in by_task[task]),
            max(part.step for part in by_task[task]),
            *_sums(by_task[task]),
        )
        for task in tasks
    ]


def task_cells(steps: Iterable[TaskStep], along: Axis) -> list[TaskCell]:
    """Return the figures of tasks in the buckets of an axis of steps."""
    by_place: defaultdict[tuple[str, int], list[TaskStep]] = defaultdict(list)
    for step in steps:
        by_place[step.input_sha256, (step.step - along.start) // along.width].append(step)
    return [
        TaskCell(task, bucket, sum(part.rollouts for part in parts), *_sums(parts))
        for (task, bucket), parts in by_place.items()
    ]


def _sums(parts: Sequence[TaskStep]) -> tuple[int, int, int, float | None]:
    """Return the numbers of ended, rewarded and counted rollouts, and the mean of those that count."""
    counted = sum(part.counted for part in parts)
    total = sum((part.mean_counted or 0.0) * part.counted for part in parts)
    ended, rewarded = sum(part.ended for part in parts), sum(part.rewarded_ended for part in parts)
    return ended, rewarded, counted, total / counted if counted else None


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
