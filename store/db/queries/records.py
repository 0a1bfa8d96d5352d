"""Rows of statements as objects of dataclasses whose fields have the names of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import ColumnElement

from store.db.dialect import NamedRow

Record = TypeVar("Record")


def columns_of(kind: type[Any], *sources: Mapping[str, ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Return a column for each field of a dataclass that one of the sources contains. Later sources take precedence."""
    columns = {name: column for source in sources for name, column in source.items()}
    return [columns[field.name].label(field.name) for field in fields(kind) if field.name in columns]


def records(kind: type[Record], rows: Iterable[NamedRow]) -> list[Record]:
    """Return an object of a dataclass for each row. The dataclass must have at least two fields."""
    values = attrgetter(*(field.name for field in fields(kind)))  # pyright: ignore[reportArgumentType]
    return [kind(*values(row)) for row in rows]
