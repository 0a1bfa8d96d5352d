"""SQL expressions that several queries use, for SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, bindparam, case, cast, func, literal_column, or_
from sqlalchemy.types import BigInteger, Integer

ONE: Final[ColumnElement[int]] = literal_column("1", Integer)
ZERO: Final[ColumnElement[int]] = literal_column("0", Integer)
_HUGE: Final[ColumnElement[float]] = literal_column("1e300", Float)
_LOW: Final[ColumnElement[float]] = literal_column("-1e300", Float)
_TINY: Final[ColumnElement[float]] = literal_column("1e-290", Float)
_ZERO: Final[ColumnElement[float]] = literal_column("0e0", Float)


def one_of(column: ColumnElement[str], values: Collection[str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of a few values. Use `Dialect.any_of` for many values."""
    return or_(*(column == value for value in sorted(values)))


def big(value: int) -> ColumnElement[int]:
    """Return a 64-bit integer as a parameter of a statement."""
    return bindparam(None, value, type_=BigInteger)


def bounded(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return a column of numbers limited to ±1e300, so that Postgres computes with them without an overflow error."""
    return case((column > _HUGE, _HUGE), (column < _LOW, _LOW), else_=column)


def mean_of(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the mean of a column of numbers. If the sum is closer to zero than 1e-290, the mean is returned as zero.

    The function `avg` of Postgres is not used, because it squares the numbers. It therefore fails for numbers beyond
    1e154, and also for results that are too close to zero.
    """
    total = cast(func.sum(bounded(column)), Float)
    return case((func.abs(total) < _TINY, _ZERO), else_=total / cast(func.count(column), Float))
