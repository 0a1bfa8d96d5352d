"""Conversion of rows to Arrow, for Parquet and for tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from store.errors import Invalid
from store.exports.formats.base import ExportOrigin, refused
from store.exports.schema import SCHEMA_VERSION, Kind, Row, Table

_MICROSECONDS: Final = 1_000_000


def arrow(name: str = "pyarrow") -> Any:
    """Return pyarrow, or one of its modules.

    Raises:
        Invalid: pyarrow is not installed.
    """
    return module(name, "'rollbook[export]'")


def module(name: str, package: str | None = None) -> Any:
    """Return a module of an optional package.

    Raises:
        Invalid: the package is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        top = name.partition(".")[0]
        raise Invalid(top, f"is not installed; run pip install {package or top}") from None


class ArrowTable:
    """Converter from rows of a table to Arrow.

    Args:
        table: the table.
        origin: the id and the position of the store, which are added to the metadata of the schema; None to leave
            them out.
    """

    def __init__(self, table: Table, origin: ExportOrigin | None = None) -> None:
        pa = arrow()
        self._pa = pa
        self._table = table
        self._to_array: dict[Kind, Callable[[Sequence[Any]], Any]] = {
            "text": partial(pa.array, type=pa.string()),
            "json": partial(pa.array, type=pa.string()),
            "int64": partial(pa.array, type=pa.int64()),
            "float64": partial(pa.array, type=pa.float64()),
            "bool": partial(pa.array, type=pa.bool_()),
            "int64s": partial(pa.array, type=pa.list_(pa.int64())),
            "texts": partial(pa.array, type=pa.list_(pa.string())),
            "timestamp": self._timestamps,
        }
        types: dict[Kind, Any] = {
            "text": pa.string(),
            "json": pa.string(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "int64s": pa.list_(pa.int64()),
            "texts": pa.list_(pa.string()),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
        fields = [
            pa.field(
                column.name,
                types[column.kind],
                nullable=column.is_nullable,
                metadata={"rollbook.type": column.kind, "description": column.description},
            )
            for column in table.columns
        ]
        metadata = {"rollbook.schema_version": str(SCHEMA_VERSION), "rollbook.table": table.name}
        if origin is not None:
            metadata |= {"rollbook.store_id": origin.store_id, "rollbook.position": str(origin.position)}
            if origin.unrewarded != "out":
                metadata["rollbook.unrewarded"] = origin.unrewarded
        self.schema = pa.schema(fields, metadata=metadata)

    def batch(self, rows: Sequence[Row]) -> Any:
        """Return rows as a `RecordBatch`.

        Raises:
            Invalid: a value does not have the type of its column.
        """
        arrays: list[Any] = []
        for place, values in enumerate(zip(*rows, strict=True)):
            convert = self._to_array[self._table.columns[place].kind]
            try:
                arrays.append(convert(values))
            except (self._pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise self._refused(place, rows, convert, error) from None
        return self._pa.record_batch(arrays, schema=self.schema)

    def _timestamps(self, values: Sequence[float | None]) -> Any:
        """Return times in float seconds as an array of timestamps.

        Raises:
            ArrowInvalid: a time in microseconds does not fit into 64 bits.
        """
        pa, compute = self._pa, arrow("pyarrow.compute")
        seconds = pa.array(values, type=pa.float64())
        numbers = compute.round(compute.multiply(seconds, float(_MICROSECONDS)))
        return compute.cast(compute.cast(numbers, pa.int64()), pa.timestamp("us", tz="UTC"))

    def _refused(self, place: int, rows: Sequence[Row], convert: Callable[[Sequence[Any]], Any], error: Any) -> Invalid:
        """Return the error for the first value of a column that cannot be converted."""
        column = self._table.columns[place]
        for row in rows:
            try:
                convert([row[place]])
            except (self._pa.ArrowException, OverflowError, ValueError, TypeError) as reason:
                return refused(self._table, column, row, row[place], str(reason))
        return Invalid(f"{self._table.name}.{column.name}", str(error))
