"""Collection of the differences between the log and the tables, which counts all and describes the first."""

from typing import Any

from sqlalchemy import Table

from store.db.dialect import Row, TypeFault
from store.models import Difference
from store.verification.fold import Finding

SHOWN = 1000
"""The maximum number of differences that a report describes."""

_CHECKS = {"span_counters": "counters"}


class Differences:
    """The first differences, at most `SHOWN`, and the number of all differences."""

    def __init__(self) -> None:
        self.first: list[Difference] = []
        self.count = 0

    def add(self, check: str, key: str, field: str | None, expected: Any, actual: Any) -> None:
        """Add a difference.

        Args:
            check: the name of the check that found the difference, such as the name of a table.
            key: the object that differs, such as an event or the primary key of a row.
            field: the field that differs; None if the object is missing, is unexpected, or differs as a whole.
            expected: the correct value; None if there should be no value.
            actual: the value that was found; None if there is no value.
        """
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(
                Difference(check=check, key=key, field=field, expected=_json_value(expected), found=_json_value(actual))
            )

    def join(self, others: list[Difference], count: int) -> None:
        """Add the first differences of another collection, and the number of all its differences."""
        self.count += count
        self.first.extend(others[: SHOWN - len(self.first)])

    def add_type_fault(self, fault: TypeFault) -> None:
        """Add the difference for a value whose type is not the type of its column."""
        self.add(_check_of(fault.table), fault.key, fault.column, fault.expected, fault.actual)

    def add_row(self, finding: Finding) -> None:
        """Add one difference for a row that is missing or unexpected, or else one for each column that differs."""
        table, expected, actual = finding.table, finding.expected, finding.actual
        check, key = _check_of(table), "/".join(str(part) for part in finding.key)
        if expected is None or actual is None:
            self.add(check, key, None, _named(table, expected), _named(table, actual))
            return
        for column, correct, stored in zip(table.columns, expected, actual, strict=True):
            if correct != stored:
                self.add(check, key, column.name, correct, stored)


def _check_of(table: Table) -> str:
    return _CHECKS.get(table.name, table.name)


def _named(table: Table, row: Row | None) -> dict[str, Any] | None:
    # SQLAlchemy's names are a subclass of `str` that orjson does not accept as a key.
    return (
        None
        if row is None
        else {str(column.name): _json_value(row[index]) for index, column in enumerate(table.columns)}
    )


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else value
