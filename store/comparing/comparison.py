"""Comparison of the rollouts of two selections. Decision 111.

A task is an input. If two or more tasks are on both sides, rewards and their dimensions are paired by task: each side
has a mean for each task, and Student's t is applied to the differences of these means. All other measures are compared
as independent samples (Welch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from store.comparing.windows import StepWindows
from store.db.queries.compared_rollouts import ComparedRow
from store.models.comparisons import (
    ComparedMean,
    ComparedMeasure,
    ComparedSide,
    ComparedTask,
    EstimatedDifference,
    MeasureKind,
    MovedRollout,
    SelectionComparison,
    Verdict,
    VersionChange,
)
from store.models.missing_rewards import ENDED, MissingReward, RewardShare
from store.runtime.clock import MICROSECONDS
from store.runtime.statistics import Interval, Sample, mean_interval, welch
from store.semconv import PRIMARY

MOST_TASKS: Final = 100
"""The maximum number of tasks that a comparison lists."""
MOST_MOVED: Final = 12
"""The maximum number of rollouts that a comparison lists as moved most."""
MOST_DIMENSIONS: Final = 20

Value = Callable[[ComparedRow], float | None]


@dataclass(frozen=True, slots=True)
class SideRows:
    """The rollouts of one side."""

    query: str
    """The selection as a query string."""
    rows: Sequence[ComparedRow]
    dimensions: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """The last values of the dimensions of rewards, by name and then by rollout id."""

    def by_task(self, value: Value) -> dict[str, list[float]]:
        """Return the values of rollouts by task. Rollouts without a value are left out."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for row in self.rows:
            number = value(row)
            if number is not None:
                values[row.input_sha256].append(number)
        return values

    def summary(self) -> ComparedSide:
        """Return the selection with its numbers of rollouts, tasks and steps."""
        ended = [row for row in self.rows if row.status in ENDED]
        steps = [row.step for row in self.rows if row.step is not None]
        return ComparedSide(
            query=self.query,
            rollouts=len(self.rows),
            ended=len(ended),
            rewarded=sum(row.last_reward is not None for row in ended),
            failed=sum(row.status == "failed" for row in ended),
            tasks=len({row.input_sha256 for row in self.rows}),
            first_step=min(steps, default=None),
            last_step=max(steps, default=None),
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """How a measure is computed."""

    name: str
    title: str
    kind: MeasureKind
    is_more_better: bool | None
    """None if neither more nor less is better."""
    value: Value
    """The value of a rollout; None if the rollout is left out."""


def _tokens(row: ComparedRow, tokens: int) -> float | None:
    # Rollouts whose calls report no usage have no tokens.
    return float(tokens) if row.status in ENDED and (row.tokens_in or row.tokens_out) else None


MEASUREMENTS: Final = (
    Measurement(
        "failed", "Failed", "share", False, lambda row: float(row.status == "failed") if row.status in ENDED else None
    ),
    Measurement("tokens_out", "Tokens out", "count", None, lambda row: _tokens(row, row.tokens_out)),
    Measurement("tokens_in", "Tokens in", "count", None, lambda row: _tokens(row, row.tokens_in)),
    Measurement(
        "seconds",
        "Duration",
        "duration",
        False,
        lambda row: (
            (row.end_at - row.start_at) / MICROSECONDS if row.end_at is not None and row.status in ENDED else None
        ),
    ),
    Measurement(
        "spans", "Spans", "count", None, lambda row: float(row.spans) if row.spans and row.status in ENDED else None
    ),
    Measurement(
        "attempts", "Attempts", "count", False, lambda row: float(row.attempts) if row.status in ENDED else None
    ),
)
"""The measures besides rewards."""


def reward_measurement(
    missing: MissingReward, values: Mapping[str, float] | None = None, name: str = ""
) -> Measurement:
    """Return the measure of rewards, or of the dimension `name` of rewards.

    Args:
        missing: how ended rollouts without a value count.
        values: the values of the dimension by rollout id; None for the rewards themselves.
        name: the name of the dimension; empty for the rewards themselves.
    """

    def value(row: ComparedRow) -> float | None:
        return missing.counted(row.status, row.last_reward if values is None else values.get(row.rollout_id))

    return Measurement(f"reward:{name}" if name else "reward", name or "Reward", "reward", True, value)


def estimated(
    interval: Interval | None, *, is_more_better: bool | None, pairs: int | None
) -> EstimatedDifference | None:
    """Return an interval as a difference, with its bounds and its verdict."""
    if interval is None:
        return None
    value, margin = interval.value, interval.margin
    low, high = (None, None) if margin is None else (value - margin, value + margin)
    verdict: Verdict | None = None
    if low is not None and high is not None:
        if low <= 0 <= high:
            verdict = "even"
        elif is_more_better is None:
            verdict = "different"
        else:
            verdict = "better" if (value > 0) == is_more_better else "worse"
    return EstimatedDifference(
        value=value, margin=margin, low=low, high=high, degrees=interval.degrees, pairs=pairs, verdict=verdict
    )


def paired(
    one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]
) -> tuple[Interval | None, ComparedMean, ComparedMean]:
    """Return the mean difference of the common tasks, and the means of the task means of both sides."""
    common = [task for task in one if task in other]
    means = [(Sample.of(one[task]).mean or 0.0, Sample.of(other[task]).mean or 0.0) for task in common]
    interval = mean_interval(Sample.of([after - before for before, after in means]))
    before, after = (
        ComparedMean(count=sum(len(values[task]) for task in common), mean=Sample.of(of_side).mean)
        for values, of_side in ((one, [pair[0] for pair in means]), (other, [pair[1] for pair in means]))
    )
    return interval, before, after


def compared_measure(a: SideRows, b: SideRows, measurement: Measurement, *, is_paired: bool) -> ComparedMeasure:
    """Return a measure of both sides."""
    one, other = a.by_task(measurement.value), b.by_task(measurement.value)
    pairs: int | None = None
    if is_paired:
        interval, *means = paired(one, other)
        pairs = len(one.keys() & other.keys())
    else:
        samples = [Sample.of([value for values in side.values() for value in values]) for side in (one, other)]
        interval = welch(*samples)
        means = [ComparedMean(count=sample.count, mean=sample.mean) for sample in samples]
    difference = estimated(interval, is_more_better=measurement.is_more_better, pairs=pairs)
    return ComparedMeasure(
        name=measurement.name,
        title=measurement.title,
        kind=measurement.kind,
        a=means[0],
        b=means[1],
        difference=difference,
    )


def compared_tasks(a: SideRows, b: SideRows, value: Value) -> list[ComparedTask]:
    """Return the tasks that are on both sides, sorted by their difference, the lowest first."""
    one, other = a.by_task(value), b.by_task(value)
    tasks: list[tuple[float, ComparedTask]] = []
    for task in one.keys() & other.keys():
        before, after = Sample.of(one[task]), Sample.of(other[task])
        difference = estimated(welch(before, after), is_more_better=True, pairs=None)
        assert difference is not None  # both sides have values
        compared = ComparedTask(
            task=task,
            title=None,
            a=ComparedMean(count=before.count, mean=before.mean),
            b=ComparedMean(count=after.count, mean=after.mean),
            difference=difference,
        )
        tasks.append((difference.value, compared))
    tasks.sort(key=lambda entry: (entry[0], entry[1].task))
    return [task for _, task in extremes(tasks, MOST_TASKS)]


def extremes(entries: list[Any], most: int) -> list[Any]:
    """Return both ends of a sorted list, together at most `most` entries."""
    return entries if len(entries) <= most else [*entries[: most // 2], *entries[-(most - most // 2) :]]


def moved_rollouts(a: SideRows, b: SideRows, value: Value) -> list[MovedRollout]:
    """Return the rollouts of `b` that are farthest below and above the mean of their task in `a`, the lowest first.

    If no task is on both sides, the mean of all rollouts of `a` is used.
    """
    by_task = a.by_task(value)
    means = {task: Sample.of(values).mean for task, values in by_task.items()}
    all_of_a = Sample.of([number for values in by_task.values() for number in values]).mean
    recurs = any(row.input_sha256 in means for row in b.rows)
    moved: list[tuple[float, float, ComparedRow]] = []
    for row in b.rows:
        number, expected = value(row), means.get(row.input_sha256) if recurs else all_of_a
        if number is not None and expected is not None and number != expected:
            moved.append((number - expected, expected, row))
    moved.sort(key=lambda entry: (entry[0], entry[2].rollout_id))
    return [
        MovedRollout(
            rollout_id=row.rollout_id,
            task=row.input_sha256,
            title=None,
            expected=expected,
            reward=row.last_reward,
            moved=difference,
            status=row.status,
            error_type=orjson.loads(row.error).get("type") if row.error and row.status == "failed" else None,
            labels=[],
        )
        for difference, expected, row in extremes(moved, MOST_MOVED)
    ]


def other_choice(missing: MissingReward) -> MissingReward:
    """Return the choice with which a comparison is repeated, to see whether the result depends on the choice."""
    return MissingReward() if missing.substituted == "out" else MissingReward("out")


def compared(a: SideRows, b: SideRows, missing: MissingReward, *, pairs: bool) -> SelectionComparison:
    """Compare two sides. With `pairs`, rewards are paired by task if at least two tasks are in both sides."""
    measurement, other = reward_measurement(missing), reward_measurement(other_choice(missing))
    tasks = compared_tasks(a, b, measurement.value)
    common_tasks = len(a.by_task(measurement.value).keys() & b.by_task(measurement.value).keys())
    is_paired = pairs and common_tasks > 1
    names = dict.fromkeys(name for name in (*a.dimensions, *b.dimensions) if name != PRIMARY)
    dimensions = [
        compared_measure(
            a,
            b,
            reward_measurement(missing, {**a.dimensions.get(name, {}), **b.dimensions.get(name, {})}, name),
            is_paired=is_paired,
        )
        for name in list(names)[:MOST_DIMENSIONS]
    ]
    common = {row.rollout_id for row in a.rows} & {row.rollout_id for row in b.rows}
    comparison = SelectionComparison(
        a=a.summary(),
        b=b.summary(),
        unrewarded=str(missing),
        other_unrewarded=str(other_choice(missing)),
        is_paired=is_paired,
        common_tasks=common_tasks,
        common_rollouts=len(common),
        reward=compared_measure(a, b, measurement, is_paired=is_paired),
        other_reward=compared_measure(a, b, other, is_paired=is_paired),
        dimensions=dimensions,
        measures=[compared_measure(a, b, one, is_paired=False) for one in MEASUREMENTS],
        tasks=tasks,
        moved=moved_rollouts(a, b, measurement.value),
        warnings=[],
    )
    return comparison.model_copy(update={"warnings": list(warnings_of(comparison))})


def warnings_of(comparison: SelectionComparison) -> list[str]:
    """Return the reasons why a comparison may mislead, as sentences."""
    a, b = comparison.a, comparison.b
    share = share_warning(a, b, comparison.reward, comparison.other_reward)
    warnings = [] if share is None else [share]
    if comparison.common_rollouts:
        warnings.append(f"{comparison.common_rollouts:,} rollouts are in both selections.")
    still_open = a.rollouts - a.ended + b.rollouts - b.ended
    if still_open:
        warnings.append(f"Rollouts that have not ended are left out: {still_open:,}.")
    return warnings


def version_change(windows: StepWindows, a: SideRows, b: SideRows, missing: MissingReward) -> VersionChange:
    """Return the main figures of the effect of a version. `a` and `b` are the rollouts of its windows."""
    measurement, other = reward_measurement(missing), reward_measurement(other_choice(missing))
    is_paired = len(a.by_task(measurement.value).keys() & b.by_task(measurement.value).keys()) > 1
    sides = [a.summary(), b.summary()]
    reward, other_reward = (compared_measure(a, b, one, is_paired=is_paired) for one in (measurement, other))
    return VersionChange(
        resources_id=windows.of.resources_id,
        version=windows.of.version,
        against=windows.against,
        step=windows.step,
        a_steps=(windows.before[0], windows.before[-1]),
        b_steps=(windows.after[0], windows.after[-1]),
        a=sides[0],
        b=sides[1],
        reward=reward,
        other_reward=other_reward,
        failed=compared_measure(a, b, MEASUREMENTS[0], is_paired=False),
        warning=share_warning(sides[0], sides[1], reward, other_reward),
    )


def share_warning(
    a: ComparedSide, b: ComparedSide, reward: ComparedMeasure, other_reward: ComparedMeasure
) -> str | None:
    """Return a warning if the shares of rewarded rollouts differ so much between the sides that means mislead."""
    before, after = (RewardShare(side.rewarded, side.ended) for side in (a, b))
    if not before.is_apart(after) or before.share is None or after.share is None:
        return None
    one, other = reward.difference, other_reward.difference
    depends = one is not None and other is not None and one.value * other.value < 0
    points = f"{100 * abs(after.share - before.share):.1f} points"
    return f"The shares of rewarded rollouts differ by {points}{', and the sign depends on it' if depends else ''}."
