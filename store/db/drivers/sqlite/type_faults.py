"""Search of a SQLite file for values whose type is not the type of their column. Decision 49.

SQLite accepts a value of any type in nearly every column. It also accepts text that is not UTF-8. This program never
writes such values and cannot read them.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Double, LargeBinary, Table, Text

from store.db.dialect import TypeFault, TypeFaults
from store.db.tables.core import metadata

_SHOWN_BYTES = 60
_EXPECTED = {"text": "UTF-8 text", "blob": "a blob", "real": "a real number", "integer": "an integer"}
_IS_UTF8 = "rollbook_is_utf8"


def define_functions(connection: sqlite3.Connection) -> None:
    """Define the SQL function that the statements of this module use to check texts. Call this for each connection."""
    connection.create_function(_IS_UTF8, -1, _is_utf8, deterministic=True)


def has_type_faults(connection: sqlite3.Connection, tables: Sequence[Table], *, texts: bool) -> bool:
    """Return whether one of the tables contains a value whose type is not the type of its column.

    If `texts` is true, a text that is not UTF-8 counts too.
    """
    for table in tables:
        faulty = f"SELECT 1 FROM {table.name} WHERE NOT ({_classes(table)}) LIMIT 1"
        if connection.execute(faulty).fetchone() is not None:
            return True
        names = ", ".join(column.name for column in table.columns if _class(column) == "text")
        if not (texts and names):
            continue
        try:
            # The driver decodes each text, and raises an error for a text that is not UTF-8.
            for _ in connection.execute(f"SELECT {names} FROM {table.name}"):
                pass
        except sqlite3.OperationalError as error:
            if "decode" in str(error):
                return True
            raise
    return False


def hide_type_faults(connection: sqlite3.Connection) -> TypeFaults:
    """Return all values whose type is not the type of their column, and hide their rows until the transaction ends.

    A temporary view with the name of a table takes precedence over the table. The views exist until the transaction
    ends.
    """
    faults = TypeFaults()
    connection.execute("PRAGMA query_only = OFF")
    try:
        for table in metadata.tables.values():
            sound = _sound(table)
            for fault in _faults(connection, table, sound):
                faults.add(fault)
            if faults.counts[table.name]:
                connection.execute(f"CREATE TEMP VIEW {table.name} AS SELECT * FROM main.{table.name} WHERE {sound}")
    finally:
        connection.execute("PRAGMA query_only = ON")
    return faults


def delete_type_faults(connection: sqlite3.Connection, tables: Sequence[Table]) -> dict[str, int]:
    """Delete the rows that `hide_type_faults` would hide; return the number of deleted rows by table name."""
    deleted: dict[str, int] = {}
    for table in tables:
        statement = f"DELETE FROM {table.name} WHERE NOT ({_sound(table)})"
        deleted[table.name] = connection.execute(statement).rowcount
    return {name: count for name, count in deleted.items() if count}


def _class(column: Column[Any]) -> str:
    for type_, name in ((Text, "text"), (LargeBinary, "blob"), (Double, "real")):
        if isinstance(column.type, type_):
            return name
    return "integer"


def _classes(table: Table) -> str:
    """Return an SQL condition that is true if each value of a row has the storage class of its column."""
    return " AND ".join(
        f"typeof({column.name}) IN ('{_class(column)}', 'null')"
        if column.nullable
        else f"typeof({column.name}) = '{_class(column)}'"
        for column in table.columns
    )


def _sound(table: Table) -> str:
    """Return an SQL condition that is true if this program can read all values of a row."""
    texts = [f"CAST({column.name} AS BLOB)" for column in table.columns if _class(column) == "text"]
    return f"{_classes(table)} AND {_IS_UTF8}({', '.join(texts)})" if texts else _classes(table)


def _is_utf8(*texts: bytes | None) -> bool:
    try:
        for text in texts:
            if text is not None:
                text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _faults(connection: sqlite3.Connection, table: Table, sound: str) -> Iterator[TypeFault]:
    parts: list[str] = []
    for column in table.columns:
        text = f"CAST({column.name} AS BLOB)"
        is_utf8 = f"{_IS_UTF8}({text})" if _class(column) == "text" else "1"
        parts += [f"typeof({column.name})", f"substr({text}, 1, {_SHOWN_BYTES})", is_utf8]
    statement = f"SELECT {', '.join(parts)} FROM main.{table.name} WHERE NOT ({sound})"
    for row in connection.execute(statement):
        values = list(zip(table.columns, row[::3], row[1::3], row[2::3], strict=True))
        key = "/".join(_text(class_, stored) for column, class_, stored, _ in values if column.primary_key)
        for column, class_, stored, is_utf8 in values:
            if is_utf8 and (class_ == _class(column) or (class_ == "null" and column.nullable)):
                continue
            yield TypeFault(table, key, column.name, _EXPECTED[_class(column)], _excerpt(class_, stored))


def _excerpt(class_: str, stored: bytes | None) -> str:
    return f"{class_} {_text(class_, stored) if class_ == 'blob' else repr(_text(class_, stored))}"


def _text(class_: str, stored: bytes | None) -> str:
    # For an empty blob, `substr` returns null.
    stored = stored or b""
    return f"X'{stored.hex()}'" if class_ == "blob" else stored.decode(errors="backslashreplace")
