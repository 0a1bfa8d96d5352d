"""Two servers on one Postgres: clients of either work together as if there were one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from store import open_store
from tests.server.fleet import HANG, Fleet, fleet

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.own_database]

RUNNERS = 8
# Whoever waits looks again by itself only after an hour: what wakes it in a test is the news.
DEAF = """
import store.sql.waiters
store.sql.waiters.FALLBACK_SECONDS = 3600.0
from store.cli import main
main()
"""
RUNNER = """
import asyncio, sys
from store.client import HTTPStore
from store.testing.samples import make_span

async def main(url, name):
    async with HTTPStore(url) as store:
        while True:
            claimed = await store.dequeue_rollout(name, wait_seconds=60)
            assert claimed is not None
            await store.add_span(make_span(claimed.attempt))
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
            print(claimed.rollout_id, flush=True)
            if claimed.input == "the last":
                return

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[list[Fleet]]:
    """Two servers of one process each."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(fleet(postgres_url, workers=1, script=DEAF)) for _ in range(2)]


async def test_eight_runners_of_two_servers_claim_each_rollout_once(postgres_url: str, servers: list[Fleet]) -> None:
    runners = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUNNER, servers[number % 2].url, f"runner-{number}"), stdout=subprocess.PIPE
        )
        for number in range(RUNNERS)
    ]
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
            given: list[str] = []
            for number in range(100):
                given += await _enqueue(session, servers[number % 2], number)
            # The queue keeps its order, and whoever takes one of these takes no more.
            for _ in runners:
                given += await _enqueue(session, servers[0], "the last")
            outputs = await asyncio.gather(*(runner.communicate() for runner in runners))
    finally:
        for runner in runners:
            if runner.returncode is None:
                runner.kill()
                await runner.wait()
    taken = Counter(line for output, _ in outputs for line in output.decode().split())
    assert taken == Counter(given)
    async with await open_store(postgres_url) as store:
        rollouts = await store.query_rollouts()
        assert {one.rollout_id for one in rollouts} == set(given)
        assert {one.status for one in rollouts} == {"succeeded"}
        for one in rollouts:
            assert (await store.query_attempts(one.rollout_id)).total == 1
        assert (await store.log.verify()).ok


async def test_who_waits_at_one_server_is_woken_by_what_is_written_through_the_other(servers: list[Fleet]) -> None:
    first, second = servers
    async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
        claims: list[float] = []
        ends: list[float] = []
        for number in range(30):
            dequeue = _post(session, first, "/queues/rollouts/dequeue", {"wait_seconds": HANG})
            claimed, seconds = await _woken(session, first, dequeue, lambda n=number: _enqueue(session, second, n))
            claims.append(seconds)
            (claim,) = claimed
            rollout, attempt = claim["rollout_id"], claim["attempt"]["attempt_id"]
            wait = _post(session, first, "/waits/rollouts", {"rollout_ids": [rollout]})
            path = f"/rollouts/{rollout}/attempts/{attempt}"
            ended, seconds = await _woken(
                session, first, wait, lambda to=path: _post(session, second, to, {"status": "succeeded"})
            )
            ends.append(seconds)
            assert [each["status"] for each in ended] == ["succeeded"]
    for what, seconds in (("a claim", claims), ("the end of a rollout", ends)):
        ordered = sorted(seconds)
        print(f"from writing to being told of {what}: p50 {ordered[15] * 1e3:.1f} ms, p99 {ordered[-1] * 1e3:.1f} ms")


async def _woken(
    session: aiohttp.ClientSession, server: Fleet, waiting: Awaitable[Any], write: Callable[[], Awaitable[Any]]
) -> tuple[Any, float]:
    """Let one call wait and another write; return the first one's answer, and how long after the writing it came."""
    call = asyncio.ensure_future(waiting)
    while not (await server.measured(session))["rollbook_parked_calls"]:
        pass
    began = time.perf_counter()
    _, answer = await asyncio.gather(write(), call)
    return answer, time.perf_counter() - began


async def _enqueue(session: aiohttp.ClientSession, server: Fleet, value: object) -> list[str]:
    created = await _post(session, server, "/queues/rollouts/enqueue", {"rollouts": [{"input": value}]})
    return [one["rollout_id"] for one in created]


async def _post(session: aiohttp.ClientSession, server: Fleet, path: str, body: object) -> Any:
    async with session.post(f"{server.url}/v1/agl{path}", json=body) as answer:
        assert answer.status in {200, 201}, await answer.text()
        return await answer.json()
