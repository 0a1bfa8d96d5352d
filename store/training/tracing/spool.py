"""Spool files, in which spans wait until they can be stored: one file per attempt, with a size limit per process."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from store.models import Span
from store.runtime.limited_log import LimitedLog
from store.runtime.process import is_gone, this_process

logger = logging.getLogger("store.training.spool")

MAX_BYTES: Final = 64 * 1024 * 1024
"""Default limit for the total size of all spool files of one process."""


class SpanSpool:
    """The spool files of all attempts of this process.

    Args:
        directory: the parent directory. Each process writes to its own subdirectory, and `left_behind` finds the
            subdirectories of dead processes. None creates a private temporary directory at first use.
        max_bytes: the limit for the total size of all files of this process. Files of ended attempts also count, if
            some of their spans could not be stored.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._parent = None if directory is None else os.fspath(directory)
        self._directory: Path | None = None
        self._bytes = 0
        self._lock = threading.Lock()
        self.limited = LimitedLog(logger)
        """Log of failures that a full disk repeats for every batch of spans."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SpanSpool, (self._parent, self.max_bytes)

    def directory(self) -> Path:
        """Return the directory of the files, and create it if necessary."""
        with self._lock:
            if self._directory is None and self._parent is None:
                self._directory = Path(tempfile.mkdtemp(prefix="rollbook-spool-"))
            elif self._directory is None:
                self._directory = Path(self._parent or "") / process_name(this_process())
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._directory

    def left_behind(self) -> list[Path]:
        """Move the files of dead processes of this machine to this process's directory, and return the new paths."""
        if self._parent is None:
            return []
        moved: list[Path] = []
        for path in sorted(Path(self._parent).glob("*/*.jsonl")):
            if is_gone(process_named(path.parent.name)):
                # If several processes start at once, only one of them can move the file.
                with suppress(FileNotFoundError):
                    moved.append(path.rename(self.directory() / path.name))
                with suppress(OSError):  # the directory is not empty
                    path.parent.rmdir()
        return moved

    def reserve(self, size: int) -> bool:
        """Reserve bytes; return False if the limit would be exceeded."""
        with self._lock:
            if self._bytes + size > self.max_bytes:
                return False
            self._bytes += size
            return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._bytes -= size


def process_name(process: Mapping[str, Any]) -> str:
    """Return the name of the directory of a process."""
    return f"{quote(process['host'], safe='')}.{process['pid']}.{process['pid_started'] or ''}"


def process_named(name: str) -> dict[str, Any]:
    """Return the process whose directory has this name, or an empty dict if `process_name` cannot return the name."""
    host, _, rest = name.rpartition(".")
    host, _, pid = host.rpartition(".")
    if not pid.isdecimal():
        return {}
    return {"host": unquote(host), "pid": int(pid), "pid_started": int(rest) if rest.isdecimal() else None}


class SpoolFile:
    """Spool file of one attempt. Its lines contain spans, in the order in which the spans ended. Not thread-safe."""

    def __init__(self, spool: SpanSpool, rollout_id: str, attempt_id: str) -> None:
        self._spool = spool
        self._name = f"{quote(rollout_id, safe='')}.{quote(attempt_id, safe='')}.jsonl"
        self._path: Path | None = None
        self._written = 0
        self._read = 0
        self.waiting = 0
        """The number of spans in the file that are not stored yet."""

    @property
    def path(self) -> Path | None:
        """The path of the file; None if the file does not exist."""
        return self._path

    def append(self, spans: Sequence[Span]) -> bool:
        """Append spans; return False if the size limit is reached or the write fails."""
        lines = b"".join(span.model_dump_json().encode() + b"\n" for span in spans)
        if not self._spool.reserve(len(lines)):
            logger.error("cannot spool %d spans: the limit of %d bytes is reached", len(spans), self._spool.max_bytes)
            return False
        try:
            self._path = self._path or self._spool.directory() / self._name
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError as error:
            self._spool.limited.warning("spans could not be written to their spool", error)
            self._spool.release(len(lines))
            return False
        self._written += len(lines)
        self.waiting += len(spans)
        return True

    def peek(self, limit: int) -> list[bytes]:
        """Return the lines of the next spans, at most `limit` lines."""
        if self._path is None:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            return list(islice(file, limit))

    def taken(self, lines: Sequence[bytes]) -> None:
        """Skip lines whose spans have been stored, and delete the file after the last line."""
        self._read += sum(map(len, lines))
        self.waiting -= len(lines)
        if self._read == self._written:
            self.delete()

    def delete(self) -> None:
        """Remove the file and release its bytes."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._spool.release(self._written)
        self._path, self._written, self._read, self.waiting = None, 0, 0, 0
