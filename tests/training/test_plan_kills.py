"""SIGKILL of the algorithm at random times and restarts: its plan is completed without duplicates."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from store import open_store
from store.interface.store import Store
from tests.conftest import SQLITE
from tests.faults import processes
from tests.torture import IS_TORTURE, rounds
from tests.training.plan_work import EPOCHS, ITEMS, REPLICAS, RUN, train
from tests.training.stores import POSTGRES_IN_TORTURE

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

UNTOUCHED_SECONDS = 0.5
"""It is killed at a random instant of its first so many seconds, its opening included."""
LONGER_AFTER_KILLS = 10 if IS_TORTURE else 1
"""After so many kills, these seconds are twice as many."""

WORKED_AT_ONCE = 40


async def work(store: Store) -> None:
    """Succeed at everything that is enqueued."""
    while True:
        claimed = await store.dequeue_many_rollouts(WORKED_AT_ONCE, "w", wait_seconds=5)
        await asyncio.gather(
            *(
                store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
                for rollout in claimed
            )
        )


async def train_with_kills(url: str) -> int:
    """Start the algorithm and kill it until it was quick enough; return how often it was killed."""
    for kills in itertools.count():
        with processes.running(train, (url,)) as (process,):
            await asyncio.to_thread(
                process.join, random.uniform(0, UNTOUCHED_SECONDS) * (1 + kills / LONGER_AFTER_KILLS)
            )
            if process.exitcode is not None:
                assert process.exitcode == 0
                return kills
    raise AssertionError


# The database is not killed, and a plan takes the same steps on each.
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_an_algorithm_that_is_killed_continues_its_plan(durable_url: str) -> None:
    killed = 0
    for number in range(rounds(20, few=1)):
        url = f"{durable_url[:-3]}{number}.db" if durable_url.startswith("sqlite") else f"{durable_url}{number}"
        async with await open_store(url) as store:
            working = asyncio.create_task(work(store))
            killed += await train_with_kills(url)
            working.cancel()
            await asyncio.wait({working})
            keys = Counter((rollout.metadata or {})["rollbook.key"] for rollout in await store.query_rollouts())
            statuses = Counter(rollout.status for rollout in await store.query_rollouts())
        assert keys == Counter(
            f"{RUN}/train/{epoch}/{index}/{replica}"
            for epoch in range(EPOCHS)
            for index in range(ITEMS)
            for replica in range(REPLICAS)
        )
        assert set(statuses) == {"succeeded"}
    print(f"\n{killed} kills on {durable_url.partition(':')[0]}: the plan was complete each time, none doubled")
