"""Detection of commits that other connections make to a SQLite file. Decision 30."""

import asyncio
import sqlite3
import time
from collections.abc import Hashable
from itertools import count
from pathlib import Path
from threading import Lock

from store.db.dialect import Wakeups
from store.db.drivers.sqlite.errors import translate
from store.db.schema import read_only_uri, sqlite_files

_DATA_VERSION = "PRAGMA data_version"


class State:
    """Detector of new commits of any connection. It reads SQLite's shared memory.

    Args:
        path: the file.
        is_read_only: whether the store is read-only. If SQLite then reads the file without locks, the version is the
            state of the file.
    """

    _numbers = count()

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self.number = next(self._numbers)
        """The number of this detector. Versions with different numbers cannot be compared."""
        self._path = path
        self._is_read_only = is_read_only
        self._unlocked: sqlite_files.State | None = None
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def version(self) -> Hashable | None:
        """Return a value that changes with every commit; None if the value cannot be read without waiting."""
        with self._lock:
            if self._closed:
                return None
            unlocked = sqlite_files.unlocked_state(self._path) if self._is_read_only else None
            if unlocked != self._unlocked:
                self._unlocked, self.number = unlocked, next(self._numbers)
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            if unlocked is not None:
                return unlocked
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(
                        read_only_uri(self._path), uri=True, isolation_level=None, timeout=0, check_same_thread=False
                    )
                return self._connection.execute(_DATA_VERSION).fetchone()[0]
            except sqlite3.Error:
                # The caller then reads the tables, and this read reports the error.
                return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()


class DataVersion(Wakeups):
    """Notifications of commits of other processes.

    A counter of SQLite, `data_version`, changes when another connection commits. The counter is polled while a call
    waits. It also changes for commits of this process, but ids of commits are consecutive, so a comparison of ids shows
    whether another process has committed.
    """

    _EVERY = 0.01
    _NEWEST = "SELECT max(commit_id) FROM commits"

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._unlocked: sqlite_files.State | None = None
        self._connection: sqlite3.Connection | None = None
        self._data_version: int | None = None
        # This process has made or noticed all commits up to this commit id.
        self._known: int | None = None

    def announce(self, commit_id: int) -> None:
        """Remember a commit of this process. Other processes notice the commit by SQLite's counter."""
        if self._known is not None and commit_id == self._known + 1:
            self._known = commit_id

    async def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_foreign_commit():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(self._EVERY, left))
        return True

    def _has_foreign_commit(self) -> bool:
        unlocked = sqlite_files.unlocked_state(self._path) if self._is_read_only else None
        if unlocked != self._unlocked:
            self._unlocked, self._data_version = unlocked, None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        current = self._read(_DATA_VERSION)
        if current == self._data_version:
            return False
        self._data_version = current
        newest = self._read(self._NEWEST)
        if newest == self._known:
            return False
        self._known = newest
        return True

    def _read(self, text: str) -> int:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(read_only_uri(self._path), uri=True, isolation_level=None)
            return self._connection.execute(text).fetchone()[0]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
