"""Two servers on one Postgres database act as one for their clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from store import open_store
from store.client import HTTPStore
from store.sql import core, queue, waiters
from store.testing.samples import make_span
from tests.server.fleet import HANG, Fleet, fleet
from tests.torture import Rounds

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.own_database]

RUNNERS = 8
LAST = "the last"


def only_notified() -> None:
    """Let a waiting call look again by itself only after an hour: in a test, only a notification wakes it."""
    for module in (core, queue, waiters):
        module.__dict__["FALLBACK_SECONDS"] = 3600.0


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[list[Fleet]]:
    """Two servers of one process each."""
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(fleet(postgres_url, workers=1, before=only_notified)) for _ in range(2))
        yield [await start for start in starting]


@pytest.mark.torture
async def test_clients_of_two_servers_share_one_queue_and_wake_each_other(
    postgres_url: str, servers: list[Fleet], rounds: Rounds
) -> None:
    async with asyncio.timeout(HANG):
        await _check_wakeups(servers, rounds(30, few=2))
        await _check_claims(postgres_url, servers, rounds(100, few=24))


async def _check_wakeups(servers: list[Fleet], turns: int) -> None:
    """Check that calls that wait at one server are woken by changes through the other one."""
    first, second = servers
    async with aiohttp.ClientSession() as session:
        for number in range(turns):
            dequeue = _post(session, first, "/queues/rollouts/dequeue", {"wait_seconds": HANG})
            (claim,) = await _woken(session, first, dequeue, lambda n=number: _enqueue(session, second, n))
            rollout, attempt = claim["rollout_id"], claim["attempt"]["attempt_id"]
            wait = _post(session, first, "/waits/rollouts", {"rollout_ids": [rollout]})
            path = f"/rollouts/{rollout}/attempts/{attempt}"
            ended = await _woken(
                session, first, wait, lambda to=path: _post(session, second, to, {"status": "succeeded"})
            )
            assert [entry["status"] for entry in ended] == ["succeeded"]


async def _check_claims(postgres_url: str, servers: list[Fleet], count: int) -> None:
    """Check that runners at both servers claim each rollout once, in whichever server it was enqueued."""
    runners = [asyncio.create_task(_run(servers[number % 2].url, f"runner-{number}")) for number in range(RUNNERS)]
    async with aiohttp.ClientSession() as session:
        enqueued: list[str] = []
        for number in range(count):
            enqueued += await _enqueue(session, servers[number % 2], number)
        # The queue keeps its order, and a runner that takes one of these ends.
        for _ in runners:
            enqueued += await _enqueue(session, servers[0], LAST)
        claimed = Counter(rollout for rollouts in await asyncio.gather(*runners) for rollout in rollouts)
    assert claimed == Counter(enqueued)
    async with await open_store(postgres_url) as store:
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        assert rollouts.keys() >= set(enqueued)
        assert {rollout.status for rollout in rollouts.values()} == {"succeeded"}
        for rollout_id in enqueued:
            assert (await store.query_attempts(rollout_id)).total == 1
        assert (await store.log.verify()).ok


async def _run(url: str, name: str) -> list[str]:
    """Claim and finish rollouts until a last one, and return their ids."""
    finished: list[str] = []
    async with HTTPStore(url) as store:
        while True:
            claimed = await store.dequeue_rollout(name, wait_seconds=HANG)
            assert claimed is not None
            await store.add_span(make_span(claimed.attempt))
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
            finished.append(claimed.rollout_id)
            if claimed.input == LAST:
                return finished


async def _woken(
    session: aiohttp.ClientSession, server: Fleet, waiting: Awaitable[Any], write: Callable[[], Awaitable[Any]]
) -> Any:
    """Let one call wait and another one write; return the answer of the first."""
    call = asyncio.ensure_future(waiting)
    while not (await server.measured(session))["rollbook_parked_calls"]:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.02)
    await write()
    return await call


async def _enqueue(session: aiohttp.ClientSession, server: Fleet, value: object) -> list[str]:
    created = await _post(session, server, "/queues/rollouts/enqueue", {"rollouts": [{"input": value}]})
    return [one["rollout_id"] for one in created]


async def _post(session: aiohttp.ClientSession, server: Fleet, path: str, body: object) -> Any:
    async with session.post(f"{server.url}/v1/agl{path}", json=body) as answer:
        assert answer.status in {200, 201}, await answer.text()
        return await answer.json()
