"""A call on a connection that the network has lost without a message ends soon, and its connection is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest

from store import open_store
from store.db.dialect import Sql
from store.db.drivers.postgres import connection, pool
from store.db.drivers.postgres.dialect import Postgres
from store.errors import Unavailable
from store.sql.store import SQLStore

pytestmark = [pytest.mark.postgres]

_SOON_SECONDS = 10.0


class SilentProxy:
    """A way to a server. It confirms all bytes, but loses those of connections that `loses` selects."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.loses: Callable[[bytes], bool] = lambda _: False
        """Whether the connection is lost before these bytes of the client reach the server."""
        self.seen: dict[int, bytes] = {}
        """The bytes of the clients, by connection."""
        self.lost: set[int] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.seen)
        self.seen[number] = b""
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            await asyncio.gather(
                self._pass(number, reader, server_writer, is_upward=True),
                self._pass(number, server_reader, writer, is_upward=False),
            )
        finally:
            for end in (writer, server_writer):
                end.transport.abort()

    async def _pass(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_upward: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_upward:
                    self.seen[number] += data
                    if self.loses(data):
                        self.lost.add(number)
                if number not in self.lost:
                    writer.write(data)
                    await writer.drain()
            writer.close()

    def lose(self, text: bytes) -> None:
        """Lose every connection to which a client has sent a text."""
        self.lost |= {number for number, data in self.seen.items() if text in data}


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("SILENT", 0.4),
        ("STEP", 0.1),
        ("ACTIVE", 0.3),
        ("ARRIVAL", 0.1),
        ("QUIET", 0.3),
        ("CLOSE", 0.3),
    ):
        monkeypatch.setattr(connection, f"_{name}_SECONDS", seconds)
    monkeypatch.setattr(pool, "_LINE_SECONDS", 0.4)


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[SilentProxy]:
    proxy = SilentProxy(postgres_url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    yield proxy
    server.close()


@pytest.fixture
async def store(postgres_url: str, proxy: SilentProxy) -> AsyncIterator[SQLStore]:
    """A store whose connections lead through the proxy."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    parts = urlsplit(postgres_url)
    port = server.sockets[0].getsockname()[1]
    async with await open_store(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()) as store:
        assert isinstance(store, SQLStore)
        await store.enqueue_rollout("first")
        await store.query_rollouts()
        yield store
    server.close()


async def inputs(store: SQLStore) -> list[str]:
    return sorted(str(rollout.input) for rollout in (await store.query_rollouts()).items)


async def test_read_on_a_half_open_connection_fails_soon_and_the_next_one_works(
    store: SQLStore, proxy: SilentProxy
) -> None:
    proxy.lost = set(proxy.seen)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await store.query_rollouts()
    assert await inputs(store) == ["first"]
    assert time.monotonic() - began < _SOON_SECONDS


async def test_cancelled_read_on_a_half_open_connection_frees_its_place_in_the_pool(
    store: SQLStore, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_RESET_SECONDS", 0.3)
    await asyncio.gather(*(store.query_rollouts() for _ in range(16)))
    proxy.lost = set(proxy.seen)
    began = time.monotonic()
    for _ in range(16):
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(0.05):
                await store.query_rollouts()
    assert await inputs(store) == ["first"]
    assert time.monotonic() - began < _SOON_SECONDS


async def test_write_on_a_half_open_connection_is_done_once(store: SQLStore, proxy: SilentProxy) -> None:
    proxy.lose(b"pg_advisory_xact_lock")
    began = time.monotonic()
    await store.enqueue_rollout("second")
    assert time.monotonic() - began < _SOON_SECONDS
    assert await inputs(store) == ["first", "second"]


async def test_lock_of_a_lost_transaction_is_released(store: SQLStore, proxy: SilentProxy) -> None:
    proxy.loses = lambda data: not proxy.lost and b"COMMIT\0" in data
    began = time.monotonic()
    await store.enqueue_rollout("second")
    assert proxy.lost
    assert time.monotonic() - began < _SOON_SECONDS
    assert await inputs(store) == ["first", "second"]


async def test_listener_on_a_half_open_connection_connects_again(
    store: SQLStore, proxy: SilentProxy, postgres_url: str
) -> None:
    wakeups = store.core.waiting._wakeups  # pyright: ignore[reportPrivateUsage]

    async def hears(seconds: float) -> bool:
        return await store.core.thread.run(wakeups.wait(seconds))  # pyright: ignore[reportPrivateUsage]

    while await hears(0.3):
        pass
    proxy.lose(b"LISTEN")
    while not await hears(0.3):
        pass
    async with await open_store(postgres_url) as other:
        while await hears(0.3):
            pass
        await other.enqueue_rollout("second")
        assert await hears(_SOON_SECONDS)


async def test_long_statement_is_not_disturbed(store: SQLStore) -> None:
    rows = await store.core.read(lambda session: session.fetch(Sql("SELECT 1 FROM pg_sleep(1.5)", (), {}), {}))
    assert [tuple(row) for row in rows] == [(1,)]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no TCP_USER_TIMEOUT")
async def test_kernel_gives_up_a_silent_peer_within_fifteen_seconds(store: SQLStore) -> None:
    dialect = store.core.dialect
    assert isinstance(dialect, Postgres)

    async def options() -> list[int]:
        async with dialect.connections.reader() as reader:
            end = reader.get_socket()
            idle, interval, count, patience = (
                end.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    *(socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT),
                    socket.TCP_USER_TIMEOUT,
                )
            )
            return [idle + interval * count, patience // 1000]

    assert max(await store.core.thread.run(options())) < 15
