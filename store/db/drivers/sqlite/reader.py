"""Reads of a SQLite file through a small pool of connections."""

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread, current_thread
from types import CoroutineType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import aiosqlite

from store.db.dialect import Dialect, NamedRow, Params, ReadSession, Row, Sql
from store.db.drivers.sqlite.errors import LOCK_SECONDS, translate
from store.db.drivers.sqlite.open_file import OpenFile
from store.db.drivers.sqlite.type_faults import define_functions
from store.db.schema import read_only_uri
from store.errors import Closed, StoreError

Done = TypeVar("Done")

_READERS = 4
_INTERRUPT_SECONDS = 0.1
_ARRIVAL_SECONDS = 0.001
_CALL = "rollbook_call"
_CALL_STATEMENT = f"SELECT {_CALL}(?)"
_BEGIN, _ROLLBACK = Sql("BEGIN", (), {}), Sql("ROLLBACK", (), {})
_CLOSED = "the connection is closed"
_numbers = count()


class _Outcome(Generic[Done]):
    """The result or the error of a function that SQLite calls. SQLite itself would raise another error instead."""

    def __init__(self) -> None:
        self.result: Done
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, _traceback: object) -> bool:
        self._error = error
        return isinstance(error, Exception)

    def get(self) -> Done:
        """Return the result, or raise the error."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.result


class _Database(sqlite3.Connection):
    """A connection with an SQL function that calls a Python function.

    The Python function can execute several statements on the connection in one call of aiosqlite's thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._closing = Lock()
        calls: dict[int, Callable[[], None]] = {}
        self.calls = calls
        """The functions to call, by the argument of the SQL function."""
        self.streaming: sqlite3.Cursor | None = None
        """The cursor whose rows are read in batches."""
        # If the function referred to the connection, the connection would never be deleted.
        self.create_function(_CALL, 1, lambda number: calls.pop(number)())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def close(self) -> None:
        """Close the cursor, which would keep the file open, and the connection. Any thread may call this."""
        # While one thread closes the file, `Connection.close` returns at once in the other threads. The lock makes the
        # other threads wait.
        with self._closing:
            if self.streaming is not None:
                with suppress(sqlite3.ProgrammingError):  # the connection is already closed
                    self.streaming.close()
            super().close()


def _connected(path: Path) -> _Database:
    connection = sqlite3.connect(
        read_only_uri(path),
        uri=True,
        isolation_level=None,
        timeout=LOCK_SECONDS,
        factory=_Database,
        # A thread other than aiosqlite's may interrupt a statement, and closes the connection if aiosqlite's thread
        # died.
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    define_functions(connection)
    return connection


def _in_daemon_thread(function: Callable[[], Done]) -> Future[Done]:
    """Run a function in a new daemon thread, and return a future for its result. The future cannot be cancelled."""
    answer: Future[Done] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer


async def _wait_until_closed(closed: Future[None]) -> None:
    """Wait until a connection is closed, even if the calling task is cancelled meanwhile.

    The thread of the connection passes results to the event loop of the caller. If the caller did not wait, it could
    close this loop too early, and the thread would die.

    A task that waits here because it was cancelled may be cancelled once more, by a cancel scope of anyio or by the end
    of `asyncio.run`.
    """
    waiting = asyncio.wrap_future(closed)
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            # `wait` does not cancel the future that it waits for.
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class SQLiteReader(ReadSession):
    """A read-only session on a connection of aiosqlite. The connection has its own thread.

    Each statement, or each batch of rows of a long statement, takes one call of this thread. The thread passes the
    result to the event loop of the caller, and dies if this loop is closed. So if a caller leaves before it gets the
    result, the connection is abandoned, which means that it is not used again. See decisions 43 and 84.
    """

    def __init__(self, path: Path, dialect: Dialect | None = None) -> None:
        self.is_cut_off = False
        """Whether `cut_off` was called. aiosqlite then raises `ValueError` for each statement."""
        self.is_abandoned = False
        """Whether a caller left before it got a result.

        The thread may still run the statement, and may die afterwards.
        """
        if dialect is not None:
            self.dialect = dialect
        self._path = path
        self._thread: Future[Thread] = Future()
        self._database: _Database | None = None
        self._connection = aiosqlite.Connection(self._connect, iter_chunk_size=1)

    async def start(self) -> None:
        """Start the thread, which opens the file."""
        try:
            await self._connection
        except GeneratorExit:
            self.leave()
            raise
        except BaseException:
            await _wait_until_closed(self.leave())
            raise

    def _connect(self) -> sqlite3.Connection:
        self._thread.set_result(current_thread())
        if self.is_cut_off:
            raise sqlite3.OperationalError(_CLOSED)
        self._database = _connected(self._path)
        return self._database

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        try:
            rows: Any = await self._connection.execute_fetchall(sql.text, sql.args(params))
        except (asyncio.CancelledError, GeneratorExit):
            self.is_abandoned = True
            raise
        return await self._converted(sql, params, rows, can_repeat=True)

    def fetch_then(
        self, sql: Sql, params: Params, follow: Callable[[int], Sql | None]
    ) -> "CoroutineType[Any, Any, tuple[Sequence[NamedRow], Sequence[NamedRow] | None]]":
        following: Sql | None = None
        outcome = _Outcome[tuple[Sequence[NamedRow], Sequence[NamedRow] | None]]()

        def read(connection: sqlite3.Connection) -> None:
            nonlocal following
            with outcome:
                rows = connection.execute(sql.text, sql.args(params)).fetchall()
                following = follow(len(rows))
                following_rows = None
                if following is not None:
                    following_rows = connection.execute(following.text, following.args(params)).fetchall()
                outcome.result = rows, following_rows

        async def converted() -> tuple[Sequence[NamedRow], Sequence[NamedRow] | None]:
            rows, following_rows = outcome.get()
            if following_rows is not None and following is not None:
                following_rows = await self._converted(following, params, following_rows, can_repeat=True)
            return await self._converted(sql, params, rows, can_repeat=True), following_rows

        return self._call(read, converted)

    async def _converted(
        self, sql: Sql, params: Params, rows: Sequence[Row], *, can_repeat: bool = False
    ) -> Sequence[NamedRow]:
        if sql.places is not None:
            forms = self.dialect.stored_forms
            rows = await forms.converted(self, sql, sql.places, params, rows, can_repeat=can_repeat)
        return sql.named(rows)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        def begin(connection: sqlite3.Connection) -> tuple[sqlite3.Cursor, Sequence[Row]]:
            cursor = connection.execute(sql.text, sql.args(params))
            assert isinstance(connection, _Database)
            connection.streaming = cursor
            return cursor, cursor.fetchmany(batch)

        cursor, rows = await self.do(begin)
        try:
            while rows:
                yield await self._converted(sql, params, rows)
                if len(rows) < batch:
                    return
                rows = await self.do(lambda _: cursor.fetchmany(batch))
        finally:
            # If the consumer stops early, the open statement would keep its snapshot of the database, so the statement
            # is closed here. An abandoned connection needs no such step, because the whole connection is closed.
            if len(rows) == batch and not self.is_abandoned:
                await self.do(lambda _: cursor.close())

    def do(self, work: Callable[[sqlite3.Connection], Done]) -> "CoroutineType[Any, Any, Done]":
        """Call a function in the connection's thread, and return its result when awaited."""
        outcome = _Outcome[Done]()

        def call(connection: sqlite3.Connection) -> None:
            with outcome:
                outcome.result = work(connection)

        async def result() -> Done:
            return outcome.get()

        return self._call(call, result)

    async def _call(self, work: Callable[[sqlite3.Connection], None], then: Callable[[], Awaitable[Done]]) -> Done:
        """Call a function, which must not raise an error, in the connection's thread, and return `await then()`."""
        database = self._database
        if database is None or self.is_cut_off:
            raise sqlite3.OperationalError(_CLOSED)
        number = next(_numbers)
        database.calls[number] = lambda: work(database)
        try:
            await self._connection.execute_fetchall(_CALL_STATEMENT, (number,))
        except (asyncio.CancelledError, GeneratorExit):
            self.is_abandoned = True
            raise
        return await then()

    def leave(self) -> Future[None]:
        """Interrupt the running statement and close the connection in another thread.

        Return a future that is done when the connection is closed.
        """
        return _in_daemon_thread(self._leave)

    def _leave(self) -> None:
        # `stop` reports the end to the event loop of the calling thread, which might be closed by then. So `stop` is
        # called in this thread, which has no event loop.
        self._connection.stop()  # pyright: ignore[reportUnknownMemberType]
        thread = self._thread.result()
        while thread.is_alive():
            # An interrupt has no effect on a statement that begins later, so interrupts are repeated.
            with suppress(sqlite3.ProgrammingError):
                if self._database is not None:
                    self._database.interrupt()
            thread.join(_INTERRUPT_SECONDS)
        if self._database is not None and _is_open(self._database):
            # The thread died, so it has not closed the connection.
            self._database.close()
            asyncio.run(self._forget())

    async def _forget(self) -> None:
        """Let aiosqlite record that the connection is closed. Otherwise it warns when the connection is deleted."""
        closing = asyncio.ensure_future(self._connection.close())
        while not closing.done():
            await asyncio.sleep(0)
            # The thread is dead, so nothing answers.
            closing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await closing

    def cut_off(self) -> None:
        """Close the connection, after the running statement has ended or was interrupted.

        Later statements raise `sqlite3.Error` or `ValueError`. In contrast to `leave`, this method does not need the
        event loop of the caller, so it may block the thread of that loop. It may be called at any time, and more than
        once.
        """
        self.is_cut_off = True
        # If `_connect` has not begun, it will not open the file.
        if self._thread.done():
            # A statement that arrives after the end of aiosqlite's thread would never get an answer. A statement that
            # began before the assignment above arrives within microseconds.
            time.sleep(_ARRIVAL_SECONDS)
            self.leave().result()


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False


class Readers:
    """A small pool of connections, for callers in any event loop.

    A caller that waits for a connection has a future of `concurrent.futures`, because such a future does not belong to
    an event loop.
    """

    def __init__(self, path: Path, file: OpenFile | None = None, dialect: Dialect | None = None) -> None:
        self._path = path
        self._dialect = dialect
        self._file = file or OpenFile(path)
        self._lock = Lock()
        self._idle: list[SQLiteReader] = []
        self._waiting: deque[Future[SQLiteReader | None]] = deque()
        self._making: set[asyncio.Future[SQLiteReader]] = set()
        self._ending: set[asyncio.Future[None]] = set()
        self._unclosed: set[SQLiteReader] = set()
        """All open connections. This reference keeps them alive if the task of a caller is destroyed."""
        self._made = 0
        self._closed = False
        _pools.add(self)

    @asynccontextmanager
    async def lease(self, *, snapshot: bool) -> AsyncGenerator[SQLiteReader]:
        """Lend a connection for the duration of the block.

        With `snapshot`, all statements of the block see the same state.
        """
        if not self._closed:
            self._file.check()
        connection = await self.take()
        can_wait = True
        try:
            if snapshot:
                await connection.fetch(_BEGIN, {})
            yield connection
        except GeneratorExit:
            # The caller's task was destroyed, and the event loop of the task may be closed.
            can_wait = False
            connection.is_abandoned |= snapshot
            raise
        except StoreError:
            raise
        except Exception as error:
            # A statement that failed, or that the caller did not finish, may keep the snapshot open.
            connection.is_abandoned |= snapshot
            if isinstance(error, sqlite3.Error) or connection.is_cut_off:
                raise self.refusal(error) from error
            raise
        finally:
            if connection.is_abandoned:
                left = self._replace(connection)
                if can_wait:
                    await _wait_until_closed(left)
            elif snapshot:
                # The transaction also ends if the caller is cancelled, because `shield` keeps the task `ending`
                # running.
                ending = asyncio.ensure_future(self._end_snapshot(connection))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                await asyncio.shield(ending)
            else:
                self.give(connection)

    async def _end_snapshot(self, connection: SQLiteReader) -> None:
        try:
            await connection.fetch(_ROLLBACK, {})
        except (sqlite3.Error, ValueError, GeneratorExit) as error:
            # The transaction may still be open, so the next reader must not get this connection.
            self._replace(connection)
            if isinstance(error, GeneratorExit):
                raise
        except asyncio.CancelledError:
            # The end of `asyncio.run` cancels this task too.
            await _wait_until_closed(self._replace(connection))
            raise
        else:
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
                # Another thread is passing a connection to this waiter, so the connection goes to the next waiter.
                waiter.add_done_callback(lambda future: self._pass_on(future.result()))
            raise
        return await self._make() if connection is None else connection

    def give(self, connection: SQLiteReader) -> None:
        """Take a connection back into the pool. An abandoned connection is closed instead."""
        if connection.is_abandoned:
            self._replace(connection)
            return
        with self._lock:
            waiter = self._next_waiter()
            if waiter is None and not self._closed:
                self._idle.append(connection)
                return
        if waiter is None:
            self._leave(connection)
        else:
            waiter.set_result(connection)

    def _replace(self, connection: SQLiteReader) -> Future[None]:
        """Close a connection, so that a new connection can take its place.

        Return a future that is done when the connection is closed.
        """
        closing = self._leave(connection)
        self._pass_on(None)
        return closing

    def _leave(self, connection: SQLiteReader) -> Future[None]:
        closing = connection.leave()
        closing.add_done_callback(lambda _: self._unclosed.discard(connection))
        return closing

    def _pass_on(self, connection: SQLiteReader | None) -> None:
        """Give a connection to the next waiting caller. With None, this caller opens a new connection."""
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
        """Return a new connection. If the caller is cancelled meanwhile, the pool keeps the connection."""
        making = asyncio.ensure_future(self._open())
        self._making.add(making)
        making.add_done_callback(self._end_making)
        try:
            return await asyncio.shield(making)
        except (asyncio.CancelledError, GeneratorExit):
            making.add_done_callback(self._keep)
            raise
        except sqlite3.Error as error:
            raise self.refusal(error) from error

    async def _open(self) -> SQLiteReader:
        # At exit, Python first waits for all threads that are not daemon threads, and then calls the function that
        # closes the store. So aiosqlite's thread must be a daemon thread. A new thread is a daemon thread if it is
        # created in a daemon thread.
        connection = await asyncio.wrap_future(_in_daemon_thread(self._unopened))
        try:
            await connection.start()
        except BaseException:
            self._unclosed.discard(connection)
            raise
        return connection

    def _unopened(self) -> SQLiteReader:
        connection = SQLiteReader(self._path, self._dialect)
        with self._lock:
            self._unclosed.add(connection)
            if self._closed:
                connection.cut_off()
        return connection

    def _end_making(self, opening: asyncio.Future[SQLiteReader]) -> None:
        self._making.discard(opening)
        if opening.cancelled() or opening.exception() is not None:
            self._pass_on(None)

    def _keep(self, opening: asyncio.Future[SQLiteReader]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.give(opening.result())

    def refusal(self, error: Exception) -> StoreError:
        """Return the error of the store for a failed read.

        After the pool is closed, this error is always `Closed`. A private file is deleted then, so reads of it fail.
        """
        return translate(error) if isinstance(error, sqlite3.Error) and not self._closed else Closed("a read")

    async def close(self) -> None:
        """Close the idle connections. Running reads end normally, and their connections are closed afterwards."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        loop = asyncio.get_running_loop()
        if making := [opening for opening in self._making if opening.get_loop() is loop]:
            await asyncio.wait(making)
        for closing in [self._leave(connection) for connection in idle]:
            await asyncio.wrap_future(closing)

    def cut_off_if_closed(self) -> None:
        """If the pool is closed, interrupt the reads that still run, and close their connections."""
        with self._lock:
            living = list(self._unclosed) if self._closed else []
        for connection in living:
            connection.cut_off()


_pools: WeakSet[Readers] = WeakSet()


def _before_fork() -> None:
    # SQLite in the child would act as if it held the locks of a connection that is open during the fork. The parent
    # could then overwrite the part of the write-ahead log that the child reads.
    for pool in list(_pools):
        pool.cut_off_if_closed()


if hasattr(os, "register_at_fork"):
    # Python calls these functions in the reverse order of their registration, so a module that imports this module can
    # close its stores first.
    os.register_at_fork(before=_before_fork)
