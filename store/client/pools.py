"""Connection pools for one server: one pool for each event loop in each process.

A connection belongs to the event loop that opened it, and a loop runs in one thread, so threads do not share pools and
need no lock. Threads only share a dict, whose single operations are atomic. A call *waits* if it asks the server to
delay the response until something happens (a long poll or a stream).
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
"""The time after which an idle connection is closed.

The server's limit is longer, so the client rarely uses a connection that the server has closed.
"""

_WAITING_CONNECTIONS: Final = 1024
_OTHER_LOOPS_SECONDS: Final = 5.0
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""`struct linger` with timeout 0, so that closing the socket sends a reset."""

_in_use: ContextVar[list[asyncio.Transport] | None] = ContextVar("rollbook_connections", default=None)
"""The transports that the current call has used; None if transports are not recorded."""


class _Connector(aiohttp.TCPConnector):
    """Connector that records the transport of each request, so that a cancelled call can reset its connection."""

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

    After a normal close, the server cannot know whether the client has read the response. A reset shows the server
    that the client has not read the response.
    """
    used: list[asyncio.Transport] = []
    token = _in_use.set(used)
    try:
        yield
    except asyncio.CancelledError:
        for transport in used:
            with suppress(OSError):
                # The descriptor is duplicated because some event loops do not expose their socket for `setsockopt`.
                with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                transport.abort()
        raise
    finally:
        _in_use.reset(token)


class Pool:
    """The connections of one event loop and their running calls."""

    def __init__(self, headers: Mapping[str, str], connections: int, trust: ssl.SSLContext | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._headers = headers
        self._trust = trust
        self._slots = asyncio.Semaphore(connections)
        # Long polls have a separate limit, so that a hundred idle runners do not block an enqueue.
        self._waiting_slots = asyncio.Semaphore(_WAITING_CONNECTIONS)
        self._waits: set[asyncio.Timeout] = set()
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._sessions = self._open_session()
        self._session: aiohttp.ClientSession | None = None

    async def _open_session(self) -> AsyncGenerator[aiohttp.ClientSession]:
        # This function is a generator, because a loop closes its generators when the loop ends. So the session is
        # closed even if `close` is never called.
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
        """Return the HTTP session of this loop."""
        if self._session is None:
            self._session = await anext(self._sessions)
        return self._session

    @asynccontextmanager
    async def call(self, operation: str, *, waits: bool) -> AsyncGenerator[None]:
        """Register a running call. When the pool closes, it cancels calls that wait, and lets other calls finish.

        Raises:
            Closed: the pool is closed, or was closed during a call that waits.
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
        """Sleep between two attempts.

        Raises:
            Closed: the pool was closed meanwhile.
        """
        async with self._until_closed(operation):
            if self._closing:
                raise Closed(operation)
            await asyncio.sleep(seconds)

    def connection(self, *, waits: bool) -> asyncio.Semaphore:
        """Return the semaphore that limits the connections of calls that wait, or of calls that do not wait."""
        return self._waiting_slots if waits else self._slots

    async def close(self) -> None:
        """End the calls that wait, let other calls finish, and close the connections.

        The caller must run in the pool's loop.
        """
        self._closing = True
        for scope in self._waits:
            scope.reschedule(self.loop.time())
        await self._idle.wait()
        await self._sessions.aclose()

    def close_soon(self) -> None:
        """Schedule `close` in the pool's loop, for a store that was garbage-collected without being closed.

        This method is thread-safe.
        """
        with suppress(RuntimeError):  # the loop is closed, and so are its connections
            self.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))


class Pools:
    """The pools of a store by process and loop."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        # A forked process inherits its parent's pools. It must not use or close these pools, because the parent uses
        # the same sockets.
        self._by_process: dict[int, dict[asyncio.AbstractEventLoop, Pool]] = {}

    def current(self) -> Pool:
        """Return the pool of the running loop."""
        pools = self._of_this_process()
        pool = pools.get(asyncio.get_running_loop())
        if pool is None:
            for loop in list(pools):
                if loop.is_closed():
                    pools.pop(loop, None)
            pool = pools[asyncio.get_running_loop()] = self._make()
        return pool

    def _of_this_process(self) -> dict[asyncio.AbstractEventLoop, Pool]:
        return self._by_process.setdefault(os.getpid(), {})

    async def close(self) -> None:
        """Close the pools of all running loops. Wait at most five seconds for the loops of other threads."""
        pools = self._of_this_process()
        pool_of_loop = pools.pop(asyncio.get_running_loop(), None)
        others: list[asyncio.Future[None]] = []
        while pools:
            loop, pool = pools.popitem()
            if loop.is_running():
                others.append(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop)))
        if pool_of_loop is not None:
            await pool_of_loop.close()
        if others:
            await asyncio.wait(others, timeout=_OTHER_LOOPS_SECONDS)

    def close_soon(self) -> None:
        """Schedule the closing of all pools, for a store that was garbage-collected without being closed."""
        for pool in self._of_this_process().values():
            pool.close_soon()
