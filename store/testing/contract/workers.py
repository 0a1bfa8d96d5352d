"""Contract of workers and their statuses."""

from __future__ import annotations

from typing import Any

import pytest

from store.interface.store import Store
from store.models import EnqueueRolloutRequest, Worker
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import started, worker_of

__all__ = ["WorkersContract"]


class WorkersContract:
    """Tests of a worker's status, which depends on the worker's attempts, polls and heartbeats."""

    pytestmark = pytest.mark.asyncio

    async def test_get_worker_by_id_returns_none_for_an_unknown_worker(self, store: Store) -> None:
        assert await store.get_worker_by_id("w-none") is None

    async def test_a_heartbeat_creates_a_worker_of_unknown_status(self, store: Store, clock: ManualClock) -> None:
        worker = await store.update_worker("w1", {"cpu": 1})
        assert (worker.worker_id, worker.status, worker.heartbeat_stats) == ("w1", "unknown", {"cpu": 1})
        assert worker.last_heartbeat_time == pytest.approx(clock.seconds, abs=0.001)
        assert (worker.last_dequeue_time, worker.last_busy_time, worker.last_idle_time) == (None, None, None)
        assert (worker.current_rollout_id, worker.current_attempt_id) == (None, None)
        assert await worker_of(store, "w1") == worker

    async def test_a_heartbeat_without_statistics_keeps_the_earlier_statistics(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await store.update_worker("w1", {"cpu": 1, "gpu": 2})
        clock.advance(1)
        second = await store.update_worker("w1")
        assert second.heartbeat_stats == {"cpu": 1, "gpu": 2}
        assert first.last_heartbeat_time is not None
        assert second.last_heartbeat_time is not None
        assert second.last_heartbeat_time > first.last_heartbeat_time
        third = await store.update_worker("w1", heartbeat_stats={"cpu": 3})
        assert third.heartbeat_stats == {"cpu": 3}
        assert await worker_of(store, "w1") == third

    async def test_heartbeat_does_not_change_the_status_of_a_worker(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        worker = await store.update_worker("w1", {"cpu": 1})
        assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        worker = await store.update_worker("w1", {"cpu": 1})
        assert (worker.status, worker.current_rollout_id) == ("idle", None)

    async def test_a_heartbeat_without_statistics_creates_a_new_worker(self, store: Store) -> None:
        worker = await store.update_worker("w1")
        assert (worker.status, worker.heartbeat_stats) == ("unknown", None)

    async def test_none_is_not_accepted_as_statistics(self, store: Store) -> None:
        nothing: Any = None
        with pytest.raises(TypeError):
            await store.update_worker("w1", nothing)
        assert await store.get_worker_by_id("w1") is None

    async def test_starting_a_rollout_makes_its_worker_busy_with_it(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, worker_id="w1")
        worker = await worker_of(store, "w1")
        assert worker.status == "busy"
        assert (worker.current_rollout_id, worker.current_attempt_id) == (
            rollout.rollout_id,
            rollout.attempt.attempt_id,
        )
        assert worker.last_busy_time == pytest.approx(clock.seconds, abs=0.001)
        assert (worker.last_dequeue_time, worker.last_idle_time) == (None, None)
        assert (worker.last_heartbeat_time, worker.heartbeat_stats) == (None, None)

    async def test_starting_an_attempt_makes_its_worker_busy_with_it(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id, worker_id="w2")
        worker = await worker_of(store, "w2")
        assert (worker.status, worker.current_attempt_id) == ("busy", second.attempt.attempt_id)
        assert worker.last_dequeue_time is None

    async def test_a_claim_makes_the_worker_busy_and_sets_the_time_of_the_dequeue(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.enqueue_rollout(1)
        clock.advance(3)
        claimed = await store.dequeue_rollout(worker_id="w1")
        assert claimed is not None
        worker = await worker_of(store, "w1")
        assert (worker.status, worker.current_rollout_id) == ("busy", claimed.rollout_id)
        assert worker.current_attempt_id == claimed.attempt.attempt_id
        assert worker.last_dequeue_time == pytest.approx(clock.seconds, abs=0.001)
        assert worker.last_busy_time == pytest.approx(clock.seconds, abs=0.001)
        assert worker.last_idle_time is None

    async def test_a_worker_that_claims_several_rollouts_is_busy_with_the_last_rollout(self, store: Store) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
        claimed = await store.dequeue_many_rollouts(limit=3, worker_id="w1")
        worker = await worker_of(store, "w1")
        assert (worker.current_rollout_id, worker.current_attempt_id) == (
            claimed[-1].rollout_id,
            claimed[-1].attempt.attempt_id,
        )
        assert {rollout.attempt.worker_id for rollout in claimed} == {"w1"}

    async def test_an_empty_poll_creates_an_idle_worker(self, store: Store, clock: ManualClock) -> None:
        await store.dequeue_rollout("w1")
        await store.dequeue_many_rollouts(2, "w2")
        for worker in (await worker_of(store, "w1"), await worker_of(store, "w2")):
            assert (worker.status, worker.last_busy_time, worker.heartbeat_stats) == ("idle", None, None)
            assert worker.last_idle_time == pytest.approx(clock.seconds, abs=0.001)
            assert worker.last_dequeue_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_an_empty_poll_of_an_idle_worker_sets_only_the_time_of_the_dequeue(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.dequeue_rollout(worker_id="w1")
        before = await worker_of(store, "w1")
        clock.advance(3)
        await store.dequeue_rollout(worker_id="w1")
        after = await worker_of(store, "w1")
        assert after.last_dequeue_time == pytest.approx(clock.seconds, abs=0.001)
        assert after.model_copy(update={"last_dequeue_time": before.last_dequeue_time}) == before

    async def test_an_empty_poll_of_a_busy_worker_makes_it_idle_and_keeps_its_ids(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, worker_id="w1")
        clock.advance(3)
        await store.dequeue_rollout(worker_id="w1")
        worker = await worker_of(store, "w1")
        assert (worker.status, worker.current_rollout_id) == ("idle", rollout.rollout_id)
        assert worker.current_attempt_id == rollout.attempt.attempt_id
        assert worker.last_idle_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_an_empty_poll_of_a_worker_of_unknown_status_makes_it_idle(self, store: Store) -> None:
        await store.update_worker("w1", {"cpu": 1})
        await store.dequeue_rollout(worker_id="w1")
        worker = await worker_of(store, "w1")
        assert (worker.status, worker.heartbeat_stats) == ("idle", {"cpu": 1})
        assert worker.last_heartbeat_time is not None

    async def test_a_reported_end_makes_the_worker_idle_and_clears_its_ids(
        self, store: Store, clock: ManualClock
    ) -> None:
        cases: list[Any] = ["succeeded", "failed"]
        for status in cases:
            rollout = await started(store, worker_id="w1")
            before = await worker_of(store, "w1")
            clock.advance(3)
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            worker = await worker_of(store, "w1")
            assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == ("idle", None, None)
            assert worker.last_idle_time == pytest.approx(clock.seconds, abs=0.001)
            assert worker.last_busy_time == before.last_busy_time

    async def test_a_lost_attempt_makes_the_worker_unknown_and_clears_its_ids(
        self, store: Store, clock: ManualClock
    ) -> None:
        cases: list[Any] = ["timeout", "unresponsive"]
        for status in cases:
            rollout = await started(store, worker_id="w1")
            clock.advance(3)
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            worker = await worker_of(store, "w1")
            assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == ("unknown", None, None)
            assert worker.last_idle_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_each_report_of_an_active_attempt_sets_the_busy_time_of_the_worker(
        self, store: Store, clock: ManualClock
    ) -> None:
        cases: list[Any] = ["preparing", "running"]
        for status in cases:
            rollout = await started(store, worker_id="w1")
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            for _ in range(2):
                clock.advance(3)
                await store.update_attempt(rollout.rollout_id, "latest", status=status)
                worker = await worker_of(store, "w1")
                assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)
                assert worker.current_attempt_id == rollout.attempt.attempt_id
                assert worker.last_busy_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_a_repeated_end_sets_the_idle_time_again(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, worker_id="w1")
        for _ in range(2):
            clock.advance(3)
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            assert (await worker_of(store, "w1")).last_idle_time == pytest.approx(clock.seconds, abs=0.001)

    async def test_an_earlier_attempt_also_changes_the_status_of_its_worker(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        await store.start_attempt(rollout.rollout_id, worker_id="w2")
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
        assert (await worker_of(store, "w1")).status == "idle"
        assert (await worker_of(store, "w2")).status == "busy"

    async def test_an_update_without_status_or_worker_changes_no_worker(self, store: Store, clock: ManualClock) -> None:
        rollout = await started(store, worker_id="w1")
        before = await worker_of(store, "w1")
        clock.advance(3)
        await store.update_attempt(rollout.rollout_id, "latest", metadata={"m": 1}, last_heartbeat_time=clock.seconds)
        await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds)
        await store.update_rollout(rollout.rollout_id, status="succeeded")
        assert await worker_of(store, "w1") == before

    async def test_an_assigned_worker_gets_its_status_from_the_attempt(self, store: Store) -> None:
        cases: list[tuple[Any, str]] = [
            ("preparing", "busy"),
            ("running", "busy"),
            ("succeeded", "idle"),
            ("failed", "idle"),
            ("timeout", "unknown"),
        ]
        for status, expected in cases:
            rollout = await started(store)
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            await store.update_attempt(rollout.rollout_id, "latest", worker_id="w1")
            assert (await worker_of(store, "w1")).status == expected

    async def test_reassigning_an_attempt_updates_only_the_new_worker(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        before = await worker_of(store, "w1")
        await store.update_attempt(rollout.rollout_id, "latest", worker_id="w2")
        assert await worker_of(store, "w1") == before
        worker = await worker_of(store, "w2")
        assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)

    async def test_a_status_change_does_not_change_the_heartbeat_of_the_worker(self, store: Store) -> None:
        beaten = await store.update_worker("w1", {"cpu": 1})
        rollout = await started(store, worker_id="w1")
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        worker = await worker_of(store, "w1")
        assert worker.heartbeat_stats == {"cpu": 1}
        assert worker.last_heartbeat_time == beaten.last_heartbeat_time

    async def test_workers_are_listed_in_the_order_of_their_first_calls(self, store: Store) -> None:
        await store.dequeue_rollout(worker_id="w-c")
        await started(store, worker_id="w-a")
        await store.update_worker("w-b", {})
        await store.update_worker("w-c", {})
        page = await store.query_workers()
        assert [worker.worker_id for worker in page] == ["w-c", "w-a", "w-b"]
        assert all(type(item) is Worker for item in page)
