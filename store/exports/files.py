"""Files of an export. Rows are written in parts, and all files of a part get their final names together."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final

from store.errors import Unavailable
from store.exports.formats.base import ExportOrigin, Format, RowWriter
from store.exports.manifest import UNFINISHED, FileEntry, sync_directory
from store.exports.schema import Row, Table

_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 2_000_000
"""A block of rows is passed to the format's writer when it has this many rows, or this many bytes in bulk columns."""
_BUFFERED_BYTES: Final = 64_000_000
"""The most bytes that the writers of a part hold together."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class HashedFile:
    """A file to write, with the hash of the written bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("wb")
        self._hash = sha256()
        self.name = str(path)
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._file.write(data)
        self._hash.update(data)
        length = memoryview(data).nbytes
        self.size += length
        return length

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> str:
        """Write the file to disk and close it; return its hash in hex."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        self.closed = True
        self._file.close()


class _TableFile:
    """One file of a part, with the rows that are not yet written."""

    def __init__(self, path: Path, form: Format, table: Table, origin: ExportOrigin) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = HashedFile(path.with_name(path.name + UNFINISHED))
        self._path = path
        self._bulk = table.bulk
        self._writer: RowWriter = form.writer(self._file, table, origin)  # pyright: ignore[reportArgumentType] - what writers use
        self._block: list[Row] = []
        self._block_size = 0
        self.rows = 0

    @property
    def buffered(self) -> int:
        return self._block_size + self._writer.buffered

    def add(self, rows: Sequence[Row]) -> None:
        size = sum([_size(rows, place) for place in self._bulk])
        self.rows += len(rows)
        if len(self._block) + len(rows) < _BLOCK_ROWS and self._block_size + size < _BLOCK_BYTES:
            self._block += rows
            self._block_size += size
            return
        for row in rows:
            self._block.append(row)
            self._block_size += sum([_size((row,), place) for place in self._bulk])
            if len(self._block) >= _BLOCK_ROWS or self._block_size >= _BLOCK_BYTES:
                self._write_block()

    def flush(self) -> None:
        self._write_block()
        self._writer.flush()

    def _write_block(self) -> None:
        if self._block:
            rows, self._block, self._block_size = self._block, [], 0
            self._writer.write(rows)

    def finish(self, directory: Path, table: Table, split: str) -> FileEntry:
        """Write the file to disk under its temporary name, and return its entry for the manifest."""
        self._write_block()
        self._writer.close()
        digest = self._file.finish()
        path = str(self._path.relative_to(directory))
        size = self._file.size + self._writer.size_beside
        return FileEntry(path=path, table=table.name, split=split, rows=self.rows, size_bytes=size, sha256=digest)

    def rename(self) -> None:
        self._writer.rename()
        self._file.path.replace(self._path)

    def discard(self) -> None:
        self._writer.abandon()
        with suppress(OSError):  # a file that cannot grow cannot be flushed
            self._file.close()
        with suppress(OSError):
            self._file.path.unlink(missing_ok=True)


def _size(rows: Sequence[Row], place: int) -> int:
    """Return the sum of the lengths of the values in one column."""
    return sum([len(value) for row in rows if (value := row[place]) is not None])


@dataclass
class ExportPart:
    """The files of one part of an export.

    Args:
        directory: the directory of the export.
        number: the number of the part, from 0.
        form: the format.
        origin: the state of the store.
    """

    directory: Path
    number: int
    form: Format
    origin: ExportOrigin
    _files: dict[tuple[str, str], tuple[Table, _TableFile]] = field(default_factory=dict[Any, Any], init=False)
    _rows: dict[str, int] = field(default_factory=dict[str, int], init=False)

    @property
    def rows(self) -> int:
        """The number of rows of the table with the most rows."""
        return max(self._rows.values(), default=0)

    def add(self, table: Table, split: str, rows: Sequence[Row]) -> None:
        """Add rows to the file of a table and a split. The first call creates the file, even if `rows` is empty."""
        entry = self._files.get((table.name, split))
        if entry is None:
            path = self.directory / self.form.path(table, split, self.number)
            entry = self._files[table.name, split] = table, _TableFile(path, self.form, table, self.origin)
        entry[1].add(rows)
        self._rows[table.name] = self._rows.get(table.name, 0) + len(rows)

    def has(self, table: Table) -> bool:
        """Return whether the part has a file of a table."""
        return table.name in self._rows

    def flush_if_large(self) -> None:
        """Write the rows of the file with the most bytes in memory, if all files together have too many."""
        if len(self._files) > 1:
            sizes = {key: file.buffered for key, (_, file) in self._files.items()}
            if sum(sizes.values()) > _BUFFERED_BYTES:
                self._files[max(sizes, key=lambda key: sizes[key])][1].flush()

    def finish(self) -> list[FileEntry]:
        """Give the files their final names, and return their entries. They are on disk when this method returns."""
        entries = [file.finish(self.directory, table, split) for (_, split), (table, file) in self._files.items()]
        for _, file in self._files.values():
            file.rename()
        for folder in {self.directory, *((self.directory / entry.path).parent for entry in entries)}:
            sync_directory(folder)
        self._files = {}
        return entries

    def discard(self) -> None:
        """Delete the files."""
        for _, file in self._files.values():
            file.discard()
        self._files = {}


@contextmanager
def full_disk_reported(directory: Path) -> Generator[None]:
    """Raise `Unavailable` for a full disk. Other errors of the operating system are raised unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        failure = Unavailable(
            f"the export to {directory} stopped: {error.strerror}; free some space, and the same command continues"
        )
        failure.is_disk_full = True
        raise failure from error
