"""The server of a replica: it reports that it is read-only, refuses changes, and follows the primary."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from store import ReadOnly, open_store
from store.client import HTTPStore
from store.interface.store import Store
from tests import postgres
from tests.server.test_serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


async def test_server_on_a_replica_reads_commits_of_the_primary() -> None:
    with postgres.PostgresServer.start(wal_level="replica", max_wal_senders="2") as primary:
        async with await open_store(primary.url) as written:
            first = await written.enqueue_rollout("first")
            with (
                primary.replica() as replica,
                serving("serve", "--read-only", "--db", replica.url, "--port", "0") as (_, endpoint),
            ):
                await _read(endpoint, written, first.rollout_id)


async def _read(endpoint: str, written: Store, first: str) -> None:
    async with HTTPStore(endpoint) as store, aiohttp.ClientSession() as session:
        async with session.get(f"{endpoint}/v1/agl/store") as answer:
            assert (await answer.json())["read_only"] is True
        assert (await store.get_rollout_by_id(first)) is not None
        with pytest.raises(ReadOnly):
            await store.enqueue_rollout("refused")
        waiting = asyncio.ensure_future(_followed(store, after=first))
        second = await written.enqueue_rollout("second")
        assert await asyncio.wait_for(waiting, 60) == second.rollout_id
        assert (await store.log.verify()).differences == []


async def _followed(store: HTTPStore, after: str) -> str | None:
    async for event in store.log.tail(follow=True):
        if event.type == "rollout.enqueued" and event.stream != f"rollout/{after}":
            return event.stream.removeprefix("rollout/")
    raise AssertionError("the log ended")
