"""Check that the path of an open SQLite file still leads to this file. Decision 51."""

import os
from pathlib import Path
from weakref import WeakSet

from store.errors import Incompatible, WrongProcess

_CURE = (
    "stop every process that has the store open, put the right files in place, and open the store again"
    " (a server: restart it)"
)


class OpenFile:
    """The SQLite file that a store opened.

    A file that was deleted or replaced stays open. Commits to such a file succeed, but are lost when the file is
    closed. The store therefore compares the inode at the path with the inode of the opened file, after each commit and
    before each read.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        """The path by which the file was opened. It may be a symbolic link."""
        self.opened: tuple[int, int] | None = None
        """Device and inode of the file; None before the first call of `remember`."""
        # SQLite resolves symbolic links, and creates its log next to the actual file.
        self.log = f"{os.path.realpath(path)}-wal"
        """The path of the write-ahead log, which contains the latest commits."""
        self.opened_log: tuple[int, int] | None = None
        """Device and inode of the log; None before the first call of `remember_log`."""

    def remember(self) -> None:
        """Remember the file to which the path leads now."""
        self.opened = _inode(self.path)
        _open_files.add(self)

    def forget(self) -> None:
        """Record that the file is closed."""
        _open_files.discard(self)

    def check_fork(self) -> None:
        """Raise `WrongProcess` if the file was open when this process was forked.

        SQLite keeps the state of its locks in the memory of the process, and a fork copies this memory, but not the
        locks. A connection of the child would read and write without locks, and could destroy the file.
        """
        inode = _inode(self.path)
        if inode in _inherited:
            raise WrongProcess(_inherited[inode], os.getpid())

    def remember_log(self) -> None:
        """Remember the write-ahead log, which a connection for writing keeps open."""
        if self.opened is None:
            self.remember()
        self.opened_log = _inode(self.log)

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the file. True before the first call of `remember`."""
        return self.opened is None or _inode(self.path) == self.opened

    def check(self) -> None:
        """Raise `Incompatible` if the file was deleted or replaced."""
        if not self.is_in_place:
            raise self.refusal()

    def refusal(self) -> Incompatible:
        """Return the error for a file or a log that was deleted or replaced."""
        path, role = (self.log, ", which contains the latest commits,") if self.is_in_place else (self.path, "")
        change = "replaced by another file" if _inode(path) else "deleted or moved"
        return Incompatible(
            f"the file {path}{role} was {change} while the store was open; nothing is written to it any more, and this"
            " call is not saved",
            _CURE,
        )


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (`Path.stat` takes five times as long, and each read calls this)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_open_files: WeakSet[OpenFile] = WeakSet()
_inherited: dict[tuple[int, int], int] = {}
"""The files that were open when this process was forked, by device and inode. The value is the pid of the parent."""


def _after_fork_in_child() -> None:
    for file in _open_files:
        if file.opened is not None:
            _inherited[file.opened] = os.getppid()
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
