"""The format parquet: Parquet files, compressed with zstd, with several row groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final

from store.exports.formats.arrow import ArrowTable, arrow
from store.exports.formats.base import ExportOrigin, Format, RowWriter
from store.exports.manifest import VIEWS_NAME, Manifest, replace_file
from store.exports.schema import Row, Table
from store.exports.views import views_of

_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 32_000_000
_LEVEL: Final = 3
"""The level of zstd. Files are a seventh smaller than with level 1. Compression runs while the next rows are read."""
_SHORT: Final = frozenset({"text", "int64", "float64", "bool", "timestamp"})


class Parquet(Format):
    """Parquet files.

    Raises:
        Invalid: pyarrow is not installed.
    """

    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = "parquet"

    def __init__(self) -> None:
        arrow("pyarrow.parquet")

    def writer(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> RowWriter:
        return _ParquetRows(file, table, origin)

    def finish(self, directory: Path, manifest: Manifest, tables: Sequence[Table]) -> None:
        del manifest  # its paths have the same pattern in every export
        replace_file(directory / VIEWS_NAME, _views(tables, self.suffix).encode())


def _views(tables: Sequence[Table], suffix: str) -> str:
    """Return the statements that create the tables and views of an export in DuckDB."""
    statements = [f"CREATE OR REPLACE VIEW {table.name} AS FROM '{table.name}/*.{suffix}'" for table in tables] + [
        view.statement.replace("CREATE VIEW", "CREATE OR REPLACE VIEW") for view in views_of(tables)
    ]
    text = "".join(f"{statement};\n" for statement in statements)
    return f"-- For DuckDB, with this directory as the current directory or as file_search_path.\n{text}"


def parquet_writer(file: Any, table: Table, schema: Any) -> Any:
    """Return pyarrow's writer with the settings of an export."""
    bulk = {table.columns[place].name for place in table.bulk}
    names = [column.name for column in table.columns if column.name not in bulk]
    return arrow("pyarrow.parquet").ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=_LEVEL,
        # Most values of bulk columns are long and distinct, so dictionaries and statistics of them only cost time.
        use_dictionary=[
            column.name for column in table.columns if column.kind in {"text", "json"} and column.name in names
        ],
        write_statistics=[column.name for column in table.columns if column.kind in _SHORT and column.name in names],
    )


class _ParquetRows(RowWriter):
    """Writer of rows in row groups. The sizes of the row groups depend on the rows only."""

    def __init__(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> None:
        self._converter = ArrowTable(table, origin)
        self._writer = parquet_writer(file, table, self._converter.schema)
        self._group: list[Any] = []
        self._rows = 0
        self._size = 0

    @property
    def buffered(self) -> int:
        return self._size

    def write(self, rows: Sequence[Row]) -> None:
        batch = self._converter.batch(rows)
        self._group.append(batch)
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._group:
            group = arrow().Table.from_batches(self._group, schema=self._converter.schema)
            self._group, self._rows, self._size = [], 0, 0
            self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> None:
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        # Otherwise pyarrow's writer would write the end of the file when the object is deleted.
        self._writer.is_open = False
