"""Report of a training, read from the log of its store."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from store.errors import Incompatible, Unsupported
from store.training.algorithms.model_addresses import meaning
from store.training.algorithms.rollout_ends import ENDED
from store.training.execution.algorithm_store import plan_of
from store.training.execution.strategy import ExecutionReport

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import LoggedEvent, RolloutMode

_TYPES: Final = (
    "rollout.enqueued",
    "rollout.started",
    "rollout.status_changed",
    "attempt.started",
    "attempt.status_changed",
)
_RESOURCES: Final = ("resources.published", "resources.replaced")
_STREAM: Final = "rollout/"
_READ_AT_ONCE: Final = 500
_NO_REWARD: Final = "no reward"


class Version(NamedTuple):
    """The id and the version of the resources that a rollout was run with."""

    resources_id: str | None
    version: int | None

    def __str__(self) -> str:
        if self.resources_id is None:
            return "-"
        return self.resources_id if self.version is None else f"{self.resources_id} v{self.version}"


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of all succeeded rollouts that have the same mode, step and version of the resources."""

    mode: RolloutMode | None
    step: int | None
    """The training step: `rollbook.step` in the metadata of the rollouts."""
    version: Version
    """The version of the resources. Successive versions that differ only in the addresses of models count as one
    version, the first one."""
    rollouts: int
    """The number of rollouts that succeeded."""
    rewarded: int
    """The number of these rollouts that have a reward."""
    mean: float | None
    """The mean of the rewards; None without rewards. A rollout's reward is the final reward of its last attempt."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Results of the rollouts that ended during a training. All ended rollouts of the training's plans are included."""

    rewards: list[Rewards] = field(default_factory=list[Rewards])
    """Rows by mode, step and version, in the order in which their first rollouts ended."""
    rollouts: int = 0
    """The number of rollouts that ended."""
    earlier: int = 0
    """The number of these rollouts that ended before this training began, in earlier trainings with the same plan."""
    attempts: int = 0
    """The number of attempts of these rollouts."""
    drops: dict[str, int] = field(default_factory=dict[str, int])
    """How many rollouts have no training data, by reason: the type of the error, the status, or `no reward`."""
    best: Version | None = None
    """The version with the greatest mean reward in validation. Without rewards in validation: in training."""
    seconds: float = 0.0
    """The duration of this training, without earlier trainings."""
    execution: ExecutionReport = field(default_factory=ExecutionReport)
    """The report about the runners."""

    @property
    def retries(self) -> int:
        """The number of retries: all attempts except the first attempt of each rollout."""
        return self.attempts - self.rollouts

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))


@dataclass(slots=True)
class _RolloutProgress:
    """State of one rollout after the events that were read so far."""

    plan: str | None = None
    mode: Any = None
    step: int | None = None
    resources_id: str | None = None
    version: int | None = None
    is_known: bool = False
    """Whether the event of the rollout's creation was read. If so, no earlier event is missing."""
    status: str = ""
    attempts: int = 0
    latest: str = ""
    trouble: str = ""
    """The error type or status of the latest attempt; empty if the attempt succeeded."""
    reward: float | None = None
    """The final reward of the latest attempt."""

    def apply(self, event: LoggedEvent) -> None:
        """Update the state with the next event of the rollout."""
        data = event.data
        match event.type:
            case "rollout.enqueued" | "rollout.started":
                self.is_known = True
                self.plan = plan_of(key) if (key := data.get("plan_key")) else None
                self.mode, self.step = data.get("mode"), data.get("step")
                self.resources_id, self.version = data.get("resources_id"), data.get("resources_version")
            case "rollout.status_changed":
                self.status = data["to"]
            case "attempt.started":
                self.attempts += 1
                self.latest, self.trouble = data["attempt_id"], ""
                self.version = data.get("resources_version", self.version)
            case "attempt.status_changed" if data["attempt_id"] == self.latest:
                error: dict[str, Any] = data.get("error") or {}
                self.trouble = error.get("type") or (data["to"] if data["to"] != "succeeded" else "")
            case _:
                pass

    @property
    def drop(self) -> str | None:
        """The reason why the rollout has no training data, or None."""
        if self.status == "succeeded":
            return _NO_REWARD if self.reward is None else None
        return "cancelled" if self.status == "cancelled" else self.trouble or self.status


async def read_report(
    store: Store, after: str | None, seconds: float, execution: ExecutionReport, plans: Collection[str] | None = None
) -> FitReport:
    """Return the report of the rollouts that ended after a cursor (a position in the log), and of plans.

    If the store has no log, the report counts no rollouts.

    Args:
        store: the store of the training.
        after: the cursor at which the training began; None for the beginning of the log.
        seconds: the duration of the training.
        execution: the report about the runners.
        plans: the names of plans. Their ended rollouts are in the report even if they ended before the cursor. None
            for the plans of the rollouts that ended after the cursor.
    """
    try:
        ended = await _ended(store, after)
        count = len(ended)
        if plans is None:
            await _complete(store, ended)
            plans = {progress.plan for progress in ended.values() if progress.plan is not None}
        if after is not None and plans:
            all_ended = await _ended(store, None)
            ended = {
                rollout_id: progress
                for rollout_id, progress in all_ended.items()
                if progress.plan in plans or rollout_id in ended
            }
        await _complete(store, ended)
        succeeded = [rollout_id for rollout_id, progress in ended.items() if progress.status == "succeeded"]
        for start in range(0, len(succeeded), _READ_AT_ONCE):
            for rollout in await store.query_rollouts(rollout_id_in=succeeded[start : start + _READ_AT_ONCE]):
                ended[rollout.rollout_id].reward = rollout.reward
        await _unite_versions(store, ended.values())
    except (Unsupported, Incompatible):
        return FitReport(seconds=seconds, execution=execution)
    rewards = _rewards_of(ended.values())
    drops = Counter(drop for progress in ended.values() if (drop := progress.drop) is not None)
    return FitReport(
        rewards=rewards,
        rollouts=len(ended),
        earlier=len(ended) - count,
        attempts=sum(max(progress.attempts, 1) for progress in ended.values()),
        drops=dict(drops.most_common()),
        best=_best_version(rewards),
        seconds=seconds,
        execution=execution,
    )


async def _ended(store: Store, after: str | None) -> dict[str, _RolloutProgress]:
    """Return the rollouts that ended after a cursor, in the order in which they first ended.

    A rollout that was reopened, and has not ended again, is left out.
    """
    rollouts: dict[str, _RolloutProgress] = defaultdict(_RolloutProgress)
    ended: dict[str, _RolloutProgress] = {}
    async for event in store.log.tail(after, types=_TYPES):
        rollout_id = event.stream.removeprefix(_STREAM)
        progress = rollouts[rollout_id]
        progress.apply(event)
        if event.type == "rollout.status_changed" and progress.status in ENDED:
            ended.setdefault(rollout_id, progress)
    return {rollout_id: progress for rollout_id, progress in ended.items() if progress.status in ENDED}


async def _unite_versions(store: Store, rollouts: Collection[_RolloutProgress]) -> None:
    """Replace the number of each version that differs from the version before only in addresses of models.

    The version gets the number of the version before.
    """
    versions: dict[str, set[int]] = defaultdict(set)
    for progress in rollouts:
        if progress.resources_id is not None and progress.version is not None:
            versions[progress.resources_id].add(progress.version)
    multi_version_ids = {resources_id for resources_id, numbers in versions.items() if len(numbers) > 1}
    if not multi_version_ids:
        return
    first_numbers: dict[tuple[str | None, int | None], int] = {}
    latest: dict[str, tuple[int, Any]] = {}
    async for event in store.log.tail(types=_RESOURCES):
        resources_id, number = event.stream.removeprefix("resources/"), event.data["version"]
        if resources_id not in multi_version_ids:
            continue
        update = await store.get_resources_by_id(resources_id, as_at=event.position)
        content = None if update is None else meaning(update.resources)
        first, before = latest.get(resources_id, (number, None))
        latest[resources_id] = (first if content == before and content is not None else number, content)
        first_numbers[resources_id, number] = latest[resources_id][0]
    for progress in rollouts:
        progress.version = first_numbers.get((progress.resources_id, progress.version), progress.version)


async def _complete(store: Store, rollouts: dict[str, _RolloutProgress]) -> None:
    """Read all events of rollouts that were created before the training began."""
    for rollout_id, progress in rollouts.items():
        if progress.is_known:
            continue
        complete = _RolloutProgress()
        async for event in store.log.tail(rollout_id=rollout_id, types=_TYPES):
            complete.apply(event)
        for name in _RolloutProgress.__slots__:
            setattr(progress, name, getattr(complete, name))


def _rewards_of(rollouts: Iterable[_RolloutProgress]) -> list[Rewards]:
    grouped: dict[tuple[Any, int | None, Version], list[float | None]] = {}
    for progress in rollouts:
        if progress.status == "succeeded":
            key = (progress.mode, progress.step, Version(progress.resources_id, progress.version))
            grouped.setdefault(key, []).append(progress.reward)
    rows: list[Rewards] = []
    for (mode, step, version), values in grouped.items():
        rewards = [reward for reward in values if reward is not None]
        mean = math.fsum(rewards) / len(rewards) if rewards else None
        rows.append(Rewards(mode, step, version, len(values), len(rewards), mean))
    return rows


def _best_version(rewards: list[Rewards]) -> Version | None:
    for mode in ("val", "train"):
        means = [(row.mean, row.version) for row in rewards if row.mode == mode and row.mean is not None]
        if means:
            return max(means, key=itemgetter(0))[1]
    return None


def _report_lines(report: FitReport) -> Iterable[str]:
    lines = [("mode", "step", "resources", "rollouts", "reward")]
    lines += [
        (
            row.mode or "-",
            "-" if row.step is None else str(row.step),
            f"{row.version}{' (best)' if row.version == report.best else ''}",
            str(row.rollouts),
            "-" if row.mean is None else f"{row.mean:.4f}",
        )
        for row in report.rewards
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if report.rewards:
        for mode, step, version, count, reward in lines:
            yield "  ".join(
                (
                    mode.ljust(widths[0]),
                    step.rjust(widths[1]),
                    version.ljust(widths[2]),
                    count.rjust(widths[3]),
                    reward.rjust(widths[4]),
                )
            )
    counts = f"{report.rollouts:,} rollouts in {report.attempts:,} attempts ({report.retries:,} retries)"
    yield f"{counts}, {report.seconds:.1f} s"
    if report.earlier:
        yield f"ended before this start: {report.earlier:,} rollouts"
    if report.drops:
        yield "nothing to learn from: " + ", ".join(f"{count:,} {reason}" for reason, count in report.drops.items())
    execution = report.execution
    if execution.replaced:
        yield f"runners replaced: {execution.replaced}"
    if execution.moved:
        yield f"runners moved from nodes that were shut down: {execution.moved}"
    for name, messages in (("lost", execution.crashed), ("killed", execution.killed)):
        for message in messages:
            yield f"{name}: {message.splitlines()[0]}"
    if execution.closed:
        yield f"attempts closed at the end: {len(execution.closed)}"
