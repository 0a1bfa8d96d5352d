"""Means and shares of the rollouts of training steps, each with the numbers of rollouts that it was computed from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from store.db.queries.step_totals import StepTotals
from store.models.missing_rewards import MissingReward

MOST_BUCKETS: Final = 150
"""The maximum number of points of a curve. With more steps, a point stands for several adjacent steps."""
_NORMAL_95: Final = 1.96
_LARGE: Final = 1e140
"""Means beyond this number have no interval, because their squares are not finite."""
_MODES: Final = ("train", "val", "test")


@dataclass(slots=True)
class StepFigures:
    """The rollouts of a step or of several adjacent steps."""

    step: int | None
    """The first step; None for rollouts without a step."""
    last_step: int | None
    rollouts: int = 0
    ended: int = 0
    failed: int = 0
    rewarded: int = 0
    """The number of ended rollouts that have a reward."""
    counted: int = 0
    """The number of ended rollouts that count in `mean`."""
    mean: float | None = None
    """The mean of the rewards; None if no rollout counts."""
    half_width: float | None = None
    """Half of the 95 % interval of the mean (normal approximation); None if fewer than two count."""
    mean_rewarded: float | None = None
    """The mean of the rollouts that have a reward."""
    with_usage: int = 0
    """The number of ended rollouts whose output tokens are known."""
    length: float | None = None
    """The mean number of their output tokens; None if there are none."""
    last_end_at: int | None = None

    @property
    def failure_rate(self) -> float | None:
        """The share of failed rollouts among those that ended; None if none ended."""
        return self.failed / self.ended if self.ended else None

    @property
    def is_complete(self) -> bool:
        """Whether all rollouts have ended."""
        return self.ended == self.rollouts


def figures_of(
    totals: Iterable[StepTotals], missing: MissingReward, *, step: int | None, last_step: int | None
) -> StepFigures:
    """Return the figures of all rollouts that some totals count.

    Args:
        totals: the totals.
        missing: how ended rollouts without a reward count in the mean.
        step: the first step of these rollouts.
        last_step: the last step.
    """
    figures = StepFigures(step, last_step)
    reward_sum, squares, tokens, unrewarded = 0.0, 0.0, 0.0, 0
    for part in totals:
        figures.rollouts += part.rollouts
        figures.ended += part.ended
        figures.failed += part.failed
        figures.rewarded += part.rewarded
        figures.with_usage += part.with_usage
        unrewarded += part.unrewarded_failed if missing.substituted == "failed" else part.ended - part.rewarded
        reward_sum += part.reward_sum or 0.0
        squares += part.reward_squares or 0.0
        tokens += part.tokens_out or 0.0
        if part.last_end_at is not None:
            figures.last_end_at = max(figures.last_end_at or 0, part.last_end_at)
    figures.mean_rewarded = reward_sum / figures.rewarded if figures.rewarded else None
    figures.length = tokens / figures.with_usage if figures.with_usage else None
    figures.counted = figures.rewarded
    if missing.substituted != "out":
        figures.counted += unrewarded
        reward_sum += missing.value * unrewarded
        squares += missing.value**2 * unrewarded
    if figures.counted:
        figures.mean = reward_sum / figures.counted
    if figures.counted > 1 and figures.mean is not None and abs(figures.mean) < _LARGE:
        variance = max(0.0, squares - figures.counted * figures.mean**2) / (figures.counted - 1)
        figures.half_width = _NORMAL_95 * math.sqrt(variance / figures.counted)
    return figures


def by_step(
    totals: Sequence[StepTotals], mode: str | None, missing: MissingReward, *, width: int = 1
) -> list[StepFigures]:
    """Return the figures of the rollouts of one mode, by step or by ranges of `width` steps, sorted by step."""
    steps = [part.step for part in totals if part.step is not None]
    if not steps:
        return []
    first = min(steps)
    buckets: dict[int, list[StepTotals]] = {}
    for part in totals:
        if part.step is not None and part.mode == mode:
            buckets.setdefault((part.step - first) // width, []).append(part)
    return [
        figures_of(parts, missing, step=first + bucket * width, last_step=first + (bucket + 1) * width - 1)
        for bucket, parts in sorted(buckets.items())
    ]


def bucket_width(totals: Sequence[StepTotals]) -> int:
    """Return the number of steps for one point of a curve."""
    steps = [part.step for part in totals if part.step is not None]
    return -(-(max(steps) - min(steps) + 1) // MOST_BUCKETS) if steps else 1


def modes_of(totals: Iterable[StepTotals]) -> list[str | None]:
    """Return the modes that occur: train, val, test, and None last."""
    present = {part.mode for part in totals}
    return [mode for mode in (*_MODES, None) if mode in present]


@dataclass(frozen=True, slots=True)
class VersionStart:
    """The first training step whose rollouts used a version of resources."""

    resources_id: str
    version: int
    step: int


def version_starts(totals: Iterable[StepTotals]) -> Iterator[VersionStart]:
    """Yield the first step of each version of the resources that most rollouts use, the earliest first."""
    uses: dict[str, int] = {}
    first: dict[tuple[str, int], int] = {}
    for part in totals:
        if part.resources_id is None or part.resources_version is None or part.step is None:
            continue
        uses[part.resources_id] = uses.get(part.resources_id, 0) + part.rollouts
        key = (part.resources_id, part.resources_version)
        first[key] = min(first.get(key, part.step), part.step)
    if not uses:
        return
    chosen = max(uses, key=lambda resources_id: (uses[resources_id], resources_id))
    starts = [VersionStart(*key, step) for key, step in first.items() if key[0] == chosen]
    yield from sorted(starts, key=lambda start: (start.step, start.version))
