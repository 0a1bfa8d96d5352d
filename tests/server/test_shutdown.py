"""The end of a server under load: last messages on streams, stored writes, and no delay by clients."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from store import open_store
from tests.server.fleet import HANG, Fleet, fleet, socket_directories, until

pytestmark = [pytest.mark.slow, pytest.mark.own_database]

LOG = "/v1/agl/log"
ENQUEUE = "/v1/agl/queues/rollouts/enqueue"
CALLERS = 8
READERS = 6
Json = dict[str, Any]


class Load:
    """Callers that enqueue until the server refuses."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answered: list[str] = []
        self._callers = [asyncio.ensure_future(self._enqueue()) for _ in range(CALLERS)]

    async def _enqueue(self) -> None:
        body = {"rollouts": [{"input": "x" * 1000}]}
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.post(f"{self._url}{ENQUEUE}", json=body) as answer:
                    if answer.status != 201:
                        return
                    self.answered.append((await answer.json())[0]["rollout_id"])

    async def end(self, store_url: str) -> None:
        """Prove that all is there that was answered."""
        for end in await asyncio.gather(*self._callers, return_exceptions=True):
            assert end is None or isinstance(end, aiohttp.ClientError | ConnectionError), end
        async with await open_store(store_url) as store:
            assert {rollout.rollout_id for rollout in await store.query_rollouts()} >= set(self.answered)
            assert (await store.log.verify()).ok


async def _by_events(url: str) -> list[Json]:
    """Follow the log by server-sent events to the end; return the frames."""
    async with (
        aiohttp.ClientSession(read_bufsize=2**22) as session,
        session.get(f"{url}{LOG}", headers={"Accept": "text/event-stream"}) as answer,
    ):
        return [orjson.loads(line[6:]) async for line in answer.content if line.startswith(b"data: ")]


async def _by_socket(url: str) -> list[Json]:
    """Follow the log by a WebSocket to the end; return the frames."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}{LOG}/ws", max_msg_size=0) as stream:
        frames = [orjson.loads(message.data) async for message in stream if message.type is aiohttp.WSMsgType.TEXT]
        assert stream.close_code == aiohttp.WSCloseCode.GOING_AWAY
        return frames


async def _ends_in_peace(server: Fleet, store_url: str, directories: list[Path]) -> None:
    workers = server.workers()
    load = Load(server.url)
    readers = [asyncio.ensure_future((_by_events, _by_socket)[number % 2](server.url)) for number in range(READERS)]
    await until(lambda: len(load.answered) >= 100)
    async with aiohttp.ClientSession() as session:
        while await _total(server, session, "rollbook_streams") < READERS:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)
    server.process.terminate()
    async with asyncio.timeout(HANG):
        followed = await asyncio.gather(*readers)
        await load.end(store_url)
    code, logged = await server.ended()
    assert code == 0, logged
    assert "Traceback" not in logged
    assert not any(worker.is_running() for worker in workers)
    assert not any(directory.exists() for directory in directories)
    for frames in followed:
        *_, last = frames
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Unavailable", True)
        seen = [frame for frame in frames if frame["kind"] == "event"]
        assert last["cursor"] == (seen[-1]["cursor"] if seen else None)
        assert [frame["position"] for frame in seen] == list(range(1, len(seen) + 1))


async def _total(server: Fleet, session: aiohttp.ClientSession, name: str) -> float:
    measured = await server.measured(session)
    return sum(value for labelled, value in measured.items() if labelled.partition("{")[0] == name)


@pytest.mark.parametrize("durable_url,workers", [("sqlite", 1), ("postgres", 2)], indirect=["durable_url"])
async def test_streams_get_their_last_frame_and_acknowledged_calls_are_stored(durable_url: str, workers: int) -> None:
    async with fleet(durable_url, workers=workers) as server:
        await _ends_in_peace(server, durable_url, socket_directories(server) if workers > 1 else [])


async def test_clients_that_never_read_keep_no_server_alive(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(db) as store:
        for _ in range(40):
            await store.enqueue_rollout("x" * 500_000)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    requests = [
        f"GET {LOG} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n",
        f"GET {LOG}/ws HTTP/1.1\r\nHost: 127.0.0.1\r\n{upgrade}Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==\r\n\r\n",
        "GET /v1/agl/rollouts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        # One that has asked for nothing yet, and one that never ends asking.
        "",
        "POST /v1/agl/spans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
    ]
    async with fleet(db, workers=1) as server:
        port = int(re.findall(r":(\d+)", server.url)[0])
        deaf: list[socket.socket] = []
        for request in requests:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(request.encode())
            deaf.append(client)
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
                while await _total(server, session, "rollbook_streams") < 2:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.05)
            server.process.terminate()
            code, logged = await server.ended()
            assert code == 0, logged
        finally:
            for client in deaf:
                with suppress(OSError):
                    client.close()
