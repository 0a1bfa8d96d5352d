"""Sums over the rollouts of each training step: outcomes, rewards and output tokens, by mode and resources version.

Decision 121.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Float, case, cast, func, literal_column, select

from store.db.dialect import ReadSession
from store.db.queries.compared_rollouts import VersionStep
from store.db.queries.expressions import ONE, bounded
from store.db.queries.records import columns_of, records
from store.db.tables import core as core_tables
from store.domain.rollout import TERMINAL

_SMALL: Final[ColumnElement[float]] = literal_column("1e-140", Float)
_LARGE: Final[ColumnElement[float]] = literal_column("1e140", Float)
_ZERO: Final[ColumnElement[float]] = literal_column("0e0", Float)


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The rollouts of one training step that have the same mode and the same version of resources."""

    step: int | None
    """The step; None for rollouts without a step."""
    mode: str | None
    resources_id: str | None
    resources_version: int | None
    rollouts: int
    succeeded: int
    failed: int
    cancelled: int
    rewarded: int
    """The number of ended rollouts that have a reward."""
    unrewarded_failed: int
    """The number of failed rollouts without a reward."""
    reward_sum: float | None
    """The sum of the rewards of ended rollouts; None if none has a reward."""
    reward_squares: float | None
    """The sum of the squares of these rewards. Rewards beyond ±1e140 count as 1e140."""
    with_usage: int
    """The number of ended rollouts whose output tokens are known."""
    tokens_out: float | None
    """The sum of the output tokens of these rollouts; None if there are none."""
    last_end_at: int | None
    """The end of the rollout that ended last, in µs since the epoch; None if none has ended."""
    statuses: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of rollouts by status."""

    @property
    def ended(self) -> int:
        """The number of ended rollouts."""
        return self.succeeded + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class _StatusSums:
    """Sums of the rollouts of a step with one status. The rewards are those of all of them, ended or not."""

    step: int | None
    mode: str | None
    resources_id: str | None
    resources_version: int | None
    status: str
    rollouts: int
    rewarded: int
    reward_sum: float | None
    reward_squares: float | None
    with_usage: int
    tokens_out: float | None
    last_end_at: int | None


async def step_totals(session: ReadSession) -> list[StepTotals]:
    """Return the sums of all steps, and of the rollouts without a step."""
    rollout = core_tables.rollouts.c
    size = func.abs(bounded(rollout.last_reward))
    square = case((size < _SMALL, _ZERO), (size > _LARGE, _LARGE * _LARGE), else_=size * size)
    # Zero tokens mean that no span of the rollout reported usage.
    has_usage = rollout.tokens_out > 0
    figures: dict[str, ColumnElement[Any]] = {
        "rollouts": func.count(),
        "rewarded": func.count(rollout.last_reward),
        "reward_sum": func.sum(bounded(rollout.last_reward)),
        "reward_squares": func.sum(square),
        "with_usage": func.count(case((has_usage, ONE))),
        "tokens_out": func.sum(case((has_usage, cast(rollout.tokens_out, Double)))),
        "last_end_at": func.max(rollout.end_at),
    }
    keys = (rollout.step, rollout.mode, rollout.resources_id, rollout.resources_version)
    # The status is a key. As a condition in the sums, it would take 1.5 times as long.
    statement = select(*columns_of(_StatusSums, dict(rollout), figures)).group_by(*keys, rollout.status)
    parts: defaultdict[tuple[Any, ...], list[_StatusSums]] = defaultdict(list)
    for part in records(_StatusSums, await session.fetch(session.dialect.sql(statement), {})):
        parts[part.step, part.mode, part.resources_id, part.resources_version].append(part)
    return [_totals(key, by_status) for key, by_status in parts.items()]


def _totals(key: tuple[Any, ...], by_status: Sequence[_StatusSums]) -> StepTotals:
    statuses = {part.status: part.rollouts for part in by_status}
    ended = [part for part in by_status if part.status in TERMINAL]
    rewards = [part for part in ended if part.rewarded]
    tokens = [part.tokens_out for part in ended if part.tokens_out is not None]
    return StepTotals(
        *key,
        rollouts=sum(statuses.values()),
        succeeded=statuses.get("succeeded", 0),
        failed=statuses.get("failed", 0),
        cancelled=statuses.get("cancelled", 0),
        rewarded=sum(part.rewarded for part in ended),
        unrewarded_failed=sum(part.rollouts - part.rewarded for part in ended if part.status == "failed"),
        reward_sum=sum(part.reward_sum or 0.0 for part in rewards) if rewards else None,
        reward_squares=sum(part.reward_squares or 0.0 for part in rewards) if rewards else None,
        with_usage=sum(part.with_usage for part in ended),
        tokens_out=sum(tokens) if tokens else None,
        last_end_at=max((part.last_end_at for part in ended if part.last_end_at is not None), default=None),
        statuses=statuses,
    )


def version_steps_of(totals: Iterable[StepTotals], mode: str | None) -> list[VersionStep]:
    """Return the steps at which rollouts of a mode used each version of resources, as `version_steps` reads them."""
    counts: Counter[tuple[str, int, int]] = Counter()
    for part in totals:
        if part.resources_id is None or part.resources_version is None or part.step is None:
            continue
        if mode is None or part.mode == mode:
            counts[part.resources_id, part.resources_version, part.step] += part.rollouts
    return [VersionStep(*key, count) for key, count in sorted(counts.items())]
