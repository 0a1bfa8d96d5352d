"""Connections to one server: a pool for each event loop that calls it, in each process that does.

A connection belongs to the loop that opened it, and a loop to one thread, so no pool is ever shared and nothing here
needs a lock: what two threads may meet in is a dict, whose single operations are atomic.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection

from store.errors import Closed

_IDLE_SECONDS: Final = 20.0
"""How long an unused connection is kept; less than servers keep theirs, so that few are found closed."""

_PARKED_CONNECTIONS: Final = 1024
_OTHER_LOOPS_SECONDS: Final = 5.0
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""`struct linger`: on, for no time."""

_in_use: ContextVar[list[asyncio.Transport] | None] = ContextVar("rollbook_connections", default=None)
"""The connections that a call has used, where it wants to know."""


class _Connector(aiohttp.TCPConnector):
    """Makes connections that a call can reach before it is answered."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        used = _in_use.get()
        if used is not None and connection.transport is not None:
            used.append(connection.transport)
        return connection


@contextmanager
def resetting() -> Generator[None]:
    """Reset the connection of a call that is cancelled, instead of closing it.

    A server that has answered sees a connection that is closed after its answer was read, and one that is closed
    because nobody wants it any more, as the same. A reset tells it that the answer was not taken.
    """
    used: list[asyncio.Transport] = []
    token = _in_use.set(used)
    try:
        yield
    except asyncio.CancelledError:
        for transport in used:
            _reset(transport)
        raise
    finally:
        _in_use.reset(token)


def _reset(transport: asyncio.Transport) -> None:
    with suppress(OSError):
        # A second handle: other loops than asyncio's own do not lend theirs for this.
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()


class Pool:
    """The connections of one event loop, and the calls that are on them."""

    def __init__(self, headers: Mapping[str, str], connections: int, trust: ssl.SSLContext | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._headers = headers
        self._trust = trust
        self._ordinary = asyncio.Semaphore(connections)
        # Calls that wait on purpose have places of their own: a hundred idle runners must not keep an enqueue out.
        self._parked = asyncio.Semaphore(_PARKED_CONNECTIONS)
        self._waits: set[asyncio.Timeout] = set()
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._life = self._live()
        self._session: aiohttp.ClientSession | None = None

    async def _live(self) -> AsyncGenerator[aiohttp.ClientSession]:
        # A loop that ends finishes its generators first, so the session is closed even if the store is not.
        connector = _Connector(limit=0, keepalive_timeout=_IDLE_SECONDS, ssl=self._trust or True)
        session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )
        try:
            yield session
        finally:
            await session.close()

    async def session(self) -> aiohttp.ClientSession:
        """Return what sends requests in this loop."""
        if self._session is None:
            self._session = await anext(self._life)
        return self._session

    @asynccontextmanager
    async def call(self, operation: str, *, waits: bool) -> AsyncGenerator[None]:
        """Count a call in; one that waits is sent away when the pool closes, any other is let finish.

        Raises:
            Closed: the pool is being closed, or was closed while a call waited.
        """
        if self._closing:
            raise Closed(operation)
        self._active += 1
        self._idle.clear()
        try:
            if waits:
                async with self._until_closed(operation):
                    yield
            else:
                yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    @asynccontextmanager
    async def _until_closed(self, operation: str) -> AsyncGenerator[None]:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waits.add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                raise Closed(operation) from None
            raise
        finally:
            self._waits.discard(scope)

    async def pause(self, operation: str, seconds: float) -> None:
        """Wait between two tries.

        Raises:
            Closed: the pool was closed meanwhile; another try would keep it waiting.
        """
        async with self._until_closed(operation):
            if self._closing:
                raise Closed(operation)
            await asyncio.sleep(seconds)

    def connection(self, *, waits: bool) -> asyncio.Semaphore:
        """Return what bounds the connections of a kind of call."""
        return self._parked if waits else self._ordinary

    async def close(self) -> None:
        """Send away the calls that wait, let the others finish, and close the connections. In the pool's own loop."""
        self._closing = True
        for scope in self._waits:
            scope.reschedule(self.loop.time())
        await self._idle.wait()
        await self._life.aclose()

    def let_go(self) -> None:
        """Close it when the loop finds time, for a store that nobody closed and nobody has any more. In any thread."""
        with suppress(RuntimeError):  # the loop was closed, and has closed the connections
            self.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))


class Pools:
    """The pools of a store, by process and by loop."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        # A fork inherits its parent's pools and must not touch them, not even to close them: the sockets are shared.
        self._by_process: dict[int, dict[asyncio.AbstractEventLoop, Pool]] = {}

    def here(self) -> Pool:
        """Return the pool of the running loop."""
        pools = self._mine()
        pool = pools.get(asyncio.get_running_loop())
        if pool is None:
            for loop in list(pools):
                if loop.is_closed():
                    pools.pop(loop, None)
            pool = pools[asyncio.get_running_loop()] = self._make()
        return pool

    def _mine(self) -> dict[asyncio.AbstractEventLoop, Pool]:
        return self._by_process.setdefault(os.getpid(), {})

    async def close(self) -> None:
        """Close the pools of all loops that run. One that is stuck in another thread is not waited for for ever."""
        pools = self._mine()
        own = pools.pop(asyncio.get_running_loop(), None)
        others: list[asyncio.Future[None]] = []
        while pools:
            loop, pool = pools.popitem()
            if loop.is_running():
                others.append(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop)))
        if own is not None:
            await own.close()
        if others:
            await asyncio.wait(others, timeout=_OTHER_LOOPS_SECONDS)

    def let_go(self) -> None:
        """Close them all some time, for a store that was not closed and is gone."""
        for pool in self._mine().values():
            pool.let_go()
