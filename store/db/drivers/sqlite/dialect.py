"""Dialect for SQLite.

One connection writes, in the thread of the store. It locks the database with `BEGIN IMMEDIATE`. Other connections read,
with aiosqlite.
"""

import asyncio
import mmap
import os
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Table, Text, bindparam, func, select, tuple_
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from store.db.dialect import (
    Dialect,
    Guards,
    LastNumbers,
    ReadSession,
    Row,
    Sql,
    TypeFaults,
    Unfinished,
    Wakeups,
    WriteSession,
)
from store.db.drivers.sqlite import type_faults
from store.db.drivers.sqlite.commits import DataVersion, State
from store.db.drivers.sqlite.errors import LOCK_SECONDS, translate
from store.db.drivers.sqlite.index_file import IndexFile, delete_index_files
from store.db.drivers.sqlite.open_file import OpenFile
from store.db.drivers.sqlite.reader import Readers, SQLiteReader
from store.db.drivers.sqlite.writer import SQLiteWriter, connect
from store.db.index_place import IndexPlace
from store.db.schema import (
    HEAD,
    DatabaseInfo,
    partition_files,
    prepare_sqlite,
    read_only_uri,
    sqlite_copies,
    sqlite_files,
    triggers,
)
from store.db.schema.partition_files import PartitionPlace, StoreFile
from store.db.url import StoreURL
from store.errors import Closed, Incompatible
from store.runtime.clock import Clock
from store.runtime.urls import DEFAULT_PARTITION


class SQLite(Dialect):
    """Dialect for SQLite. Each partition has its own file.

    The URL `memory://` stands for a private temporary file, which is written without fsync and deleted by `close`.
    """

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
        self._place = PartitionPlace(self.path if url.main is None else url.main.absolute(), url.partition)
        self._file = OpenFile(self.path)
        self._readers = Readers(self.path, self._file, self)
        self._unlocked: sqlite_files.State | None = None
        self._state = State(self.path, is_read_only=read_only)

    # The methods of `Dialect`.

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
        self._file.check_fork()
        info = await asyncio.to_thread(
            prepare_sqlite,
            self.path,
            create=create or self._is_private,
            read_only=self.read_only,
            place=self._place,
            mode=0o600 if self._is_private else 0o666,
        )
        self._file.remember()
        return info.store_id

    def unfinished(self) -> "Unfinished":
        return UnfinishedSQLite(self.url, self.clock)

    def guards(self) -> Guards:
        return triggers.guards("sqlite")

    def last_numbers(self) -> LastNumbers:
        last = "(SELECT seq FROM sqlite_sequence WHERE name = '{}')"
        tables = ("commits", "events")
        statement = Sql(f"SELECT {', '.join(map(last.format, tables))}", (), {})
        return LastNumbers(("sqlite_sequence commits", "sqlite_sequence events"), statement)

    async def has_type_faults(self, session: ReadSession, tables: Sequence[Table], *, texts: bool) -> bool:
        assert isinstance(session, SQLiteReader)
        return await session.do(lambda connection: type_faults.has_type_faults(connection, tables, texts=texts))

    async def hide_type_faults(self, session: ReadSession) -> TypeFaults:
        assert isinstance(session, SQLiteReader)
        return await session.do(type_faults.hide_type_faults)

    async def delete_type_faults(self, session: WriteSession, tables: Sequence[Table]) -> dict[str, int]:
        assert isinstance(session, SQLiteWriter)
        return session.do(lambda connection: type_faults.delete_type_faults(connection, tables))

    async def writer(self) -> WriteSession:
        synchronous = "OFF" if self._is_private else self.url.options.get("durability", "full").upper()
        try:
            self._file.check()
            writer = SQLiteWriter(self, self.path, synchronous, self.clock, self._file)
        except sqlite3.Error as error:
            raise translate(error) from error
        self._file.check()
        return writer

    def read(self, *, snapshot: bool = False) -> AbstractAsyncContextManager[ReadSession]:
        return self._checked(snapshot=snapshot) if self.read_only else self._readers.lease(snapshot=snapshot)

    @asynccontextmanager
    async def _checked(self, *, snapshot: bool) -> AsyncGenerator[ReadSession]:
        """Lend a connection as `read` does.

        If SQLite reads the file without locks, check afterwards that the file was not changed.

        Raises:
            Unavailable: SQLite read the file without locks, and another process changed the file during the block.
        """
        unlocked: sqlite_files.State | None = None
        try:
            async with AsyncExitStack() as stack:
                session, unlocked = await self._enter(stack, snapshot=snapshot)
                yield session
        except Exception as error:
            raise_unlocked_error(self.path, unlocked, error)
            raise
        if unlocked not in {None, sqlite_files.content_state(self.path)}:
            raise sqlite_files.changed_while_read(self.path)

    async def _enter(self, stack: AsyncExitStack, *, snapshot: bool) -> tuple[ReadSession, sqlite_files.State | None]:
        """Lend a connection until the stack is closed; return the connection and the state of the file.

        The state is None if SQLite reads the file with locks.
        """
        while True:
            unlocked, readers = sqlite_files.unlocked_state(self.path), self._readers
            if unlocked != self._unlocked:
                # The connections of the pool would not notice the change.
                self._unlocked, self._readers = unlocked, Readers(self.path, self._file, self)
                await readers.close()
                readers = self._readers
            try:
                return await stack.enter_async_context(readers.lease(snapshot=snapshot)), unlocked
            except Closed:
                if readers is self._readers:
                    raise
            except Incompatible as error:
                raise_unlocked_error(self.path, unlocked, error)
                raise

    def wakeups(self) -> Wakeups:
        return DataVersion(self.path, is_read_only=self.read_only)

    def state(self) -> tuple[Hashable, Hashable] | None:
        # If there is no version, the caller reads the tables. That read raises the error for a missing file.
        version = self._state.version() if self._file.is_in_place else None
        return None if version is None else (self._state.number, version)

    async def watched_partitions(self) -> list[str]:
        if self._is_private:
            return []
        return await asyncio.to_thread(_watched, self.url)

    async def overwrite_deleted(self, session: WriteSession) -> None:
        assert isinstance(session, SQLiteWriter)
        session.do(lambda connection: connection.execute("PRAGMA secure_delete = ON").fetchall())

    async def erase(self, *, rewrite: bool, remains: Sequence[bytes] | None) -> bool:
        self._file.check()
        try:
            return await asyncio.to_thread(self._erase, rewrite=rewrite, remains=remains)
        except sqlite3.Error as error:
            raise translate(error) from error

    def _erase(self, *, rewrite: bool, remains: Sequence[bytes] | None) -> bool:
        with closing(connect(self.path, "FULL")) as connection:
            connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000:.0f}").fetchall()
            is_rewritten = rewrite or remains is None
            is_done = not is_rewritten and _empty_log(connection)
            # The unused part of a page may contain rows that were moved to another page before they were deleted.
            if is_rewritten or (is_done and _has_any(self.path, remains or ())):
                connection.execute("VACUUM")
                is_done = _empty_log(connection)
        return is_done

    def index_place(self, name: str) -> IndexPlace:
        return IndexFile(self, self.path, name)

    def reopened(self) -> "SQLite":
        return SQLite(replace(self.url, path=self.path), self.clock, read_only=True)

    async def size_bytes(self) -> int:
        paths = (self.path, Path(self._file.log))
        return sum(path.stat().st_size for path in paths if path.exists())

    async def close(self) -> None:
        self._state.close()
        await self._readers.close()
        self._file.forget()
        if self._is_private:
            for suffix in ("", "-wal", "-shm", ".lock"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            delete_index_files(self.path)


class UnfinishedSQLite(SQLite, Unfinished):
    """The file `<file>.partial`, which a copy fills before it is renamed to `<file>`."""

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        assert url.path is not None  # a private store cannot be the target of a copy
        self._final = url.path.absolute()
        # A crash of the machine may lose the last transactions, which the next run of the copy writes again. `publish`
        # waits until all data is on disk.
        options = url.options | {"durability": "normal"}
        super().__init__(
            replace(url, path=sqlite_copies.unfinished(self._final), options=options), clock, read_only=read_only
        )

    @asynccontextmanager
    async def reserved(self) -> AsyncGenerator[None]:
        lock = sqlite_copies.copy_lock(self._final)
        await asyncio.to_thread(lock.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(lock.__exit__, None, None, None)

    async def prepare(self, store_id: str, created_at: int, log_format: int, *, is_single_file: bool) -> None:
        info = DatabaseInfo(store_id, created_at, HEAD, log_format)
        await asyncio.to_thread(
            sqlite_copies.prepare_unfinished, self._final, info, self._place, is_private=is_single_file
        )

    async def open(self, *, create: bool) -> str:
        del create  # `prepare` creates the file
        info = await asyncio.to_thread(sqlite_copies.open_unfinished, self._final)
        self._file.remember()
        return info.store_id

    async def append(
        self, session: WriteSession, rows: Mapping[Table, Sequence[Row]], commit_id: int, position: int
    ) -> None:
        del commit_id, position  # AUTOINCREMENT lets the sequences continue after the inserted numbers
        assert isinstance(session, SQLiteWriter)
        session.append(rows)

    async def publish(self, *, is_single_file: bool, receipt: str | None) -> None:
        await asyncio.to_thread(sqlite_copies.publish, self._final, is_single_file=is_single_file, receipt=receipt)

    async def receipt(self) -> str | None:
        return await asyncio.to_thread(sqlite_copies.receipt, self._final)

    async def acknowledge(self) -> None:
        sqlite_copies.acknowledge(self._final)  # not in a thread, because a program that ends cannot start a thread

    async def discard(self) -> None:
        await asyncio.to_thread(sqlite_copies.discard, self._final)


def raise_unlocked_error(path: Path, state: sqlite_files.State | None, error: Exception) -> None:
    """Raise a clearer error if a read without locks explains `error`; otherwise do nothing.

    Args:
        path: the file that was read.
        state: the state of the file before the read; None if the file was read with locks.
        error: the error of the read, possibly caused by a change of the file.
    """
    if state is None:
        return
    if sqlite_files.content_state(path) != state:
        raise sqlite_files.changed_while_read(path) from error
    if isinstance(error, Incompatible) and isinstance(error.__cause__, sqlite3.DatabaseError):
        raise Incompatible(
            f"the file {path} cannot be read without locks: {error.__cause__}",
            "run `rollbook verify` as a user who may write its directory",
        ) from error


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Empty the write-ahead log, which contains earlier versions of pages; return False if a reader prevents it."""
    is_blocked, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_blocked


def _has_any(path: Path, parts: Sequence[bytes]) -> bool:
    """Return whether a file contains one of the byte strings."""
    if not parts:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(part) >= 0 for part in parts)


def _watched(url: StoreURL) -> list[str]:
    assert url.main is not None  # the URL of a file
    partitions: list[str] = []
    main: StoreFile | None = None
    for place in partition_files.candidates(url.main):
        uri = read_only_uri(place.path)
        with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, timeout=1)) as connection:
            file = partition_files.read(connection)
            main = file if place.partition == DEFAULT_PARTITION else main
            if file is None or not place.holds(file, main):
                continue
            # A backup or an archive is not changed, so none of its attempts is ended.
            if connection.execute(
                "SELECT EXISTS (SELECT 1 FROM watch)"
                " AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'backup_seal')"
            ).fetchone()[0]:
                partitions.append(place.partition)
    return partitions


def _param(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text)
