"""Opening of a store in a SQLite file.

Before the first write, a missing file is created, and an older file is copied and upgraded.
"""

import fcntl
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from store.db.schema import ddl, history, partition_files
from store.db.schema.history import MARKS, DatabaseInfo, read_info, refuse_behind
from store.db.schema.partition_files import Membership, PartitionPlace, StoreFile
from store.db.url import sqlite_url
from store.errors import Conflict, Corrupt, Incompatible, Invalid, NotFound, ReadOnly, StoreError, Unavailable
from store.runtime.clock import Clock, system_clock
from store.runtime.urls import DEFAULT_PARTITION

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")

logger = logging.getLogger("store.db.schema")

MOUNTS = Path("/proc/self/mounts")
"""The file in which Linux lists the mounts. A system without this file is assumed to have only local disks."""

# Types of network file systems, which are refused. SQLite's locks and the shared memory of the WAL do not work between
# hosts, or between a virtual machine and its host.
_NETWORK = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
)
# FUSE programs that mount remote storage, which is refused too.
_NETWORK_FUSE = frozenset(
    {"ceph", "davfs", "davfs2", "gcsfuse", "glusterfs", "goofys", "grpcfuse", "juicefs", "mfs", "osxfs", "rclone"}
    | {"s3fs", "sshfs", "vmhgfs-fuse"}
)
# `_LOCK_SECONDS` limits the wait for another process that creates or upgrades the same file, `_COPY_LOCK_SECONDS` for
# one that makes the same copy, and `_BUSY_SECONDS` the wait for a lock of SQLite.
_LOCK_SECONDS = 60.0
_COPY_LOCK_SECONDS = 5.0
_BUSY_SECONDS = 30.0
_UNFINISHED = ".partial"
_MODE, _PRIVATE_MODE = 0o666, 0o600
_READS = 5
"""The maximum number of reads of a file that changes during each of them."""
_LISTED = "`rollbook partitions ls` shows the partitions"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of preparing a file for writes."""

    info: DatabaseInfo
    before: str | None
    """The revision of the file before this call; None if the file was created."""
    copy: Path | None = None
    """The copy of the file that was made before an upgrade; None without an upgrade."""


def prepare_sqlite(
    path: Path,
    *,
    create: bool,
    read_only: bool,
    clock: Clock = system_clock,
    place: PartitionPlace | None = None,
    mode: int = _MODE,
) -> DatabaseInfo:
    """Check that this program can use a database file, and return its description.

    With `read_only`, nothing is changed. Otherwise a missing file is created if `create` is True, and an older file is
    copied and then upgraded. Any number of threads and processes may call this function at the same time. The function
    blocks, and an upgrade may take minutes.

    Args:
        path: the file.
        create: whether to create a missing file.
        read_only: whether to change nothing.
        clock: a function that returns microseconds since the epoch.
        place: the partition that the file contains; None to store no statement about it in the file.
        mode: the permissions of a new file, before the umask is applied.

    Raises:
        NotFound: the file does not exist and may not be created, its directory does not exist, or the file is not that
            of the partition.
        Invalid: the path is a directory.
        Incompatible: the file is on a network file system, is not a store, is newer than this program, is older and
            opened only for reading, has a second name and is opened for writing, or has the name of a partition that
            has to be created.
        ReadOnly: `read_only` is False, but the file or its directory cannot be written.
        Unavailable: the disk is full, or another process has worked on the file for a minute.
    """
    if not read_only:
        return prepare_for_writing(path, create=create, clock=clock, place=place, mode=mode).info
    check_place(path)
    check_file_system(path)
    with store_errors(path):
        info = _read_unchanged(path, lambda: inspect_sqlite(path, read_only=True))
        if info is None:
            raise not_found(path)
        file = _read_unchanged(path, lambda: check_membership(path, place or PartitionPlace(path), create=False))
    if (second := second_name(path)) is not None and file is not None and not file.is_sealed:
        logger.warning("%s; new commits may not be visible here", second[0])
    return refuse_behind(info, shown(path))


def prepare_for_writing(
    path: Path, *, create: bool, clock: Clock = system_clock, place: PartitionPlace | None = None, mode: int = _MODE
) -> Prepared:
    """Prepare a file as `prepare_sqlite` does with `read_only=False`, and return the result."""
    check_place(path)
    check_file_system(path)
    refuse_unwritable(path)
    refuse_second_name(path)
    with store_errors(path):
        info = inspect_sqlite(path)
        if info is None and not create:
            raise not_found(path)
        file = check_membership(path, place or PartitionPlace(path), create=create)
        is_stated = place is None or (file is not None and file.membership is not None)
        if info is not None and not info.is_behind and is_stated:
            return Prepared(info, info.revision)
        with _creating(path, place or PartitionPlace(path)):
            info = inspect_sqlite(path)
            if info is None:
                membership = None if place is None else _new_membership(place)
                return Prepared(_create(path, DatabaseInfo.new(clock), membership, mode), None)
            prepared = _upgrade(path, info) if info.is_behind else Prepared(info, info.revision)
            if place is not None:
                _complete_membership(path, place)
            return prepared


@contextmanager
def _creating(path: Path, place: PartitionPlace) -> Generator[None]:
    """Hold the locks for the creation of a file. Only one process at a time creates a file of a database."""
    if place.main.resolve() == path.resolve():
        with file_lock(path):
            yield
    else:
        with file_lock(place.main), file_lock(path):
            yield


def store_file(path: Path) -> StoreFile | None:
    """Return the description of the store in a file; None if the file is missing, empty, or contains no store."""
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with closing(_open(path, read_only=True)) as connection:
            return partition_files.read(connection)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return None
        raise


def check_membership(path: Path, place: PartitionPlace, *, create: bool) -> StoreFile | None:
    """Check that a file, if it exists, is that of a partition, and return its description.

    Raises:
        NotFound: the file is not that of the partition, and `create` is False.
        Incompatible: the file is not that of the partition, and `create` is True.
    """
    file = store_file(path)
    if file is None:
        _refuse_older_name(place)
        return None
    if place.partition == DEFAULT_PARTITION or place.holds(file, store_file(place.main)):
        return file
    if file.is_sealed:
        content = "a backup or an archive"
    elif file.membership is None:
        content = "a copy of the default partition"
    elif file.membership.partition == DEFAULT_PARTITION:
        content = "a store of its own"
    else:
        content = f"the partition {file.membership.partition} of another database or name"
    text = f"the file {path} is {content}, and not the partition {place.partition} of {place.main.name}"
    if create:
        raise Incompatible(text, f"use another name, or rename the file, or open it by its own URL: {shown(path)}")
    raise NotFound("partition", place.partition, f"{text}; to read it, open it by its own URL: {shown(path)}")


def _refuse_older_name(place: PartitionPlace) -> None:
    """Raise `Incompatible` if the partition may be in a file whose name an older version made without the suffix."""
    older = place.main.with_name(f"{place.main.stem}.{place.partition}.db")
    if place.partition == DEFAULT_PARTITION or older == place.path:
        return
    file = store_file(older)
    if file is not None and file.membership is None:
        raise Incompatible(
            f"{older} was stored by an older version, and may be the partition {place.partition} of {place.main.name},"
            f" whose file is now {place.path.name}",
            f"if it is, stop all processes and rename it: mv '{older}' '{place.path}'; if it is not, open it once for"
            " writing by its own URL",
        )


def _new_membership(place: PartitionPlace) -> Membership:
    return Membership(place.partition, _database_id(place.main), place.main.name)


def _database_id(main: Path) -> str:
    """Return the id of a database: that of its files, or a new one."""
    if (file := store_file(main)) is not None:
        return file.database_id
    for sibling in partition_files.candidates(main):
        file = store_file(sibling.path)
        if file is not None and file.membership is not None and sibling.holds(file, None):
            return file.membership.database_id
    return os.urandom(8).hex()


def _complete_membership(path: Path, place: PartitionPlace) -> None:
    """Store the membership of a file of an older version."""
    with closing(_open(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        file = partition_files.read(connection)
        if file is not None and file.membership is None:
            is_main = place.partition == DEFAULT_PARTITION
            database_id = file.store_id if is_main else _database_id(place.main)
            partition_files.write(connection, Membership(place.partition, database_id, place.main.name))
        connection.execute("COMMIT")


def inspect_sqlite(path: Path, *, read_only: bool = False) -> DatabaseInfo | None:
    """Return the description of the store in a file; None if the file is missing or empty.

    Raises:
        Incompatible: the file is a database but not a store, or a newer program wrote it.
        Corrupt: the tables with the description do not have exactly one row each.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    with closing(_open(path, read_only=read_only)) as connection:
        tables = _tables(connection)
        if not tables:
            return None
        if not tables >= MARKS:
            raise Incompatible(f"{path} is a SQLite database but not a Rollbook store", "choose another file")
        revisions = [revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")]
        infos = connection.execute("SELECT store_id, created_at, log_format FROM store_info").fetchall()
    return read_info(revisions, infos, shown(path))


def holds_store(path: Path) -> bool:
    """Return whether a file contains a store of any revision."""
    with store_errors(path), closing(_open(path, read_only=True)) as connection:
        try:
            return _tables(connection) >= MARKS
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                return False
            raise


@contextmanager
def migrating_sqlite(path: Path) -> Generator["Connection"]:
    """Open a connection for alembic in one transaction, which includes changes of the schema. Commit at the end."""
    from sqlalchemy import StaticPool, create_engine

    with closing(_open(path)) as connection:
        engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        with engine.connect() as wrapped:
            wrapped.exec_driver_sql("BEGIN IMMEDIATE")
            yield wrapped
            wrapped.commit()


def read_only_uri(path: Path) -> str:
    """Return the URI that opens a file for reading only, even if its directory cannot be written.

    A file for which `unlocked_state` returns a state is opened as immutable: SQLite then uses no locks and notices no
    changes. Readers have to compare the states before and after a read.
    """
    immutable = "" if unlocked_state(path) is None else "&immutable=1"
    return f"{path.absolute().as_uri()}?mode=ro{immutable}"


State = tuple[int, int, int, int]
"""Device, inode, size, and the time of the last change of a file."""


def unlocked_state(path: Path) -> State | None:
    """Return the state of a file that no connection has open for writing, and that SQLite cannot read with locks.

    The result is None for every other file. SQLite needs a write-ahead log (WAL) and its shared memory to read with
    locks. It cannot create them beside the file if the directory cannot be written, and should not if the file has a
    second name, because a writer would use a log beside the other name. If there is no WAL, the file contains all data.
    The owner of the file may open it at any time, which changes its state.
    """
    # SQLite keeps its files beside the actual file.
    actual = os.path.realpath(path)
    try:
        if os.stat(f"{actual}-wal").st_size or os.access(f"{actual}-shm", os.F_OK):  # noqa: PTH116 (each read calls this)
            return None
    except FileNotFoundError:
        pass
    state = content_state(path)
    if state is None or (os.access(os.path.dirname(actual), os.W_OK) and not _has_second_name(actual)):  # noqa: PTH120
        return None
    return state


def content_state(path: Path) -> State | None:
    """Return a value that changes when the content of a file changes; None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 (each read calls this)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _has_second_name(actual: str) -> bool:
    return os.stat(actual).st_nlink > 1 or _is_mount_point(actual, MOUNTS)  # noqa: PTH116 (each read calls this)


@lru_cache(maxsize=64)
def _is_mount_point(actual: str, mounts: Path) -> bool:
    return mounts.exists() and mount_of(Path(actual), mounts.read_text(errors="surrogateescape"))[0] == actual


def changed_while_read(path: Path) -> Unavailable:
    """Return the error for a file whose owner changed it while it was read."""
    return Unavailable(f"the file {path} was changed by another process while it was read", 0.5)


def _read_unchanged(path: Path, read: Callable[[], T]) -> T:
    """Return the result of a read during which a file did not change."""
    for _ in range(_READS):
        before = unlocked_state(path)
        try:
            result = read()
        except (sqlite3.Error, StoreError):
            if before in {None, content_state(path)}:
                raise
        else:
            if before in {None, content_state(path)}:
                return result
    raise changed_while_read(path)


def shown(path: Path) -> str:
    """Return the URL of a file."""
    return sqlite_url(path)


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Return the mount point and the type of the file system that contains a path.

    `mounts` is the text of `/proc/self/mounts`, and `path` must be absolute.
    """
    found = ("/", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        # Spaces and some other characters of a mount point are written as octal numbers.
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)
        # A later mount hides an earlier mount at the same point.
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found


# -- unfinished copies -------------------------------------------------------------------------------------------------


def unfinished(path: Path) -> Path:
    """Return the file that a copy fills before it gets the name `path`."""
    return path.with_name(path.name + _UNFINISHED)


@contextmanager
def copy_lock(path: Path) -> Generator[None]:
    """Let no other call fill the unfinished copy of `path` during the block.

    Raises:
        Unavailable: another call fills it.
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
    with store_errors(path), _creating(path, place):
        if path.exists():
            raise history.refuse_existing("file", str(path))
        _refuse_older_name(place)
        if is_private and partial.exists():
            partial.chmod(_PRIVATE_MODE)
        found = inspect_sqlite(partial)
        if found is None:
            _create(partial, info, _new_membership(place), _PRIVATE_MODE if is_private else _MODE)
        else:
            history.refuse_foreign(found, info, str(partial), f"remove it: rm '{partial}'*")


def open_unfinished(path: Path) -> DatabaseInfo:
    """Return the description of the unfinished copy of `path`.

    Raises:
        NotFound: there is no unfinished copy.
    """
    with store_errors(path):
        info = inspect_sqlite(unfinished(path))
    if info is None:
        raise not_found(unfinished(path))
    return refuse_behind(info, shown(unfinished(path)))


def publish(path: Path, *, is_single_file: bool, receipt: str | None) -> None:
    """Give the complete copy its name `path`, after all its data is on disk. No connection to it may be open.

    Args:
        path: the file of the store.
        is_single_file: whether no files appear beside it while it is only read.
        receipt: a text that `receipt` returns until `acknowledge` is called.

    Raises:
        AlreadyExists: the file of the store exists now.
    """
    partial = unfinished(path)
    # Processes that create a store hold the same lock, so no file with this name appears before the renaming.
    with store_errors(path), file_lock(path):
        if path.exists():
            raise history.refuse_existing("file", str(path))
        with closing(_open(partial)) as connection:
            # This copies the write-ahead log into the file, and deletes the log.
            _set_journal_mode(connection, "DELETE")
            if not is_single_file:
                _set_journal_mode(connection, "WAL")
        flush(partial)
        if receipt is not None:
            # The file keeps its inode when it is renamed.
            _receipt(path).write_text(f"{partial.stat().st_ino}\n{receipt}", encoding="utf-8")
            flush(_receipt(path))
        partial.rename(path)
        flush(path.parent)


def receipt(path: Path) -> str | None:
    """Return the receipt of a published copy; None if there is none for this file."""
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


# -- removal -----------------------------------------------------------------------------------------------------------


def drop(path: Path, main: Path, partition: str) -> tuple[int, list[str]]:
    """Delete the files of a partition and revoke the keys that are valid only for it.

    The keys are revoked first. If the call is stopped, the same call deletes the remaining files.

    Args:
        path: the file of the partition.
        main: the file of the default partition, which contains the keys.
        partition: the name of the partition.

    Returns:
        The size of the deleted files in bytes, and the ids of the revoked keys.

    Raises:
        NotFound: the partition does not exist, or the file does not contain it.
        Incompatible: the file is not a store, or has a second name.
        Conflict: another connection has the file open.
        ReadOnly: a file or the directory cannot be written.
        Unavailable: a file cannot be used at the moment.
    """
    check_place(path)
    # SQLite keeps its other files beside the actual file.
    actual = path.resolve()
    sides = [actual.with_name(actual.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    if not any(each.exists() for each in (actual, *sides)):
        raise NotFound("partition", partition, f"there is no partition {partition} at {shown(path)}; {_LISTED}")
    refuse_unwritable(path)
    refuse_second_name(path)
    with store_errors(path):
        check_membership(path, PartitionPlace(main, partition), create=False)
    with store_errors(path), file_lock(path), _exclusive(actual):
        revoked = _revoke_keys(main, partition)
        size = sum(each.stat().st_size for each in (actual, *sides) if each.exists())
        # The file goes first, because a file without its log would be an older state of the store.
        for each in (actual, *sides, path):
            each.unlink(missing_ok=True)
        flush(actual.parent)
    return size, revoked


@contextmanager
def _exclusive(path: Path) -> Generator[None]:
    """Prevent other connections from opening the file during the block. Do nothing if the file is already deleted."""
    if not path.exists():
        yield
        return
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=0)) as connection:
        # Each connection that has read the file holds a shared lock, so this lock fails while there is one.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        try:
            connection.execute("BEGIN EXCLUSIVE")
            is_store = _tables(connection) >= MARKS
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            reason = f"other processes have {path} open"
            raise Conflict(reason, "stop them, and drop the partition again") from error
        if not is_store:
            raise Incompatible(f"{path} is a SQLite database but not a Rollbook store", _LISTED)
        yield


def _revoke_keys(main: Path, partition: str) -> list[str]:
    if not main.exists() or not holds_store(main):
        return []
    with closing(_open(main)) as connection:
        if "keys" not in _tables(connection):
            return []
        rows = connection.execute(
            "UPDATE keys SET revoked_at = ? WHERE partition = ? AND revoked_at IS NULL RETURNING key_id",
            (system_clock(), partition),
        )
        return sorted(row[0] for row in rows.fetchall())


def flush(path: Path) -> None:
    """Wait until a file or a directory is on disk. No connection of this process to the file may be open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- places and errors -------------------------------------------------------------------------------------------------


def check_place(path: Path) -> None:
    """Check that a path can be the file of a store, apart from its file system.

    Raises:
        Incompatible: the file is an unfinished copy.
        Invalid: the path is a directory.
        NotFound: the directory does not exist.
    """
    if path.name.endswith(_UNFINISHED):
        raise Incompatible(
            f"{path} is an unfinished copy of a store",
            "finish it: repeat the command that began it (rollbook copy, backup or restore)",
        )
    if path.is_dir():
        raise Invalid("url", f"{path} is a directory; choose a file in it: {shown(path / 'rollbook.db')}")
    if not path.parent.is_dir():
        text = f"the directory {path.parent} does not exist; make it first: mkdir -p '{path.parent}'"
        raise NotFound("directory", str(path.parent), text)


def check_file_system(path: Path) -> str:
    """Return the type of the file system that contains a path; an empty string if the system does not list the types.

    Raises:
        Incompatible: it is a network file system.
    """
    if not MOUNTS.exists():
        return ""
    point, kind = mount_of(path.resolve(), MOUNTS.read_text(errors="surrogateescape"))
    # The root of a sandbox may be on 9p. No other host uses such a file system, so it is allowed.
    is_network = kind in _NETWORK and not (kind == "9p" and point == "/")
    if is_network or kind.partition("fuse.")[2] in _NETWORK_FUSE:
        raise Incompatible(
            f"{path} is on {point}, a network file system ({kind}), on which SQLite loses data",
            "choose a file on a local disk, or use postgresql://",
        )
    return kind


def second_name(path: Path) -> tuple[str, str] | None:
    """Return why other processes may know a file by another name, and what to do; None if it has one name.

    SQLite keeps the write-ahead log beside the name by which it opened the file. With two names there are two logs, and
    commits in one of them are lost.
    """
    actual = path.resolve()
    if not actual.exists():
        return None
    if (names := actual.stat().st_nlink) > 1:
        return (
            f"the file {actual} has {names} names (hard links)",
            f"delete the other names (find / -xdev -samefile '{actual}'), or use a copy of the file",
        )
    if _is_mount_point(str(actual), MOUNTS):
        return (
            f"the file {actual} is mounted by itself (a bind mount), so it has another name elsewhere",
            "mount the directory that contains it instead of the file",
        )
    return None


def refuse_second_name(path: Path) -> None:
    """Raise `Incompatible` if other processes may know a file by another name."""
    if (second := second_name(path)) is not None:
        reason, cure = second
        text = f"{reason}, and SQLite keeps a separate write-ahead log for each name, so commits would be lost"
        raise Incompatible(text, cure)


def refuse_unwritable(path: Path) -> None:
    """Raise `ReadOnly` if this user cannot write the file or its directory."""
    if path.exists() and not os.access(path, os.W_OK):
        raise _read_only(
            f"the file {path} is read-only for this user; make it writable, or open it with read_only=True"
        )
    if not os.access(path.parent, os.W_OK):
        raise _read_only(
            f"the directory {path.parent} is read-only for this user, and SQLite keeps its log beside the file;"
            " make it writable, or open the store with read_only=True"
        )


def _read_only(text: str) -> ReadOnly:
    error = ReadOnly("opening the file")
    # The default message of `ReadOnly` names the option `read_only` as the cause. Here the cause is the file.
    error.args = (text,)
    return error


def not_found(path: Path) -> NotFound:
    """Return the error for a file that is missing or empty."""
    return NotFound(
        "store",
        shown(path),
        f"there is no store at {shown(path)}; `rollbook demo` makes one and fills it, `rollbook migrate` and"
        " open_store(url) create an empty one",
    )


def _open(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    uri = read_only_uri(path) if read_only else f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _create(path: Path, info: DatabaseInfo, membership: Membership | None, mode: int) -> DatabaseInfo:
    path.touch(mode)
    with closing(_open(path)) as connection:
        _set_journal_mode(connection, "WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in ddl.creation("sqlite"):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO store_info (store_id, created_at, log_format) VALUES (?, ?, ?)",
            (info.store_id, info.created_at, info.log_format),
        )
        if membership is not None:
            partition_files.write(connection, membership)
        connection.execute("COMMIT")
    logger.info("created store %s in %s", info.store_id, path)
    return info


def _set_journal_mode(connection: sqlite3.Connection, mode: str) -> None:
    # A change of the journal mode needs exclusive access for a moment. SQLite does not always wait for this access, so
    # the statement is repeated here.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _upgrade(path: Path, info: DatabaseInfo) -> Prepared:
    with migrating_sqlite(path) as connection:
        # The transaction keeps other processes from writing, so the copy is equal to the file before the upgrade.
        copy = _copy(path)
        message = "upgrading %s from schema revision %s to %s; a copy of the old file is in %s"
        logger.warning(message, path, info.revision, history.HEAD, copy)
        try:
            with history.turn():
                history.run_migrations(connection)
        except BaseException:
            # The upgrade was rolled back, so the file is unchanged.
            copy.unlink(missing_ok=True)
            raise
    upgraded = inspect_sqlite(path)
    assert upgraded is not None
    return Prepared(refuse_behind(upgraded, shown(path)), info.revision, copy)


def _copy(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    copy = path.with_name(f"{path.name}.before-{history.HEAD}-{stamp}")
    try:
        copy.touch(_PRIVATE_MODE, exist_ok=False)
        with closing(_open(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


@contextmanager
def file_lock(path: Path, seconds: float = _LOCK_SECONDS) -> Generator[None]:
    """Hold a lock on the file `<file>.lock` during the block. If the process dies, the system releases the lock.

    `<file>.lock` exists only while a process holds the lock or waits for it. The wait ends after `seconds`.
    """
    # A separate file is locked. If this process closed a descriptor of the database file, the system would release all
    # locks that SQLite holds on this file in this process.
    lock = path.resolve().with_name(f"{path.resolve().name}.lock")
    descriptor = _acquire(lock, seconds)
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
            if _is_still(descriptor, lock):
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


def _is_still(descriptor: int, lock: Path) -> bool:
    try:
        named = lock.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


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
            return _read_only(f"{path} cannot be written ({error}); make the file and its directory writable")
        case "CORRUPT":
            return Corrupt(f"the file {path}", str(error), "a sound SQLite database")
        case "CANTOPEN":
            reason = f"{path} cannot be opened ({error})"
            return Incompatible(reason, "check its permissions, or copy it with its -wal file to where you may write")
        case "BUSY" | "LOCKED" | "IOERR" | "PROTOCOL" | "NOMEM" | "INTERRUPT":
            return Unavailable(f"{path} cannot be used at the moment ({error})")
        case _:
            return Incompatible(f"SQLite refused a statement on {path} ({error})", "check it with `rollbook verify`")


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
