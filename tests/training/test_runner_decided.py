"""A runner detects changes by others during an attempt and stops the agent."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from store.interface.store import Store
from store.models import RolloutConfig
from store.training import Hook
from store.training.tracer import ATTEMPT_SPAN
from store.training.tracing.emitters import emit_message
from tests.training.doing import (
    Doing,
    Gate,
    Recording,
    ended,
    running,
    status_of,
)
from tests.training.stores import ON_EACH_STORE
from tests.training.training_helpers import names_of, until


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_rollout_that_is_cancelled_stops_its_agent_and_stays_cancelled(live: Store, retries: int) -> None:
    gate = Gate()
    hook = Recording()
    config = RolloutConfig(max_attempts=1 + retries, retry_condition=["failed", "unresponsive"])
    async with running(live, gate.agent(), hooks=[hook], concurrency=2):
        rollout, other = [await live.enqueue_rollout(number, config=config) for number in range(2)]
        await gate.holds(2)
        await live.update_rollout(rollout.rollout_id, status="cancelled")
        began = time.monotonic()

        async def reported() -> Any:
            attempt = await live.get_latest_attempt(rollout.rollout_id)
            return attempt if attempt is not None and attempt.status == "failed" else None

        attempt = await until(reported)
        print(f"\nnoticed and reported after {time.monotonic() - began:.3f} s")
        assert attempt.metadata == {"reason": "cancelled"}
        assert await status_of(live, rollout) == "cancelled"
        assert gate.cancelled == [0]
        gate.open.set()
        await ended(live, other)
    assert await status_of(live, rollout) == "cancelled"
    assert await status_of(live, other) == "succeeded"
    assert (hook.outcomes[0].kind, hook.outcomes[0].reason) == ("interrupted", "cancelled")
    assert len(await live.query_attempts(rollout.rollout_id)) == 1


async def test_a_sync_agent_whose_rollout_is_cancelled_is_abandoned(memory: Store) -> None:
    release, inside = threading.Event(), threading.Event()

    def agent(*_: Any) -> float:
        inside.set()
        release.wait(30)
        return 1.0

    async with running(memory, Doing(agent)):
        rollout = await memory.enqueue_rollout(1)
        assert await asyncio.to_thread(inside.wait, 30)
        await memory.update_rollout(rollout.rollout_id, status="cancelled")

        async def reported() -> bool:
            attempt = await memory.get_latest_attempt(rollout.rollout_id)
            return attempt is not None and attempt.status == "failed"

        await until(reported)
        # The runner is free for the next, while the thread still waits.
        inside.clear()
        following = await memory.enqueue_rollout(2)
        assert await asyncio.to_thread(inside.wait, 30)
        release.set()
        await ended(memory, following)
    assert await names_of(memory, rollout) == [ATTEMPT_SPAN]


@ON_EACH_STORE
async def test_an_attempt_that_another_one_replaces_stops_and_moves_nothing(live: Store) -> None:
    gate = Gate()
    async with running(live, gate.agent()):
        rollout = await live.enqueue_rollout(1)
        await gate.holds(1)
        newer = await live.start_attempt(rollout.rollout_id, worker_id="another")

        async def reported() -> bool:
            first, _ = await live.query_attempts(rollout.rollout_id)
            return first.status == "failed"

        await until(reported)
    first, second = await live.query_attempts(rollout.rollout_id)
    assert first.metadata == {"reason": "superseded"}
    assert (second.attempt_id, second.status) == (newer.attempt.attempt_id, "preparing")
    assert await status_of(live, rollout) == "preparing"


async def test_late_success_does_not_override_the_watchdog(memory: Store) -> None:
    gate = Gate()
    async with running(memory, gate.agent(), heartbeat_interval=0):
        rollout = await memory.enqueue_rollout(1)
        await gate.holds(1)
        attempt = await memory.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        await memory.update_attempt(rollout.rollout_id, attempt.attempt_id, status="unresponsive")
        await until(lambda: asyncio.sleep(0, gate.cancelled))
    (attempt,) = await memory.query_attempts(rollout.rollout_id)
    assert attempt.status == "unresponsive"
    assert await status_of(memory, rollout) == "failed"


class Abandoning(Hook):
    """Gives an attempt up when its agent has ended, and waits until its runner has been told."""

    async def on_trace_end(self, **about: Any) -> None:
        """Leave the last span of the attempt, which is still open, to come after that."""
        store, rollout = about["runner"].store, about["rollout"]
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        await until(lambda: has_status(store, rollout, "running"))
        await store.update_attempt(*ids, status="unresponsive")
        for _ in range(2):
            beat = (await store.get_latest_attempt(rollout.rollout_id)).last_heartbeat_time

            async def has_beaten(before: float | None = beat) -> bool:
                return (await store.get_latest_attempt(rollout.rollout_id)).last_heartbeat_time != before

            await until(has_beaten)


async def has_status(store: Store, rollout: Any, status: str) -> bool:
    """Tell whether the latest attempt of a rollout has a status."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    return attempt is not None and attempt.status == status


async def test_an_attempt_that_its_own_last_spans_wake_ends_as_its_agent_did(live: Store) -> None:
    config = RolloutConfig(max_attempts=3, retry_condition=["unresponsive"])

    async def agent(*_: Any) -> float:
        emit_message("at work")
        return 1.0

    async with running(live, Doing(agent), hooks=[Abandoning()], heartbeat_interval=0.1):
        (rollout,) = await ended(live, await live.enqueue_rollout(1, config=config))
    assert (rollout.status, rollout.attempt.status, rollout.attempt.sequence_id) == ("succeeded", "succeeded", 1)
    assert "reason" not in (rollout.attempt.metadata or {})


async def test_an_attempt_that_was_stopped_and_woken_is_given_up_once_more(live: Store) -> None:
    config = RolloutConfig(max_attempts=3, retry_condition=["unresponsive"])
    inside = asyncio.Event()

    async def agent(_: Any, __: Any, rollout: Any) -> float:
        if rollout.attempt.sequence_id > 1:
            return 1.0
        inside.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            emit_message("still here")
            await until(lambda: has_status(live, rollout, "running"))
            raise
        return 0.0

    async with running(live, Doing(agent), heartbeat_interval=0.1, grace_seconds=30):
        rollout = await live.enqueue_rollout(1, config=config)
        await inside.wait()
        attempt = await live.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        await live.update_attempt(rollout.rollout_id, attempt.attempt_id, status="unresponsive")
        (result,) = await ended(live, rollout)
    assert (result.status, result.attempt.sequence_id) == ("succeeded", 2)
    assert [item.status for item in await live.query_attempts(rollout.rollout_id)] == ["unresponsive", "succeeded"]


async def test_a_retry_by_the_same_runner_is_not_taken_for_a_replacement(memory: Store) -> None:
    failures = iter(range(20))

    async def agent(*_: Any) -> float:
        await asyncio.sleep(0.005)
        if next(failures) % 2 == 0:
            raise LookupError("try again")
        return 1.0

    async with running(memory, Doing(agent), concurrency=3):
        config = RolloutConfig(max_attempts=20, retry_condition=["failed"])
        rollouts = [await memory.enqueue_rollout(number, config=config) for number in range(6)]
        results = await ended(memory, *rollouts)
    assert [rollout.status for rollout in results] == ["succeeded"] * 6
    for rollout in results:
        attempts = list(await memory.query_attempts(rollout.rollout_id))
        assert [(a.metadata or {}).get("reason") for a in attempts[:-1]] == ["error"] * (len(attempts) - 1)
