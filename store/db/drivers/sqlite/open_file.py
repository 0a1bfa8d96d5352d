"""The state of an open SQLite file: whether it is still in its place, and whether another connection has committed."""

import asyncio
import os
import sqlite3
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock

from store.db.dialect import Wakeups
from store.db.drivers.sqlite.errors import translate
from store.db.schema import read_only_uri
from store.errors import Incompatible

_DATA_VERSION = "PRAGMA data_version"

_CURE = (
    "stop every process that has the store open, put the right files in place, and open the store again"
    " (a server: restart it)"
)


class OpenFile:
    """The file that a store opened.

    A deleted or replaced file stays open: commits to it succeed, and are lost when it is closed. So the store compares
    the inode of the path with that of the file that it opened, after each commit and before each read.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._opened: tuple[int, int] | None = None
        # SQLite resolves symbolic links, and creates its log beside the file itself.
        self.log = f"{os.path.realpath(path)}-wal"
        """The path of the write-ahead log, which contains the latest commits."""
        self._opened_log: tuple[int, int] | None = None

    def remember(self) -> None:
        """Remember the file to which the path leads now."""
        self._opened = _inode(self._path)

    def remember_log(self) -> None:
        """Remember the write-ahead log, which a connection for writing keeps open. It may not exist yet."""
        self._opened_log = _inode(self.log)

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the file. True before the first call of `remember`."""
        return self._opened is None or _inode(self._path) == self._opened

    def check(self) -> None:
        """Raise `Incompatible` if the file was deleted or replaced."""
        if not self.is_in_place:
            raise _refusal(self._path, "")

    def check_commit(self) -> int:
        """Check the file and the log after a commit, and return the size of the log in bytes.

        Raises:
            Incompatible: one of them was deleted or replaced, so the commit may be lost.
        """
        # The comparisons are spelled out, because calls of functions would double their cost after every commit.
        path, role = self._path, ""
        with suppress(FileNotFoundError):
            found = os.stat(path)  # noqa: PTH116 (five times as fast)
            if self._opened in {None, (found.st_dev, found.st_ino)}:
                path, role = self.log, ", which contains the latest commits,"
                found = os.stat(path)  # noqa: PTH116 (five times as fast)
                identity = (found.st_dev, found.st_ino)
                # The first commit may have created the log.
                self._opened_log = self._opened_log or identity
                if self._opened_log == identity:
                    return found.st_size
        raise _refusal(path, role)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (five times as fast, and used at every read)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _refusal(path: str, role: str) -> Incompatible:
    what = "replaced by another file" if _inode(path) else "deleted or moved"
    return Incompatible(
        f"the file {path}{role} was {what} while the store was open; nothing is written to it any more, and this call"
        " is not saved",
        _CURE,
    )


class State:
    """Detector of new commits of any connection. It reads SQLite's shared memory."""

    _numbers = count()

    def __init__(self, path: Path) -> None:
        self.number = next(self._numbers)
        """The number of this detector. Versions that different detectors return cannot be compared."""
        self._path = path
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def version(self) -> int | None:
        """Return a number that changes with every commit; None if the number cannot be read without waiting."""
        with self._lock:
            if self._closed:
                return None
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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None
        # The id of a commit. This process has noticed or made all commits up to it.
        self._known: int | None = None

    def announce(self, commit_id: int) -> None:
        """Remember a commit of this process. Other processes notice the commit by SQLite's counter."""
        if self._known is not None and commit_id == self._known + 1:
            self._known = commit_id

    async def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._is_news():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(self._EVERY, left))
        return True

    def _is_news(self) -> bool:
        current = self._ask(_DATA_VERSION)
        if current == self._seen:
            return False
        self._seen = current
        newest = self._ask(self._NEWEST)
        if newest == self._known:
            return False
        self._known = newest
        return True

    def _ask(self, text: str) -> int:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(read_only_uri(self._path), uri=True, isolation_level=None)
            return self._connection.execute(text).fetchone()[0]
        except sqlite3.Error as error:
            raise translate(error) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
