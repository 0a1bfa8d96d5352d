"""That an agent does nothing but fail is said of its own attempts alone."""

from __future__ import annotations

import asyncio
from typing import Any

from store.interface.liveness import WORKER_GONE
from store.interface.store import Store
from store.models import AttemptError, AttemptStatus
from store.training.continuous import newest_cursor
from store.training.failing import PATIENCE, first_attempts_fail
from tests.training.given import started


async def end(store: Store, rollouts: list[Any], status: AttemptStatus, **error: Any) -> None:
    """End the attempts of rollouts."""
    for each in rollouts:
        await store.update_attempt(each.rollout_id, each.attempt.attempt_id, status=status, **error)


async def some(store: Store) -> list[Any]:
    """Return as many rollouts at work as one has patience for."""
    return [await started(store, number) for number in range(PATIENCE)]


async def test_attempts_that_an_earlier_training_left_are_not_counted(live: Store) -> None:
    left = await some(live)
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, left, "unresponsive")
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="no"))
    found = await asyncio.wait_for(watched, 30)
    assert f"the first {PATIENCE} attempts all failed, {PATIENCE} of them with ValueError: no" in str(found)


async def test_attempts_that_went_with_their_runner_are_not_counted(live: Store) -> None:
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, await some(live), "unresponsive", error=AttemptError(type=WORKER_GONE, message="process 1 is gone"))
    await end(live, await some(live), "failed", error=AttemptError(type="ValueError", message="no"))
    found = await asyncio.wait_for(watched, 30)
    assert f"the first {PATIENCE} attempts all failed, {PATIENCE} of them with ValueError: no" in str(found)


async def test_a_success_of_an_earlier_attempt_says_nothing_of_those_that_fail_now(live: Store) -> None:
    earlier = [await started(live)]
    begin = await newest_cursor(live)
    watched = asyncio.ensure_future(first_attempts_fail(live, begin))
    await end(live, earlier, "succeeded")
    await end(live, await some(live), "failed")
    assert "all failed" in str(await asyncio.wait_for(watched, 30))
