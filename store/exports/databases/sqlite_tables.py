"""Tables of an export in a SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import orjson

from store.exports.formats.base import ExportOrigin, refused
from store.exports.formats.jsonl import timestamp_text
from store.exports.schema import SCHEMA_VERSION, Kind, Row, Table
from store.exports.views import views_of

ORIGIN: Final = "export_origin"
"""The table with one row: the id of the store, the position, the schema version, and how missing rewards count."""

_TYPES: Final[Mapping[Kind, str]] = {
    "text": "TEXT",
    "int64": "INTEGER",
    "float64": "REAL",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMP",
    # A column with a type such as JSON has numeric affinity, which turns the text 1.0 into the number 1.
    "json": "TEXT",
    "int64s": "TEXT",
    "texts": "TEXT",
}
_REFUSALS: Final = (OverflowError, ValueError, sqlite3.InterfaceError, sqlite3.DataError)


class SQLiteTables:
    """Tables of an export, with their views, in a SQLite database.

    A timestamp is a text such as `2026-11-28T09:30:00.000000Z`. The order of these texts is the order of time, and
    SQLite's functions read them. A list of numbers is JSON text.

    Args:
        connection: the connection to an empty database.
        tables: the tables to create.
    """

    def __init__(self, connection: sqlite3.Connection, tables: Sequence[Table]) -> None:
        self._connection = connection
        self._inserts = {table.name: _Insert(table) for table in tables}
        for table in tables:
            columns = ",\n".join(f"  {column.name} {_TYPES[column.kind]}" for column in table.columns)
            connection.execute(f"CREATE TABLE {table.name} (\n{columns}\n)")
        for view in views_of(tables):
            connection.execute(view.statement)

    def fill_only(self, columns: Mapping[str, Collection[str]]) -> None:
        """Fill only some columns in later calls of `insert`, and leave the others null.

        Args:
            columns: for each table, the names of the columns to fill. Tables that are not named stay as before.
        """
        for name, names in columns.items():
            self._inserts[name] = _Insert(self._inserts[name].table, names)

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows to a table.

        Raises:
            Invalid: SQLite cannot store a value.
        """
        insert = self._inserts[table.name]
        try:
            self._connection.executemany(insert.statement, map(insert.values, rows))
        except _REFUSALS as error:
            raise insert.refused(rows, self._connection, error) from None

    def finish(self, origin: ExportOrigin) -> None:
        """Create the indexes and the table `export_origin`."""
        for name in self._inserts:
            self._connection.execute(f"CREATE INDEX {name}_rollout_id ON {name} (rollout_id)")
        columns = "store_id TEXT, position INTEGER, schema_version INTEGER, unrewarded TEXT"
        self._connection.execute(f"CREATE TABLE {ORIGIN} ({columns})")
        row = (origin.store_id, origin.position, SCHEMA_VERSION, origin.unrewarded)
        self._connection.execute(f"INSERT INTO {ORIGIN} VALUES (?, ?, ?, ?)", row)  # noqa: S608 - a constant


class _Insert:
    """The statement that inserts rows into a table, and the conversion of their values.

    Args:
        table: the table.
        names: the names of the columns to fill; None for all.
    """

    def __init__(self, table: Table, names: Collection[str] | None = None) -> None:
        self.table = table
        self._columns = [
            (place, column, _conversion(column.kind))
            for place, column in enumerate(table.columns)
            if names is None or column.name in names
        ]
        columns = ", ".join(column.name for _, column, _ in self._columns)
        marks = ", ".join(repeat("?", len(self._columns)))
        values = f"({columns}) VALUES ({marks})" if columns else "DEFAULT VALUES"
        self.statement = f"INSERT INTO {table.name} {values}"

    def values(self, row: Row) -> tuple[Any, ...]:
        """Return the values of a row as SQLite stores them."""
        return tuple([_stored(row[place], convert) for place, _, convert in self._columns])

    def refused(self, rows: Sequence[Row], connection: sqlite3.Connection, error: Exception) -> Exception:
        """Return the error for the first value that SQLite cannot store."""
        for row in rows:
            for place, column, convert in self._columns:
                try:
                    connection.execute("SELECT ?", (_stored(row[place], convert),)).fetchall()
                except _REFUSALS as reason:
                    return refused(self.table, column, row, row[place], str(reason))
        return error


def _stored(value: Any, convert: Callable[[Any], Any] | None) -> Any:
    return value if convert is None or value is None else convert(value)


def _conversion(kind: Kind) -> Callable[[Any], Any] | None:
    """Return a function that converts the values of a column for SQLite; None if they need no conversion."""
    match kind:
        case "json":
            return bytes.decode
        case "timestamp":
            return timestamp_text
        case "int64s" | "texts":
            return _json
        case _:
            return None


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
