"""SQL expressions for means of rewards in which ended rollouts without a reward may count. Decision 110."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, case, cast, func, literal_column, null

from store.db.queries.expressions import ONE, bounded, mean_of, one_of
from store.db.tables import core as core_tables
from store.models.missing_rewards import ENDED, MissingReward


def has_ended() -> ColumnElement[bool]:
    """Return the condition that a rollout has ended."""
    return one_of(core_tables.rollouts.c.status, ENDED)


def counted_reward(missing: MissingReward, value: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
    """Return the value as which a rollout counts in a mean of rewards; null if it is left out.

    Args:
        missing: how ended rollouts without a reward count.
        value: the reward of a rollout; None for `rollouts.last_reward`.
    """
    reward = core_tables.rollouts.c.last_reward if value is None else value
    is_rewarded = has_ended() & reward.is_not(None)
    if missing.substituted == "out":
        return case((is_rewarded, reward), else_=null())
    counts = core_tables.rollouts.c.status == "failed" if missing.substituted == "failed" else has_ended()
    # A number of the program, not of a user's text.
    return case((is_rewarded, reward), (counts, literal_column(repr(missing.value), Float)), else_=null())


def counted_figures(missing: MissingReward, value: ColumnElement[Any] | None = None) -> dict[str, ColumnElement[Any]]:
    """Return aggregates over rollouts: `ended`, `rewarded`, `counted` and `mean_counted`.

    These are the number of ended rollouts, of those with a reward, of those that count in the mean, and the mean.
    """
    reward = core_tables.rollouts.c.last_reward if value is None else value
    counted = counted_reward(missing, reward)
    return {
        "ended": func.count(case((has_ended(), ONE))),
        "rewarded_ended": func.count(case((has_ended() & reward.is_not(None), ONE))),
        "counted": func.count(counted),
        "mean_counted": mean_of(counted),
    }


def squares_of(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the square of a column of numbers, which neither overflows nor underflows on Postgres."""
    small, large = literal_column("1e-140", Float), literal_column("1e140", Float)
    size = func.abs(bounded(column))
    return case(
        (size < small, literal_column("0e0", Float)), (size > large, large * large), else_=cast(column, Float) * column
    )
