"""The data that training would use of several rollouts, with the number of dropped calls and rewards by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from store.dashboard.views.training import TrainingView
from store.models import Rollout
from store.semconv import GROUP_KEY

Subject = Literal["call", "reward", "row"]


@dataclass(frozen=True, slots=True)
class RolloutSums:
    """The numbers of one rollout."""

    rollout_id: str
    group_id: str | None
    status: str
    reward: float | None
    triplets: int
    rows: int
    trained_tokens: int
    dropped: int
    """The number of calls without a triplet."""
    lost: int
    """The number of rewards that no triplet has."""
    has_spans: bool


@dataclass(frozen=True, slots=True)
class RuleSum:
    """The number of calls, rewards or triplets that training does not use by one rule."""

    subject: Subject
    """`row` for triplets that give no row, or an incomplete row."""
    reason: str
    rule: str
    count: int
    rollouts: int
    example: str
    """A rollout with such a case."""


@dataclass(frozen=True, slots=True)
class TrainingSums:
    """The sums of several rollouts."""

    rollouts: Sequence[RolloutSums]
    triplets: int
    rows: int
    trained_tokens: int
    rules: Sequence[RuleSum]
    groups: int
    without_calls: int
    """The number of rollouts with spans among which the adapter finds no call of a model."""
    equal_groups: Sequence[str]
    """The groups with several rewards that are all equal. Algorithms with a baseline per group learn nothing there."""


def training_sums(views: Iterable[tuple[Rollout, TrainingView]]) -> TrainingSums:
    """Return the sums of the training views of rollouts."""
    rollouts: list[RolloutSums] = []
    cases: defaultdict[tuple[Subject, str, str], list[str]] = defaultdict(list)
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for rollout, view in views:
        rollout_id, tokens = rollout.rollout_id, view.tokens
        for span in view.dropped:
            cases["call", span.reason, span.rule].append(rollout_id)
        for reward in view.lost:
            cases["reward", reward.reason, reward.rule].append(rollout_id)
        for omission in () if tokens is None else tokens.omissions:
            cases["row", omission.reason, omission.rule].append(rollout_id)
        group = (rollout.metadata or {}).get(GROUP_KEY)
        if isinstance(group, str):
            rewards[group] += [] if rollout.reward is None else [rollout.reward]
        rows = () if tokens is None else tokens.rows
        rollouts.append(
            RolloutSums(
                rollout_id,
                group if isinstance(group, str) else None,
                rollout.status,
                rollout.reward,
                len(view.kept),
                len(rows),
                sum(row.trained_tokens for row in rows),
                len(view.dropped),
                len(view.lost),
                has_spans=view.has_spans,
            )
        )
    rules = [
        RuleSum(*case, len(rollout_ids), len(set(rollout_ids)), rollout_ids[0]) for case, rollout_ids in cases.items()
    ]
    return TrainingSums(
        rollouts,
        sum(rollout.triplets for rollout in rollouts),
        sum(rollout.rows for rollout in rollouts),
        sum(rollout.trained_tokens for rollout in rollouts),
        sorted(rules, key=lambda rule: -rule.count),
        len(rewards),
        sum(not rollout.triplets and not rollout.dropped and rollout.has_spans for rollout in rollouts),
        [group for group, values in rewards.items() if len(values) > 1 and min(values) == max(values)],
    )
