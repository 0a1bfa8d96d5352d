"""Clients that continue during failures of their server, and the check that no call is lost or repeated."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from store import open_store
from store.client import HTTPStore
from store.testing.samples import make_span


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
            async for event in store.log.tail(follow=True):
                self.heard.append(event.position)

    async def has_finished(self, count: int) -> None:
        """Return when so many rollouts are finished."""
        async with self.progress:
            await self.progress.wait_for(lambda: len(self.finished) >= count)

    async def progresses(self, count: int, clients: list[asyncio.Task[None]], follower: asyncio.Task[None]) -> None:
        """Return when so many more rollouts are finished, and no client has given up."""
        reached = asyncio.ensure_future(self.has_finished(len(self.finished) + count))
        await asyncio.wait([reached, *clients, follower], return_when=asyncio.FIRST_COMPLETED)
        assert reached.done(), "a client gave up"

    async def end(self, clients: list[asyncio.Task[None]], follower: asyncio.Task[None], store_url: str) -> None:
        """Let the clients finish, and prove that nothing was lost or doubled."""
        self.is_over = True
        await asyncio.gather(*clients)
        async with await open_store(store_url) as store:
            recorded = [event.position async for event in store.log.tail()]
            async with asyncio.timeout(60):
                while not self.heard or self.heard[-1] < recorded[-1]:
                    await asyncio.wait([follower], timeout=0.1)
            assert self.heard == recorded
            rollouts = await store.query_rollouts()
            assert {one.rollout_id for one in rollouts} == self.entered == self.finished
            assert {one.status for one in rollouts} == {"succeeded"}
            for one in rollouts:
                assert (await store.query_attempts(one.rollout_id)).total == 1
                assert (await store.query_spans(one.rollout_id)).total == 1
            assert (await store.log.verify()).ok
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower
