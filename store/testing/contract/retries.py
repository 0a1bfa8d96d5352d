"""Contract of retries of attempts that failed."""

from __future__ import annotations

from typing import Any

import pytest

from store.interface.store import Store
from store.models import RolloutConfig
from store.testing.contract.rollout_helpers import reread, started, statuses
from store.testing.samples import make_span

__all__ = ["RetriesContract"]

UNSUCCESSFUL: list[Any] = ["failed", "timeout", "unresponsive"]


class RetriesContract:
    """Tests of the outcomes that are retried, of the number of retries, and of the next attempt."""

    pytestmark = pytest.mark.asyncio

    async def test_a_status_in_the_retry_condition_queues_the_rollout_again(self, store: Store) -> None:
        for status in UNSUCCESSFUL:
            rollout = await started(store, max_attempts=2, retry_condition=[status])
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            assert await statuses(store, rollout) == ("requeuing", status)
            assert (await reread(store, rollout)).end_time is None
            claimed = await store.dequeue_rollout(worker_id="w2")
            assert claimed is not None
            assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 2)
            assert await statuses(store, rollout) == ("preparing", status, "preparing")

    async def test_a_status_outside_the_retry_condition_fails_the_rollout(self, store: Store) -> None:
        for status in UNSUCCESSFUL:
            others = [item for item in UNSUCCESSFUL if item != status]
            rollout = await started(store, max_attempts=5, retry_condition=others)
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            assert await statuses(store, rollout) == ("failed", status)
            assert await store.dequeue_rollout() is None

    async def test_attempts_are_retried_up_to_max_attempts(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        rollout = await store.enqueue_rollout(1, config=config)
        for number in (1, 2, 3):
            claimed = await store.dequeue_rollout()
            assert claimed is not None
            assert claimed.attempt.sequence_id == number
            await store.update_attempt(rollout.rollout_id, claimed.attempt.attempt_id, status="failed")
        assert await statuses(store, rollout) == ("failed", "failed", "failed", "failed")
        assert await store.dequeue_rollout() is None

    async def test_max_attempts_is_one_by_default(self, store: Store) -> None:
        rollout = await started(store, retry_condition=["failed"])
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert await statuses(store, rollout) == ("failed", "failed")

    async def test_attempts_started_by_hand_count_towards_max_attempts(self, store: Store) -> None:
        rollout = await started(store, max_attempts=3, retry_condition=["failed"])
        second = await store.start_attempt(rollout.rollout_id)
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
        assert await statuses(store, rollout) == ("preparing", "failed", "preparing")
        await store.update_attempt(rollout.rollout_id, second.attempt.attempt_id, status="failed")
        assert await statuses(store, rollout) == ("requeuing", "failed", "failed")
        third = await store.dequeue_rollout()
        assert third is not None
        assert third.attempt.sequence_id == 3
        await store.update_attempt(rollout.rollout_id, third.attempt.attempt_id, status="failed")
        assert (await reread(store, rollout)).status == "failed"

    async def test_the_config_at_the_end_of_an_attempt_decides_about_a_retry(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_rollout(rollout.rollout_id, config=RolloutConfig(max_attempts=2, retry_condition=["failed"]))
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert (await reread(store, rollout)).status == "requeuing"

    async def test_retry_waits_behind_rollouts_already_queued(self, store: Store) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["failed"])
        waiting = await store.enqueue_rollout("waiting")
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        claimed = await store.dequeue_many_rollouts(limit=5)
        assert [item.rollout_id for item in claimed] == [waiting.rollout_id, rollout.rollout_id]

    async def test_reporting_the_same_failure_twice_queues_one_retry(self, store: Store) -> None:
        rollout = await started(store, max_attempts=3, retry_condition=["failed"])
        for _ in range(2):
            await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert len(await store.dequeue_many_rollouts(limit=5)) == 1

    async def test_a_late_success_changes_a_failed_rollout_to_succeeded(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="timeout")
        assert (await reread(store, rollout)).status == "failed"
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert await statuses(store, rollout) == ("succeeded", "succeeded")

    async def test_a_late_success_removes_a_pending_retry_from_the_queue(self, store: Store) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["timeout"])
        await store.update_attempt(rollout.rollout_id, "latest", status="timeout")
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert await store.dequeue_rollout() is None
        assert await statuses(store, rollout) == ("succeeded", "succeeded")

    async def test_cancelling_removes_a_pending_retry_from_the_queue(self, store: Store) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["failed"])
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert await store.dequeue_rollout() is None

    async def test_a_finished_rollout_can_be_started_again_by_hand_and_fail(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        second = await store.start_attempt(rollout.rollout_id)
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
        assert await statuses(store, rollout) == ("preparing", "failed", "preparing")
        await store.update_attempt(rollout.rollout_id, second.attempt.attempt_id, status="failed")
        assert await statuses(store, rollout) == ("failed", "failed", "failed")

    async def test_statuses_from_the_queue_to_success(self, store: Store) -> None:
        rollout = await store.enqueue_rollout(1)
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert await statuses(store, rollout) == ("preparing", "preparing")
        await store.add_span(make_span(claimed.attempt))
        assert await statuses(store, rollout) == ("running", "running")
        await store.update_attempt(rollout.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        ended = await reread(store, rollout)
        assert await statuses(store, rollout) == ("succeeded", "succeeded")
        assert ended.end_time is not None
