"""Sums over the rollouts of each training step: outcomes, rewards and output tokens, by mode and resources version.

Decisions 121 and 125.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Float, case, cast, func, literal_column, select

from store.db.dialect import ReadSession
from store.db.queries.compared_rollouts import VersionStep
from store.db.queries.expressions import ONE, bounded
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.tables import core as core_tables
from store.domain.rollout import TERMINAL

_SMALL: Final[ColumnElement[float]] = literal_column("1e-140", Float)
_LARGE: Final[ColumnElement[float]] = literal_column("1e140", Float)
_COUNTS: Final = ("rollouts", "succeeded", "failed", "cancelled", "rewarded", "unrewarded_failed", "with_usage")
_SUMS: Final = ("reward_sum", "reward_squares", "tokens_out")
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
    """Sums over the rollouts of one block, step and status. Rewards of rollouts that have not ended count too."""

    block: int
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


@dataclass(frozen=True, slots=True)
class BlockTotals:
    """Sums over the rollouts of one block."""

    block: int
    totals: StepTotals


async def step_totals(session: ReadSession, block: int | None = None) -> list[BlockTotals]:
    """Return the sums of all steps, and of the rollouts without a step, in one block or in all blocks."""
    rollout = core_tables.rollouts.c
    size = func.abs(bounded(rollout.last_reward))
    square = case((size < _SMALL, _ZERO), (size > _LARGE, _LARGE * _LARGE), else_=size * size)
    # Zero tokens mean that no span of the rollout reported usage.
    has_usage = rollout.tokens_out > 0
    figures: dict[str, ColumnElement[Any]] = {
        "block": block_of(),
        "rollouts": func.count(),
        "rewarded": func.count(rollout.last_reward),
        "reward_sum": func.sum(bounded(rollout.last_reward)),
        "reward_squares": func.sum(square),
        "with_usage": func.count(case((has_usage, ONE))),
        "tokens_out": func.sum(case((has_usage, cast(rollout.tokens_out, Double)))),
        "last_end_at": func.max(rollout.end_at),
    }
    keys = (block_of(), rollout.step, rollout.mode, rollout.resources_id, rollout.resources_version)
    # The status is a key. As a condition in the sums, it would take 1.5 times as long.
    statement = select(*columns_of(_StatusSums, dict(rollout), figures)).where(in_block(block))
    statement = statement.group_by(*keys, rollout.status)
    parts: defaultdict[tuple[Any, ...], list[_StatusSums]] = defaultdict(list)
    for part in records(_StatusSums, await session.fetch(session.dialect.sql(statement), {})):
        parts[part.block, part.step, part.mode, part.resources_id, part.resources_version].append(part)
    return [BlockTotals(key[0], _totals(key[1:], by_status)) for key, by_status in parts.items()]


def _totals(key: tuple[Any, ...], by_status: Sequence[_StatusSums]) -> StepTotals:
    statuses = {part.status: part.rollouts for part in by_status}
    ended = [part for part in by_status if part.status in TERMINAL]
    return StepTotals(
        *key,
        rollouts=sum(statuses.values()),
        succeeded=statuses.get("succeeded", 0),
        failed=statuses.get("failed", 0),
        cancelled=statuses.get("cancelled", 0),
        rewarded=sum(part.rewarded for part in ended),
        unrewarded_failed=sum(part.rollouts - part.rewarded for part in ended if part.status == "failed"),
        reward_sum=_known_sum(part.reward_sum for part in ended),
        reward_squares=_known_sum(part.reward_squares for part in ended),
        with_usage=sum(part.with_usage for part in ended),
        tokens_out=_known_sum(part.tokens_out for part in ended),
        last_end_at=max((part.last_end_at for part in ended if part.last_end_at is not None), default=None),
        statuses=statuses,
    )


def _known_sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def totals_of_blocks(blocks: Iterable[BlockTotals]) -> list[StepTotals]:
    """Return the sums of all blocks by step, mode and version of resources."""
    parts: defaultdict[tuple[Any, ...], list[StepTotals]] = defaultdict(list)
    for part in blocks:
        totals = part.totals
        parts[totals.step, totals.mode, totals.resources_id, totals.resources_version].append(totals)
    return [of_key[0] if len(of_key) == 1 else _add(of_key) for of_key in parts.values()]


def _add(parts: Sequence[StepTotals]) -> StepTotals:
    statuses = Counter[str]()
    for part in parts:
        statuses.update(part.statuses)
    return replace(
        parts[0],
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
        **{name: _known_sum(getattr(part, name) for part in parts) for name in _SUMS},
        last_end_at=max((part.last_end_at for part in parts if part.last_end_at is not None), default=None),
        statuses=dict(statuses),
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
