"""Interface to the tables of indexes, which are derived from the log and written outside of its commits. Decision 108.

Each index has its own place: a file beside the store on SQLite, and tables in the schema of the partition on Postgres.
A place can be dropped at any time. The index is then made again from the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text

from store.db.dialect import Dialect, NamedRow, Params, ReadSession, Row, Sql
from store.errors import Unsupported

OnConflict = Literal["skip", "replace", "add"]
"""The effect of a row whose key exists: the row is skipped, replaces the old row, or its numbers are added to it."""

index_states = Table(
    "index_states",
    MetaData(),
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("store_id", Text, nullable=False),
    # The last event that the index contains, its commit, and the beginning of the commit's hash in hex.
    Column("position", BigInteger, nullable=False),
    Column("commit_id", BigInteger, nullable=False),
    Column("chain", Text, nullable=False),
    # The last removal of payload that the index has followed.
    Column("removed_position", BigInteger, nullable=False),
)
"""The progress of each index."""


class IndexSession(ABC):
    """A transaction on the tables of an index, which holds the index's lock."""

    dialect: Dialect

    @abstractmethod
    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        """Return all rows of a statement."""

    @abstractmethod
    async def execute(self, text: str, rows: Sequence[Row] | None = None) -> None:
        """Execute a statement in the database's own syntax, once for each row of arguments, or once without arguments.

        Placeholders are `?` on SQLite and `$1`, `$2` … on Postgres.
        """

    @abstractmethod
    async def write(self, table: Table, rows: Sequence[Row], on_conflict: OnConflict | None = None) -> None:
        """Insert rows, in the order of the table's columns.

        Args:
            table: the table.
            rows: the rows. Two rows may have the same key only on SQLite, if `on_conflict` is `add` or `replace`.
            on_conflict: the effect of a row whose primary key exists; None for an error. `add` adds all columns that
                are not part of the key.
        """

    async def delete(self, table: Table, column: str, values: Sequence[Any]) -> None:
        """Delete the rows that have one of the values in a column of texts or integers."""
        if values:
            condition = self.dialect.any_of(table.c[column], "of_values")
            sql = self.dialect.sql(table.delete().where(condition))
            await self.run(sql, {"of_values": self.dialect.list_param(list(values))})

    @abstractmethod
    async def run(self, sql: Sql, params: Params) -> None:
        """Execute a compiled statement that returns no rows."""


class IndexPlace(ABC):
    """The place of the tables of one index of a partition.

    Args:
        dialect: the partition.
        name: the name of the index.
    """

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect = dialect
        self.name = name

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[IndexSession]:
        """Return a transaction that holds the lock of the index and commits at the end of the block.

        The place is created if it does not exist. It has the table `index_states`.

        Raises:
            Unavailable: another process held the lock for ten seconds.
            ReadOnly: the place cannot be written.
        """

    @abstractmethod
    def visible(self, session: ReadSession) -> AbstractAsyncContextManager[bool]:
        """Return a block in which a session that reads the partition also sees the tables of the index.

        The session must not be a snapshot. The value of the block is False if the place does not exist.
        """

    @abstractmethod
    async def exists(self) -> bool:
        """Return whether the place exists."""

    @abstractmethod
    async def drop(self, tables: Sequence[str]) -> None:
        """Delete the place with the tables of the index. `tables` contains their names."""

    @abstractmethod
    async def erase(self, tables: Sequence[str]) -> bool:
        """Remove deleted rows from the files. Return False if a reader of an older state prevents the removal."""

    @abstractmethod
    async def size_bytes(self, tables: Sequence[str]) -> int:
        """Return the size of the index on disk in bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection that `transaction` uses."""


@runtime_checkable
class IndexableDialect(Protocol):
    """A dialect that has places for indexes."""

    def index_place(self, name: str) -> IndexPlace:
        """Return the place of an index of the partition."""
        ...

    def reopened(self) -> Dialect:
        """Return a new dialect for reads of the same partition in another event loop."""
        ...


def indexable(dialect: Dialect) -> IndexableDialect:
    """Return the dialect as a dialect with indexes.

    Raises:
        Unsupported: the dialect has no places for indexes.
    """
    if not isinstance(dialect, IndexableDialect):
        raise Unsupported("an index", type(dialect).__name__)
    return dialect


def conflict_clause(table: Table, on_conflict: OnConflict | None) -> str:
    """Return the end of an INSERT for rows whose key exists. SQLite and Postgres have the same syntax."""
    if on_conflict is None:
        return ""
    keys = ", ".join(column.name for column in table.primary_key)
    others = [column.name for column in table.columns if not column.primary_key]
    if on_conflict == "skip" or not others:
        return f" ON CONFLICT ({keys}) DO NOTHING"
    addition = f"{table.name}." if on_conflict == "add" else ""
    sets = ", ".join(
        f"{name} = {addition}{name} + excluded.{name}" if addition else f"{name} = excluded.{name}" for name in others
    )
    return f" ON CONFLICT ({keys}) DO UPDATE SET {sets}"
