"""Servers end overdue attempts on time without calls, except attempts whose signals they could not receive."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from store import open_store
from store.client import HTTPStore
from store.db.url import parse, with_partition
from store.interface.store import Store
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from store.testing.contract.rollout_helpers import started, worker_of
from tests.conftest import POSTGRES, SQLITE
from tests.server.api import speaking_to
from tests.server.fleet import HANG, fleet


@pytest.fixture(params=[SQLITE, POSTGRES])
def isolated_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store in a database without partitions of other tests, which servers would open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'run.db'}"
    return request.getfixturevalue("postgres_database")()


pytestmark = [pytest.mark.slow]

LIMIT = 6.0
"""The time without a sign of life, in seconds, after which an attempt is overdue.

Live attempts send one every 0.2 s. The server does not count the time for which it gets no processor.
"""
TORTURE_POSTGRES = pytest.param("postgres", id="postgres", marks=pytest.mark.torture_only)


async def until_unknown(store: Store, worker_id: str) -> None:
    """Wait until the attempt of a worker was ended. The read of a worker does not look for overdue attempts."""
    async with asyncio.timeout(HANG):
        while (await worker_of(store, worker_id)).status != "unknown":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_overdue_attempts_end_once_without_calls_in_every_partition(isolated_url: str) -> None:
    async def open_partition(url: str) -> Store:
        return await SQLStore.open(url, create=False)

    urls = [isolated_url, with_partition(isolated_url, f"p{uuid4().hex[:12]}")]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await open_store(url)) for url in urls]
        # Two servers use the database. Both find each overdue attempt, and one of them ends it.
        for _ in range(2):
            root = await stack.enter_async_context(await open_store(isolated_url))
            partitions = Partitions(root, parse(isolated_url).text, open_partition)
            stack.push_async_callback(partitions.close)
            await stack.enter_async_context(speaking_to(partitions))
        rollouts = [await started(store, worker_id="w1", unresponsive_seconds=0.5) for store in stores]
        for store, rollout in zip(stores, rollouts, strict=True):
            await until_unknown(store, "w1")
            ends = [
                event for event in await store.log.history(rollout.rollout_id) if event.type == "attempt.status_changed"
            ]
            assert [(event.actor, event.data["to"]) for event in ends] == [("watchdog", "unresponsive")]


@pytest.mark.parametrize("isolated_url", [SQLITE, TORTURE_POSTGRES], indirect=True)
async def test_a_suspended_server_hears_the_live_attempts_before_it_judges(isolated_url: str) -> None:
    async with fleet(isolated_url, workers=1) as server, await HTTPStore.open(server.url) as store:
        rollouts = [await started(store, unresponsive_seconds=LIMIT) for _ in range(4)]
        silent = rollouts[0].rollout_id
        os.killpg(server.process.pid, signal.SIGSTOP)
        # The server is away for longer than an attempt may be silent.
        await asyncio.sleep(LIMIT + 0.5)
        os.killpg(server.process.pid, signal.SIGCONT)
        ended: set[str] = set()
        async with asyncio.timeout(HANG):
            while silent not in ended:
                ended = {rollout.rollout_id for rollout in await store.query_rollouts(status_in=["failed"])}
                assert ended <= {silent}
                live = [rollout.rollout_id for rollout in rollouts[1:]]
                now = time.time()
                await asyncio.gather(
                    *(store.update_attempt(rollout_id, "latest", last_heartbeat_time=now) for rollout_id in live)
                )
                await asyncio.sleep(0.2)


async def test_partitions_with_attempts_stay_open_if_they_can(isolated_url: str) -> None:
    async def open_partition(url: str) -> Store:
        return await SQLStore.open(url, create=False)

    names = sorted(f"p{uuid4().hex[:12]}" for _ in range(3))
    for name in names:
        async with await open_store(with_partition(isolated_url, name)) as store:
            if name != names[1]:
                await started(store, unresponsive_seconds=3600)
    root = await open_store(isolated_url)
    partitions = Partitions(root, parse(isolated_url).text, open_partition, limit=2)
    watching = asyncio.create_task(partitions.watch())
    try:
        async with asyncio.timeout(HANG):
            while len(partitions.open_stores()) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert sorted(name for name, _ in partitions.open_stores()[1:]) == [names[0], names[2]]
        # A request for another partition is answered. Its partition is the first that is closed afterwards.
        async with partitions.use(names[1]):
            pass
        async with asyncio.timeout(HANG):
            while names[1] in dict(partitions.open_stores()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await partitions.close()
        await root.close()
