"""Sums over the rollouts of each training step: outcomes, rewards and output tokens, by mode and resources version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Float, and_, case, cast, func, literal_column, select

from store.db.dialect import ReadSession
from store.db.queries.expressions import ONE, bounded, one_of
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

    @property
    def ended(self) -> int:
        """The number of ended rollouts."""
        return self.succeeded + self.failed + self.cancelled


async def step_totals(session: ReadSession) -> list[StepTotals]:
    """Return the sums of all steps, and of the rollouts without a step."""
    rollout = core_tables.rollouts.c
    has_ended = one_of(rollout.status, TERMINAL)
    is_rewarded = and_(has_ended, rollout.last_reward.is_not(None))
    # Zero tokens mean that no span of the rollout reported usage.
    has_usage = and_(has_ended, rollout.tokens_out > 0)
    size = func.abs(bounded(rollout.last_reward))
    square = case((size < _SMALL, _ZERO), (size > _LARGE, _LARGE * _LARGE), else_=size * size)

    def number(condition: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count(case((condition, ONE)))

    figures: dict[str, ColumnElement[Any]] = {
        "rollouts": func.count(),
        **{status: number(rollout.status == status) for status in ("succeeded", "failed", "cancelled")},
        "rewarded": number(is_rewarded),
        "unrewarded_failed": number(and_(rollout.status == "failed", rollout.last_reward.is_(None))),
        "reward_sum": func.sum(case((is_rewarded, bounded(rollout.last_reward)))),
        "reward_squares": func.sum(case((is_rewarded, square))),
        "with_usage": number(has_usage),
        "tokens_out": func.sum(case((has_usage, cast(rollout.tokens_out, Double)))),
        "last_end_at": func.max(case((has_ended, rollout.end_at))),
    }
    keys = (rollout.step, rollout.mode, rollout.resources_id, rollout.resources_version)
    statement = select(*columns_of(StepTotals, dict(rollout), figures)).group_by(*keys)
    return records(StepTotals, await session.fetch(session.dialect.sql(statement), {}))
