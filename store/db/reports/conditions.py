"""Conditions and values that any statement for people may need, as both databases take them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, bindparam, case, cast, func, literal_column, or_
from sqlalchemy.types import BigInteger

_HUGE: Final[ColumnElement[float]] = literal_column("1e300", Float)
_LOW: Final[ColumnElement[float]] = literal_column("-1e300", Float)
_TINY: Final[ColumnElement[float]] = literal_column("1e-290", Float)
_ZERO: Final[ColumnElement[float]] = literal_column("0e0", Float)


def one_of(column: ColumnElement[str], values: Collection[str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of a few values; for more than a few there is `Dialect.any_of`."""
    return or_(*(column == value for value in sorted(values)))


def big(value: int) -> ColumnElement[int]:
    """Return a whole number of 64 bits as a value of a statement."""
    return bindparam(None, value, type_=BigInteger)


def bounded(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return a column of numbers, those beyond 1e300 as 1e300: with these Postgres computes without refusing."""
    return case((column > _HUGE, _HUGE), (column < _LOW, _LOW), else_=column)


def mean_of(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the mean of a column of numbers; one closer to zero than 1e-290 as zero.

    Postgres's own squares them, so takes none beyond 1e154; and it divides nothing that would become too small.
    """
    total = cast(func.sum(bounded(column)), Float)
    return case((func.abs(total) < _TINY, _ZERO), else_=total / cast(func.count(column), Float))
