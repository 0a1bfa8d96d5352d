"""Unfinished copies of a store: SQLite files that get their final name when all their data is on disk."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from store.db.schema import history
from store.db.schema.history import DatabaseInfo, refuse_behind
from store.db.schema.partition_files import PartitionPlace
from store.db.schema.sqlite import (
    MODE,
    create_file,
    creation_locks,
    inspect_sqlite,
    new_membership,
    not_found,
    refuse_older_name,
)
from store.db.schema.sqlite_files import PRIVATE_MODE, connect, file_lock, flush, set_journal_mode, store_errors
from store.db.schema.sqlite_place import UNFINISHED, check_file_system, check_place, refuse_unwritable
from store.db.url import sqlite_url
from store.errors import Unavailable

_COPY_LOCK_SECONDS = 5.0
"""The limit of the wait for another process that makes the same copy."""


def unfinished(path: Path) -> Path:
    """Return the file that a copy fills before it gets the name `path`."""
    return path.with_name(path.name + UNFINISHED)


@contextmanager
def copy_lock(path: Path) -> Generator[None]:
    """Let no other call fill the unfinished copy of `path` during the block.

    Raises:
        Unavailable: another call fills the copy.
        StoreError: the errors of `prepare_sqlite` for the place of the file.
    """
    check_place(path)
    refuse_unwritable(path)
    lock = file_lock(unfinished(path), _COPY_LOCK_SECONDS)
    try:
        with store_errors(path):
            lock.__enter__()
    except Unavailable as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise history.refuse_reserved(str(path)) from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def prepare_unfinished(path: Path, info: DatabaseInfo, place: PartitionPlace, *, is_private: bool) -> None:
    """Create the unfinished copy that becomes the store at `path`, unless an earlier run has created it.

    Args:
        path: the file of the store. It must not exist.
        info: the description of the store that is copied.
        place: the partition that the file will contain.
        is_private: whether only this user may read the file.

    Raises:
        AlreadyExists: the file of the store exists.
        Incompatible: the unfinished copy belongs to another store, or an older version of this program created it.
        StoreError: the errors of `prepare_sqlite` for the place of the file.
    """
    check_place(path)
    check_file_system(path)
    refuse_unwritable(path)
    partial = unfinished(path)
    with store_errors(path), creation_locks(path, place):
        if path.exists():
            raise history.refuse_existing("file", str(path))
        refuse_older_name(place)
        if is_private and partial.exists():
            partial.chmod(PRIVATE_MODE)
        copy = inspect_sqlite(partial)
        if copy is None:
            create_file(partial, info, new_membership(place), PRIVATE_MODE if is_private else MODE)
        else:
            history.refuse_foreign(copy, info, str(partial), f"remove it: rm '{partial}'*")


def open_unfinished(path: Path) -> DatabaseInfo:
    """Return the description of the unfinished copy of `path`.

    Raises:
        NotFound: there is no unfinished copy.
    """
    with store_errors(path):
        info = inspect_sqlite(unfinished(path))
    if info is None:
        raise not_found(unfinished(path))
    return refuse_behind(info, sqlite_url(unfinished(path)))


def publish(path: Path, *, is_single_file: bool, receipt: str | None) -> None:
    """Give the complete copy its name `path`, after all its data is on disk. No connection to the copy may be open.

    Args:
        path: the file of the store.
        is_single_file: whether SQLite creates no files beside the store while programs only read the store.
        receipt: a text that `receipt` returns until `acknowledge` is called.

    Raises:
        AlreadyExists: the file of the store exists now.
    """
    partial = unfinished(path)
    # Processes that create a store hold the same lock, so no file with this name appears before the renaming.
    with store_errors(path), file_lock(path):
        if path.exists():
            raise history.refuse_existing("file", str(path))
        with closing(connect(partial)) as connection:
            # This copies the write-ahead log into the file, and deletes the log.
            set_journal_mode(connection, "DELETE")
            if not is_single_file:
                set_journal_mode(connection, "WAL")
        flush(partial)
        if receipt is not None:
            # The file keeps its inode when it is renamed.
            _receipt(path).write_text(f"{partial.stat().st_ino}\n{receipt}", encoding="utf-8")
            flush(_receipt(path))
        partial.rename(path)
        flush(path.parent)


def receipt(path: Path) -> str | None:
    """Return the receipt of a published copy; None if there is no receipt for this file."""
    try:
        inode, _, text = _receipt(path).read_text(encoding="utf-8").partition("\n")
        return text if inode == str(path.stat().st_ino) else None
    except (OSError, UnicodeDecodeError):
        return None


def acknowledge(path: Path) -> None:
    """Remove the receipt of a published copy."""
    _receipt(path).unlink(missing_ok=True)


def _receipt(path: Path) -> Path:
    return path.with_name(f".{path.name}.receipt")


def discard(path: Path) -> None:
    """Delete the unfinished copy of `path`."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        unfinished(path).with_name(unfinished(path).name + suffix).unlink(missing_ok=True)
