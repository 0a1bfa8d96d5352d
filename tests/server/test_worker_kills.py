"""A worker or the parent of a server is killed under load: clients notice only a pause."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack

import pytest

from tests.client.load import Load
from tests.postgres import free_port
from tests.server.fleet import HANG, Fleet, fleet, until
from tests.torture import Rounds

CLIENTS = 4
BETWEEN_KILLS = 15


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.postgres
@pytest.mark.own_database
@pytest.mark.timeout(1800)
async def test_clients_continue_after_workers_and_parent_are_killed_and_lose_and_double_nothing(
    postgres_url: str, rounds: Rounds
) -> None:
    port = free_port()
    chance = random.Random(20)
    async with AsyncExitStack() as running:
        server = await running.enter_async_context(fleet(postgres_url, port=port))
        load = Load(server.url)
        clients = [asyncio.ensure_future(load.live(f"w{number}")) for number in range(CLIENTS)]
        follower = asyncio.ensure_future(load.follow())
        # The first kill hits a worker, the second one the parent.
        for turn in range(rounds(100, few=2)):
            await load.progresses(BETWEEN_KILLS, clients, follower)
            if turn % 5 != 1:
                workers = server.workers()
                os.kill(chance.choice(workers).pid, signal.SIGKILL)
            else:
                await _kill_parent(server)
                server = await running.enter_async_context(fleet(postgres_url, port=port))
        await load.end(clients, follower, postgres_url)


async def _kill_parent(server: Fleet) -> None:
    workers = server.workers()
    server.process.kill()
    async with asyncio.timeout(HANG):
        await server.process.wait()
    # Workers end without their parent. They hold the port until then.
    await until(lambda: not any(worker.is_running() for worker in workers))
