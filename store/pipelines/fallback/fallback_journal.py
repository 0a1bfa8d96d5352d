"""Journals of calls that were recorded while a store was unavailable: one file per attempt, in a directory per process.

The first line of a file contains the run with its attempt, and each further line contains a call. A line is synced to
the disk before its call returns. To import a call means to make the call once the store is available again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pydantic import ValidationError

from store.models import AttemptedRollout
from store.models.enums import Frozen
from store.run_folders.recorded import RecordedCall
from store.runtime.process import is_gone, this_process
from store.training.tracing.spool import process_name, process_named

_LEFT: Final = "left"
"""Name of the directory with the journals that no process uses any more. Any process may import these journals."""


class JournalHead(Frozen):
    """The first line of a journal."""

    rollout: AttemptedRollout
    rerun_seq: int


class Journal:
    """The recorded calls of one attempt, and their file. Thread-safe.

    Args:
        path: the file.
        head: the run and its attempt.
        calls: the calls that the file contains.
    """

    def __init__(self, path: Path, head: JournalHead, calls: Iterable[RecordedCall] = ()) -> None:
        self.path = path
        self.head = head
        self.refused: list[str] = []
        """The messages of the errors with which the store refused calls."""
        self._calls = deque(calls)
        self.count = len(self._calls)
        """The number of recorded calls, including those that were imported."""
        self._is_open = True
        self._lock = threading.Lock()

    @classmethod
    def create(cls, directory: Path, head: JournalHead) -> Journal:
        """Return a journal with a new file.

        Raises:
            OSError: the file cannot be written.
        """
        rollout = head.rollout
        name = f"{quote(rollout.rollout_id, safe='')}.{quote(rollout.attempt.attempt_id, safe='')}.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        _append(path, head.model_dump_json())
        for folder in (directory, directory.parent, directory.parent.parent):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return cls(path, head)

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal of a file; None if the writing process died before the first line was complete."""
        first, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
        try:
            head = JournalHead.model_validate_json(first)
        except ValidationError:
            return None
        calls: list[RecordedCall] = []
        for line in lines:
            try:
                calls.append(RecordedCall.model_validate_json(line))
            except ValidationError:
                # The process died while it wrote this line, so the call did not return.
                break
        return cls(path, head, calls)

    def append(self, call: RecordedCall) -> bool:
        """Write a call; return False if the journal is closed.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            if not self._is_open:
                return False
            _append(self.path, call.model_dump_json())
            self._calls.append(call)
            self.count += 1
            return True

    def calls(self) -> list[RecordedCall]:
        """Return the calls that were not imported yet, oldest first."""
        with self._lock:
            return list(self._calls)

    def first(self) -> RecordedCall | None:
        """Return the oldest call that was not imported yet; None if all calls were imported."""
        with self._lock:
            return self._calls[0] if self._calls else None

    def drop_first(self) -> None:
        """Drop the oldest call after its import. The file keeps the call until the journal is closed."""
        with self._lock:
            self._calls.popleft()

    def stop(self) -> None:
        """Refuse further calls, and keep the file."""
        with self._lock:
            self._is_open = False

    def close(self) -> bool:
        """If all calls were imported, close the journal, remove its file and return True; otherwise return False.

        If the store refused calls, the file is not removed but renamed to `….refused`.
        """
        with self._lock:
            if self._calls:
                return False
            self._is_open = False
            if self.refused:
                self.path.rename(self.path.with_name(f"{self.path.name}.refused"))
            else:
                self.path.unlink(missing_ok=True)
            return True


class JournalDirectory:
    """Directory with the journals of all processes that use one reports directory.

    Args:
        root: the reports directory, which contains the folders of runs.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / ".fallback"
        self._ignored: set[str] = set()

    @property
    def own(self) -> Path:
        """The directory of this process."""
        return self._root / process_name(this_process())

    def take_over(self) -> list[Journal]:
        """Move journals to the directory of this process, and return the journals.

        The method takes the journals of dead processes of this machine, and those that `leave` has moved.
        """
        journals: list[Journal] = []
        for path in sorted(self._root.glob("*/*.jsonl")):
            directory = path.parent
            if path.name in self._ignored or (directory.name != _LEFT and not is_gone(process_named(directory.name))):
                continue
            self.own.mkdir(parents=True, exist_ok=True)
            # If several processes start at once, only one of them can move the file.
            with suppress(FileNotFoundError):
                new_path = path.rename(self.own / path.name)
                journal = Journal.read(new_path)
                if journal is None:
                    new_path.unlink()
                else:
                    journals.append(journal)
            with suppress(OSError):  # the directory is not empty
                directory.rmdir()
        return journals

    def leave(self, journal: Journal, *, for_others: bool = False) -> Path:
        """Move a journal to the directory where the next runner finds it, and return the journal's new path.

        Args:
            journal: the journal, which this process no longer uses.
            for_others: whether `take_over` of this process must skip the journal, because its run is not in the store.
        """
        journal.stop()
        directory = self._root / _LEFT
        directory.mkdir(exist_ok=True)
        if for_others:
            self._ignored.add(journal.path.name)
        return journal.path.rename(directory / journal.path.name)


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            file.write(line.encode() + b"\n")
            os.fsync(file.fileno())
        except OSError:
            # An incomplete line would make the next line unreadable.
            with suppress(OSError):
                file.truncate(end)
            raise
