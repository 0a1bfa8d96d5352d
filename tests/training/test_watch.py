"""Decisions about a rollout reach the runner of its attempt once, at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from store.interface.store import Store
from store.models import Rollout, RolloutConfig
from store.training.running.rollout_watch import Watch
from tests.training.stores import ON_EACH_STORE
from tests.training.training_helpers import started, until


class Decisions:
    """What was told of attempts, by rollout."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def of(self, rollout: Rollout) -> Callable[[str], None]:
        def tell(reason: str) -> None:
            self.all.append((rollout.rollout_id, reason))

        return tell

    async def something(self) -> bool:
        return bool(self.all)


async def caught_up(store: Store, watch: Watch) -> None:
    """Return when the watch has seen all there was: it tells of what comes last."""
    told, last = Decisions(), await started(store)
    watch.begin(last, told.of(last))
    await store.update_rollout(last.rollout_id, status="cancelled")
    await until(told.something)


@pytest.mark.parametrize(
    "to, reason", [("cancelled", "cancelled"), ("failed", "superseded"), ("queuing", "superseded")]
)
async def test_decision_reaches_the_runner_while_the_attempt_runs(live: Store, to: Any, reason: str) -> None:
    watch, told, rollout = Watch(live), Decisions(), await started(live)
    watch.begin(rollout, told.of(rollout))
    await live.update_rollout(rollout.rollout_id, status=to)
    await until(told.something)
    assert told.all == [(rollout.rollout_id, reason)]
    await watch.close()


@ON_EACH_STORE
async def test_decision_between_claim_and_start_reaches_the_runner(live: Store) -> None:
    watch, told = Watch(live), Decisions()
    await caught_up(live, watch)
    cancelled, replaced = await started(live), await started(live)
    await live.update_rollout(cancelled.rollout_id, status="cancelled")
    await live.start_attempt(replaced.rollout_id)
    await caught_up(live, watch)
    for rollout in (cancelled, replaced):
        watch.begin(rollout, told.of(rollout))
    await until(lambda: asyncio.sleep(0, len(told.all) == 2))
    assert dict(told.all) == {cancelled.rollout_id: "cancelled", replaced.rollout_id: "superseded"}
    await watch.close()


async def test_decision_about_an_earlier_attempt_does_not_stop_the_next(live: Store) -> None:
    watch, told = Watch(live), Decisions()
    await caught_up(live, watch)
    config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
    first = await live.start_rollout(1, config=config)
    await live.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    second = await live.dequeue_rollout()
    assert second is not None
    watch.begin(second, told.of(second))
    await caught_up(live, watch)
    assert told.all == []
    await watch.close()


async def test_decision_about_an_ended_attempt_is_ignored(memory: Store) -> None:
    watch, told, rollout = Watch(memory), Decisions(), await started(memory)
    watch.begin(rollout, told.of(rollout))
    watch.end(rollout)
    await memory.update_rollout(rollout.rollout_id, status="cancelled")
    await caught_up(memory, watch)
    assert told.all == []
    await watch.close()
