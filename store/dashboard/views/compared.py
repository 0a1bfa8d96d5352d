"""Differences with their intervals as texts and drawings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from store.comparing.selections import parse_selection, plain
from store.dashboard.request import PageRequest
from store.dashboard.views.formats import NOTHING, duration
from store.models.comparisons import (
    ComparedMeasure,
    ComparedSide,
    ComparedTask,
    EstimatedDifference,
    MeasureKind,
    MovedRollout,
)
from store.models.missing_rewards import MissingReward

MINUS: Final = "−"  # noqa: RUF001 - the minus sign of typography
WIDTH: Final = 300
"""The width of a drawing of intervals, in SVG units."""
_MARGIN: Final = 32
_TICKS: Final = (0.1, 0.2, 0.5, 1.0)


def amount(value: float | None, kind: MeasureKind) -> str:
    """Return a value of a measure: rewards with three decimals, shares in percent, durations in their units."""
    if value is None:
        return NOTHING
    match kind:
        case "share":
            text = f"{100 * value:.1f}%"
        case "duration":
            text = duration(value)
        case "count":
            text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
        case "money":
            text = f"{value:,.4f}"
        case "reward":
            text = f"{value:,.3f}" if abs(value) < 1e6 else f"{value:.3e}"
    return text.replace("-", MINUS) if value < 0 else text


def signed(value: float | None, kind: MeasureKind) -> str:
    """Return a difference with its sign; a difference of shares in percentage points."""
    if value is None:
        return NOTHING
    text = f"{100 * value:.1f} pt" if kind == "share" else amount(value, kind)
    text = text.lstrip(f"-{MINUS}")
    is_zero = not any(digit in text for digit in "123456789") or (kind == "duration" and abs(value) < 0.0005)
    if is_zero:
        return "0 s" if kind == "duration" else text
    return f"{'+' if value > 0 else MINUS}{text}"


def margin(difference: EstimatedDifference | None, kind: MeasureKind) -> str:
    """Return half the width of an interval: `± 0.052`."""
    if difference is None or difference.margin is None:
        return NOTHING
    return f"± {signed(difference.margin, kind).lstrip('+')}"


def meaning(measure: ComparedMeasure) -> str:
    """Return in words what the interval of a measure says."""
    difference = measure.difference
    if difference is None:
        return "One side has no value."
    if difference.low is None or difference.high is None:
        return "Too few values for an interval."
    bounds = f"95% interval {signed(difference.low, measure.kind)} to {signed(difference.high, measure.kind)}"
    words = {"better": "better", "worse": "worse", "different": "different"}.get(difference.verdict or "")
    return f"{bounds}: {words or 'no difference shown'}."


def in_partition(request: PageRequest, side: ComparedSide) -> PageRequest:
    """Return the request for links to the rollouts of a side, which may be in another partition."""
    if side.partition is None or side.partition == request.partition:
        return request
    return replace(request, base=f"{request.base.removesuffix(f'/p/{request.partition}')}/p/{side.partition}")


def described_side(side: ComparedSide) -> str:
    """Return the selection of a side in words, with its partition."""
    placed = "" if side.partition is None else f"partition {side.partition}, "
    return f"{placed}{described(side.query)}"


def described(query: str) -> str:
    """Return a selection in words: `res-swe v1, steps 280–295, train`."""  # noqa: RUF002 - a range
    selection = parse_selection(query, "selection")
    parts: list[str] = []
    if selection.resources_id is not None:
        version = "" if selection.resources_version is None else f" v{selection.resources_version}"
        parts.append(f"{selection.resources_id}{version}")
    elif selection.resources_version is not None:
        parts.append(f"v{selection.resources_version}")
    if selection.step is not None:
        parts.append(f"step {selection.step}")
    for bounds in selection.ranges:
        low, high = plain(bounds.least), plain(bounds.most)
        name = "steps" if bounds.of == "step" else bounds.of
        if low is None or high is None:
            parts.append(f"{name} from {low}" if high is None else f"{name} to {high}")
        else:
            parts.append(f"{name} {low}–{high}")  # noqa: RUF001 - a range
    texts = {
        "group": selection.group_id,
        "worker": selection.worker_id,
        "label": selection.label,
        "match of": selection.scan_match and str(selection.scan_match),
        "error": selection.error_type,
        "attempt": selection.attempt_status,
        "task": selection.task and selection.task[:12],
        "id contains": selection.id_contains,
    }
    parts += [f"{name} {text}" for name, text in texts.items() if text]
    parts += [", ".join(selection.modes), ", ".join(selection.statuses)]
    if selection.ids:
        parts.append(selection.ids[0] if len(selection.ids) == 1 else f"{len(selection.ids)} rollouts")
    return ", ".join(part for part in parts if part) or "all rollouts"


def step_words(steps: Sequence[int]) -> str:
    """Return the range of some steps: `steps 280–295`."""  # noqa: RUF002 - a range
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"  # noqa: RUF001 - a range


def choice(unrewarded: str) -> str:
    """Return in words how missing rewards count."""
    return MissingReward.parse(unrewarded).label


def unrewarded_options(request: PageRequest) -> list[tuple[str, str, bool]]:
    """Return the label and the address of each way to count missing rewards, and whether the page uses it."""
    missing = request.missing_reward()
    options = dict.fromkeys((MissingReward(), MissingReward("out"), missing))
    return [(option.label, request.here(unrewarded=option.param), option == missing) for option in options]


def error_name(error_type: str | None) -> str:
    """Return the last part of the name of an error type: `TimeoutError` for `httpx.TimeoutError`."""
    return (error_type or "").rpartition(".")[2]


def task(entry: ComparedTask | MovedRollout) -> str:
    """Return the title of a task: the beginning of its input, or of its hash if the input was removed."""
    return entry.title or entry.task[:12]


@dataclass(frozen=True, slots=True)
class IntervalMark:
    """An interval in a drawing of `WIDTH` units; None if it has no interval."""

    at: float
    """The position of the difference."""
    left: float | None
    right: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class IntervalScale:
    """The range of differences from `-reach` to `reach`."""

    reach: float

    @classmethod
    def of(cls, differences: Sequence[EstimatedDifference | None]) -> IntervalScale:
        """Return the scale that shows all differences, and nearly all intervals."""
        sizes = [abs(entry.value) for entry in differences if entry is not None]
        ends = sorted(abs(end) for entry in differences if entry is not None for end in (entry.low, entry.high) if end)
        # A task with two rollouts may have an interval that is a hundred times as wide as the others.
        reach = max([*sizes, *ends[: max(1, len(ends) * 9 // 10)]], default=1.0)
        if not 0 < reach < 1e100:
            return cls(1.0)
        power = 10.0 ** math.floor(math.log10(reach))
        return cls(next(power * 10 * tick for tick in (*_TICKS, 2.0) if power * 10 * tick >= reach))

    def at(self, value: float) -> float:
        """Return the position of a difference. Differences outside of the range are at its ends."""
        share = min(max(value / self.reach, -1.0), 1.0)
        return round(WIDTH / 2 + share * (WIDTH / 2 - _MARGIN), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the positions and the texts of five ticks."""
        values = [self.reach * share for share in (-1, -0.5, 0, 0.5, 1)]
        return [(self.at(value), f"{value:+.3g}".replace("-", MINUS) if value else "0") for value in values]

    def mark(self, difference: EstimatedDifference | None) -> IntervalMark | None:
        """Return the drawing of a difference; None without a difference."""
        if difference is None:
            return None
        left, right = (None if end is None else self.at(end) for end in (difference.low, difference.high))
        return IntervalMark(self.at(difference.value), left, right, difference.verdict or "even")


def interval_scale(reward: ComparedMeasure, tasks: Sequence[ComparedTask]) -> IntervalScale:
    """Return the scale of the drawings of a comparison."""
    return IntervalScale.of([reward.difference, *(task.difference for task in tasks)])


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A curve of means by step, in a drawing of 1180 by 96 units."""

    path: str
    windows: list[tuple[str, float, float]]
    """The name of each window, its position and its width."""
    versions: list[tuple[int, float]]
    """The number of each version, and the position of its first step."""
    ticks: list[tuple[int, float]]
    """Some steps and their positions."""
    values: list[tuple[float, str]]
    """Some values: their positions and their texts."""


def step_curve(
    points: Sequence[tuple[int, float | None]],
    windows: Sequence[tuple[str, int, int]],
    versions: Sequence[tuple[int, int]],
) -> StepCurve | None:
    """Return the curve of some steps and their means; None with fewer than two means.

    Args:
        points: the steps in ascending order, each with its mean.
        windows: the name of each window, and its first and last step.
        versions: the number of each version, and its first step.
    """
    means = [mean for _, mean in points if mean is not None]
    if len(means) < 2:
        return None
    first, last, low, high = points[0][0], points[-1][0], min(means), max(means)
    reach, height = (last - first) or 1, (high - low) or 1.0
    width = 0.4 * reach / len(points)

    def x(step: float) -> float:
        return round(min(max(44 + 1128 * (step - first) / reach, 44), 1172), 1)

    def y(value: float) -> float:
        return round(76 - 56 * (value - low) / height, 1)

    path, is_open = "", False
    for step, mean in points:
        if mean is not None:
            path += f"{'L' if is_open else 'M'}{x(step)} {y(mean)}"
        is_open = mean is not None
    every = max(1, len(points) // 9)
    return StepCurve(
        path,
        [(name, x(start - width), round(x(end + width) - x(start - width), 1)) for name, start, end in windows],
        [(version, x(step)) for version, step in versions],
        [(step, x(step)) for step, _ in points[::every]],
        [(y(value), f"{value:.3g}") for value in (low, (low + high) / 2, high)],
    )
