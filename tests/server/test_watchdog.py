"""Servers end overdue attempts on time without calls, and no attempt that they could not hear."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from uuid import uuid4

import pytest

from store import open_store
from store.client import HTTPStore
from store.db.url import parse, with_partition
from store.interface.store import Store
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from store.testing.contract.given import started, worker_of
from tests.conftest import POSTGRES, SQLITE
from tests.server.fleet import HANG, fleet


@pytest.fixture(params=[SQLITE, POSTGRES])
def own_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store in a database without partitions of other tests, which servers would open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'run.db'}"
    return request.getfixturevalue("postgres_database")()


pytestmark = [pytest.mark.slow]


async def until_unknown(store: Store, worker_id: str) -> None:
    """Wait until the attempt of a worker was ended. The read of a worker does not look for overdue attempts."""
    async with asyncio.timeout(HANG):
        while (await worker_of(store, worker_id)).status != "unknown":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_overdue_attempts_end_without_calls_in_every_partition(own_url: str) -> None:
    urls = [own_url, with_partition(own_url, f"p{uuid4().hex[:12]}")]
    stores = [await open_store(url) for url in urls]
    try:
        # Two servers use the database, so each overdue attempt is found twice, and ended once.
        async with fleet(own_url, workers=1), fleet(own_url, workers=1):
            rollouts = [await started(store, worker_id="w1", unresponsive_seconds=0.5) for store in stores]
            for store, rollout in zip(stores, rollouts, strict=True):
                await until_unknown(store, "w1")
                ends = [
                    event
                    for event in await store.log.history(rollout.rollout_id)
                    if event.type == "attempt.status_changed"
                ]
                assert [(event.actor, event.data["to"]) for event in ends] == [("watchdog", "unresponsive")]
    finally:
        for store in stores:
            await store.close()


async def test_a_suspended_server_hears_the_live_attempts_before_it_judges(own_url: str) -> None:
    async with fleet(own_url, workers=1) as server, await HTTPStore.open(server.url) as store:
        rollouts = [await started(store, unresponsive_seconds=10) for _ in range(10)]
        silent = rollouts[0].rollout_id
        os.killpg(server.process.pid, signal.SIGSTOP)
        # The server is away for longer than an attempt may be silent.
        await asyncio.sleep(11)
        os.killpg(server.process.pid, signal.SIGCONT)
        ended: set[str] = set()
        async with asyncio.timeout(HANG):
            while silent not in ended:
                ended = {each.rollout_id for each in await store.query_rollouts(status_in=["failed"])}
                assert ended <= {silent}
                live = [each.rollout_id for each in rollouts[1:]]
                now = time.time()
                await asyncio.gather(*(store.update_attempt(each, "latest", last_heartbeat_time=now) for each in live))
                await asyncio.sleep(0.1)


async def test_partitions_with_attempts_stay_open_if_they_can(own_url: str) -> None:
    async def open_partition(url: str) -> Store:
        return await SQLStore.open(url, create=False)

    names = sorted(f"p{uuid4().hex[:12]}" for _ in range(3))
    for name in names:
        async with await open_store(with_partition(own_url, name)) as store:
            if name != names[1]:
                await started(store, unresponsive_seconds=3600)
    root = await open_store(own_url)
    partitions = Partitions(root, parse(own_url).text, open_partition, limit=2)
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
