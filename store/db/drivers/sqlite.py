"""SQLite: one writer connection in the store's own thread, readers on aiosqlite, `BEGIN IMMEDIATE` as the lock."""

import asyncio
import os
import random
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import aiosqlite
import orjson
from sqlalchemy import ColumnElement, Select, Table, Text, bindparam, func, select, tuple_
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from store.clock import Clock, system_clock
from store.db import tables
from store.db.dialect import Changes, Dialect, Params, Part, ReadSession, Row, Sql, Tail, Wakeups, WriteSession
from store.db.schema import prepare_sqlite, read_only_uri
from store.db.tables import settable
from store.db.url import StoreURL
from store.errors import Incompatible, ReadOnly, StoreError, Unavailable

# How long a writer tries for the lock before it tells its callers; other processes hold it for milliseconds.
_LOCK_SECONDS = 30.0
_READERS = 4
T = TypeVar("T", Table, Part)
_ROWS_AT_ONCE = (64, 16, 4, 1)
_TAIL = (
    "SELECT c.commit_id, c.recorded_at, c.chain_hash, c.events, c.rollouts, c.attempts, c.spans, c.resources,"
    " c.workers, c.body_bytes, c.last_position, q.epoch FROM queue_epoch q LEFT JOIN commits c"
    " ON c.commit_id = (SELECT max(commit_id) FROM commits)"
)


class SQLite(Dialect):
    """A partition in a file of its own; `memory://` is a private temporary file without fsync."""

    name = "sqlite"
    loop_bound = False
    compiler = SQLiteDialect_pysqlite(paramstyle="qmark")

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        super().__init__(url, clock, read_only=read_only)
        self._is_private = url.path is None
        if url.path is None:
            handle, name = tempfile.mkstemp(prefix="rollbook-", suffix=".db")
            os.close(handle)
            self.path = Path(name)
            self.path.unlink()
        else:
            self.path = url.path.absolute()
        self._readers = _Readers(self.path)
        self._ending: set[asyncio.Future[None]] = set()

    # The port.

    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        values = func.json_each(_param(name)).table_valued("value", name=f"each_{name}")
        return column.in_(select(values.c.value))

    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        values = func.json_each(_param(name)).table_valued("value", name=f"each_{name}")
        parts = [func.json_extract(values.c.value, f"$[{index}]") for index in range(len(columns))]
        return tuple_(*columns).in_(select(*parts))

    def list_param(self, values: Sequence[Any]) -> Any:
        return orjson.dumps(values).decode() if values else "[]"

    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        return orjson.dumps(keys).decode() if keys else "[]"

    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        return func.instr(column, value) > 0

    async def open(self, *, create: bool) -> str:
        info = await asyncio.to_thread(
            prepare_sqlite, self.path, create=create or self._is_private, read_only=self.read_only
        )
        return info.store_id

    async def writer(self) -> WriteSession:
        synchronous = "OFF" if self._is_private else self.url.options.get("durability", "full").upper()
        try:
            return SQLiteWriter(self, _connect(self.path, synchronous))
        except sqlite3.Error as error:
            raise translate(error) from error

    @asynccontextmanager
    async def read(self, *, snapshot: bool = False) -> AsyncGenerator[ReadSession]:
        connection = await self._readers.take()
        try:
            if snapshot:
                await connection.execute_fetchall("BEGIN")
            yield SQLiteReader(connection)
        except sqlite3.Error as error:
            raise translate(error) from error
        finally:
            if snapshot:
                # Always, and whoever is cancelled meanwhile: a cancelled BEGIN may still wait in the connection's
                # thread, in front of this.
                ending = asyncio.ensure_future(self._end_snapshot(connection))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                await asyncio.shield(ending)
            else:
                self._readers.give(connection)

    async def _end_snapshot(self, connection: aiosqlite.Connection) -> None:
        try:
            # There is nothing to end when BEGIN had failed.
            with suppress(sqlite3.Error):
                await connection.execute_fetchall("ROLLBACK")
        finally:
            self._readers.give(connection)

    def wakeups(self) -> Wakeups:
        return DataVersion(self.path)

    async def size_bytes(self) -> int:
        sides = (self.path.with_name(self.path.name + suffix) for suffix in ("", "-wal"))
        return sum(side.stat().st_size for side in sides if side.exists())

    async def close(self) -> None:
        await self._readers.close()
        if self._is_private:
            for suffix in ("", "-wal", "-shm", ".lock"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


class SQLiteWriter(WriteSession):
    """The writing connection. Its statements run in the calling thread: the store's own, which does nothing else."""

    def __init__(self, dialect: SQLite, connection: sqlite3.Connection) -> None:
        self._dialect = dialect
        self._connection = connection
        self._clock = dialect.clock or system_clock
        self._statements: dict[tuple[Any, Any, int], str] = {}
        self._data_version = -1
        # Where the log ends by the last commit, and where it will end by the next.
        self._known: Tail | None = None
        self._coming: Tail | None = None

    async def begin(self) -> Tail:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise translate(error) from error
                # SQLite's own busy handler lets a busy writer starve the others; short random waits do not.
                await asyncio.sleep(random.uniform(0.0002, 0.001))
        try:
            return self._read_tail()
        except sqlite3.Error as error:
            raise translate(error) from error

    def _read_tail(self) -> Tail:
        # It changes when another connection commits, never when this one does.
        seen, self._data_version = self._data_version, self._connection.execute("PRAGMA data_version").fetchone()[0]
        is_ours = seen == self._data_version
        if is_ours and self._known is not None:
            self._known.now = self._clock()
            self._coming = self._known
            return self._known
        row = self._connection.execute(_TAIL).fetchone()
        commit_id, recorded_at, chain, *totals, last_position, epoch = row
        self._coming = Tail(
            commit_id=commit_id or 0,
            recorded_at=recorded_at or 0,
            chain_hash=chain or bytes(32),
            totals=tuple(total or 0 for total in totals),
            next_position=(last_position or 0) + 1,
            next_commit_id=(commit_id or 0) + 1,
            now=self._clock(),
            queue_epoch=epoch,
            is_ours=is_ours,
        )
        return self._coming

    def _foresee(self, changes: Changes) -> None:
        """Know where the log will end once these rows are committed."""
        before = self._coming
        assert before is not None  # begun
        epochs = changes.upserts.get(tables.queue_epoch)
        epoch = before.queue_epoch if epochs is None else epochs[0][1]
        commits = changes.inserts.get(tables.commits)
        if commits is None:
            before.queue_epoch = epoch
            return
        commit_id, _, _, last, recorded_at, _, chain_hash, *totals = commits[0]
        self._coming = Tail(
            commit_id=commit_id,
            recorded_at=recorded_at,
            chain_hash=chain_hash,
            totals=tuple(totals),
            next_position=last + 1,
            next_commit_id=commit_id + 1,
            now=before.now,
            queue_epoch=epoch,
            is_ours=True,
        )

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[Row]]:
        try:
            return [self._fetch(self._dialect.prepared(query), params) for query in queries]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        try:
            return self._fetch(sql, params)
        except sqlite3.Error as error:
            raise translate(error) from error

    def _fetch(self, sql: Sql, params: Params) -> Sequence[Row]:
        return self._connection.execute(sql.text, sql.args(params)).fetchall()

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[Row]]:
        cursor = self._connection.execute(sql.text, sql.args(params))
        while rows := cursor.fetchmany(batch):
            yield rows

    async def draw(self, positions: int) -> tuple[int, int]:  # noqa: ARG002 (the port's; nothing is drawn ahead)
        # AUTOINCREMENT numbers without holes, and the rows below carry the numbers it would give.
        assert self._coming is not None  # begun
        return self._coming.next_commit_id, self._coming.next_position

    async def write(self, changes: Changes) -> None:
        self._foresee(changes)
        try:
            for table, rows in changes.deletes.items():
                self._connection.executemany(self._statement(_delete, table, 1), rows)
            for table, rows in changes.inserts.items():
                self._write_rows(_insert, table, rows)
            for table, rows in changes.upserts.items():
                self._write_rows(_upsert, table, rows)
            for part, rows in changes.updates.items():
                self._write_rows(_update, part, rows)
        except sqlite3.Error as error:
            raise translate(error) from error

    def _write_rows(self, build: Callable[[T, int], str], what: T, rows: Sequence[Row]) -> None:
        """Write rows, many per statement.

        Each step of a statement lets go of the interpreter, and a caller that is busy keeps it for a while: the fewer
        steps, the less a batch waits for those whose calls will be in the next.
        """
        if len(rows) == 1:
            self._connection.execute(self._statement(build, what, 1), rows[0])
            return
        start, count = 0, len(rows)
        for size in _ROWS_AT_ONCE:
            while count - start >= size:
                values = tuple(chain.from_iterable(rows[start : start + size]))
                self._connection.execute(self._statement(build, what, size), values)
                start += size

    def _statement(self, build: Callable[[T, int], str], what: T, count: int) -> str:
        known = self._statements.get((build, what, count))
        if known is None:
            known = self._statements[build, what, count] = build(what, count)
        return known

    async def commit(self) -> None:
        self._known = None
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error) from error
        self._known = self._coming
        if self._known is not None:
            self._known.is_ours = True

    async def rollback(self) -> None:
        self._known = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    async def close(self) -> None:
        await self.rollback()
        # TRUNCATE leaves one file behind, not three; another process that still reads makes it a no-op.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.close()


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


class _Readers:
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
                read_only_uri(self._path), uri=True, isolation_level=None, timeout=_LOCK_SECONDS
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


def translate(error: sqlite3.Error) -> StoreError:
    """Return the store's error for one of SQLite's."""
    name = getattr(error, "sqlite_errorname", "") or ""
    match name.split("_")[1] if "_" in name else "":
        case "BUSY" | "LOCKED":
            return Unavailable(f"another process holds the database: {error}")
        case "FULL":
            return Unavailable(f"the disk is full: {error}; free some space, nothing acknowledged is lost")
        case "READONLY" | "PERM" | "AUTH":
            return ReadOnly(f"write ({error})")
        case "IOERR" | "CANTOPEN" | "NOMEM" | "PROTOCOL":
            return Unavailable(f"the database file cannot be used: {error}")
        case "CORRUPT" | "NOTADB":
            return Incompatible(f"the file is not a sound SQLite database: {error}", "restore a backup")
        case _:
            return Incompatible(f"SQLite refused a statement: {error}", "run `rollbook verify`")


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    # Another process may hold the file at this moment, to open or to close it.
    connection = sqlite3.connect(path, isolation_level=None, timeout=_LOCK_SECONDS, cached_statements=256)
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {synchronous}",
        "temp_store = MEMORY",
        "cache_size = -65536",
        "journal_size_limit = 67108864",
        "wal_autocheckpoint = 4000",
        # From here on `begin` waits, its own way.
        "busy_timeout = 0",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def _param(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text)


def _columns(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _insert(table: Table, count: int) -> str:
    names = _columns(table)
    row = f"({', '.join('?' * len(names))})"
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join([row] * count)}"


def _upsert(table: Table, count: int) -> str:
    keys = [column.name for column in table.primary_key]
    sets = ", ".join(f"{name} = excluded.{name}" for name in settable(table))
    return f"{_insert(table, count)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sets}"


def _update(part: Part, count: int) -> str:
    names = (*part.keys, *part.sets)
    row = f"({', '.join('?' * len(names))})"
    given = {name: f"rows.column{number}" for number, name in enumerate(names, 1)}
    sets = ", ".join(f"{name} = {given[name]}" for name in part.sets)
    found = " AND ".join(f"{part.table.name}.{key} = {given[key]}" for key in part.keys)
    return f"UPDATE {part.table.name} SET {sets} FROM (VALUES {', '.join([row] * count)}) AS rows WHERE {found}"


def _delete(table: Table, _: int) -> str:
    keys = [column.name for column in table.primary_key]
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{key} = ?' for key in keys)}"
