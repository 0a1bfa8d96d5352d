"""Contract of closing a store."""

from __future__ import annotations

import asyncio

import pytest

from store.errors import Closed
from store.interface.store import Store
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_span

__all__ = ["ClosingContract"]


class ClosingContract:
    """Tests of `close` and `async with`."""

    pytestmark = pytest.mark.asyncio

    async def test_calls_of_a_closed_store_raise_closed(self, store: Store) -> None:
        rollout = await started(store)
        await store.close()
        for call in (
            store.enqueue_rollout(1),
            store.dequeue_rollout(),
            store.add_span(make_span(rollout.attempt)),
            store.query_rollouts(),
            store.get_rollout_by_id(rollout.rollout_id),
            store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]),
        ):
            with pytest.raises(Closed):
                await call

    async def test_a_store_can_be_closed_twice(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_closing_ends_every_wait(self, store: Store) -> None:
        rollout = await started(store)
        waiting = asyncio.gather(
            store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]),
            store.dequeue_rollout(wait_seconds=1000),
            return_exceptions=True,
        )
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            await store.close()
            assert [type(item) for item in await waiting] == [Closed, Closed]

    async def test_the_end_of_an_async_with_block_closes_the_store(self, store: Store) -> None:
        async with store as entered:
            assert entered is store
            await store.enqueue_rollout(1)
        with pytest.raises(Closed):
            await store.enqueue_rollout(2)
