"""Spans that the store could not take, kept in files until it can: one for each attempt, bounded for the process."""

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
from store.training.machine import is_gone, this_process

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024 * 1024
"""How much the attempts of one process keep together, if not told otherwise."""


class SpanSpool:
    """Where the attempts of this process keep spans.

    Args:
        directory: where each process keeps its files in a directory of its own, and finds those of processes that died;
            None for a new one among the temporary files, made when it is needed, where nobody else looks.
        max_bytes: how large they may become together. Files that are left, since the store did not come back in time,
            go on counting.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._given = None if directory is None else os.fspath(directory)
        self._directory: Path | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SpanSpool, (self._given, self.max_bytes)

    def directory(self) -> Path:
        """Return where the files are, created if need be."""
        with self._lock:
            if self._directory is None and self._given is None:
                self._directory = Path(tempfile.mkdtemp(prefix="rollbook-spool-"))
            elif self._directory is None:
                self._directory = Path(self._given or "") / _name(this_process())
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._directory

    def left_behind(self) -> list[Path]:
        """Return the files of processes of this machine that run no more, and make them those of this one."""
        if self._given is None:
            return []
        ours: list[Path] = []
        for path in sorted(Path(self._given).glob("*/*.jsonl")):
            if is_gone(_process(path.parent.name)):
                # Of several that start at once, one gets it.
                with suppress(FileNotFoundError):
                    ours.append(path.rename(self.directory() / path.name))
                with suppress(OSError):  # there are more files in it
                    path.parent.rmdir()
        return ours

    def reserve(self, size: int) -> bool:
        """Take up so many bytes, unless they are more than there are."""
        with self._lock:
            if self._bytes + size > self.max_bytes:
                return False
            self._bytes += size
            return True

    def release(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._bytes -= size


def _name(process: Mapping[str, Any]) -> str:
    return f"{quote(process['host'], safe='')}.{process['pid']}.{process['pid_started'] or ''}"


def _process(name: str) -> dict[str, Any]:
    """Return the process that `_name` named; nothing for any other name."""
    host, _, rest = name.rpartition(".")
    host, _, pid = host.rpartition(".")
    if not pid.isdecimal():
        return {}
    return {"host": unquote(host), "pid": int(pid), "pid_started": int(rest) if rest.isdecimal() else None}


class SpoolFile:
    """The spans of one attempt that wait, in the order they ended. For one task at a time."""

    def __init__(self, spool: SpanSpool, rollout_id: str, attempt_id: str) -> None:
        self._spool = spool
        self._name = f"{quote(rollout_id, safe='')}.{quote(attempt_id, safe='')}.jsonl"
        self._path: Path | None = None
        self._written = 0
        self._read = 0
        self.waiting = 0
        """How many spans it holds that were not taken back."""

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return self._path

    def append(self, spans: Sequence[Span]) -> bool:
        """Keep spans; False if there is no room for them, or the disk refuses."""
        lines = b"".join(span.model_dump_json().encode() + b"\n" for span in spans)
        if not self._spool.reserve(len(lines)):
            logger.error("no room for %d spans: %d bytes are kept already", len(spans), self._spool.max_bytes)
            return False
        try:
            self._path = self._path or self._spool.directory() / self._name
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError:
            logger.exception("%d spans could not be kept in %s", len(spans), self._path)
            self._spool.release(len(lines))
            return False
        self._written += len(lines)
        self.waiting += len(spans)
        return True

    def peek(self, most: int) -> list[bytes]:
        """Return the lines of the next spans."""
        if self._path is None:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            return list(islice(file, most))

    def taken(self, lines: Sequence[bytes]) -> None:
        """Go on behind lines that the store has; behind the last of them the file goes."""
        self._read += sum(map(len, lines))
        self.waiting -= len(lines)
        if self._read == self._written:
            self.delete()

    def delete(self) -> None:
        """Remove the file, once nothing in it is wanted."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._spool.release(self._written)
        self._path, self._written, self._read, self.waiting = None, 0, 0, 0
