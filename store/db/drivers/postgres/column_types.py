"""Types of Postgres for the columns of tables."""

from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Double, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.types import TypeEngine

# Subclasses come first: a SmallInteger is an Integer.
_TYPES: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (SmallInteger, "smallint"),
    (BigInteger, "bigint"),
    (Integer, "integer"),
    (Double, "double precision"),
    (LargeBinary, "bytea"),
    (Text, "text"),
)


@cache
def column_types(table: Table) -> dict[str, str]:
    """Return the type of each column, by name."""
    return {
        column.name: next(name for kind, name in _TYPES if isinstance(column.type, kind)) for column in table.columns
    }
