"""Rows are the fold of their streams after any calls in any order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from store import open_store
from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store.testing import ManualClock
from store.testing.samples import make_prompt, make_span
from tests.journal.database_helpers import REWARD, untouched
from tests.torture import IS_TORTURE

STATUSES: list[Any] = ["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
ENDS: list[Any] = ["running", "failed", "succeeded", "unresponsive", "timeout"]


class Monkey:
    """Calls whatever it likes; a refusal is an answer."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.dice = random.Random(seed)
        self.started: list[AttemptedRollout] = []
        self.ids: list[str] = []
        self.calls: list[Callable[[], Awaitable[object]]] = [
            self.enqueue,
            self.claim,
            self.claim,
            self.start,
            self.again,
            self.spans,
            self.spans,
            self.end,
            self.amend,
            self.beat,
            self.move,
            self.worker,
            self.publish,
            self.give_up_waiting,
        ]

    async def step(self) -> None:
        self.clock.advance(self.dice.choice([0, 0, 0.5, 2, 20]))
        with contextlib.suppress(StoreError):
            await self.dice.choice(self.calls)()

    async def enqueue(self) -> None:
        key = self.dice.choice([None, "a", "b"])
        metadata = {} if key is None else {"rollbook.key": key, "rollbook.group": "g"}
        requests = [EnqueueRolloutRequest(input={}, config=self.config(), metadata=metadata)]
        self.ids += [rollout.rollout_id for rollout in await self.store.enqueue_many_rollouts(requests)]

    def config(self) -> RolloutConfig:
        return RolloutConfig(
            timeout_seconds=self.dice.choice([None, 10]),
            unresponsive_seconds=self.dice.choice([None, 5]),
            max_attempts=self.dice.choice([1, 3]),
            retry_condition=["timeout", "unresponsive", "failed"],
        )

    async def claim(self) -> None:
        self.started += await self.store.dequeue_many_rollouts(2, self.dice.choice([None, "w1", "w2"]))

    async def start(self) -> None:
        self.started.append(await self.store.start_rollout({"s": 1}, config=self.config(), worker_id="w3"))

    async def again(self) -> None:
        self.started.append(await self.store.start_attempt(self.dice.choice(self.ids or ["ro-nobody"])))

    async def spans(self) -> None:
        attempt = self.one().attempt
        await self.store.add_many_spans(
            [
                make_span(attempt, self.dice.randint(1, 9), attributes=self.dice.choice([{}, REWARD]))
                for _ in range(self.dice.randint(1, 3))
            ]
        )

    async def end(self) -> None:
        one = self.one()
        await self.store.update_attempt(one.rollout_id, one.attempt.attempt_id, status=self.dice.choice(ENDS))

    async def amend(self) -> None:
        one = self.one()
        await self.store.update_rollout(one.rollout_id, mode="val", config=self.config(), metadata={"m": 1})
        await self.store.update_attempt(one.rollout_id, one.attempt.attempt_id, worker_id="w9", metadata={"n": 2})

    async def beat(self) -> None:
        one, at = self.one(), self.clock.seconds - self.dice.choice([0, 100])
        await self.store.update_attempt(one.rollout_id, one.attempt.attempt_id, last_heartbeat_time=at)

    async def move(self) -> None:
        await self.store.update_rollout(self.one().rollout_id, status=self.dice.choice(STATUSES))

    async def worker(self) -> None:
        await self.store.update_worker(self.dice.choice(["w1", "w2", "w4"]), {"load": 1})

    async def publish(self) -> None:
        await self.store.update_resources(self.dice.choice(["r1", "r2"]), make_prompt())

    async def give_up_waiting(self) -> None:
        waiting = asyncio.ensure_future(self.store.dequeue_rollout("w5", wait_seconds=5))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    def one(self) -> AttemptedRollout:
        if not self.started:
            raise _NotStarted
        return self.dice.choice(self.started)


class _NotStarted(StoreError):
    """Nothing was started yet."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.torture_only) for seed in (1, 2, 3))])
@pytest.mark.slow
@pytest.mark.torture
async def test_rows_are_the_fold_of_the_log_whatever_was_done(store_url: str, clock: ManualClock, seed: int) -> None:
    async with await open_store(store_url, clock=clock, scan_debounce_seconds=0) as store:
        monkey = Monkey(store, clock, seed)
        for number in range(150 if IS_TORTURE else 50):
            await monkey.step()
            if number % 25 == 0:
                await untouched(store)
        report = await store.log.verify()
        assert report.differences == []
        assert report.rows["attempts"] > 5
        assert (await store.log.rebuild()).written == {}
