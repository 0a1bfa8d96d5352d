"""Reading a SQLite file: a small pool of connections, and news of what other processes commit."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Any

import aiosqlite

from store.db.dialect import Params, ReadSession, Row, Sql, Wakeups
from store.db.drivers.sqlite_errors import LOCK_SECONDS, translate
from store.db.schema import read_only_uri

_READERS = 4


class SQLiteReader(ReadSession):
    """A read-only connection; one thread hop per statement."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        return list(await self._connection.execute_fetchall(sql.text, sql.args(params)))

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        async with self._connection.execute(sql.text, sql.args(params)) as cursor:
            while rows := list(await cursor.fetchmany(batch)):
                yield rows
                if len(rows) < batch:
                    return


class Readers:
    """A small pool that works from any event loop: a waiter is a future of threads, not of one loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._idle: list[aiosqlite.Connection] = []
        self._waiting: deque[Future[aiosqlite.Connection]] = deque()
        self._made = 0
        self._closed = False

    async def take(self) -> aiosqlite.Connection:
        waiter: Future[aiosqlite.Connection] | None = None
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._made < _READERS:
                self._made += 1
            else:
                waiter = Future()
                self._waiting.append(waiter)
        if waiter is None:
            return await self._make()
        try:
            return await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            if not waiter.cancel():
                # It is being given one at this moment, perhaps in another thread.
                waiter.add_done_callback(lambda given: self.give(given.result()))
            raise

    def give(self, connection: aiosqlite.Connection) -> None:
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(connection)
                    return
            self._idle.append(connection)

    async def _make(self) -> aiosqlite.Connection:
        try:
            connection = aiosqlite.connect(
                read_only_uri(self._path), uri=True, isolation_level=None, timeout=LOCK_SECONDS
            )
            # Python waits for every other thread before it runs what closes a store at exit. (Before 0.22 the
            # connection is the thread.)
            thread: Any = getattr(connection, "_thread", connection)
            thread.daemon = True
            await connection
            await connection.execute_fetchall("PRAGMA query_only = ON")
        except BaseException as error:
            with self._lock:
                self._made -= 1
            if isinstance(error, sqlite3.Error):
                raise translate(error) from error
            raise
        return connection

    async def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


class DataVersion(Wakeups):
    """SQLite tells a connection when another one has committed; asked only while somebody waits."""

    _EVERY = 0.01

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None

    def announce(self, commit_id: int) -> None:
        """Committing is the announcement."""

    async def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (current := self._version()) == self._seen:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(self._EVERY, left))
        self._seen = current
        return True

    def _version(self) -> int:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(read_only_uri(self._path), uri=True, isolation_level=None)
            return self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
