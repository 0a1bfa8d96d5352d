"""A training reports an agent that only fails by its own attempts alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.interface.liveness import WORKER_GONE
from store.interface.store import Store
from store.models import AttemptError, AttemptStatus
from store.training import Runner
from store.training.algorithms.rollout_ends import newest_cursor
from store.training.running.early_failure import PATIENCE, first_attempts_fail
from tests.training.doing import Gate
from tests.training.training_helpers import RESOURCES, started


async def end(store: Store, rollouts: list[Any], status: AttemptStatus, **error: Any) -> None:
    """End the attempts of rollouts."""
    for rollout in rollouts:
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status, **error)


async def some(store: Store) -> list[Any]:
    """Return as many rollouts at work as one has patience for."""
    return [await started(store, number) for number in range(PATIENCE)]


async def test_attempts_that_an_earlier_training_left_are_not_counted(live: Store) -> None:
    left = await some(live)
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, left, "unresponsive")
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="no"))
    error = await watched
    assert f"the first {PATIENCE} attempts all failed, {PATIENCE} of them with ValueError: no" in str(error)


async def test_attempts_that_went_with_their_runner_are_not_counted(live: Store) -> None:
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, await some(live), "unresponsive", error=AttemptError(type=WORKER_GONE, message="process 1 is gone"))
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="no"))
    error = await watched
    assert f"the first {PATIENCE} attempts all failed, {PATIENCE} of them with ValueError: no" in str(error)


async def test_attempts_after_the_newest_rollout_of_an_earlier_training_are_not_counted(live: Store) -> None:
    earlier = [await live.enqueue_rollout(number) for number in range(PATIENCE)]
    await live.enqueue_rollout("the newest")
    claimed = await live.dequeue_many_rollouts(PATIENCE, "earlier")
    assert [rollout.rollout_id for rollout in claimed] == [rollout.rollout_id for rollout in earlier]
    await end(live, claimed, "failed", error=AttemptError(type="ValueError", message="before"))
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="now"))
    assert f"{PATIENCE} of them with ValueError: now" in str(await watched)


async def test_attempts_that_are_cancelled_with_their_runner_are_not_counted(live: Store) -> None:
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    gate = Gate()
    await live.add_resources(dict(RESOURCES))
    for number in range(PATIENCE):
        await live.enqueue_rollout(number)
    runner: Runner[Any] = Runner(concurrency=PATIENCE)
    with runner.run_context(agent=gate.agent(), store=live):
        serving = asyncio.create_task(runner.iter())
        await gate.holds(PATIENCE)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    ended = [event async for event in live.log.tail(types=["attempt.status_changed"])]
    assert [event.data["error"]["type"] for event in ended if "error" in event.data] == PATIENCE * ["interrupted"]
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="no"))
    assert f"{PATIENCE} of them with ValueError: no" in str(await watched)


async def test_a_success_of_an_earlier_attempt_says_nothing_of_those_that_fail_now(live: Store) -> None:
    earlier = [await started(live)]
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, earlier, "succeeded")
    await end(live, await some(live), "failed")
    assert "all failed" in str(await watched)
