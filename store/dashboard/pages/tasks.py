"""The pages of tasks: rewards by task and step as a heat map, and one task across steps and modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args

from store.comparing.reward_curves import CurveOptions, RewardCurves, reward_curves
from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.groups import threshold_of
from store.dashboard.request import PageRequest
from store.dashboard.views.figure_cache import cache_of
from store.dashboard.views.pass_at_k import KS, StepSignal, step_signals
from store.db.dialect import ReadSession
from store.db.queries.curves import Axis
from store.db.queries.groups import GroupValues, group_values_by_step, signal_cells
from store.db.queries.input_starts import input_titles
from store.db.queries.tasks import (
    TaskCell,
    TaskRollout,
    TaskRow,
    recurring_tasks,
    task_cells,
    task_rollouts,
    task_rows,
    task_steps,
)
from store.errors import NotFound
from store.models import RolloutMode
from store.models.missing_rewards import MissingReward

pages = Pages()

MOST_COLUMNS: Final = 50
"""The maximum number of columns of the heat map. With more steps, a column is a range of steps."""
TITLE: Final = 160
"""The maximum number of characters of a title, which is the beginning of an input."""
SHADES: Final = 9


@dataclass(frozen=True, slots=True)
class _HeatMap:
    along: Axis | None
    tasks: list[TaskRow]
    cells: list[TaskCell]
    titles: dict[str, str]
    """The beginnings of the inputs, by hash."""
    signals: list[StepSignal]


@pages.get("/ui/tasks")
async def tasks(request: PageRequest) -> PageContent:
    """Show the rewards of recurring tasks by step, and the training signal of the groups of each step.

    The parameters are `mode`, `unrewarded` and `threshold`, the least value that passes.
    """
    missing, threshold = request.missing_reward(), threshold_of(request)
    modes = tuple(mode for mode in request.several("mode") if mode in get_args(RolloutMode))
    cache = cache_of(request.store.core)

    async def work(session: ReadSession) -> _HeatMap:
        read = partial(group_values_by_step, missing=missing, threshold=threshold, modes=modes)
        values = await cache.rows(session, ("group values", missing, threshold, modes), read)
        compute = partial(_heat_map, values=values, missing=missing, modes=modes)
        return await cache.read(session, ("tasks", missing, threshold, modes), compute)

    heat = await request.store.core.look(work, snapshot=True)
    along = heat.along
    starts = [] if along is None else [along.low(bucket) for bucket in sorted({cell.bucket for cell in heat.cells})]
    values = {
        "tasks": heat.tasks,
        "titles": heat.titles,
        "cells": heat.cells,
        "start": 0 if along is None else along.start,
        "width": 1 if along is None else along.width,
        "modes": modes,
        "unrewarded": str(missing),
        "threshold": threshold,
        "signals": heat.signals,
    }
    hidden = {
        "ks": [k for k in KS if any(k in signal.pass_at_k for signal in heat.signals)],
        "starts": starts,
        "rows": [_row(request, task, heat, modes) for task in heat.tasks],
        "missing": missing,
        "all_modes": get_args(RolloutMode),
    }
    return PageContent("tasks.html", values, "Tasks", hidden=hidden)


async def _heat_map(
    session: ReadSession, values: Sequence[GroupValues], missing: MissingReward, modes: Sequence[str]
) -> _HeatMap:
    signals = step_signals(signal_cells(values))
    recurring = await recurring_tasks(session, modes)
    if not recurring:
        return _HeatMap(None, [], [], {}, signals)
    by_step = await task_steps(session, recurring, missing, modes)
    rows = task_rows(recurring, by_step)
    first, last = min(row.first_step for row in rows), max(row.last_step for row in rows)
    columns = len({part.step for part in by_step})
    width = 1 if columns <= MOST_COLUMNS else -(-(last - first + 1) // MOST_COLUMNS)
    along = Axis("step", first, width, (last - first) // width + 1)
    cells = task_cells(by_step, along)
    starts = await input_titles(session, [row.rollout_id for row in rows], TITLE)
    titles = {row.input_sha256: starts[row.rollout_id] for row in rows if row.rollout_id in starts}
    return _HeatMap(along, rows, cells, titles, signals)


def _row(request: PageRequest, task: TaskRow, heat: _HeatMap, modes: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return the cells of a task, one per column of the heat map; None where the task has no rollouts."""
    assert heat.along is not None
    means = [cell.mean_counted for cell in heat.cells if cell.mean_counted is not None]
    least, most = min(means, default=0.0), max(means, default=0.0)
    by_bucket = {cell.bucket: cell for cell in heat.cells if cell.input_sha256 == task.input_sha256}
    row: list[dict[str, Any] | None] = []
    for bucket in sorted({cell.bucket for cell in heat.cells}):
        cell = by_bucket.get(bucket)
        if cell is None:
            row.append(None)
            continue
        low, width = heat.along.low(bucket), heat.along.width
        place = {"step": low} if width == 1 else {"step_min": low, "step_max": low + width - 1}
        reach = most / 2 - least / 2
        share = 0.5 if cell.mean_counted is None or not reach else (cell.mean_counted / 2 - least / 2) / reach
        shade = None if cell.mean_counted is None else round(share * (SHADES - 1))
        url = request.url("rollouts", task=task.input_sha256, mode=list(modes) or None, **place)
        row.append({"cell": cell, "shade": shade, "start": low, "url": url})
    return row


@dataclass(frozen=True, slots=True)
class _Task:
    curves: RewardCurves
    rollouts: list[TaskRollout]
    total: int
    title: str | None


@pages.get("/ui/tasks/{task}")
async def task(request: PageRequest) -> PageContent:
    """Show the rewards of one task across steps and modes, and its rollouts.

    The id is the SHA-256 hash of the input in hex. The parameters are `mode` and `unrewarded`.
    """
    task_id, missing = request.ids["task"], request.missing_reward()
    modes = tuple(mode for mode in request.several("mode") if mode in get_args(RolloutMode))
    options = CurveOptions(modes=modes, missing=missing, task=task_id)
    limit, offset = request.rows, request.whole("offset", 0)
    history = await request.store.core.look(
        partial(_task, options=options, task_id=task_id, limit=limit, offset=offset), snapshot=True
    )
    if not history.total:
        raise NotFound("task", task_id, f"No rollout has an input with the hash {task_id!r}")
    values = {
        "task": task_id,
        "title": history.title,
        "by": None if history.curves.along is None else history.curves.along.by,
        "modes": modes,
        "unrewarded": str(missing),
        "charts": history.curves.charts,
        "markers": history.curves.markers,
        "rollouts": history.rollouts,
        "total": history.total,
        "limit": limit,
        "offset": offset,
    }
    hidden = {"missing": missing, "all_modes": get_args(RolloutMode), "target": request.url("rollouts", task=task_id)}
    return PageContent("task.html", values, history.title or f"Task {task_id[:12]}", hidden=hidden)


async def _task(session: ReadSession, options: CurveOptions, task_id: str, limit: int, offset: int) -> _Task:
    rollouts, total = await task_rollouts(session, task_id, limit, offset)
    if not total:
        return _Task(RewardCurves(None), [], 0, None)
    starts = await input_titles(session, [row.rollout_id for row in rollouts[:1]], TITLE)
    return _Task(await reward_curves(session, options), rollouts, total, next(iter(starts.values()), None))
