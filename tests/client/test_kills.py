"""A server that is killed under load: clients come back, and neither they nor the log notice more than a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from store import open_store
from store.client import HTTPStore
from store.testing.samples import make_span
from tests.client.server_process import ServerProcess

CLIENTS = 4
BETWEEN_KILLS = 15
"""How many rollouts are finished between two kills."""


class Load:
    """What the clients did, as far as it was acknowledged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.entered: set[str] = set()
        self.finished: set[str] = set()
        self.heard: list[int] = []
        self.is_over = False
        self.progress = asyncio.Condition()

    async def live(self, name: str) -> None:
        """Enqueue, claim and finish rollouts, with a client of its own, until it is over and none are left."""
        async with HTTPStore(self.url, retry_seconds=120) as store:
            while not self.is_over:
                self.entered.add((await store.enqueue_rollout(name)).rollout_id)
                await self._run_one(store, name)
            while await self._run_one(store, name):
                pass

    async def _run_one(self, store: HTTPStore, name: str) -> bool:
        claimed = await store.dequeue_rollout(name, wait_seconds=0.5)
        if claimed is None:
            return False
        assert await store.add_span(make_span(claimed.attempt)) is not None
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        assert claimed.rollout_id not in self.finished
        async with self.progress:
            self.finished.add(claimed.rollout_id)
            self.progress.notify_all()
        return True

    async def follow(self) -> None:
        """Hear all that is recorded."""
        async with HTTPStore(self.url, retry_seconds=120) as store:
            async for event in store.tail(follow=True):
                self.heard.append(event.position)

    async def has_finished(self, count: int) -> None:
        """Return when so many rollouts are finished."""
        async with self.progress:
            await self.progress.wait_for(lambda: len(self.finished) >= count)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_clients_outlive_their_server_and_lose_and_double_nothing(
    durable_url: str, rounds: Callable[[int], int]
) -> None:
    server = ServerProcess(durable_url)
    await asyncio.to_thread(server.start)
    try:
        load = Load(server.url)
        clients = [asyncio.ensure_future(load.live(f"w{number}")) for number in range(CLIENTS)]
        follower = asyncio.ensure_future(load.follow())
        kills = rounds(100)
        for _ in range(kills):
            reached = asyncio.ensure_future(load.has_finished(len(load.finished) + BETWEEN_KILLS))
            await asyncio.wait([reached, *clients, follower], return_when=asyncio.FIRST_COMPLETED)
            assert reached.done(), "a client gave up"
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        load.is_over = True
        await asyncio.gather(*clients)
        async with await open_store(durable_url) as store:
            recorded = [event.position async for event in store.tail()]
            async with asyncio.timeout(60):
                while not load.heard or load.heard[-1] < recorded[-1]:
                    await asyncio.wait([follower], timeout=0.1)
            assert load.heard == recorded
            rollouts = await store.query_rollouts()
            assert {one.rollout_id for one in rollouts} == load.entered == load.finished
            assert {one.status for one in rollouts} == {"succeeded"}
            for one in rollouts:
                assert (await store.query_attempts(one.rollout_id)).total == 1
                assert (await store.query_spans(one.rollout_id)).total == 1
            assert (await store.verify()).ok
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower
    finally:
        await asyncio.to_thread(server.kill)
