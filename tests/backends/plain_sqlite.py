"""Another SQL database, as an external package would add it: one `Dialect`, two sessions, notifications, registration.

The database is SQLite through the standard library, without a pool, a thread or aiosqlite. The module uses the port,
the tables and the statements that create them, but no shipped driver.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, Select, Table, Text, bindparam, func, select, tuple_
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from store.db.dialect import (
    Changes,
    Dialect,
    Guards,
    NamedRow,
    Params,
    ReadSession,
    Sql,
    Tail,
    Wakeups,
    WriteSession,
    register,
)
from store.db.schema import ddl, triggers
from store.db.url import StoreURL
from store.errors import NotFound, Unavailable
from store.runtime.clock import Clock, system_clock

STORE_ID = "0123456789abcdef"
_SIZE = Sql("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", (), {})


class PlainSQLite(Dialect):
    """A file; all work is done in the store's own thread, one statement at a time."""

    loop_bound = True
    compiler = SQLiteDialect_pysqlite(paramstyle="qmark")

    def __init__(self, url: StoreURL, clock: Clock | None, *, read_only: bool = False) -> None:
        super().__init__(url, clock, read_only=read_only)
        self.path = urlsplit(url.text).path

    def any_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column.in_(select(_elements(name).c.value))

    def any_key(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        keys = _elements(name).c.value
        return tuple_(*columns).in_(select(*(func.json_extract(keys, f"$[{index}]") for index in range(len(columns)))))

    def list_param(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def keys_param(self, keys: Sequence[Sequence[Any]]) -> Any:
        return json.dumps([list(key) for key in keys])

    def contains(self, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
        return func.instr(column, value) > 0

    async def open(self, *, create: bool) -> str:
        connection = self.connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                if not create:
                    raise NotFound("store", self.path)
                for statement in ddl.creation("sqlite"):
                    connection.execute(statement)
                connection.execute("INSERT INTO store_info VALUES (?, ?, 1)", (STORE_ID, system_clock()))
            connection.execute("COMMIT")
            return connection.execute("SELECT store_id FROM store_info").fetchone()[0]
        finally:
            connection.close()

    def connect(self) -> sqlite3.Connection:
        """Return a connection that leaves transactions to us."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def guards(self) -> Guards:
        return triggers.guards("sqlite")

    async def writer(self) -> WriteSession:
        return Writing(self.connect(), self)

    @asynccontextmanager
    async def read(self, *, snapshot: bool = False) -> AsyncGenerator[ReadSession]:
        connection = self.connect()
        try:
            if snapshot:
                connection.execute("BEGIN")
            yield Reading(connection, self)
        finally:
            connection.close()

    def wakeups(self) -> Wakeups:
        return Polling()

    async def size_bytes(self) -> int:
        async with self.read() as session:
            rows = await session.fetch(_SIZE, {})
        return rows[0][0]

    async def close(self) -> None:
        """Every connection is closed by who opened it."""


class Reading(ReadSession):
    """A connection."""

    def __init__(self, connection: sqlite3.Connection, dialect: PlainSQLite) -> None:
        self.connection, self.dialect = connection, dialect

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        with _translated():
            return sql.named(self.connection.execute(sql.text, sql.args(params)))

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        with _translated():
            cursor = self.connection.execute(sql.text, sql.args(params))
            while rows := cursor.fetchmany(batch):
                yield sql.named(rows)


class Writing(Reading, WriteSession):
    """The connection that writes; SQLite's write lock is the lock."""

    async def begin(self) -> Tail:
        with _translated():
            self.connection.execute("BEGIN IMMEDIATE")
            (epoch,) = self.connection.execute("SELECT epoch FROM queue_epoch").fetchone()
            last = self.connection.execute(
                "SELECT commit_id, last_position, recorded_at, chain_hash, events, rollouts, attempts, spans,"
                " resources, workers, body_bytes FROM commits ORDER BY commit_id DESC LIMIT 1"
            ).fetchone()
        commit_id, position, recorded_at, chain_hash, *totals = last or (0, 0, 0, bytes(32), *[0] * 7)
        return Tail(
            commit_id=commit_id,
            recorded_at=recorded_at,
            chain_hash=chain_hash,
            totals=tuple(totals),
            next_position=position + 1,
            next_commit_id=commit_id + 1,
            now=(self.dialect.clock or system_clock)(),
            queue_epoch=epoch,
        )

    async def load(self, queries: Sequence[Select[Any]], params: Params) -> Sequence[Sequence[NamedRow]]:
        return [await self.fetch(self.dialect.prepared(query), params) for query in queries]

    async def write(self, changes: Changes) -> None:
        with _translated():
            for table, rows in changes.deletes.items():
                keys = " AND ".join(f"{column.name} = ?" for column in table.primary_key)
                self.connection.executemany(f"DELETE FROM {table.name} WHERE {keys}", rows)
            for table, rows in changes.inserts.items():
                self.connection.executemany(_insert(table), rows)
            for table, rows in changes.upserts.items():
                self.connection.executemany(_insert(table, "OR REPLACE "), rows)
            for part, rows in changes.updates.items():
                keys = " AND ".join(f"{name} = ?{number}" for number, name in enumerate(part.keys, 1))
                sets = ", ".join(f"{name} = ?{number}" for number, name in enumerate(part.sets, len(part.keys) + 1))
                self.connection.executemany(f"UPDATE {part.table.name} SET {sets} WHERE {keys}", rows)

    async def commit(self) -> None:
        with _translated():
            self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    async def close(self) -> None:
        self.connection.close()


class Polling(Wakeups):
    """No news from other processes but by looking; a hint may be wrong, so this one always says yes."""

    def announce(self, commit_id: int) -> None:
        """There is nobody to tell."""

    async def wait(self, seconds: float) -> bool:
        await asyncio.sleep(min(seconds, 0.05))
        return True

    async def close(self) -> None:
        """There is nothing to close."""


def _elements(name: str) -> Any:
    return func.json_each(bindparam(name, type_=Text)).table_valued("value", name=f"each_{name}")


def _insert(table: Table, verb: str = "") -> str:
    return f"INSERT {verb}INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})"


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unavailable(str(error)) from error


register("sqlite-plain", PlainSQLite)
