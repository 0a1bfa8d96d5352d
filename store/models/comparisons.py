"""Comparisons of two selections of rollouts, and effects of versions of resources. Decision 111."""

from __future__ import annotations

from typing import Literal

from store.models.enums import Frozen

Verdict = Literal["better", "worse", "different", "even"]
"""The meaning of an interval: `even` if it contains 0, `different` if neither more nor less is better."""
MeasureKind = Literal["reward", "share", "count", "duration", "money"]


class ComparedMean(Frozen):
    """A mean with the number of its values."""

    count: int
    mean: float | None
    """None without values."""


class EstimatedDifference(Frozen):
    """The mean of `b` minus that of `a`, with its 95 % confidence interval (Student's t)."""

    value: float
    margin: float | None
    """Half the width of the interval; None with too few values."""
    low: float | None
    high: float | None
    degrees: float | None
    """The degrees of freedom."""
    pairs: int | None
    """The number of tasks by which the values are paired; None for independent values (Welch)."""
    verdict: Verdict | None
    """None without an interval."""


class ComparedMeasure(Frozen):
    """One measure of both sides."""

    name: str
    """`reward`, `failed`, `tokens_in`, `tokens_out`, `seconds`, `spans` or `attempts`; `reward:…` for a dimension.

    `calls`, `cost` and `cost_per_call` are present if a side has calls of models, or calls with known costs, and
    `tool_calls` and `with_tool_error` if a side has tool calls.
    """
    title: str
    kind: MeasureKind
    """The unit of the values. A share lies between 0 and 1; a duration is in seconds."""
    a: ComparedMean
    """If the difference is paired, the mean of the means of the tasks of both sides."""
    b: ComparedMean
    difference: EstimatedDifference | None
    """None if a side has no value."""


class ComparedTask(Frozen):
    """The rewards of one task, which is an input, on both sides."""

    task: str
    """The SHA-256 hash of the input."""
    title: str | None
    """The beginning of the input; None if it was removed."""
    a: ComparedMean
    b: ComparedMean
    difference: EstimatedDifference | None


class MovedRollout(Frozen):
    """A rollout of `b` whose reward is far from the mean of `a`."""

    rollout_id: str
    task: str
    title: str | None
    expected: float
    """The mean of `a` for the task; the mean of all of `a` if no task is in both sides."""
    reward: float | None
    """The recorded reward; None if the rollout counts without one."""
    moved: float
    """The value as which the reward counts, minus `expected`."""
    status: str
    error_type: str | None
    labels: list[str]


class ComparedSide(Frozen):
    """One side of a comparison."""

    query: str
    """The selection as the query string of the list of rollouts, such as `step_min=280&step_max=295`."""
    partition: str | None = None
    """The partition that the selection names; None for the partition of the store."""
    rollouts: int
    ended: int
    rewarded: int
    """The number of ended rollouts that have a reward."""
    failed: int
    tasks: int
    first_step: int | None
    last_step: int | None


class SelectionComparison(Frozen):
    """Two selections of rollouts, compared. All differences are `b` minus `a`."""

    a: ComparedSide
    b: ComparedSide
    unrewarded: str
    """How ended rollouts without a reward count: `out`, or for example `failed:0`."""
    other_unrewarded: str
    """The other choice, for which `other_reward` is computed."""
    is_paired: bool
    """Whether rewards are paired by task."""
    common_tasks: int
    """The number of tasks with values on both sides."""
    common_rollouts: int
    """The number of rollouts that are in both selections."""
    reward: ComparedMeasure
    other_reward: ComparedMeasure
    dimensions: list[ComparedMeasure]
    measures: list[ComparedMeasure]
    """Failures, lengths, durations and other measures."""
    tasks: list[ComparedTask]
    """The common tasks by difference, the lowest first; of many, those with the greatest differences."""
    moved: list[MovedRollout]
    """The rollouts of `b` that moved most, the lowest first."""
    warnings: list[str]
    """Sentences about what makes the comparison misleading."""


class VersionChange(Frozen):
    """The effect of a version of resources on the rewards, in short."""

    resources_id: str
    version: int
    against: int
    """The version that was used before."""
    step: int
    """The first step of the version."""
    a_steps: tuple[int, int]
    """The first and the last step of the window before."""
    b_steps: tuple[int, int]
    a: ComparedSide
    b: ComparedSide
    reward: ComparedMeasure
    other_reward: ComparedMeasure
    """The reward if missing rewards count by the other choice."""
    failed: ComparedMeasure
    warning: str | None
    """A sentence if the shares of rewarded rollouts differ; None if they do not."""


class VersionEffect(Frozen):
    """The effect of a version of resources: windows of steps before and after its first step, compared."""

    resources_id: str
    version: int
    against: int
    step: int
    """The first step of the version."""
    steps: int
    """The number of steps of a window, if there are as many."""
    mode: str | None
    """The mode of the rollouts; None for all."""
    a_steps: list[int]
    """The steps of the window before."""
    b_steps: list[int]
    comparison: SelectionComparison
