"""Lanes of attempts: a common time axis and the statuses of each attempt."""

from __future__ import annotations

from typing import Any

import pytest

from store.dashboard.views.attempt_lanes import WIDTH, Lane, lanes_of
from store.dashboard.views.span_times import KindTime, times_of
from store.db.queries.waterfall import SpanRow
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


def _row(number: int, kind: str, start: float | None, end: float | None, *, attempt: int = 1, **more: Any) -> SpanRow:
    fields: dict[str, Any] = {
        "position": number, "span_id": f"s-{number}", "parent_id": None, "name": kind, "kind": "span", "status": "OK",
        "sequence_id": number, "reward": None, "tokens_in": None, "tokens_out": None, "model": None,
    }  # fmt: skip
    return SpanRow(**{**fields, **more}, start=start, end=end, span_kind=kind, attempt_id=f"at-{attempt}")


def _marks(lane: Lane) -> list[tuple[str, float, float]]:
    return [(mark.kind, mark.x, mark.x + mark.width) for mark in lane.marks]


def test_marks_show_work_by_kind_on_the_axis_of_the_attempts() -> None:
    spans = [
        _row(1, "agent", 100, 200),
        _row(2, "llm", 110, 120),
        _row(3, "tool", 120, 130, status="ERROR"),
        _row(4, "llm", 150, 160),
        _row(5, "llm", 155, 170),
        _row(6, "reward", 180, 180, attempt=2),
        _row(7, "tool", None, None),
    ]
    attempts = [_attempt(1, "failed", 100, 175), _attempt(2, "running", 175)]
    lanes = lanes_of(attempts, [], until=200.0, spans=spans)
    assert _marks(lanes[0]) == [("llm", 100, 200), ("llm", 500, 700), ("error", 200, 300)]
    assert _marks(lanes[1]) == [("reward", 800, 802)]


def test_axis_reaches_to_spans_that_end_after_their_attempt() -> None:
    lanes = lanes_of([_attempt(1, "succeeded", 100, 150)], [], until=500.0, spans=[_row(1, "llm", 140, 200)])
    assert _marks(lanes[0]) == [("llm", 400, WIDTH)]
    assert _bands(lanes[0])[0] == (0, 500, "preparing")


def test_spans_of_another_clock_are_shown_by_their_times_only() -> None:
    spans = [_row(1, "llm", 5, 6), _row(2, "llm", 9, 10), _row(3, "tool", 14, 15, attempt=2)]
    lanes = lanes_of([_attempt(1, "failed", 100, 101), _attempt(2, "succeeded", 102, 103)], [], spans=spans)
    assert [_marks(lane) for lane in lanes] == [[("llm", 0, 100), ("llm", 400, 500)], [("tool", 900, WIDTH)]]
    assert [lane.bands for lane in lanes] == [[], []]
    assert [lane.seconds for lane in lanes] == [1, 1]


def test_time_of_a_kind_counts_parallel_spans_once_and_idle_is_time_without_work() -> None:
    spans = [
        _row(1, "agent", 0, 100),
        _row(2, "other", 10, 90, span_id="step"),
        _row(3, "llm", 10, 30, parent_id="step"),
        _row(4, "llm", 20, 40),
        _row(5, "tool", 35, 50, status="ERROR"),
        _row(6, "tool", 60, None),
        _row(7, "reward", 100, 99),
    ]
    times = {time.kind: (time.seconds, time.spans) for time in times_of(spans)}
    assert times == {
        "agent": (100, 1),
        "other": (80, 1),
        "llm": (30, 2),
        "tool": (15, 2),
        "reward": (0, 1),
        "error": (15, 1),
        "idle": (60, 0),
    }
    assert times_of([]) == []
    assert times_of([_row(1, "agent", 0, 1)]) == [KindTime("agent", 1, 1)]


def test_how_it_ended_is_seen_at_the_edge_of_the_axis() -> None:
    lanes = lanes_of([_attempt(1, "succeeded", 100, 100)], [_turn(1, 100.0, "succeeded")], until=100.0)
    assert all(band.x >= 0 and band.x + band.width <= WIDTH for band in lanes[0].bands)
    assert lanes[0].bands[-1].status == "succeeded"


def test_without_attempts_there_are_no_lanes() -> None:
    assert lanes_of([], []) == []
