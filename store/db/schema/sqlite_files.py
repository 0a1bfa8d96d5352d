"""Files of SQLite as the operating system and the library see them: connections, states, locks and errors."""

import fcntl
import glob
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from store.db.schema.sqlite_place import has_second_name, read_only_error
from store.errors import Corrupt, Incompatible, StoreError, Unavailable

# `_LOCK_SECONDS` limits the wait for another process that creates or upgrades the same file, and `_BUSY_SECONDS` the
# wait for a lock of SQLite.
_LOCK_SECONDS = 60.0
_BUSY_SECONDS = 30.0
PRIVATE_MODE = 0o600
"""The permissions of a file that only this user may read."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    uri = read_only_uri(path) if read_only else f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)


def table_names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def set_journal_mode(connection: sqlite3.Connection, mode: str) -> None:
    # A change of the journal mode needs exclusive access for a moment. SQLite does not always wait for this access, so
    # the statement is repeated here.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def read_only_uri(path: Path) -> str:
    """Return the URI that opens a file for reading only, even if its directory cannot be written.

    A file for which `unlocked_state` returns a state is opened as immutable: SQLite then uses no locks and notices no
    changes. Readers have to compare the states before and after a read.
    """
    immutable = "" if unlocked_state(path) is None else "&immutable=1"
    return f"{path.absolute().as_uri()}?mode=ro{immutable}"


def index_files(path: Path) -> list[Path]:
    """Return the files of the indexes of the store at `path`. See `store.db.drivers.sqlite.index_file`."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.*-index*"))


State = tuple[int, int, int, int]
"""Device, inode, size, and the time of the last change of a file."""


def unlocked_state(path: Path) -> State | None:
    """Return the state of a file that no connection has open for writing, and that SQLite cannot read with locks.

    The result is None for every other file. SQLite needs a write-ahead log (WAL) and its shared memory to read with
    locks. SQLite cannot create these two files if the directory cannot be written. It should not create them if the
    file has a second name, because a writer would use a log beside the other name. If there is no WAL, the file
    contains all data. The owner of the file may open it at any time, which changes its state.
    """
    # SQLite keeps its files beside the actual file.
    actual = os.path.realpath(path)
    try:
        if os.stat(f"{actual}-wal").st_size or os.access(f"{actual}-shm", os.F_OK):  # noqa: PTH116 (each read calls this)
            return None
    except FileNotFoundError:
        pass
    state = content_state(path)
    if state is None or (os.access(os.path.dirname(actual), os.W_OK) and not has_second_name(actual)):  # noqa: PTH120
        return None
    return state


def content_state(path: Path) -> State | None:
    """Return a value that changes when the content of a file changes; None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 (each read calls this)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def changed_while_read(path: Path) -> Unavailable:
    """Return the error for a file that another process changed during a read."""
    return Unavailable(f"the file {path} was changed by another process while it was read", 0.5)


def flush(path: Path) -> None:
    """Wait until a file or a directory is on disk. No connection of this process to the file may be open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, seconds: float | None = None) -> Generator[None]:
    """Hold a lock on the file `<file>.lock` during the block. If the process dies, the system releases the lock.

    `<file>.lock` exists only while a process holds the lock or waits for it. The wait ends after `seconds`, by default
    after a minute.
    """
    # A separate file is locked. If this process closed a descriptor of the database file, the system would release all
    # locks that SQLite holds on this file in this process.
    lock = path.resolve().with_name(f"{path.resolve().name}.lock")
    descriptor = _acquire(lock, _LOCK_SECONDS if seconds is None else seconds)
    try:
        yield
    finally:
        # The lock file is deleted while it is locked. A process that waits for the lock notices the deletion, and then
        # locks a new file.
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(lock: Path, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for(descriptor, lock, deadline, seconds)
            if _is_same_file(descriptor, lock):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait_for(descriptor: int, lock: Path, deadline: float, seconds: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"another process has locked {lock} for {seconds:g} s to create or upgrade the store"
                raise Unavailable(reason, 10.0) from None
            time.sleep(0.002)
        else:
            return


def _is_same_file(descriptor: int, lock: Path) -> bool:
    try:
        current = lock.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (current.st_dev, current.st_ino) == (held.st_dev, held.st_ino)


@contextmanager
def store_errors(path: Path) -> Generator[None]:
    """Convert errors of the file system and of SQLite to errors of the store, also if SQLAlchemy wraps them."""
    try:
        yield
    except (StoreError, NotImplementedError):
        raise
    except OSError as error:
        raise Unavailable(f"the file {path} cannot be used: {error}", 10.0) from error
    except Exception as error:
        cause = getattr(error, "orig", error)
        if not isinstance(cause, sqlite3.Error):
            raise
        raise _translated(cause, path) from error


def _translated(error: sqlite3.Error, path: Path) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    if name in {"SQLITE_FULL", "SQLITE_IOERR_WRITE"}:
        return Unavailable.disk_full(f"{path} cannot grow ({error})")
    match name.split("_")[1] if "_" in name else "":
        case "NOTADB":
            return Incompatible(f"{path} is not a SQLite database", "choose another file")
        case "READONLY" | "PERM" | "AUTH":
            return read_only_error(f"{path} cannot be written ({error}); make the file and its directory writable")
        case "CORRUPT":
            return Corrupt(f"the file {path}", str(error), "a sound SQLite database")
        case "CANTOPEN":
            reason = f"{path} cannot be opened ({error})"
            return Incompatible(reason, "check its permissions, or copy it with its -wal file to where you may write")
        case "BUSY" | "LOCKED" | "IOERR" | "PROTOCOL" | "NOMEM" | "INTERRUPT":
            return Unavailable(f"{path} cannot be used at the moment ({error})")
        case _:
            return Incompatible(f"SQLite refused a statement on {path} ({error})", "check it with `rollbook verify`")


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
