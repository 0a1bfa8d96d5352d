"""The format otlp: files as OpenTelemetry's file exporter writes them, with one JSON request per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, ClassVar

from store.errors import Invalid
from store.exports.formats.base import ExportOrigin, Format, RowWriter
from store.exports.schema import Row, Table
from store.exports.tables.otlp import OTLP


class OpenTelemetry(Format):
    """Files `SPLIT-PART.jsonl` with one span per line."""

    name: ClassVar[str] = "otlp"
    suffix: ClassVar[str] = "jsonl"

    def tables(self, names: Sequence[str] | None) -> tuple[Table, ...]:
        if names not in (None, [OTLP.name], (OTLP.name,)):
            raise Invalid("tables", f"the format {self.name} has no tables to choose from; leave the option out")
        return (OTLP,)

    def path(self, table: Table, split: str, part: int) -> str:
        del table  # the only one
        return f"{split}-{part:05d}.{self.suffix}"

    def writer(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> RowWriter:
        del table, origin  # the manifest has both
        return _Requests(file)


class _Requests(RowWriter):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    @property
    def buffered(self) -> int:
        return 0

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join([line + b"\n" for (line,) in rows]))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
