"""Readers of a SQLite file: a small pool of connections, and notifications of other processes' commits."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar, cast

import aiosqlite

from store.db.dialect import Params, ReadSession, Row, Sql, Wakeups
from store.db.drivers.sqlite.errors import LOCK_SECONDS, translate
from store.db.schema import read_only_uri
from store.errors import Closed, StoreError

Done = TypeVar("Done")

_READERS = 4
_DATA_VERSION = "PRAGMA data_version"


class Reading(aiosqlite.Connection):
    """A read-only connection with its own thread. Each function is passed to the thread in one step."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: _connected(path), iter_chunk_size=1)
        # At exit Python waits for non-daemon threads before it runs the function that closes the store, so this thread
        # is a daemon.
        self._thread.daemon = True

    async def open(self) -> None:
        """Start the thread and connect there."""
        self._thread.start()

        def connect() -> None:
            self._connection = self._connector()

        try:
            await self._run(connect)
        except BaseException:
            self.leave()
            raise

    def do(self, work: Callable[[sqlite3.Connection], Done]) -> Awaitable[Done]:
        """Return the awaitable result of a function that runs in the connection's thread."""
        return self._run(partial(work, self._conn))

    def _run(self, work: Callable[[], Done]) -> Awaitable[Done]:
        """Run a function in the connection's thread.

        When the function returns, the loop of a cancelled caller may be closed. The error would end aiosqlite's thread,
        so it is suppressed here.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Done] = loop.create_future()

        def run() -> None:
            tell: Callable[[], None]
            try:
                tell = partial(_set, answer, work())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
                tell = partial(_fail, answer, error)
            # The call fails once the loop is closed; no caller waits then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell)

        cast("SimpleQueue[Any]", self._tx).put_nowait((None, run))  # pyright: ignore[reportUnknownMemberType]
        return answer

    def leave(self) -> None:
        """Close the connection after its pending work, without waiting."""
        # `stop` runs in another thread, because the library notifies a running loop, which may be closed by then.
        stop = cast("Callable[[], object]", self.stop)  # pyright: ignore[reportUnknownMemberType]
        Thread(target=stop, daemon=True).start()


def _set(answer: asyncio.Future[Done], result: Done) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None, timeout=LOCK_SECONDS)
    connection.execute("PRAGMA query_only = ON")
    return connection


class SQLiteReader(ReadSession):
    """A read-only session. Each statement, or each batch of a long one, is one call to the connection's thread."""

    def __init__(self, connection: Reading) -> None:
        self._do = connection.do

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        text, args = sql.text, sql.args(params)
        return await self._do(lambda connection: connection.execute(text, args).fetchall())

    async def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        def work(connection: sqlite3.Connection) -> tuple[Sequence[Row], Sequence[Row] | None]:
            rows = connection.execute(sql.text, sql.args(params)).fetchall()
            following = follow(len(rows))
            if following is None:
                return rows, None
            return rows, connection.execute(following.text, following.args(params)).fetchall()

        return await self._do(work)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        def begin(connection: sqlite3.Connection) -> tuple[sqlite3.Cursor, Sequence[Row]]:
            cursor = connection.execute(sql.text, sql.args(params))
            return cursor, cursor.fetchmany(batch)

        cursor, rows = await self._do(begin)
        try:
            while rows:
                yield rows
                if len(rows) < batch:
                    return
                rows = await self._do(lambda _: cursor.fetchmany(batch))
        finally:
            if len(rows) == batch:
                # If a consumer stops early, the open statement would keep its snapshot, so it is closed.
                await self._do(lambda _: cursor.close())


class Readers:
    """A small pool for any event loop. Callers wait with a future of threads, which does not belong to a loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._idle: list[Reading] = []
        self._waiting: deque[Future[Reading]] = deque()
        self._making: set[asyncio.Future[Reading]] = set()
        self._made = 0
        self._closed = False

    async def take(self) -> Reading:
        waiter: Future[Reading] | None = None
        with self._lock:
            if self._closed:
                raise Closed("a read")
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
                # Another thread may be passing a connection to this waiter at this moment.
                waiter.add_done_callback(lambda given: self.give(given.result()))
            raise

    def give(self, connection: Reading) -> None:
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(connection)
                    return
            if not self._closed:
                self._idle.append(connection)
                return
        connection.leave()

    async def _make(self) -> Reading:
        """Return a new connection. If the caller is cancelled meanwhile, the pool gets the connection."""
        making = asyncio.ensure_future(self._connect())
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._keep)
            raise

    def _keep(self, made: asyncio.Future[Reading]) -> None:
        if not made.cancelled() and made.exception() is None:
            self.give(made.result())

    async def _connect(self) -> Reading:
        try:
            connection = Reading(self._path)
            await connection.open()
        except BaseException as error:
            with self._lock:
                self._made -= 1
            if isinstance(error, sqlite3.Error):
                raise self.refusal(error) from error
            raise
        return connection

    def refusal(self, error: sqlite3.Error) -> StoreError:
        """Return the store's error for a failed read; a private file does not exist after the pool is closed."""
        return Closed("a read") if self._closed else translate(error)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        loop = asyncio.get_running_loop()
        if making := [each for each in self._making if each.get_loop() is loop]:
            await asyncio.wait(making)
        for connection in idle:
            await connection.close()


class State:
    """Detector of commits since the last call, from SQLite's shared memory."""

    _numbers = count()

    def __init__(self, path: Path) -> None:
        self.number = next(self._numbers)
        """The number of this detector; versions of two detectors cannot be compared."""
        self._path = path
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def version(self) -> int | None:
        """Return a number that changes with every commit; None if it cannot be read at once."""
        with self._lock:
            if self._closed:
                return None
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(
                        read_only_uri(self._path), uri=True, isolation_level=None, timeout=0, check_same_thread=False
                    )
                return self._connection.execute(_DATA_VERSION).fetchone()[0]
            except sqlite3.Error:
                # The read that follows reports the error.
                return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()


class DataVersion(Wakeups):
    """Notifications of commits.

    SQLite counts the commits of other connections; the counter is polled while a call waits.

    Ids of commits are consecutive, so comparing them distinguishes commits of other processes from those of this
    process.
    """

    _EVERY = 0.01
    _NEWEST = "SELECT max(commit_id) FROM commits"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None
        # All commits up to this one were noticed or were made by this process.
        self._known: int | None = None

    def announce(self, commit_id: int) -> None:
        """Note a commit of this process. Other processes see it in SQLite's counter."""
        if self._known is not None and commit_id == self._known + 1:
            self._known = commit_id

    async def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._is_news():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(self._EVERY, left))
        return True

    def _is_news(self) -> bool:
        current = self._ask(_DATA_VERSION)
        if current == self._seen:
            return False
        self._seen = current
        newest = self._ask(self._NEWEST)
        if newest == self._known:
            return False
        self._known = newest
        return True

    def _ask(self, text: str) -> int:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(read_only_uri(self._path), uri=True, isolation_level=None)
            return self._connection.execute(text).fetchone()[0]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
