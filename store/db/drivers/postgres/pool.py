"""Connections that all open partitions of one Postgres database share. Decision 20.

Without shared connections, a server with 64 open partitions would have up to 512 connections for reads, and 64
connections for LISTEN and NOTIFY. Statements contain the schema of their tables, so any statement may run on any
connection. Only the writer of a partition has its own connection, because the connection is in use from BEGIN to COMMIT
and its prepared statements belong to the partition.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (asyncpg has no stubs)

from store.db.dialect import Wakeups
from store.db.drivers.postgres.connection import AnswerMonitor, PostgresConnection
from store.db.schema.postgres import MALFORMED, use_key

# asyncpg has no type hints, so its objects have the type Any.
_driver: Any = asyncpg
_READERS = 8
_CONNECT_SECONDS = 10
_LINE_SECONDS = 5
_RESET_SECONDS = 5
# The errors after which a connection is unusable: it broke, or the server sent a message that asyncpg cannot read.
_GONE = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError),
    *MALFORMED,
)


class Connections:
    """At most eight connections for reads, and one connection for LISTEN and NOTIFY (`line`), in one event loop.

    The connections are closed when no partition uses them any more.

    Args:
        dsn: the address of the database for reads.
        direct: the address for LISTEN and NOTIFY. It must differ from `dsn` if `dsn` leads to a connection pooler.
        statement_seconds: the maximum time of a statement that reads.
        prepare: a function that is called with each new connection for reads.
        options: further arguments that asyncpg gets for each connection for reads.
    """

    def __init__(
        self,
        dsn: str,
        direct: str,
        *,
        statement_seconds: float,
        prepare: Callable[[Any], Any],
        options: Mapping[str, Any],
    ) -> None:
        self.address = (dsn, direct)
        self.monitor = AnswerMonitor(dsn)
        """The check of statements that wait for an answer. The writers of the partitions use it too."""
        self._pool_options = {
            "timeout": _CONNECT_SECONDS,
            "command_timeout": statement_seconds,
            "init": prepare,
            **options,
        }
        self._pool: Any = None
        self._users = 0
        self._opening = asyncio.Lock()
        self._line: Any = None
        self._line_lock = asyncio.Lock()
        self._line_answered = 0.0
        """The time of the last answer on the connection for LISTEN and NOTIFY, by the clock of the event loop."""

    async def open(self) -> None:
        """Begin to use the connections. Each call needs a later call of `close`."""
        async with self._opening:
            if self._pool is None:
                self._pool = await _driver.create_pool(
                    self.address[0], min_size=0, max_size=_READERS, **self._pool_options
                )
            self._users += 1

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Any]:
        """Borrow a connection for reads for the duration of the block."""
        assert self._pool is not None  # `open` was called before
        pool = self._pool
        connection = await pool.acquire()
        connection.borrow()
        release = connection.release
        try:
            yield connection
        finally:
            release()
            # asyncpg closes a connection that it cannot reset. The result of the block is valid nevertheless.
            with contextlib.suppress(*_GONE):
                await pool.release(connection, timeout=_RESET_SECONDS)

    async def close(self) -> None:
        """End the use that a call of `open` began. The last call closes the connections."""
        async with self._opening:
            self._users -= 1
            if self._users:
                return
            pool, self._pool = self._pool, None
            line, self._line = self._line, None
            self.monitor.close()
            if line is not None:
                line.terminate()
            try:
                await asyncio.wait_for(pool.close(), 5)
            except TimeoutError:
                pool.terminate()

    def is_line(self, connection: Any) -> bool:
        """Return whether `connection` is the connection for LISTEN and NOTIFY, and is still open."""
        return connection is not None and connection is self._line and not connection.is_closed()

    async def listen(self, channel: str, callback: Callable[..., None]) -> Any:
        """Call `callback` at each NOTIFY on a channel, and when the connection for LISTEN and NOTIFY breaks.

        Return this connection.
        """
        async with self._connected() as line:
            await line.add_listener(channel, callback)
            # The lock shows `drop` that the partition is in use. If `drop` holds the lock, this statement does not wait
            # for it.
            await line.execute(f"SELECT pg_try_advisory_lock_shared({use_key(channel)})")
            # A broken connection counts as a notification, because later notifications are lost.
            line.add_termination_listener(callback)
            return line

    async def unlisten(self, line: Any, channel: str, callback: Callable[..., None]) -> None:
        """Undo a call of `listen` that returned `line`."""
        async with self._line_lock:
            if self.is_line(line):
                line.remove_termination_listener(callback)
                with contextlib.suppress(*_GONE):
                    await line.execute(f"SELECT pg_advisory_unlock_shared({use_key(channel)})")
                    await line.remove_listener(channel, callback)

    async def check_line(self) -> None:
        """Close the connection for LISTEN and NOTIFY if it does not answer. This notifies its listeners."""
        age = asyncio.get_running_loop().time() - self._line_answered
        # A statement in progress has the same time limit, so it notices a broken connection itself.
        if age < _LINE_SECONDS / 2 or self._line_lock.locked() or not self.is_line(self._line):
            return
        try:
            async with self._connected() as line:
                await line.execute("SELECT 1")
        except _GONE:
            # The cause may have broken the other connections too.
            self.monitor.drop_idle()

    async def notify(self, channel: str, text: str) -> None:
        """Send a notification to all listeners of a channel."""
        async with self._connected() as line:
            await line.execute("SELECT pg_notify($1, $2)", channel, text)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Any]:
        async with self._line_lock:
            if self._line is None or self._line.is_closed():
                self._line = await _driver.connect(
                    self.address[1],
                    timeout=_LINE_SECONDS,
                    command_timeout=_LINE_SECONDS,
                    connection_class=PostgresConnection,
                )
            try:
                yield self._line
                self._line_answered = asyncio.get_running_loop().time()
            except _GONE:
                # The state of the connection is unknown, so the next call opens a new connection.
                self._line.terminate()
                raise


class Listener(Wakeups):
    """Notifications of the commits of one partition.

    The connection for LISTEN and NOTIFY is opened at the first wait or commit.
    """

    _COALESCE_SECONDS = 0.005
    _RETRY_SECONDS = 1.0

    def __init__(self, connections: Connections, channel: str) -> None:
        self._connections = connections
        self._channel = channel
        self._line: Any = None
        self._notified = asyncio.Event()
        # Each notification contains this name of its sender, so that the listener can ignore its own notifications.
        self._name = os.urandom(8).hex()
        self._pending: int | None = None
        self._sending: asyncio.Task[None] | None = None

    def announce(self, commit_id: int) -> None:
        """Send one NOTIFY for all commits within a few milliseconds.

        If the NOTIFY is lost, waiting callers still find the commits, because they also poll the tables slowly.
        """
        self._pending = commit_id
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._pending is not None:
            commit_id, self._pending = self._pending, None
            try:
                await self._connections.notify(self._channel, f"{commit_id} {self._name}")
            except _GONE:
                return
            await asyncio.sleep(self._COALESCE_SECONDS)

    async def wait(self, seconds: float) -> bool:
        if not self._connections.is_line(self._line):
            try:
                self._line = await self._connections.listen(self._channel, self._on_message)
            except _GONE:
                await asyncio.sleep(min(seconds, self._RETRY_SECONDS))
            # Earlier notifications were not received, so the caller must read the tables.
            return True
        try:
            # Python 3.11's `wait_for` may lose a cancellation that coincides with the event.
            async with asyncio.timeout(seconds):
                await self._notified.wait()
        except TimeoutError:
            # A connection that the network has lost looks like one without notifications.
            await self._connections.check_line()
            return False
        self._notified.clear()
        return True

    def _on_message(self, *arguments: object) -> None:
        # For a NOTIFY, the last argument is the payload. For a broken connection, the only argument is the connection.
        payload = arguments[-1]
        if not (isinstance(payload, str) and payload.endswith(self._name)):
            self._notified.set()

    async def close(self) -> None:
        if self._sending is not None and not self._sending.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sending, 1)
        # A slow database must not delay the closing of the store, and no caller needs the result.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._connections.unlisten(self._line, self._channel, self._on_message)
