"""Temporary SQLite database in which one statement runs."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from store.errors import Invalid, Unavailable
from store.exports.databases.functions import add_functions
from store.exports.databases.sqlite_tables import SQLiteTables
from store.exports.schema import Row
from store.exports.tables import TABLES
from store.exports.views import VIEWS

_CHECK: Final = 10_000
"""The number of SQLite's instructions between two checks of the time. They take about a millisecond."""
_VALUE_BYTES: Final = 256_000_000
"""The greatest size of a value, so that a function such as `group_concat` cannot fill the memory."""
_RESULT_BYTES: Final = 256_000_000
"""The greatest size of all values of a result."""
_LIKE_BYTES: Final = 1000
"""The greatest size of a pattern of LIKE and GLOB, whose time is the product of its size and that of the text."""
_CACHE_KIB: Final = 65_536
"""The memory for pages of the database. SQLite writes pages that do not fit to a temporary file."""
_READING: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_DESCRIBING: Final = frozenset({"table_info", "table_xinfo", "table_list"})
"""The pragmas that describe tables."""
_SOURCES: Final = ("json_each('[]')", "json_tree('[]')", *(f"pragma_{name}('')" for name in sorted(_DESCRIBING)))
"""Calls of the functions that return tables, and that statements may use."""
_TABLES: Final = frozenset(table.name for table in TABLES)
_COLUMNS: Final = {source.name: [column.name for column in source.columns] for source in (*TABLES, *VIEWS)}


class TimeIsOver(Exception):
    """The deadline has passed."""


class TemporaryDatabase:
    """A database with the tables of an export, which is deleted when it is closed.

    The methods may be called in any thread, but only one at a time. `interrupt` may be called during another method.

    Args:
        statement: the statement. It is compiled, but not yet run.
        deadline: the value of `time.monotonic` at which the statement is stopped.

    Raises:
        Invalid: SQLite refuses the statement, or the statement does not only read.
    """

    def __init__(self, statement: str, deadline: float) -> None:
        self.columns: dict[str, set[str]] = {}
        """For each table that the statement reads, the names of the columns that it reads."""
        self._statement = statement
        self._deadline = deadline
        self._is_writing = False
        # SQLite keeps a database without a name in its cache. Pages that do not fit are in a temporary file.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection = self._connection
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LIKE_BYTES)
        self._tables = SQLiteTables(connection, TABLES)
        add_functions(connection)
        for source in _SOURCES:
            # The first use of such a function declares its table. The authorizer would refuse the declaration later.
            connection.execute(f"SELECT * FROM {source}").close()  # noqa: S608 - constants
        if not self._statement.strip("; \t\r\n"):
            raise Invalid("statement", "is empty; write for example: SELECT * FROM curves")
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._is_over, _CHECK)
        # EXPLAIN returns constants of the statement as text, even if they are bytes that are not UTF-8.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            program = connection.execute(f"EXPLAIN {self._statement}").fetchall()
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise self._refused(error) from None
        connection.text_factory = str
        connection.set_authorizer(None)
        self._add_unreported(program)
        self._tables.fill_only(self.columns)
        connection.execute("BEGIN")

    def _add_unreported(self, program: Sequence[tuple[Any, ...]]) -> None:
        """Add tables and columns that the statement reads, but that SQLite did not report to the authorizer.

        SQLite does not report the columns of joins with USING and NATURAL. So columns whose names occur in the
        statement are added; all columns if the statement contains NATURAL.

        Args:
            program: the compiled instructions of the statement. They open each table by its root page.
        """
        roots = self._connection.execute("SELECT rootpage, name FROM sqlite_master WHERE type = 'table'")
        tables = dict(roots.fetchall())
        for _, instruction, _, page, *_ in program:
            if instruction == "OpenRead" and page in tables:
                self.columns.setdefault(tables[page], set())
        words = set(re.findall(r"\w+", self._statement.lower()))
        for table, columns in self.columns.items():
            columns |= {name for name in _COLUMNS[table] if name in words or "natural" in words}

    def insert(self, batch: Mapping[str, Sequence[Row]]) -> None:
        """Add rows to tables.

        Raises:
            Invalid: SQLite cannot store a value.
            TimeIsOver: the deadline has passed.
            Unavailable: the disk of temporary files is full.
        """
        if self._is_over():
            raise TimeIsOver
        try:
            for table in TABLES:
                if rows := batch.get(table.name):
                    self._tables.insert(table, rows)
        except sqlite3.OperationalError as error:
            raise self._refused(error) from None

    def run(self, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the statement's columns, and up to `limit + 1` of its rows; all rows for the limit -1.

        Raises:
            Invalid: the statement failed.
            TimeIsOver: the deadline has passed.
            Unavailable: the disk of temporary files is full.
        """
        connection = self._connection
        connection.execute("COMMIT")
        connection.set_authorizer(self._authorize)
        try:
            cursor = connection.execute(self._statement)
            rows = _bounded_rows(cursor, limit)
        except (sqlite3.Error, ValueError) as error:
            raise self._refused(error) from None
        if self._is_over():
            raise TimeIsOver
        return [column[0] for column in cursor.description or ()], rows

    def interrupt(self) -> None:
        """Stop the statement if it is running. It then ends as after the deadline."""
        self._deadline = 0.0

    def close(self) -> None:
        """Delete the database."""
        self._connection.close()

    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Permit actions that only read, and add the columns that they read to `columns`."""
        if action == sqlite3.SQLITE_READ:
            if first in _TABLES and second is not None:
                self.columns.setdefault(first, set()).add(second)
            return sqlite3.SQLITE_OK
        if action in _READING or (action == sqlite3.SQLITE_PRAGMA and first in _DESCRIBING):
            return sqlite3.SQLITE_OK
        self._is_writing = True
        return sqlite3.SQLITE_DENY

    def _refused(self, error: Exception) -> Exception:
        """Return the exception to raise for an error of SQLite."""
        reason = str(error)
        if self._is_over() and reason == "interrupted":
            return TimeIsOver()
        if reason in {"database or disk is full", "disk I/O error"}:
            return Unavailable(f"the statement stopped: {reason}; free some space on the disk of temporary files")
        if self._is_writing:
            reason = "it would change tables or settings; write a statement that only reads, such as SELECT"
        elif "one statement at a time" in reason:
            reason = "it contains several statements; give one"
        elif reason.startswith("no such table"):
            reason += f"; the tables are {', '.join(_COLUMNS)}"
        elif reason.startswith("no such column"):
            words = set(re.findall(r"\w+", self._statement.lower()))
            names = [name for name in _COLUMNS if name in words]
            reason += "".join(f"; the columns of {name} are {', '.join(_COLUMNS[name])}" for name in names)
        return Invalid("statement", reason)


def _bounded_rows(cursor: sqlite3.Cursor, limit: int) -> list[tuple[Any, ...]]:
    """Return the rows of a statement: one more than the limit, or all for -1.

    Raises:
        Invalid: the values have more bytes than may be in memory.
    """
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor if limit < 0 else islice(cursor, limit + 1):
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > _RESULT_BYTES:
            raise Invalid(
                "statement", f"has a result of more than {_RESULT_BYTES:,} bytes; select fewer columns or rows"
            )
        rows.append(row)
    return rows
