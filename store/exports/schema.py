"""Schema of exported tables: their columns with types, and one version for all tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from store.errors import Invalid
from store.exports.records import RolloutRecord

SCHEMA_VERSION: Final = 1
"""The version of all tables. It changes when a column is removed, renamed or gets another type or meaning."""

Kind = Literal["text", "int64", "float64", "bool", "timestamp", "json", "int64s", "texts"]
"""The types of columns.

In rows, a `timestamp` is float seconds since the epoch, which become microseconds in UTC. A value of `json` is bytes
with JSON text, a value of `int64s` is a list of ints, and one of `texts` a list of strings. Null is None.
"""

Row = Sequence[Any]


class TableColumn(NamedTuple):
    """A column of a table."""

    name: str
    kind: Kind
    description: str
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table that an export can contain."""

    name: str
    description: str
    columns: tuple[TableColumn, ...]
    rows: Callable[[RolloutRecord], Sequence[Row]]
    """A function that returns the rows of a rollout, with the values in the order of the columns."""
    reads: frozenset[str] = frozenset()
    """The parts of a record from which the rows are made, besides the rollout itself; see `ExportSource.reads`."""
    bulk: tuple[int, ...] = ()
    """The indexes of the columns with most of the data. The sizes of their values bound the rows in memory."""
    is_row_per_span: bool = False
    """Whether each row is made from one span, so that a rollout can be written in parts."""

    def without(self, names: Sequence[str]) -> Table:
        """Return the table with nulls in the named columns.

        Raises:
            Invalid: the table has no such column, or the column is needed to identify the rows.
        """
        if not names:
            return self
        places: set[int] = set()
        for name in names:
            place = next((place for place, column in enumerate(self.columns) if column.name == name), None)
            if place is None:
                columns = ", ".join(column.name for column in self.columns)
                raise Invalid("redact", f"{self.name} has no column {name!r}; its columns are {columns}")
            if not self.columns[place].is_nullable:
                raise Invalid(
                    "redact", f"{self.name}.{name} identifies a row and cannot be removed; leave the table out"
                )
            places.add(place)
        rows = self.rows

        def redacted(record: RolloutRecord) -> Sequence[Row]:
            return [tuple(None if at in places else value for at, value in enumerate(row)) for row in rows(record)]

        return replace(self, rows=redacted)
