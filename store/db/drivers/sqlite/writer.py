"""The session that writes to a SQLite file: one connection in the thread of the store, and many rows per statement."""

import asyncio
import logging
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, Table

from store.db.dialect import (
    Changes,
    Dialect,
    NamedRow,
    Params,
    Row,
    Sql,
    TablePart,
    Tail,
    WriteSession,
    report_lost_queue_epoch,
)
from store.db.drivers.sqlite.checkpoint import Checkpointer
from store.db.drivers.sqlite.errors import LOCK_SECONDS, is_busy, translate
from store.db.drivers.sqlite.open_file import OpenFile
from store.db.drivers.sqlite.type_faults import define_functions
from store.db.tables import core as core_tables
from store.db.tables.core import settable
from store.errors import Incompatible
from store.runtime.clock import Clock

# Python's driver searches for an adapter of each None and each bytes value among the parameters of a statement. The
# search fails and takes longer than all other work on these values. An adapter that returns the value unchanged is
# found at once. Adapters belong to the whole process, so an existing adapter is not replaced.
if (type(None), sqlite3.PrepareProtocol) not in sqlite3.adapters:
    sqlite3.register_adapter(type(None), dict[None, None]().get)
if (bytes, sqlite3.PrepareProtocol) not in sqlite3.adapters:
    sqlite3.register_adapter(bytes, bytes.__bytes__)

logger = logging.getLogger("store.db.drivers.sqlite_writer")

T = TypeVar("T", Table, TablePart)
Done = TypeVar("Done")
_ROWS_AT_ONCE = (64, 16, 4, 1)
# Before the first commit, `sqlite_sequence` has no rows for `commits` and `events`, so `_ADVANCE` changes nothing.
# AUTOINCREMENT creates the rows when the first rows of the log are inserted.
_ADVANCE = (
    "UPDATE sqlite_sequence SET seq = CASE name WHEN 'commits' THEN max(seq, ?) + 1 ELSE max(seq, ?) + ? END"
    " WHERE name IN ('commits', 'events') RETURNING name, seq"
)
_TAIL = (
    "SELECT c.commit_id, c.recorded_at, c.chain_hash, c.events, c.rollouts, c.attempts, c.spans, c.resources,"
    " c.workers, c.body_bytes, c.last_position,"
    " CASE typeof(q.epoch) WHEN 'integer' THEN q.epoch END,"
    " (SELECT seq FROM sqlite_sequence WHERE name = 'commits'), (SELECT seq FROM sqlite_sequence WHERE name = 'events')"
    " FROM (SELECT 1) LEFT JOIN queue_epoch q ON q.id = 1"
    " LEFT JOIN commits c ON c.commit_id = (SELECT max(commit_id) FROM commits)"
)


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Return a connection for writing. `synchronous` is the value of the pragma: OFF, NORMAL or FULL."""
    # Another process may be opening or closing the file at this moment, so this connection waits for the lock.
    connection = sqlite3.connect(path, isolation_level=None, timeout=LOCK_SECONDS, cached_statements=256)
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {synchronous}",
        "temp_store = MEMORY",
        "cache_size = -65536",
        # From here on, SQLite does not wait for the lock; `begin` does.
        "busy_timeout = 0",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    define_functions(connection)
    return connection


class SQLiteWriter(WriteSession):
    """The session that writes. Its statements run in the calling thread, which must be the thread of the store."""

    def __init__(
        self, dialect: Dialect, path: Path, synchronous: str, clock: Clock | None, file: OpenFile | None = None
    ) -> None:
        self.dialect = dialect
        self._connection = connect(path, synchronous)
        self._clock = clock
        self._file = file or OpenFile(path)
        # The first read opens the write-ahead log, which `remember_log` needs.
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        self._file.remember_log()
        self._log_bytes = 0
        self._checkpointer = Checkpointer(self._connection, lambda: connect(path, synchronous))
        self._inserts = _Statements(_insert)
        self._upserts = _Statements(_upsert)
        self._updates = _Statements(_update)
        self._deletes = _Statements(_delete)
        self._data_version = -1
        # `_known` is the end of the log after the last commit, and `_coming` the end of the log after the next commit.
        self._known: Tail | None = None
        self._coming: Tail | None = None

    async def begin(self) -> Tail:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise translate(error) from error
                # With SQLite's own waiting, one busy process may keep all other processes from writing. Short random
                # waits prevent this. Decision 3.
                await asyncio.sleep(random.uniform(0.0002, 0.001))
        try:
            return self._read_tail()
        except sqlite3.Error as error:
            raise translate(error) from error

    def _read_tail(self) -> Tail:
        # `data_version` changes when another connection commits, but not when this connection commits.
        last, self._data_version = self._data_version, self._connection.execute("PRAGMA data_version").fetchone()[0]
        is_ours = last == self._data_version
        now = time.time_ns() // 1_000 if self._clock is None else self._clock()
        if is_ours and self._known is not None:
            self._known.now = now
            self._coming = self._known
            return self._known
        row = self._connection.execute(_TAIL).fetchone()
        commit_id, recorded_at, chain, *totals, last_position, epoch, commit_sequence, position_sequence = row
        if epoch is None:
            # The row of `queue_epoch` is missing, or its epoch is not an integer. A new epoch makes every process read
            # the queue again from its beginning.
            report_lost_queue_epoch()
            epoch = now
            self._connection.execute("REPLACE INTO queue_epoch (id, epoch) VALUES (1, ?)", (epoch,))
        self._coming = Tail(
            commit_id=commit_id or 0,
            recorded_at=recorded_at or 0,
            chain_hash=chain or bytes(32),
            totals=tuple(total or 0 for total in totals),
            # If a sequence is behind the log, the numbers continue after the end of the log.
            next_position=max(last_position or 0, position_sequence or 0) + 1,
            next_commit_id=max(commit_id or 0, commit_sequence or 0) + 1,
            now=now,
            queue_epoch=epoch,
            is_ours=is_ours,
        )
        return self._coming

    async def load(self, queries: Sequence[Select[*tuple[Any, ...]]], params: Params) -> Sequence[Sequence[NamedRow]]:
        try:
            return [await self._fetch(self.dialect.prepared(query), params) for query in queries]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        try:
            return await self._fetch(sql, params)
        except sqlite3.Error as error:
            raise translate(error) from error

    async def _fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        rows = self._connection.execute(sql.text, sql.args(params)).fetchall()
        return await self._converted(sql, params, rows)

    async def _converted(self, sql: Sql, params: Params, rows: Sequence[Row]) -> Sequence[NamedRow]:
        if sql.places is not None:
            rows = await self.dialect.stored_forms.converted(self, sql, sql.places, params, rows)
        return sql.named(rows)

    def do(self, work: Callable[[sqlite3.Connection], Done]) -> Done:
        """Call a function with the connection, within the current transaction, and return its result."""
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            raise translate(error) from error

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        cursor = self._connection.execute(sql.text, sql.args(params))
        while rows := cursor.fetchmany(batch):
            yield await self._converted(sql, params, rows)

    async def write(self, changes: Changes) -> None:
        before = self._coming
        assert before is not None  # `begin` was called before
        epochs = changes.upserts.get(core_tables.queue_epoch)
        epoch = before.queue_epoch if epochs is None else epochs[0][1]
        commits = changes.inserts.get(core_tables.commits)
        if commits is None:
            before.queue_epoch = epoch
        else:
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
        try:
            for table, rows in changes.deletes.items():
                self._connection.executemany(self._deletes[table, 1], rows)
            if commits is not None:
                last_numbers = {"commits": before.next_commit_id, "events": commits[0][3]}
                count = last_numbers["events"] - before.next_position + 1
                lasts = (before.next_commit_id - 1, before.next_position - 1)
                for name, number in self._connection.execute(_ADVANCE, (*lasts, count)):
                    expected = last_numbers[name]
                    if number != expected:
                        raise Incompatible(
                            f"the sequence of {name} returned {number}; expected was {expected}",
                            "check that no trigger changes the table sqlite_sequence",
                        )
            self._write_rows(self._inserts, changes.inserts)
            self._write_rows(self._upserts, changes.upserts)
            self._write_rows(self._updates, changes.updates)
        except sqlite3.Error as error:
            raise translate(error) from error

    def append(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        """Insert the rows of a copied log. The rows keep their commit ids and positions."""
        # The next `begin` has to read the end of the log again.
        self._data_version = -1
        try:
            self._write_rows(self._inserts, rows)
        except sqlite3.Error as error:
            raise translate(error) from error

    def _write_rows(self, statements: "_Statements[T]", changes: Mapping[T, Sequence[Row]]) -> None:
        """Write rows, many per statement.

        Each execution of a statement releases the interpreter lock (GIL) of Python, and a busy thread may then hold
        this lock for a while. With fewer executions, the batch waits less often for other threads.
        """
        execute = self._connection.execute
        for target, rows in changes.items():
            count = len(rows)
            if count == 1:
                execute(statements[target, 1], rows[0])
                continue
            start = 0
            for size in _ROWS_AT_ONCE:
                while count - start >= size:
                    execute(statements[target, size], tuple(chain.from_iterable(rows[start : start + size])))
                    start += size

    async def commit(self) -> None:
        self._known = None
        file = self._file
        try:
            self._connection.execute("COMMIT")
            # `Path.stat` takes five times as long, and each commit needs this.
            status, log = os.stat(file.path), os.stat(file.log)  # noqa: PTH116
        except sqlite3.Error as error:
            raise translate(error) from error
        except FileNotFoundError:
            raise file.refusal() from None
        if (status.st_dev, status.st_ino) != file.opened or (log.st_dev, log.st_ino) != file.opened_log:
            raise file.refusal()
        self._log_bytes = log.st_size
        self._known = self._coming
        if self._known is not None:
            self._known.is_ours = True

    async def rest(self) -> None:
        try:
            if self._log_bytes > self._checkpointer.limit:
                self._checkpointer.advance(self._log_bytes)
        except sqlite3.Error as error:
            raise translate(error) from error

    async def rollback(self) -> None:
        self._known = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    async def close(self) -> None:
        await self.rollback()
        self._checkpointer.close()
        # TRUNCATE empties the write-ahead log, so that only the database file remains after `close`, without the two
        # files of the write-ahead log. TRUNCATE has no effect while another process reads.
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            # The write-ahead log contains all acknowledged calls. The next process that opens the database file reads
            # this log.
            logger.info("the write-ahead log was not copied into the file, and remains beside it: %s", error)
        finally:
            self._connection.close()


class _Statements(dict[tuple[T, int], str]):
    """SQL statements by target and number of rows. Each statement is built at its first use."""

    def __init__(self, build: Callable[[T, int], str]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, key: tuple[T, int]) -> str:
        statement = self[key] = self._build(*key)
        return statement


def _insert(table: Table, count: int) -> str:
    names = [column.name for column in table.columns]
    row = f"({', '.join('?' * len(names))})"
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join([row] * count)}"


def _upsert(table: Table, count: int) -> str:
    keys = [column.name for column in table.primary_key]
    sets = ", ".join(f"{name} = excluded.{name}" for name in settable(table))
    return f"{_insert(table, count)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sets}"


def _update(part: TablePart, count: int) -> str:
    names = (*part.keys, *part.sets)
    row = f"({', '.join('?' * len(names))})"
    columns = {name: f"rows.column{number}" for number, name in enumerate(names, 1)}
    sets = ", ".join(f"{name} = {columns[name]}" for name in part.sets)
    matches = " AND ".join(f"{part.table.name}.{key} = {columns[key]}" for key in part.keys)
    return f"UPDATE {part.table.name} SET {sets} FROM (VALUES {', '.join([row] * count)}) AS rows WHERE {matches}"


def _delete(table: Table, _: int) -> str:
    keys = [column.name for column in table.primary_key]
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{key} = ?' for key in keys)}"
