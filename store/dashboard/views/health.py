"""The health of a training: its progress, its pace, the reward and the failures of its last complete step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from store.dashboard.views.step_figures import StepFigures, by_step, figures_of, modes_of
from store.db.queries.overview import RECENT, Overview
from store.db.queries.step_totals import StepTotals
from store.models.missing_rewards import MissingReward
from store.runtime.clock import MICROSECONDS

_BEFORE: Final = 5
"""The number of steps before the last step with which the last step is compared."""
_HOUR: Final = 3600.0

PaceState = Literal["running", "stalled", "idle"]


@dataclass(frozen=True, slots=True)
class EndingPace:
    """The speed at which rollouts end."""

    state: PaceState
    """`idle` if no rollout is open; `stalled` if rollouts have been open for 300 s and none of any kind has ended."""
    recent: int
    """The number of rollouts that ended in the last 300 s."""
    per_minute: float
    seconds: float | None
    """For how long the training has stalled, or nothing has ended. None if it runs, or if nothing has ever ended."""


@dataclass(frozen=True, slots=True)
class TrainingHealth:
    """The health of a training. A number is None if it is not known."""

    mode: str | None
    """The mode of the rollouts of `last`: train, if any rollout has this mode."""
    last: StepFigures | None
    """The last step whose rollouts have all ended. In a store without steps: all rollouts."""
    steps: int
    """The number of complete steps."""
    target: int | None
    """The last step of the training."""
    first_step: int | None
    open_step: int | None
    """The first step after `last` with rollouts that have not ended."""
    open_rollouts: int
    """The number of these rollouts."""
    mean_before: float | None
    """The mean of the mean rewards of up to five complete steps before `last`."""
    failure_rate_before: float | None
    """The share of failed rollouts in these steps."""
    steps_before: int
    pace: EndingPace
    eta_seconds: float | None
    """The time until the step `target` at the pace of the last hour with ends; None without a target, or if unknown."""


def health(
    activity: Overview, totals: Sequence[StepTotals], missing: MissingReward, target: int | None
) -> TrainingHealth:
    """Return the health of a training.

    Args:
        activity: the current activity of the store.
        totals: the totals of all steps.
        missing: how ended rollouts without a reward count in means.
        target: the last step of the training, if it is known.
    """
    numbered = [part for part in totals if part.step is not None]
    modes = modes_of(numbered or totals)
    mode = modes[0] if modes else None
    steps = by_step(numbered, mode, missing)
    complete = [step for step in steps if step.is_complete]
    last = complete[-1] if complete else None
    if not numbered and any(part.ended for part in totals):
        last = figures_of([part for part in totals if part.mode == mode], missing, step=None, last_step=None)
    before = complete[-1 - _BEFORE : -1]
    means = [step.mean for step in before if step.mean is not None]
    ended_before = sum(step.ended for step in before)
    later = [step for step in steps if not step.is_complete and (last is None or (step.step or 0) > (last.step or 0))]
    return TrainingHealth(
        mode=mode,
        last=last,
        steps=len(complete),
        target=target,
        first_step=steps[0].step if steps else None,
        open_step=later[0].step if later else None,
        open_rollouts=later[0].rollouts - later[0].ended if later else 0,
        mean_before=sum(means) / len(means) if means else None,
        failure_rate_before=sum(step.failed for step in before) / ended_before if ended_before else None,
        steps_before=len(before),
        pace=pace(activity),
        eta_seconds=None if target is None else _eta(complete, target),
    )


def pace(activity: Overview) -> EndingPace:
    """Return the speed at which rollouts end."""
    per_minute = activity.recent / (RECENT / MICROSECONDS / 60)
    since_end = None if activity.last_end_at is None else (activity.now - activity.last_end_at) / MICROSECONDS
    opened = [active.started_at for active in activity.active[:1]] + [row.since for row in activity.waiting[:1]]
    if not opened:
        return EndingPace("idle", activity.recent, per_minute, since_end)
    # Work that was enqueued after a pause has not stalled since the end of the work before.
    since = max(min(opened), activity.last_end_at or 0)
    if activity.recent or activity.now - since <= RECENT:
        return EndingPace("running", activity.recent, per_minute, None)
    return EndingPace("stalled", 0, per_minute, (activity.now - since) / MICROSECONDS)


def _eta(complete: Sequence[StepFigures], target: int) -> float | None:
    ends = [
        (step.last_end_at / MICROSECONDS, step.step) for step in complete if step.last_end_at and step.step is not None
    ]
    if not ends:
        return None
    last_at, last_step = ends[-1]
    if last_step >= target:
        return 0.0
    earlier = [(at, step) for at, step in ends if at < last_at and step < last_step]
    within = [(at, step) for at, step in earlier if at >= last_at - _HOUR] or earlier[-1:]
    if not within:
        return None
    first_at, first_step = within[0]
    return (target - last_step) * (last_at - first_at) / (last_step - first_step)
