"""The place of a rollout's reward within its group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from store.db.queries.groups import MemberRow


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The reward of a rollout beside the rewards of its group. Rollouts without a reward count in `rollouts` only."""

    group_id: str
    rollouts: int
    rewarded: int
    mean: float
    deviation: float | None
    """The sample standard deviation; None for a single reward."""
    advantage: float
    """The difference from the mean."""
    normalised: float | None
    """The advantage divided by the deviation; None if the deviation is 0 or unknown."""
    rank: int
    """1 for the greatest reward; equal rewards have equal ranks."""
    rewards: Sequence[float]
    """All rewards, the greatest first."""
    is_complete: bool
    """Whether all rollouts of the group were read."""


def place_of(group_id: str, rollout_id: str, members: Sequence[MemberRow], total: int) -> GroupPlace | None:
    """Return the place of a rollout; None if it has no reward, is alone or is not among the members.

    Args:
        group_id: the id of the group.
        rollout_id: the id of the rollout.
        members: the rollouts of the group that were read.
        total: the number of all rollouts of the group.
    """
    reward = next((member.reward for member in members if member.rollout_id == rollout_id), None)
    if reward is None or total < 2:
        return None
    rewards = sorted((member.reward for member in members if member.reward is not None), reverse=True)
    mean = statistics.fmean(rewards)
    deviation = statistics.stdev(rewards) if len(rewards) > 1 else None
    advantage = reward - mean
    return GroupPlace(
        group_id,
        total,
        len(rewards),
        mean,
        deviation,
        advantage,
        advantage / deviation if deviation else None,
        1 + sum(other > reward for other in rewards),
        rewards,
        is_complete=len(members) >= total,
    )
