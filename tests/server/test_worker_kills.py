"""A worker or the parent of a server is killed under load: clients notice only a pause."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack

import aiohttp
import psutil
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
                victim = chance.choice(server.workers())
                os.kill(victim.pid, signal.SIGKILL)
                if turn == 0:
                    await _is_replaced(server, victim)
            else:
                await _kill_parent(server)
                _, logged = await server.ended()
                assert logged.count("ended with -9") == turn % 5, logged
                server = await running.enter_async_context(fleet(postgres_url, port=port))
        await load.end(clients, follower, postgres_url)


async def _is_replaced(server: Fleet, victim: psutil.Process) -> None:
    """Wait until another process serves in the place of a worker, and both report to the metrics."""
    await until(lambda: len({worker.pid for worker in server.workers()} - {victim.pid}) == 2)
    async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
        while True:
            measured = await server.measured(session)
            if all(measured[f'rollbook_worker_up{{worker="{number}"}}'] for number in (0, 1)):
                return
            # The pause leaves processor time for the worker that starts.
            await asyncio.sleep(0.2)


async def _kill_parent(server: Fleet) -> None:
    workers = server.workers()
    await asyncio.to_thread(server.process.kill)
    # Workers end without their parent. They hold the port until then.
    await until(lambda: not any(worker.is_running() for worker in workers))
