"""Readers of a SQLite file: a small pool of connections, and notifications of other processes' commits."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread, current_thread
from types import CoroutineType
from typing import Any, Self, TypeVar

import aiosqlite

from store.db.dialect import Params, ReadSession, Row, Sql, Wakeups
from store.db.drivers.sqlite.errors import LOCK_SECONDS, translate
from store.db.schema import read_only_uri
from store.errors import Closed, StoreError

Done = TypeVar("Done")

_READERS = 4
_DATA_VERSION = "PRAGMA data_version"
_INTERRUPT_SECONDS = 0.1


class _Database(sqlite3.Connection):
    """A connection whose scripts are functions: they run several statements in one hop to aiosqlite's thread."""

    def executescript(self, sql_script: Any, /) -> Any:
        work, results = sql_script
        results.append(work(self))


class _Connection(aiosqlite.Connection):
    """A connection of aiosqlite that a `SQLiteReader` closes.

    aiosqlite warns of a connection that was not closed by its own thread. That thread dies if the loop of a caller is
    closed, and then the reader closes the database, which aiosqlite cannot know.
    """

    def __del__(self) -> None:
        self.stop()  # pyright: ignore[reportUnknownMemberType]


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        read_only_uri(path),
        uri=True,
        isolation_level=None,
        timeout=LOCK_SECONDS,
        factory=_Database,
        # Another thread interrupts a statement, and closes the connection after aiosqlite's thread has ended.
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _in_daemon_thread(function: Callable[[], Done]) -> Future[Done]:
    """Run a function in a daemon thread and return its future result, which cannot be cancelled."""
    answer: Future[Done] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer


class SQLiteReader(ReadSession):
    """A read-only session on a connection of aiosqlite. Each statement, or each batch of a long one, is one hop.

    The connection's thread passes each result to the event loop of its caller, and dies if this loop is closed. So a
    connection is not used again once a caller did not wait for its result.
    """

    def __init__(self, path: Path) -> None:
        self.is_abandoned = False
        """Whether a caller did not wait for a result. The thread may still be at work, and may die afterwards."""
        self._path = path
        self._thread: Future[Thread] = Future()
        self._database: sqlite3.Connection | None = None
        self._connection = _Connection(self._connect, iter_chunk_size=1)

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Return a new connection to a file."""
        # At exit Python waits for non-daemon threads before it runs the function that closes the store. aiosqlite's
        # thread is a daemon if the thread that creates it is one.
        reading = await asyncio.wrap_future(_in_daemon_thread(lambda: cls(path)))
        await reading.start()
        return reading

    async def start(self) -> None:
        """Start the thread, which opens the file."""
        try:
            await self._connection
        except GeneratorExit:
            self.leave()
            raise
        except BaseException:
            await asyncio.wrap_future(self.leave())
            raise

    def _connect(self) -> sqlite3.Connection:
        self._thread.set_result(current_thread())
        self._database = _connected(self._path)
        return self._database

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        try:
            rows: Any = await self._connection.execute_fetchall(sql.text, sql.args(params))
        except (asyncio.CancelledError, GeneratorExit):
            self.is_abandoned = True
            raise
        return rows

    def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> "CoroutineType[Any, Any, tuple[Sequence[Row], Sequence[Row] | None]]":
        def work(connection: sqlite3.Connection) -> tuple[Sequence[Row], Sequence[Row] | None]:
            rows = connection.execute(sql.text, sql.args(params)).fetchall()
            following = follow(len(rows))
            if following is None:
                return rows, None
            return rows, connection.execute(following.text, following.args(params)).fetchall()

        return self.do(work)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        def begin(connection: sqlite3.Connection) -> tuple[sqlite3.Cursor, Sequence[Row]]:
            cursor = connection.execute(sql.text, sql.args(params))
            return cursor, cursor.fetchmany(batch)

        cursor, rows = await self.do(begin)
        try:
            while rows:
                yield rows
                if len(rows) < batch:
                    return
                rows = await self.do(lambda _: cursor.fetchmany(batch))
        finally:
            # If a consumer stops early, the open statement would keep its snapshot, so it is closed. An abandoned
            # connection is closed as a whole.
            if len(rows) == batch and not self.is_abandoned:
                await self.do(lambda _: cursor.close())

    async def do(self, work: Callable[[sqlite3.Connection], Done]) -> Done:
        """Return the result of a function that runs in the connection's thread."""
        results: list[Done] = []
        script: Any = (work, results)
        try:
            await self._connection.executescript(script)
        except (asyncio.CancelledError, GeneratorExit):
            self.is_abandoned = True
            raise
        # aiosqlite's thread keeps the function until its next call, but not the rows.
        return results.pop()

    def leave(self) -> Future[None]:
        """Interrupt the running statement and close the connection, without waiting; return the future end."""
        return _in_daemon_thread(self._leave)

    def _leave(self) -> None:
        # The library notifies the running loop of the end, but this thread has none that could be closed by then.
        self._connection.stop()  # pyright: ignore[reportUnknownMemberType]
        thread = self._thread.result()
        while thread.is_alive():
            # An interrupt has no effect on a statement that has not begun, so it is repeated.
            with suppress(sqlite3.ProgrammingError):
                if self._database is not None:
                    self._database.interrupt()
            thread.join(_INTERRUPT_SECONDS)
        # The thread has not closed the connection if it died.
        if self._database is not None:
            self._database.close()


class Readers:
    """A small pool for any event loop. Callers wait with a future of threads, which does not belong to a loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._idle: list[SQLiteReader] = []
        self._waiting: deque[Future[SQLiteReader | None]] = deque()
        self._making: set[asyncio.Future[SQLiteReader]] = set()
        self._ending: set[asyncio.Future[None]] = set()
        self._made = 0
        self._closed = False

    @asynccontextmanager
    async def lease(self, *, snapshot: bool) -> AsyncGenerator[SQLiteReader]:
        """Lend a connection to one reader, in a transaction if all its statements see the same state."""
        connection = await self.take()
        can_wait = True
        try:
            if snapshot:
                await connection.do(lambda database: database.execute("BEGIN").close())
            yield connection
        except GeneratorExit:
            # The caller's task was destroyed, and its loop may be closed.
            can_wait = False
            connection.is_abandoned |= snapshot
            raise
        except sqlite3.Error as error:
            raise self.refusal(error) from error
        finally:
            if connection.is_abandoned:
                left = self._replace(connection)
                if can_wait:
                    # A caller that ended here could close its loop before the thread has passed the result to it.
                    await asyncio.wrap_future(left)
            elif snapshot:
                # This also runs when the caller is cancelled.
                ending = asyncio.ensure_future(self._end_snapshot(connection))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                await asyncio.shield(ending)
            else:
                self.give(connection)

    async def _end_snapshot(self, connection: SQLiteReader) -> None:
        try:
            await connection.do(lambda database: database.rollback())
        except sqlite3.Error:
            # The next reader would find an open transaction.
            connection.is_abandoned = True
        finally:
            self.give(connection)

    async def take(self) -> SQLiteReader:
        waiter: Future[SQLiteReader | None] | None = None
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
            connection = await asyncio.wrap_future(waiter)
        except BaseException:
            if not waiter.cancel():
                # Another thread may be passing a connection to this waiter at this moment.
                waiter.add_done_callback(lambda given: self._pass_on(given.result()))
            raise
        return await self._make() if connection is None else connection

    def give(self, connection: SQLiteReader) -> None:
        """Take a connection back. An abandoned one is closed."""
        if connection.is_abandoned:
            self._replace(connection)
            return
        with self._lock:
            waiter = self._next_waiter()
            if waiter is None and not self._closed:
                self._idle.append(connection)
                return
        if waiter is None:
            connection.leave()
        else:
            waiter.set_result(connection)

    def _replace(self, connection: SQLiteReader) -> Future[None]:
        """Close a connection, whose place another one can take; return the future end."""
        left = connection.leave()
        self._pass_on(None)
        return left

    def _pass_on(self, connection: SQLiteReader | None) -> None:
        """Give a connection to the next caller. None is a free place, where the caller opens its own."""
        if connection is not None:
            self.give(connection)
            return
        with self._lock:
            waiter = self._next_waiter()
            if waiter is None:
                self._made -= 1
                return
        waiter.set_result(None)

    def _next_waiter(self) -> Future[SQLiteReader | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.set_running_or_notify_cancel():
                return waiter
        return None

    async def _make(self) -> SQLiteReader:
        """Return a new connection. If the caller is cancelled meanwhile, the pool gets the connection."""
        making = asyncio.ensure_future(SQLiteReader.open(self._path))
        self._making.add(making)
        making.add_done_callback(self._end_making)
        try:
            return await asyncio.shield(making)
        except (asyncio.CancelledError, GeneratorExit):
            making.add_done_callback(self._keep)
            raise
        except sqlite3.Error as error:
            raise self.refusal(error) from error

    def _end_making(self, made: asyncio.Future[SQLiteReader]) -> None:
        self._making.discard(made)
        if made.cancelled() or made.exception() is not None:
            self._pass_on(None)

    def _keep(self, made: asyncio.Future[SQLiteReader]) -> None:
        if not made.cancelled() and made.exception() is None:
            self.give(made.result())

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
        for left in [connection.leave() for connection in idle]:
            await asyncio.wrap_future(left)


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
