"""Base classes of formats, and of the writers that write rows into one file."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from store.errors import Invalid
from store.exports.manifest import Manifest
from store.exports.schema import Row, Table, TableColumn
from store.exports.tables import tables_of


@dataclass(frozen=True, slots=True)
class ExportOrigin:
    """The store, and the position of its log, from which the rows of a file were read."""

    store_id: str
    position: int
    unrewarded: str = "out"
    """How ended rollouts without a reward count: `out`, or for example `failed:0`."""


class RowWriter(abc.ABC):
    """Writer of rows of a table into one file."""

    @property
    @abc.abstractmethod
    def buffered(self) -> int:
        """The number of bytes that are in memory until `flush` writes them."""

    @abc.abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Add rows.

        Raises:
            Invalid: the format cannot represent a value.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Write all added rows that are still in memory."""

    @abc.abstractmethod
    def close(self) -> None:
        """Write the end of the file. The caller closes the file."""

    @property
    def size_beside(self) -> int:
        """The number of bytes that the writer has written into further files, such as documents."""
        return 0

    def rename(self) -> None:  # noqa: B027 - most writers have one file
        """Give further files their final names. Called after `close`, and before the main file gets its final name."""

    def abandon(self) -> None:  # noqa: B027 - most writers need nothing
        """Stop without writing more, and delete further files. The caller deletes the main file."""


class Format(abc.ABC):
    """A format of exports. By default, its files are named `TABLE/SPLIT-PART.SUFFIX`."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    default_split: ClassVar[str] = "part"
    """The name of the only split if the caller gives no rule for splits."""
    rows_per_file: ClassVar[int] = 500_000
    """The number of rows of a table with which a part ends, if the caller gives no number."""
    writes_empty_tables: ClassVar[bool] = True
    """Whether an export has a file for a table without rows, so that readers find the columns."""

    def tables(self, names: Sequence[str] | None) -> tuple[Table, ...]:
        """Return the tables of the export.

        Raises:
            Invalid: the format has no such table.
        """
        return tables_of(names)

    def path(self, table: Table, split: str, part: int) -> str:
        """Return the path of a file in the directory of the export."""
        return f"{table.name}/{split}-{part:05d}.{self.suffix}"

    @abc.abstractmethod
    def writer(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> RowWriter:
        """Return a writer into a file."""

    def finish(self, directory: Path, manifest: Manifest, tables: Sequence[Table]) -> None:  # noqa: B027 - most need none
        """Write files about the whole export, after all tables."""


def refused(table: Table, column: TableColumn, row: Row, value: object, reason: str) -> Invalid:
    """Return the error for a value that a format cannot represent."""
    names = [other.name for other in table.columns]
    keys = [f"{name} {row[names.index(name)]}" for name in ("rollout_id", "span_id") if name in names]
    text = repr(value)
    excerpt = text if len(text) <= 80 else f"{text[:80]}…"
    return Invalid(
        f"{table.name}.{column.name}",
        f"{excerpt} of {', '.join(keys)} is not a value of type {column.kind} ({reason});"
        f" redact {table.name}.{column.name}, or leave the rollout or the table out",
    )
