"""Lanes of attempts: a common time axis and the statuses of each attempt."""

from __future__ import annotations

from typing import Any

import pytest

from store.dashboard.views.attempt_lanes import WIDTH, Lane, lanes_of
from store.models import Attempt


def _attempt(number: int, status: str, start: float, end: float | None = None, **more: Any) -> Attempt:
    fields = {"rollout_id": "ro-1", "attempt_id": f"at-{number}", "sequence_id": number, "status": status}
    return Attempt.model_validate(fields | {"start_time": start, "end_time": end} | more)


def _turn(number: int, at: float, to: str | None = None) -> dict[str, Any]:
    kind = "span.recorded" if to is None else "attempt.status_changed"
    return {"type": kind, "at": at, "data": {"attempt_id": f"at-{number}", "to": to}}


def _bands(lane: Lane) -> list[tuple[float, float, str]]:
    return [(band.x, band.x + band.width, band.status) for band in lane.bands]


def test_attempts_one_after_the_other_share_an_axis() -> None:
    turns = [_turn(1, 104.0, "running"), _turn(1, 105.0, "failed"), _turn(2, 108.0, "running")]
    lanes = lanes_of([_attempt(1, "failed", 100, 105), _attempt(2, "running", 106)], turns, until=110.0)
    assert _bands(lanes[0]) == [(0, 400, "preparing"), (400, 500, "running"), (500, 502, "failed")]
    assert _bands(lanes[1]) == [(600, 800, "preparing"), (800, 1000, "running")]
    assert [lane.seconds for lane in lanes] == [5, 4]


@pytest.mark.parametrize("status", ["timeout", "unresponsive"])
def test_an_attempt_that_was_given_up_ends_when_it_was(status: str) -> None:
    turns = [_turn(1, 130.0, status), _turn(2, 200.0, "succeeded")]
    lanes = lanes_of([_attempt(1, status, 100), _attempt(2, "succeeded", 150, 200)], turns, until=500.0)
    assert lanes[0].seconds == 30
    assert lanes[0].bands[-1].status == status


def test_signs_of_life_are_ticks_within_the_axis() -> None:
    turns = [_turn(1, 101.0), _turn(1, 102.0), _turn(1, 99.0)]
    lanes = lanes_of([_attempt(1, "running", 100, last_heartbeat_time=104.0)], turns, until=104.0)
    assert lanes[0].ticks == [0, 250, 500, WIDTH]


def test_how_it_ended_is_seen_at_the_edge_of_the_axis() -> None:
    lanes = lanes_of([_attempt(1, "succeeded", 100, 100)], [_turn(1, 100.0, "succeeded")], until=100.0)
    assert all(band.x >= 0 and band.x + band.width <= WIDTH for band in lanes[0].bands)
    assert lanes[0].bands[-1].status == "succeeded"


def test_without_attempts_there_are_no_lanes() -> None:
    assert lanes_of([], []) == []
