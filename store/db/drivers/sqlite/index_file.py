"""Tables of an index in a SQLite file beside the store. Decision 108."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import Table
from sqlalchemy.schema import CreateTable

from store.db.dialect import Dialect, NamedRow, Params, ReadSession, Row, Sql
from store.db.drivers.sqlite.errors import translate
from store.db.drivers.sqlite.reader import SQLiteReader
from store.db.index_place import IndexPlace, IndexSession, OnConflict, conflict_clause, index_states
from store.db.schema.sqlite_files import index_files

_LOCK_SECONDS = 10.0
_SUFFIXES = ("", "-wal", "-shm", "-journal")


def index_path(path: Path, name: str) -> Path:
    """Return the path of the file of an index of the store at `path`."""
    return path.with_name(f"{path.name}.{name}-index")


def delete_index_files(path: Path) -> None:
    """Delete the files of all indexes of the store at `path`."""
    for file in index_files(path):
        file.unlink(missing_ok=True)


class IndexFile(IndexPlace):
    """The file `<store>.<name>-index`. It belongs to no backup, and to delete it drops the index."""

    def __init__(self, dialect: Dialect, path: Path, name: str) -> None:
        super().__init__(dialect, name)
        self.path = index_path(path, name)
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[IndexSession]:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(
                    str(CreateTable(index_states, if_not_exists=True).compile(dialect=self.dialect.compiler))
                )
                yield IndexFileSession(self.dialect, connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise translate(error) from error

    def _connected(self) -> sqlite3.Connection:
        """Return the connection. If the file was deleted or replaced meanwhile, the connection is opened again."""
        if self._connection is not None and self._inode == (self.path.stat().st_ino if self.path.exists() else 0):
            return self._connection
        self._close()
        connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=_LOCK_SECONDS, check_same_thread=False, cached_statements=64
        )
        # Deleted pages are overwritten at once, because the index repeats payload that may have to be removed. The log
        # is the truth, so a crash of the machine may lose the last transactions, but must not mix them.
        for setting in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection, self._inode = connection, self.path.stat().st_ino
        return connection

    @asynccontextmanager
    async def visible(self, session: ReadSession) -> AsyncGenerator[bool]:
        assert isinstance(session, SQLiteReader)  # sessions of a SQLite database
        if not self.path.exists():
            yield False
            return
        alias = f"{self.name}_index"
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        await session.do(lambda connection: connection.execute(f"ATTACH ? AS {alias}", (uri,)).close())
        try:
            # The first transaction on a new file may not have ended.
            exists = f"SELECT count(*) FROM {alias}.sqlite_master WHERE name = '{index_states.name}'"
            yield await session.do(lambda connection: bool(connection.execute(exists).fetchone()[0]))
        finally:
            if not session.is_abandoned:
                await session.do(lambda connection: _detach(connection, alias))

    async def exists(self) -> bool:
        return self.path.exists()

    async def drop(self, tables: Sequence[str]) -> None:
        del tables
        self._close()
        for suffix in _SUFFIXES:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    async def erase(self, tables: Sequence[str]) -> bool:
        del tables
        try:
            is_blocked, _, _ = self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise translate(error) from error
        return not is_blocked

    async def size_bytes(self, tables: Sequence[str]) -> int:
        del tables
        paths = [self.path.with_name(self.path.name + suffix) for suffix in _SUFFIXES]
        return sum(path.stat().st_size for path in paths if path.exists())

    async def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _detach(connection: sqlite3.Connection, alias: str) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"DETACH {alias}")


class IndexFileSession(IndexSession):
    """A transaction on the file of an index. Its methods block their event loop."""

    def __init__(self, dialect: Dialect, connection: sqlite3.Connection) -> None:
        self.dialect = dialect
        self.connection = connection

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        return sql.named(self.connection.execute(sql.text, sql.args(params)).fetchall())

    async def execute(self, text: str, rows: Sequence[Row] | None = None) -> None:
        if rows is None:
            self.connection.execute(text)
        else:
            self.connection.executemany(text, rows)

    async def run(self, sql: Sql, params: Params) -> None:
        self.connection.execute(sql.text, sql.args(params))

    async def write(self, table: Table, rows: Sequence[Row], on_conflict: OnConflict | None = None) -> None:
        names = [column.name for column in table.columns]
        text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        self.connection.executemany(text + conflict_clause(table, on_conflict), rows)
