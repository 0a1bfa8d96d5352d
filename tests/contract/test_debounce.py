"""The frequency of the watchdog's checks when it does not check at every call, measured in real time."""

from __future__ import annotations

import asyncio

import pytest

from store import open_store
from store.testing import ManualClock
from store.testing.contract.rollout_helpers import started, statuses, worker_of

FOR_EVER = 10_000.0


async def test_between_two_looks_nothing_times_out(store_url: str, clock: ManualClock) -> None:
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=FOR_EVER) as store:
        rollout = await started(store, timeout_seconds=1)
        clock.advance(2)
        assert await statuses(store, rollout) == ("preparing", "preparing")
        assert list(await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)) == []


async def test_when_the_pause_is_over_the_watchdog_looks_again(store_url: str, clock: ManualClock) -> None:
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0.05) as store:
        rollout = await started(store, timeout_seconds=1)
        clock.advance(2)
        await asyncio.sleep(0.06)
        assert await statuses(store, rollout) == ("failed", "timeout")


async def test_calls_at_once_after_the_pause_find_the_stuck_attempt_once(store_url: str, clock: ManualClock) -> None:
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0.05) as store:
        rollout = await started(store, timeout_seconds=1, worker_id="w1", max_attempts=2, retry_condition=["timeout"])
        clock.advance(2)
        await asyncio.sleep(0.06)
        await asyncio.gather(*[store.query_rollouts() for _ in range(10)])
        assert (await worker_of(store, "w1")).status == "unknown"
        assert await statuses(store, rollout) == ("requeuing", "timeout")
        assert len(await store.dequeue_many_rollouts(limit=5)) == 1


@pytest.mark.parametrize("debounce", [0, FOR_EVER])
async def test_the_first_marked_call_always_looks(durable_url: str, clock: ManualClock, debounce: float) -> None:
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=debounce) as before:
        rollout = await started(before, timeout_seconds=1)
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=debounce) as after:
        clock.advance(2)
        assert await statuses(after, rollout) == ("failed", "timeout")
