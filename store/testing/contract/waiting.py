"""Contract of calls that wait until rollouts end, or until a rollout can be claimed.

The time limit of such a call is measured in real seconds. The limit does not depend on the store's clock, which tests
move.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, Rollout
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import reread, started, statuses, worker_of

__all__ = ["WaitingContract", "WaitingForWorkContract"]

T = TypeVar("T")

PARKED = 0.05
"""Seconds after which a started call is assumed to wait."""

PROMPT = 0.25
"""The maximum time in seconds after which a waiting call must return, on a machine that is not busy."""

HUNG = 60.0
"""Seconds after which a call that has not returned is assumed to hang."""


async def parked(call: Awaitable[T]) -> Future[T]:
    """Start the call, wait long enough for it to begin waiting, and return its future."""
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(PARKED)
    assert not waiting.done(), "the call answered instead of waiting"
    return waiting


async def answer(task: Awaitable[T]) -> T:
    async with asyncio.timeout(HUNG):
        return await task


async def cancelled(task: Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await answer(task)


async def fastest(measured: Callable[[], Awaitable[float]]) -> float:
    """Measure a time at most 20 times, because a busy machine may delay a call. Return the shortest time in seconds."""
    shortest = await measured()
    for _ in range(19):
        if shortest < PROMPT:
            break
        shortest = min(shortest, await measured())
    return shortest


class WaitingContract:
    """Tests of `wait_for_rollouts`."""

    pytestmark = pytest.mark.asyncio

    async def test_ended_rollouts_are_returned_at_once_in_the_requested_order(self, store: Store) -> None:
        rollouts = [await store.enqueue_rollout(number) for number in range(3)]
        ends: list[Any] = ["succeeded", "failed", "cancelled"]
        for rollout, status in zip(rollouts, ends, strict=True):
            await store.update_rollout(rollout.rollout_id, status=status)
        rollout_ids = [rollouts[2].rollout_id, rollouts[0].rollout_id, rollouts[1].rollout_id, rollouts[2].rollout_id]
        ended = await answer(store.wait_for_rollouts(rollout_ids=rollout_ids))
        assert [item.rollout_id for item in ended] == rollout_ids
        assert [item.status for item in ended] == ["cancelled", "succeeded", "failed", "cancelled"]

    async def test_a_rollout_is_returned_without_its_attempt(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)
        assert type(ended) is Rollout
        assert ended.model_dump() == (await reread(store, rollout)).model_dump(exclude={"attempt"})

    async def test_a_timeout_of_zero_or_less_does_not_wait(self, store: Store) -> None:
        done, open_one = await started(store), await started(store)
        await store.update_rollout(done.rollout_id, status="succeeded")
        rollout_ids = [open_one.rollout_id, done.rollout_id]

        async def look(seconds: float) -> float:
            before = monotonic()
            ended = await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=seconds)
            duration = monotonic() - before
            assert [rollout.rollout_id for rollout in ended] == [done.rollout_id]
            return duration

        for seconds in (0, -1, -0.5):
            assert await fastest(partial(look, seconds)) < PROMPT

    async def test_at_the_deadline_the_ended_rollouts_are_returned(self, store: Store) -> None:
        done, open_one = await started(store), await started(store)
        await store.update_rollout(done.rollout_id, status="failed")
        before = monotonic()
        ended = await store.wait_for_rollouts(rollout_ids=[open_one.rollout_id, done.rollout_id], timeout=0.1)
        assert monotonic() - before >= 0.1
        assert [rollout.rollout_id for rollout in ended] == [done.rollout_id]

    async def test_wait_for_no_rollouts_returns_at_once(self, store: Store) -> None:
        assert list(await answer(store.wait_for_rollouts(rollout_ids=[]))) == []

    async def test_unknown_rollouts_are_not_waited_for(self, store: Store) -> None:
        assert list(await answer(store.wait_for_rollouts(rollout_ids=["ro-none"]))) == []
        done = await started(store)
        await store.update_rollout(done.rollout_id, status="succeeded")
        ended = await answer(store.wait_for_rollouts(rollout_ids=["ro-none", done.rollout_id]))
        assert [rollout.rollout_id for rollout in ended] == [done.rollout_id]

    async def test_a_wait_for_known_and_unknown_rollouts_waits_for_the_known_rollouts(self, store: Store) -> None:
        rollout = await started(store)
        task = await parked(store.wait_for_rollouts(rollout_ids=["ro-none", rollout.rollout_id]))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert [item.rollout_id for item in await answer(task)] == [rollout.rollout_id]

    async def test_a_wait_ends_promptly_when_the_last_rollout_ends(self, store: Store) -> None:
        async def wake_up() -> float:
            rollouts = [await started(store) for _ in range(2)]
            task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in rollouts]))
            await store.update_attempt(rollouts[0].rollout_id, "latest", status="succeeded")
            await asyncio.sleep(PARKED / 5)
            assert not task.done()
            await store.update_attempt(rollouts[1].rollout_id, "latest", status="failed")
            before = monotonic()
            assert [rollout.status for rollout in await answer(task)] == ["succeeded", "failed"]
            return monotonic() - before

        assert await fastest(wake_up) < PROMPT

    async def test_end_of_a_rollout_ends_all_waits_for_it(self, store: Store) -> None:
        rollout = await started(store)
        waits = [store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=HUNG) for _ in range(5)]
        tasks = await parked(asyncio.gather(*waits))
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert [[item.status for item in ended] for ended in await answer(tasks)] == [["cancelled"]] * 5

    async def test_a_cancelled_wait_does_not_change_the_rollout(self, store: Store) -> None:
        rollout = await started(store)
        task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        await cancelled(task)
        assert task.cancelled()
        assert await reread(store, rollout) == rollout

    async def test_a_wait_blocks_no_other_call(self, store: Store) -> None:
        rollout = await started(store)
        task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        other = await answer(store.enqueue_rollout(1))
        assert (await answer(store.query_rollouts())).total == 2
        claimed = await answer(store.dequeue_rollout())
        assert claimed is not None
        assert claimed.rollout_id == other.rollout_id
        assert not task.done()
        await cancelled(task)

    async def test_a_rollout_that_was_opened_again_is_waited_for_again(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        await store.start_attempt(rollout.rollout_id)
        task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert [item.status for item in await answer(task)] == ["failed"]

    async def test_a_rollout_with_a_queued_retry_has_not_ended(self, store: Store) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["failed"])
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        assert list(await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)) == []

    async def test_a_wait_returns_a_rollout_that_timed_out_before_the_call(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, timeout_seconds=5)
        clock.advance(6)
        ended = await answer(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        assert [item.status for item in ended] == ["failed"]

    async def test_a_timeout_of_the_rollout_ends_the_wait(self, store: Store, clock: ManualClock) -> None:
        for limit in ["timeout_seconds", "unresponsive_seconds"]:
            config: dict[str, Any] = {limit: 0.2}
            rollout = await started(store, **config)
            task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
            clock.advance(1)
            assert [item.status for item in await answer(task)] == ["failed"]

    async def test_a_rollout_started_during_a_wait_can_time_out_during_the_wait(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await store.enqueue_rollout(1)
        task = await parked(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
        late = await started(store, timeout_seconds=0.2, worker_id="w1")
        clock.advance(1)
        # A read of the rollout would itself sweep. A read of the worker does not, so the worker shows whether the
        # waiting call has caused a sweep.
        for _ in range(int(HUNG / PARKED)):
            if (await worker_of(store, "w1")).status == "unknown":
                break
            await asyncio.sleep(PARKED)
        assert (await worker_of(store, "w1")).status == "unknown"
        assert await statuses(store, late) == ("failed", "timeout")
        await cancelled(task)

    async def test_a_timeout_that_is_no_number_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        with pytest.raises(Invalid, match="timeout"):
            await answer(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=float("nan")))


class WaitingForWorkContract:
    """Tests of `dequeue_rollout` and `dequeue_many_rollouts` with `wait_seconds`."""

    pytestmark = pytest.mark.asyncio

    async def test_a_queued_rollout_is_claimed_at_once(self, store: Store) -> None:
        await store.enqueue_rollout(1)
        claimed = await answer(store.dequeue_rollout(wait_seconds=1000))
        assert claimed is not None

    async def test_a_waiting_claim_gets_the_next_rollout_promptly(self, store: Store) -> None:
        async def wake_up() -> float:
            task = await parked(store.dequeue_rollout("w1", wait_seconds=1000))
            rollout = await store.enqueue_rollout(1)
            before = monotonic()
            claimed = await answer(task)
            assert claimed is not None
            assert (claimed.rollout_id, claimed.attempt.worker_id) == (rollout.rollout_id, "w1")
            return monotonic() - before

        assert await fastest(wake_up) < PROMPT
        assert (await worker_of(store, "w1")).status == "busy"

    async def test_a_waiting_claim_returns_nothing_after_wait_seconds(self, store: Store) -> None:
        before = monotonic()
        assert await answer(store.dequeue_rollout("w1", wait_seconds=0.1)) is None
        assert monotonic() - before >= 0.1
        assert list(await answer(store.dequeue_many_rollouts(2, "w1", wait_seconds=0.05))) == []
        assert (await worker_of(store, "w1")).status == "idle"

    async def test_dequeue_many_returns_as_soon_as_one_rollout_is_queued(self, store: Store) -> None:
        task = await parked(store.dequeue_many_rollouts(limit=5, wait_seconds=1000))
        await store.enqueue_rollout("only")
        assert [rollout.input for rollout in await answer(task)] == ["only"]

    async def test_a_waiting_claim_gets_a_retry(self, store: Store) -> None:
        rollout = await started(store, max_attempts=2, retry_condition=["failed"])
        task = await parked(store.dequeue_rollout(wait_seconds=1000))
        await store.update_attempt(rollout.rollout_id, "latest", status="failed")
        claimed = await answer(task)
        assert claimed is not None
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 2)

    async def test_a_waiting_claim_gets_a_rollout_whose_status_is_set_to_queuing(self, store: Store) -> None:
        rollout = await started(store)
        task = await parked(store.dequeue_rollout(wait_seconds=1000))
        await store.update_rollout(rollout.rollout_id, status="queuing")
        claimed = await answer(task)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id

    async def test_a_waiting_claim_gets_the_retry_of_an_attempt_that_times_out_meanwhile(
        self, store: Store, clock: ManualClock
    ) -> None:
        rollout = await started(store, timeout_seconds=0.2, max_attempts=2, retry_condition=["timeout"])
        task = await parked(store.dequeue_rollout(wait_seconds=1000))
        clock.advance(1)
        claimed = await answer(task)
        assert claimed is not None
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 2)

    async def test_one_of_two_waiting_claims_gets_the_rollout_and_the_other_continues_to_wait(
        self, store: Store
    ) -> None:
        first = await parked(store.dequeue_rollout(wait_seconds=1000))
        second = await parked(store.dequeue_rollout(wait_seconds=1000))
        await store.enqueue_rollout(1)
        async with asyncio.timeout(HUNG):
            done, pending = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(PARKED)
        assert (len(done), len(pending)) == (1, 1)
        (other,) = pending
        assert not other.done()
        await cancelled(other)

    async def test_waiting_claims_share_rollouts_enqueued_in_one_call(self, store: Store) -> None:
        tasks = await parked(asyncio.gather(*[store.dequeue_rollout(wait_seconds=1000) for _ in range(3)]))
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
        claimed = await answer(tasks)
        assert sorted(rollout.input for rollout in claimed if rollout) == [0, 1, 2]

    async def test_a_cancelled_claim_takes_no_rollout(self, store: Store) -> None:
        await cancelled(await parked(store.dequeue_rollout("w1", wait_seconds=1000)))
        rollout = await store.enqueue_rollout(1)
        await asyncio.sleep(PARKED)
        assert await statuses(store, rollout) == ("queuing",)

    async def test_a_claim_cancelled_during_an_enqueue_loses_neither_rollout_nor_attempt(self, store: Store) -> None:
        for number in range(10):
            task = await parked(store.dequeue_rollout("w1", wait_seconds=1000))
            rollout = await store.enqueue_rollout(number)
            await asyncio.sleep(number / 5000)
            await cancelled(task)
            claimed = task.result() if not task.cancelled() else None
            claimed = claimed or await answer(store.dequeue_rollout("w1", wait_seconds=1000))
            assert claimed is not None
            assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)

    async def test_a_wait_for_work_blocks_no_other_call(self, store: Store) -> None:
        task = await parked(store.dequeue_rollout(wait_seconds=1000))
        rollout = await answer(store.start_rollout(1))
        await answer(store.update_attempt(rollout.rollout_id, "latest", status="succeeded"))
        assert [item.status for item in await answer(store.wait_for_rollouts([rollout.rollout_id]))] == ["succeeded"]
        assert not task.done()
        await cancelled(task)

    async def test_invalid_wait_seconds_are_refused(self, store: Store) -> None:
        for seconds in [-1.0, float("nan"), float("inf")]:
            await store.enqueue_rollout(1)
            with pytest.raises(Invalid, match="wait_seconds"):
                await answer(store.dequeue_rollout(wait_seconds=seconds))
            with pytest.raises(Invalid, match="wait_seconds"):
                await answer(store.dequeue_many_rollouts(wait_seconds=seconds))
