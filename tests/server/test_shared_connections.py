"""The partitions of one server on Postgres share its connections: their number grows by one writer for each."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from store import open_store
from store.db.drivers.postgres import dialect
from store.db.url import parse, with_partition
from store.sql.store import SQLStore
from store.testing.samples import make_span
from tests import databases

pytestmark = pytest.mark.postgres

READERS = 8
MORE_THAN_READERS = READERS + 2
"""So many partitions have more writers than there are shared connections."""


@pytest.fixture
async def stores(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[list[SQLStore]]:
    """The root of a server and more partitions beside it: three, or as many as the parameter says."""
    names = [f"s{uuid4().hex[:12]}" for _ in range(getattr(request, "param", 3))]
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(await SQLStore.open(_named(postgres_url, names[0])))
        opened = [root]
        for name in names[1:]:
            url = _named(postgres_url, name)
            opened.append(await stack.enter_async_context(await SQLStore.open(url, beside=root)))
        yield opened


def _named(url: str, name: str) -> str:
    """Return the URL of a partition, whose connections can be told from those of other tests."""
    return with_partition(url, name) + "&application_name=shared-connections"


async def _connections(url: str) -> int:
    database = await databases.connect(url)
    try:
        ((count,),) = await database.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shared-connections'"
        )
        return count
    finally:
        await database.close()


@pytest.mark.parametrize("stores", [6], indirect=True)
async def test_partitions_share_readers_and_the_line_for_news(postgres_url: str, stores: list[SQLStore]) -> None:
    async def use(store: SQLStore) -> None:
        started = await store.start_rollout("x")
        await store.add_span(make_span(started.attempt))
        waiting = asyncio.ensure_future(store.dequeue_rollout(wait_seconds=60))
        many: list[Any] = [store.query_rollouts() for _ in range(5)]
        await asyncio.gather(*many)
        created = await store.enqueue_rollout("y")
        async with asyncio.timeout(60):
            claimed = await waiting
        assert claimed is not None
        assert claimed.rollout_id == created.rollout_id

    await asyncio.gather(*map(use, stores))
    for store in stores:
        assert (await store.query_rollouts()).total == 2
    assert len(stores) < await _connections(postgres_url) <= len(stores) + READERS + 1


async def test_news_reach_each_partition_from_another_process_and_only_that(stores: list[SQLStore]) -> None:
    first, second, *_ = stores
    # Another store of the same partition, with connections of its own, is what another process would be.
    async with await SQLStore.open(first._url.text) as elsewhere, asyncio.timeout(60):
        waiting = [asyncio.ensure_future(store.dequeue_rollout(wait_seconds=50)) for store in (first, second)]
        created = await elsewhere.enqueue_rollout("x")
        claimed = await waiting[0]
        assert claimed is not None
        assert claimed.rollout_id == created.rollout_id
        assert not waiting[1].done()
        assert await second.enqueue_rollout("y") is not None
        assert await waiting[1] is not None


async def test_the_connections_outlive_the_partition_that_made_them(postgres_url: str, stores: list[SQLStore]) -> None:
    await stores[0].close()
    await asyncio.gather(*(store.enqueue_rollout("after") for store in stores[1:]))
    for store in stores[1:]:
        assert (await store.query_rollouts()).total == 1
        await store.close()
    async with asyncio.timeout(30):
        while await _connections(postgres_url):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stores", [MORE_THAN_READERS], indirect=True)
async def test_a_partition_that_is_not_written_to_gives_its_connection_back(
    postgres_url: str, stores: list[SQLStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "_IDLE_SECONDS", 0.1)
    for _ in range(2):
        await asyncio.gather(*(store.enqueue_rollout("x") for store in stores))
        async with asyncio.timeout(30):
            while await _connections(postgres_url) > READERS + 1:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)
    for store in stores:
        assert (await store.query_rollouts()).total == 2


async def test_another_database_has_connections_of_its_own(postgres_url: str, postgres_database: Any) -> None:
    async with (
        await SQLStore.open(postgres_url) as one,
        await SQLStore.open(postgres_database(), beside=one) as other,
    ):
        await other.enqueue_rollout("there")
        assert (await one.query_rollouts()).total == 0
        assert (await other.query_rollouts()).total == 1
    async with await open_store(postgres_url) as again:
        assert parse(postgres_url).dsn is not None
        assert (await again.query_rollouts()).total == 0
