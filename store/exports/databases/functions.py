"""Functions of DuckDB that SQLite lacks. With them, more statements run unchanged in both."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any


def add_functions(connection: sqlite3.Connection) -> None:
    """Add functions to a connection: `epoch`, the aggregates `median` and `stddev`, and keys with dots for `->>`."""
    connection.create_function("epoch", 1, _epoch, deterministic=True)
    # SQLite's own functions take time in the product of both sizes, and nothing can stop them meanwhile.
    connection.create_function("instr", 2, _instr, deterministic=True)
    replace = partial(_replace, connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH))
    connection.create_function("replace", 3, replace, deterministic=True)
    aggregates: dict[str, Any] = {"median": _Median, "stddev": _StandardDeviation}
    for name, aggregate in aggregates.items():
        connection.create_aggregate(name, 1, aggregate)
    if connection.execute("""SELECT '{"a.b": 1}' ->> 'a.b'""").fetchone() == (None,):
        # Before version 3.47, SQLite reads a dot as the end of a key. In Postgres and DuckDB, it belongs to the key.
        plain = sqlite3.connect(":memory:", check_same_thread=False)
        for name in ("->", "->>"):
            connection.create_function(name, 2, _extraction(plain, name), deterministic=True)


def _extraction(plain: sqlite3.Connection, operator: str) -> Callable[[str | None, str | int | None], Any]:
    """Return a function for the operator `->` or `->>`, which reads a text that does not begin with `$` as one key."""

    def extract(document: str | None, place: str | int | None) -> Any:
        if isinstance(place, str) and not place.startswith("$"):
            place = f'$."{place}"'
        return plain.execute(f"SELECT ? {operator} ?", (document, place)).fetchone()[0]

    return extract


def _instr(text: Any, part: Any) -> int | None:
    """Return the place of a part in a text or in bytes, from 1; 0 if there is none."""
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def _replace(limit: int, value: Any, part: Any, replacement: Any) -> Any:
    """Return a value as text, with another text in place of each part. With an empty part, nothing is replaced.

    Raises:
        OverflowError: the result has more characters than the limit. For SQLite, the value is then too big.
    """
    if value is None or part is None:
        return None
    text, old = _text(value), _text(part)
    if not old:
        return text if isinstance(value, bytes) else value
    if replacement is None:
        return None
    new = _text(replacement)
    if len(new) > len(old) and len(text) + text.count(old) * (len(new) - len(old)) > limit:
        raise OverflowError
    return text.replace(old, new)


def _text(value: Any) -> str:
    """Return the text to which SQLite converts a value."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    digits, exponent, power = f"{value:.15g}".partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}{exponent}{power}"


def _epoch(time: str | None) -> float | None:
    """Return a timestamp as seconds since 1970."""
    return None if time is None else datetime.fromisoformat(time).timestamp()


class _Values:
    """Base of aggregates, with the collected values that are not null."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)


class _Median(_Values):
    def finalize(self) -> float | None:
        return statistics.median(self._values) if self._values else None


class _StandardDeviation(_Values):
    """The standard deviation of a sample; null for fewer than two values."""

    def finalize(self) -> float | None:
        return statistics.stdev(self._values) if len(self._values) > 1 else None
