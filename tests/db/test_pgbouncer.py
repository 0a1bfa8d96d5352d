"""Stores behind pgbouncer in transaction mode, with `direct=`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from store import open_store
from store.errors import Incompatible, Unavailable
from store.models import EnqueueRolloutRequest
from store.operations.doctor import diagnose
from store.testing.samples import make_span
from tests import pgbouncer

pytestmark = [pytest.mark.postgres]


@pytest.fixture(scope="module")
def bouncer(postgres_server: str) -> Iterator[pgbouncer.PgBouncer]:
    with pgbouncer.running(postgres_server) as running:
        yield running


def fresh(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}partition=t{uuid4().hex[:16]}"


async def test_several_clients_share_the_sessions(bouncer: pgbouncer.PgBouncer) -> None:
    url = fresh(bouncer.url)
    async with contextlib.AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(await open_store(url)) for _ in range(4)]
        waiting = asyncio.create_task(stores[3].dequeue_rollout("waits", wait_seconds=30))
        await asyncio.sleep(0.2)
        await stores[0].enqueue_rollout("for the waiting call")
        first = await waiting
        assert first is not None
        assert first.input == "for the waiting call"

        async def work(number: int) -> None:
            store = stores[number % 4]
            await store.enqueue_rollout(number)
            claim = await store.dequeue_rollout(f"w{number}")
            assert claim is not None
            await store.add_many_spans([make_span(claim.attempt, index) for index in range(1, 4)])
            assert len((await store.query_spans(claim.rollout_id)).items) == 3
            await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")

        await asyncio.gather(*map(work, range(24)))
        # More rows than one COPY takes at least.
        await stores[1].enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(250)])
        done = await stores[2].query_rollouts(status_in=["succeeded"])
        assert done.total == 24
        for report in await asyncio.gather(stores[1].log.verify(), stores[2].log.verify()):
            assert report.ok, report.differences
        await stores[2].log.rebuild()
        assert len(await stores[1].log.history(first.rollout_id)) >= 3


async def test_calls_continue_after_a_restart_of_pgbouncer(bouncer: pgbouncer.PgBouncer) -> None:
    async with await open_store(fresh(bouncer.url)) as store:
        await store.enqueue_rollout("before")
        waiting = asyncio.create_task(store.wait_for_rollouts(["ro-none"], timeout=0.1))
        await store.query_rollouts()
        await asyncio.gather(waiting, return_exceptions=True)
        bouncer.stop()
        try:
            with pytest.raises(Unavailable):
                await store.query_rollouts()
            written = asyncio.create_task(store.enqueue_rollout("meanwhile"))
            await asyncio.sleep(0.2)
        finally:
            bouncer.start()
        await written
        assert [one.input for one in (await store.query_rollouts()).items] == ["before", "meanwhile"]


async def test_a_pooler_without_the_direct_address_is_named_as_the_cause(bouncer: pgbouncer.PgBouncer) -> None:
    url = fresh(bouncer.bare_url)
    async with contextlib.AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(await open_store(url)) for _ in range(4)]
        told: list[Incompatible] = []
        async with asyncio.timeout(60):
            # It depends on the order of the calls whether two clients use the same connection of the server.
            while not told:
                calls = [
                    call for store in stores * 8 for call in (store.query_rollouts(), store.enqueue_rollout("task"))
                ]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                told = [one for one in answers if isinstance(one, Incompatible)]
    assert re.search(r"prepared statement.*; if the URL leads to .*pgbouncer.*\?direct=", str(told[0]))
    assert "rollbook verify" not in str(told[0])


async def test_doctor_recommends_the_direct_address(bouncer: pgbouncer.PgBouncer) -> None:
    url = fresh(bouncer.url)
    async with await open_store(url):
        pass
    for _ in range(3):
        for address, is_direct in ((url, True), (fresh(bouncer.bare_url), False)):
            check = next(check for check in (await diagnose(address, port=None)).checks if check.name == "connection")
            assert (check.outcome == "ok") == is_direct
            assert ("?direct=" in str(check.remedy)) == (not is_direct)
            assert "asyncpg" not in check.found
