"""Functions of DuckDB that SQLite lacks, so that more statements are equal in both."""

from __future__ import annotations

import sqlite3
import statistics
from datetime import datetime


def add_functions(connection: sqlite3.Connection) -> None:
    """Add `epoch`, and the aggregates `median` and `stddev`, to a connection."""
    connection.create_function("epoch", 1, _epoch, deterministic=True)
    connection.create_aggregate("median", 1, _Median)
    connection.create_aggregate("stddev", 1, _StandardDeviation)


def _epoch(time: str | None) -> float | None:
    """Return the seconds since 1970 of a timestamp."""
    return None if time is None else datetime.fromisoformat(time).timestamp()


class _Values:
    """The values of an aggregate, without nulls."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)


class _Median(_Values):
    def finalize(self) -> float | None:
        return statistics.median(self._values) if self._values else None


class _StandardDeviation(_Values):
    """The standard deviation of a sample; null for less than two values."""

    def finalize(self) -> float | None:
        return statistics.stdev(self._values) if len(self._values) > 1 else None
