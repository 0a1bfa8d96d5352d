"""Contract of the watchdog, which ends attempts that exceed their time limit or send no sign of life.

Many methods sweep: before their own work, they end such attempts. With `scan_debounce_seconds=0`, each call of these
methods sweeps. `get_worker_by_id` does not sweep, so it can show whether an earlier call has ended the attempt of a
worker.
"""

from __future__ import annotations

from typing import Any

import pytest

from store.interface.store import Store
from store.models import EnqueueRolloutRequest, Rollout, RolloutConfig
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import attempt_of, reread, started, statuses, worker_of
from store.testing.samples import make_llm, make_span

__all__ = ["WatchdogContract"]

YEAR = 365 * 24 * 3600


async def call_sweeping_method(store: Store, name: str, other: Rollout) -> None:
    """Call a method that sweeps. `other` is a rollout whose attempt does not exceed a limit."""
    calls: dict[str, Any] = {
        "start_rollout": lambda: store.start_rollout(1),
        "enqueue_rollout": lambda: store.enqueue_rollout(1),
        "enqueue_many_rollouts": lambda: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)]),
        "dequeue_rollout": store.dequeue_rollout,
        "dequeue_many_rollouts": lambda: store.dequeue_many_rollouts(limit=1),
        "start_attempt": lambda: store.start_attempt(other.rollout_id),
        "query_rollouts": lambda: store.query_rollouts(limit=0),
        "get_rollout_by_id": lambda: store.get_rollout_by_id(other.rollout_id),
        "update_rollout": lambda: store.update_rollout(other.rollout_id, metadata={}),
        "query_attempts": lambda: store.query_attempts(other.rollout_id),
        "get_latest_attempt": lambda: store.get_latest_attempt(other.rollout_id),
        "update_attempt": lambda: store.update_attempt(other.rollout_id, "latest", metadata={}),
        "query_workers": lambda: store.query_workers(limit=0),
        "update_resources": lambda: store.update_resources("rs-1", make_llm()),
        "query_spans": lambda: store.query_spans(other.rollout_id),
        "wait_for_rollouts": lambda: store.wait_for_rollouts(rollout_ids=[other.rollout_id], timeout=0),
    }
    await calls[name]()


SWEEPING_METHODS = [
    "start_rollout",
    "enqueue_rollout",
    "enqueue_many_rollouts",
    "dequeue_rollout",
    "dequeue_many_rollouts",
    "start_attempt",
    "query_rollouts",
    "get_rollout_by_id",
    "update_rollout",
    "query_attempts",
    "get_latest_attempt",
    "update_attempt",
    "query_workers",
    "update_resources",
    "query_spans",
    "wait_for_rollouts",
]


class WatchdogContract:
    """Tests of time limits and of silence, and of their effects on the attempt, the rollout and the worker."""

    pytestmark = pytest.mark.asyncio

    async def test_an_attempt_above_its_time_limit_times_out(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        clock.advance(5.1)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_an_attempt_exactly_at_its_time_limit_is_not_ended(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        clock.move_to(rollout.attempt.start_time + 5)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        clock.advance(0.001)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_the_time_limit_counts_from_the_start_of_the_attempt(self, store: Store, clock: ManualClock) -> None:
        rollout = await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=5))
        clock.advance(100)
        await store.dequeue_rollout()
        clock.advance(4)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        await store.start_attempt(rollout.rollout_id)
        clock.advance(4)
        assert await statuses(store, rollout) == ("preparing", "preparing", "preparing")
        clock.advance(2)
        assert await statuses(store, rollout) == ("failed", "preparing", "timeout")

    async def test_spans_and_heartbeats_do_not_extend_the_time_limit(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5, unresponsive_seconds=5)
        for number in range(1, 4):
            clock.advance(1.5)
            await store.add_span(make_span(rollout.attempt, number))
        await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds)
        assert await statuses(store, rollout) == ("running", "running")
        clock.advance(1)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_a_limit_of_zero_ends_the_attempt_at_the_next_sweep(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=0)
        clock.advance(0.001)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_silence_since_the_start_makes_an_attempt_unresponsive(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        clock.move_to(rollout.attempt.start_time + 5)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        clock.advance(0.001)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_silence_since_the_last_span_makes_an_attempt_unresponsive(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        clock.advance(4)
        await store.add_span(make_span(rollout.attempt))
        clock.advance(4)
        assert await statuses(store, rollout) == ("running", "running")
        clock.advance(2)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_silence_since_the_last_reported_heartbeat_makes_an_attempt_unresponsive(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        clock.advance(4)
        await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds)
        clock.advance(4)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        clock.advance(2)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_an_earlier_heartbeat_time_makes_the_attempt_unresponsive_sooner(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=50)
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("running", "running")
        await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds - 60)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_a_future_heartbeat_time_makes_the_attempt_unresponsive_later(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds + 100)
        clock.advance(104)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        clock.advance(2)
        assert await statuses(store, rollout) == ("failed", "unresponsive")

    async def test_timeout_takes_precedence_if_both_limits_are_exceeded(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=9, unresponsive_seconds=5)
        clock.advance(10)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_an_attempt_without_limits_may_take_for_ever(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store)
        clock.advance(10 * YEAR)
        assert await statuses(store, rollout) == ("preparing", "preparing")

    async def test_limits_that_are_set_later_apply(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store)
        clock.advance(10)
        await store.update_rollout(rollout.rollout_id, config=RolloutConfig(timeout_seconds=15))
        assert await statuses(store, rollout) == ("preparing", "preparing")
        clock.advance(6)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_limits_that_are_removed_in_time_do_not_apply(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        await store.update_rollout(rollout.rollout_id, config=RolloutConfig())
        clock.advance(10)
        assert await statuses(store, rollout) == ("preparing", "preparing")

    async def test_only_rollouts_that_prepare_or_run_are_watched(self, store: Store, clock: ManualClock) -> None:
        cases: list[Any] = ["queuing", "requeuing", "succeeded", "failed", "cancelled"]
        for status in cases:
            rollout = await started(store, timeout_seconds=5, unresponsive_seconds=5)
            await store.update_rollout(rollout.rollout_id, status=status)
            clock.advance(100)
            assert await statuses(store, rollout) == (status, "preparing")

    async def test_only_the_latest_attempt_is_watched(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        await store.add_span(make_span(rollout.attempt))
        clock.advance(4)
        await store.start_attempt(rollout.rollout_id)
        clock.advance(3)
        assert await statuses(store, rollout) == ("preparing", "running", "preparing")

    async def test_a_running_rollout_is_watched_whatever_its_attempts_status(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, timeout_seconds=5)
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        await store.update_rollout(rollout.rollout_id, status="running")
        clock.advance(6)
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_one_sweep_ends_all_overdue_attempts(self, store: Store, clock: ManualClock) -> None:
        stuck = [await started(store, timeout_seconds=5) for _ in range(3)]
        silent = await started(store, unresponsive_seconds=5)
        fine = await started(store, timeout_seconds=50)
        clock.advance(6)
        page = await store.query_rollouts(status_in=["failed"])
        assert {rollout.rollout_id for rollout in page} == {rollout.rollout_id for rollout in [*stuck, silent]}
        assert await statuses(store, fine) == ("preparing", "preparing")

    async def test_the_watchdog_sets_the_end_time_of_the_rollout_but_not_of_the_attempt(
        self, store: Store, clock: ManualClock
    ) -> None:
        cases: list[tuple[Any, str]] = [
            ({"timeout_seconds": 5}, "timeout"),
            ({"unresponsive_seconds": 5}, "unresponsive"),
        ]
        for config, status in cases:
            rollout = await started(store, **config)
            clock.advance(6)
            read = await reread(store, rollout)
            attempt = await attempt_of(store, rollout)
            assert (attempt.status, attempt.end_time) == (status, None)
            assert read.status == "failed"
            assert read.end_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_the_watchdog_queues_retries_up_to_max_attempts(self, store: Store, clock: ManualClock) -> None:
        cases: list[tuple[Any, Any]] = [
            ({"timeout_seconds": 5}, "timeout"),
            ({"unresponsive_seconds": 5}, "unresponsive"),
        ]
        for config, status in cases:
            rollout = await started(store, max_attempts=2, retry_condition=[status], **config)
            clock.advance(6)
            assert await statuses(store, rollout) == ("requeuing", status)
            claimed = await store.dequeue_rollout()
            assert claimed is not None
            assert claimed.attempt.sequence_id == 2
            clock.advance(6)
            assert await statuses(store, rollout) == ("failed", status, status)
            assert await store.dequeue_rollout() is None

    async def test_a_claim_finds_the_retry_of_an_attempt_that_just_timed_out(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["timeout"], timeout_seconds=5)
        clock.advance(6)
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 2)

    async def test_the_worker_of_an_overdue_attempt_becomes_unknown_and_has_no_attempt(
        self, store: Store, clock: ManualClock
    ) -> None:
        cases: list[Any] = [{"timeout_seconds": 5}, {"unresponsive_seconds": 5}]
        for config in cases:
            await started(store, worker_id="w1", **config)
            before = await worker_of(store, "w1")
            clock.advance(6)
            await store.query_rollouts()
            worker = await worker_of(store, "w1")
            assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == ("unknown", None, None)
            assert worker.last_idle_time == pytest.approx(clock.seconds, abs=0.001)
            assert worker.last_busy_time == before.last_busy_time

    async def test_listed_methods_sweep_before_their_own_work(self, store: Store, clock: ManualClock) -> None:
        for name in SWEEPING_METHODS:
            other = await store.start_rollout("other")
            await started(store, worker_id="w1", timeout_seconds=5)
            clock.advance(6)
            await call_sweeping_method(store, name, other)
            assert (await worker_of(store, "w1")).status == "unknown"

    async def test_reads_show_the_state_after_the_sweep(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        clock.advance(6)
        (attempt,) = await store.query_attempts(rollout.rollout_id)
        assert attempt.status == "timeout"

    async def test_an_update_applies_to_the_state_after_the_sweep(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, timeout_seconds=5)
        clock.advance(6)
        await store.update_attempt(rollout.rollout_id, "latest", metadata={"m": 1})
        assert await statuses(store, rollout) == ("failed", "timeout")

    async def test_a_span_before_the_sweep_prevents_that_a_silent_attempt_is_ended(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, unresponsive_seconds=5)
        clock.advance(6)
        await store.add_span(make_span(rollout.attempt))
        assert await statuses(store, rollout) == ("running", "running")
