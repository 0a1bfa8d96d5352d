"""The statistics of a report."""

from __future__ import annotations

import pytest

from store.models import Rollout, RolloutConfig
from store.rescoring.report import Pairs


def rollout(reward: float | None, step: int | None = None, *, created: float = 0) -> Rollout:
    metadata = {} if step is None else {"rollbook.step": step}
    return Rollout(
        rollout_id=f"ro-{reward}",
        input=1,
        start_time=created,
        status="succeeded",
        config=RolloutConfig(),
        metadata=metadata,
        reward=reward,
    )


def test_only_rollouts_with_both_values_are_compared() -> None:
    pairs = Pairs()
    for recorded, scored in ((None, 1.0), (1.0, None), (1.0, 2.0)):
        pairs.add(rollout(recorded), scored)
    difference = pairs.difference()
    assert difference is not None
    assert (difference.rollouts, difference.mean, difference.low) == (1, 1.0, None)
    assert Pairs().difference() is None


def test_interval_of_equal_differences_has_no_width() -> None:
    pairs = Pairs()
    for number in range(5):
        pairs.add(rollout(float(number)), number + 0.5)
    difference = pairs.difference()
    assert difference is not None
    assert (difference.low, difference.mean, difference.high) == (0.5, 0.5, 0.5)


def test_interval_of_great_differences_is_computed() -> None:
    pairs = Pairs()
    for scored in (1e200, -1e200):
        pairs.add(rollout(0.0), scored)
    difference = pairs.difference()
    assert difference is not None
    assert difference.high == pytest.approx(12.706e200, rel=1e-3)


def test_curve_without_steps_is_in_the_order_of_creation() -> None:
    pairs = Pairs()
    # Results come in any order.
    for number in reversed(range(40)):
        pairs.add(rollout(float(number), created=number), 1.0)
    assert not pairs.by_step
    points = pairs.curve()
    assert [(point.step, point.rollouts) for point in points] == [(step, 2) for step in range(20)]
    assert points[3].recorded == 6.5


def test_zero_has_a_sign_of_its_own() -> None:
    pairs = Pairs()
    for recorded, scored in ((0.0, 1.0), (1.0, 2.0), (-1.0, 0.0), (-1.0, 3.0), (0.0, -0.0)):
        pairs.add(rollout(recorded), scored)
    assert (pairs.sign_changes, len(pairs.sign_changed)) == (3, 3)
