"""Conditions that any statement for people may need, as both databases take them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, bindparam, or_
from sqlalchemy.types import BigInteger


def one_of(column: ColumnElement[str], values: Collection[str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of a few values; for more than a few there is `Dialect.any_of`."""
    return or_(*(column == value for value in sorted(values)))


def big(value: int) -> ColumnElement[int]:
    """Return a whole number of 64 bits as a value of a statement."""
    return bindparam(None, value, type_=BigInteger)
