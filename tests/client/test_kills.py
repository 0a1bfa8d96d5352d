"""A server is killed under load: clients reconnect, and no call is lost or repeated."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.load import Load
from tests.client.server_process import ServerProcess
from tests.torture import Rounds

CLIENTS = 4
BETWEEN_KILLS = 15
"""How many rollouts are finished between two kills."""


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1200)
async def test_clients_outlive_their_server_and_lose_and_double_nothing(durable_url: str, rounds: Rounds) -> None:
    server = ServerProcess(durable_url)
    await asyncio.to_thread(server.start)
    try:
        load = Load(server.url)
        clients = [asyncio.ensure_future(load.live(f"w{number}")) for number in range(CLIENTS)]
        follower = asyncio.ensure_future(load.follow())
        kills = rounds(100, few=2)
        for _ in range(kills):
            await load.progresses(BETWEEN_KILLS, clients, follower)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await load.end(clients, follower, durable_url)
    finally:
        await asyncio.to_thread(server.kill)
