"""The report of a rescoring: the recorded rewards and the scores of the same rollouts, compared."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from store.models import Rollout
from store.models.enums import Frozen
from store.rescoring.reward_function import ScoreResult
from store.runtime.statistics import Sample, mean_interval

MOST_LISTED: Final = 1000
"""The maximum number of rollouts in each list of a report."""
_BUCKETS: Final = 20
_STEP: Final = "rollbook.step"


class FailedScore(Frozen):
    """A rollout for which the function gave no value."""

    rollout_id: str
    type: str
    message: str


class ChangedScore(Frozen):
    """A rollout with two different values."""

    rollout_id: str
    before: float | None
    """The recorded reward; for a check, the first result."""
    after: float | None
    """The score; for a check, the second result. None if the function failed."""


class CurvePoint(Frozen):
    """The means of the rollouts of one mode and step.

    If there are no steps, all rollouts are divided into ranges in the order of creation. A range takes the place of the
    step.
    """

    mode: str | None
    step: int
    """The step in the metadata, or the number of the range."""
    rollouts: int
    recorded: float
    """The mean of the recorded rewards."""
    scored: float
    """The mean of the scores."""


class PairedDifference(Frozen):
    """The scores minus the recorded rewards of the same rollouts."""

    rollouts: int
    """The number of rollouts with both values."""
    recorded: float
    """The mean of the recorded rewards."""
    scored: float
    """The mean of the scores."""
    mean: float
    """The mean of the differences."""
    low: float | None
    """The lower end of the 95 % confidence interval of the mean (Student's t); None for a single rollout."""
    high: float | None


class DeterminismCheck(Frozen):
    """Rollouts that were scored twice."""

    rollouts: int
    different: int
    """The number of rollouts with two different results."""
    examples: list[ChangedScore]
    """The rollouts with two different results, at most 1,000."""


class RescoreReport(Frozen):
    """The result of a rescoring."""

    reward: str
    """The name and the version, such as `helpful@v2`."""
    code_sha256: str | None
    is_dry_run: bool
    selected: int
    """The number of rollouts that matched the query."""
    scored: int
    """The number of rollouts that got a value in this run; in a dry run, those that would be scored."""
    failed: int
    """The number of rollouts for which the function failed in this run."""
    scored_before: int
    """The number of rollouts that had a value before."""
    failed_before: int
    """The number of rollouts for which the function had failed before and was not called again."""
    not_ended: int
    """The number of rollouts that have not ended, or have no attempt; they are not scored."""
    conflicts: int
    """The number of rollouts for which another process recorded another value meanwhile."""
    failures_by_type: dict[str, int]
    failures: list[FailedScore]
    """Failures of this run, at most 1,000."""
    determinism: DeterminismCheck
    difference: PairedDifference | None
    """None if no rollout has both values."""
    curve: list[CurvePoint]
    by_step: bool
    """Whether the points of the curve are steps."""
    sign_changes: int
    """The number of rollouts whose score has another sign than the recorded reward; zero is a sign of its own."""
    sign_changed: list[ChangedScore]
    """The rollouts whose score has another sign, at most 1,000, the greatest difference first."""
    seconds: float


@dataclass(slots=True)
class Pairs:
    """The rollouts with a recorded reward and a score, in columns that need little memory."""

    recorded: array[float] = field(default_factory=lambda: array("d"))
    scored: array[float] = field(default_factory=lambda: array("d"))
    places: list[tuple[str | None, int | None]] = field(default_factory=list[tuple[str | None, int | None]])
    """The mode and the step of each rollout."""
    created: array[float] = field(default_factory=lambda: array("d"))
    """The time at which each rollout was created."""
    sign_changes: int = 0
    sign_changed: list[ChangedScore] = field(default_factory=list[ChangedScore])

    def add(self, rollout: Rollout, scored: float | None) -> None:
        """Add a rollout, unless one of the values is missing."""
        recorded = rollout.reward
        if recorded is None or scored is None:
            return
        self.recorded.append(recorded)
        self.scored.append(scored)
        self.created.append(rollout.start_time)
        step = (rollout.metadata or {}).get(_STEP)
        self.places.append((rollout.mode, step if type(step) is int else None))
        if _sign(recorded) != _sign(scored):
            self.sign_changes += 1
            change = ChangedScore(rollout_id=rollout.rollout_id, before=recorded, after=scored)
            self.sign_changed.append(change)
            if len(self.sign_changed) > 2 * MOST_LISTED:
                self.sign_changed = greatest(self.sign_changed)

    def difference(self) -> PairedDifference | None:
        """Return the mean of the differences with its confidence interval; None without a pair."""
        count = len(self.scored)
        if not count:
            return None
        differences = [after - before for before, after in zip(self.recorded, self.scored, strict=True)]
        interval = mean_interval(Sample.of(differences))
        assert interval is not None  # there is a pair
        mean, half = interval.value, interval.margin
        return PairedDifference(
            rollouts=count,
            recorded=math.fsum(self.recorded) / count,
            scored=math.fsum(self.scored) / count,
            mean=mean,
            low=None if half is None else mean - half,
            high=None if half is None else mean + half,
        )

    @property
    def by_step(self) -> bool:
        """Whether every rollout has a step."""
        return bool(self.places) and all(step is not None for _, step in self.places)

    def curve(self) -> list[CurvePoint]:
        """Return the means by mode and step, or by mode and range in the order of the rollouts."""
        by_step, count = self.by_step, len(self.places)
        groups: defaultdict[tuple[str | None, int], list[int]] = defaultdict(list)
        for rank, index in enumerate(sorted(range(count), key=self.created.__getitem__)):
            mode, step = self.places[index]
            groups[mode, step if by_step and step is not None else rank * _BUCKETS // count].append(index)
        return [
            CurvePoint(
                mode=mode,
                step=step,
                rollouts=len(indexes),
                recorded=math.fsum(self.recorded[index] for index in indexes) / len(indexes),
                scored=math.fsum(self.scored[index] for index in indexes) / len(indexes),
            )
            for (mode, step), indexes in sorted(groups.items(), key=lambda item: (item[0][0] or "", item[0][1]))
        ]


@dataclass(slots=True)
class Failures:
    """The failures of a run."""

    by_type: Counter[str] = field(default_factory=Counter[str])
    listed: list[FailedScore] = field(default_factory=list[FailedScore])

    def add(self, rollout_id: str, result: ScoreResult) -> None:
        """Add a failure."""
        assert result.error is not None  # a failure
        kind, message = result.error
        self.by_type[kind] += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(FailedScore(rollout_id=rollout_id, type=kind, message=message))


def greatest(changes: Iterable[ChangedScore]) -> list[ChangedScore]:
    """Return the changes with the greatest differences, the greatest first."""
    return sorted(changes, key=lambda change: -abs((change.after or 0) - (change.before or 0)))[:MOST_LISTED]


def determinism(pairs: Sequence[tuple[str, ScoreResult, ScoreResult]]) -> DeterminismCheck:
    """Compare the results of rollouts that were scored twice. `pairs` contains the id and both results of each."""
    different = [
        ChangedScore(rollout_id=rollout_id, before=first.value, after=second.value)
        for rollout_id, first, second in pairs
        if (first.value, first.dimensions) != (second.value, second.dimensions)
    ]
    return DeterminismCheck(rollouts=len(pairs), different=len(different), examples=different[:MOST_LISTED])


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
