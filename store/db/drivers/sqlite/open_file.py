"""Check that the path of an open SQLite file still leads to this file."""

import os
from pathlib import Path

from store.errors import Incompatible

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
        self.check()
        try:
            found = os.stat(self.log)  # noqa: PTH116 (five times as fast, and used after every batch)
        except FileNotFoundError:
            found = None
        if self._opened_log is None and found is not None:
            self._opened_log = (found.st_dev, found.st_ino)
        if found is None or (found.st_dev, found.st_ino) != self._opened_log:
            raise _refusal(self.log, ", which contains the latest commits,")
        return found.st_size


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (five times as fast, and used at every commit and read)
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
