"""The format atif: one document for each attempt, in folders. Each folder has an index."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import orjson

from store.errors import Invalid
from store.exports.formats.base import ExportOrigin, Format, RowWriter
from store.exports.manifest import UNFINISHED, folder_of, sync_directory
from store.exports.schema import Row, Table
from store.exports.tables import TRAJECTORIES

_UNSAFE: Final = re.compile(r"[^\w.-]", re.ASCII)
_LONGEST_ID: Final = 100


class ATIF(Format):
    """Folders `SPLIT-PART/` with a document for each attempt, and for each folder an index `SPLIT-PART.jsonl`.

    A line of the index has the columns of the table except the document, and the path of the document as `file`, with
    its size and hash.
    """

    name: ClassVar[str] = "atif"
    suffix: ClassVar[str] = "jsonl"
    writes_empty_tables: ClassVar[bool] = False
    rows_per_file: ClassVar[int] = 1000

    def tables(self, names: Sequence[str] | None) -> tuple[Table, ...]:
        if names not in (None, [TRAJECTORIES.name], (TRAJECTORIES.name,)):
            raise Invalid("tables", f"the format {self.name} has one table, {TRAJECTORIES.name}; leave the option out")
        return (TRAJECTORIES,)

    def path(self, table: Table, split: str, part: int) -> str:
        del table  # the only one
        return f"{split}-{part:05d}.{self.suffix}"

    def writer(self, file: IO[bytes], table: Table, origin: ExportOrigin) -> RowWriter:
        del origin  # the manifest has it
        return _Documents(file, table)


class _Documents(RowWriter):
    """Writer of documents into a folder, and of its index. The folder gets its final name when it is complete."""

    def __init__(self, index: IO[bytes], table: Table) -> None:
        self._index = index
        self._names = [column.name for column in table.columns]
        self._folder = folder_of(Path(index.name))
        self._unfinished = self._folder.with_name(self._folder.name + UNFINISHED)
        self._unfinished.mkdir()
        self._files: dict[str, Path] = {}
        self.size = 0

    @property
    def buffered(self) -> int:
        return 0

    @property
    def size_beside(self) -> int:
        return self.size

    def write(self, rows: Sequence[Row]) -> None:
        lines: list[bytes] = []
        for row in rows:
            fields = dict(zip(self._names, row, strict=True))
            document = fields.pop("document")
            file = self._unfinished / self._name(fields)
            file.write_bytes(document)
            self._files[file.name] = file
            self.size += len(document)
            about = {"file": f"{self._folder.name}/{file.name}", "bytes": len(document)}
            lines.append(
                orjson.dumps(
                    {**fields, **about, "sha256": sha256(document).hexdigest()}, option=orjson.OPT_APPEND_NEWLINE
                )
            )
        self._index.write(b"".join(lines))

    def _name(self, fields: Mapping[str, Any]) -> str:
        """Return the name of a document, made of the id of the rollout and the number of the attempt."""
        rollout_id: str = fields["rollout_id"]
        name = _UNSAFE.sub("_", rollout_id)[:_LONGEST_ID]
        if name != rollout_id:
            name = f"{name}-{sha256(rollout_id.encode()).hexdigest()[:8]}"
        name = f"{name}-{fields['number']}"
        # If a store's own documents were imported into the store, two attempts have the same ids in their documents.
        file, copies = f"{name}.json", count(2)
        while file in self._files:
            file = f"{name}.{next(copies)}.json"
        return file

    def flush(self) -> None:
        pass

    def close(self) -> None:
        for file in self._files.values():
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(self._unfinished)

    def rename(self) -> None:
        self._unfinished.replace(self._folder)

    def abandon(self) -> None:
        shutil.rmtree(self._unfinished, ignore_errors=True)
