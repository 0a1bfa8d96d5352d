"""The format jsonl: files with one JSON object per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any, ClassVar, Final

import orjson

from store.exports.formats.base import ExportOrigin, Format, RowWriter, refused
from store.exports.schema import Row, Table, TableColumn

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class JSONLines(Format):
    """Files with one JSON object per line, which has all columns. Times are RFC 3339 in UTC with microseconds."""

    name: ClassVar[str] = "jsonl"
    suffix: ClassVar[str] = "jsonl"

    def writer(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> RowWriter:
        del origin  # the manifest has it
        return _Lines(file, table)


class _Lines(RowWriter):
    def __init__(self, file: IO[bytes], table: Table) -> None:
        self._file = file
        self._table = table
        self._names = [column.name for column in table.columns]
        self._converted = [
            (column.name, convert) for column in table.columns if (convert := _convert(column)) is not None
        ]

    @property
    def buffered(self) -> int:
        return 0

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join([self._line(row) for row in rows]))

    def _line(self, row: Row) -> bytes:
        fields = dict(zip(self._names, row, strict=True))
        try:
            for name, convert in self._converted:
                if fields[name] is not None:
                    fields[name] = convert(fields[name])
            return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._refused(row, error) from None

    def _refused(self, row: Row, error: Exception) -> Exception:
        for column, value in zip(self._table.columns, row, strict=True):
            convert = _convert(column)
            try:
                orjson.dumps(value if convert is None or value is None else convert(value))
            except (TypeError, ValueError, OverflowError) as reason:
                return refused(self._table, column, row, value, str(reason))
        return error

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _convert(column: TableColumn) -> Callable[[Any], Any] | None:
    """Return a function that converts the values of a column for `orjson`; None if they need no conversion."""
    match column.kind:
        case "json":
            return orjson.Fragment
        case "timestamp":
            return timestamp_text
        case _:
            return None


def timestamp_of(seconds: float) -> datetime:
    """Return a time in seconds since the epoch, rounded to microseconds, in UTC.

    Raises:
        OverflowError: the year is not between 1 and 9999.
    """
    return _EPOCH + timedelta(microseconds=round(seconds * 1_000_000))


def timestamp_text(seconds: float) -> str:
    """Return a time in seconds since the epoch as RFC 3339 with microseconds, in UTC."""
    return timestamp_of(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
