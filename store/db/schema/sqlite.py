"""Opening and removal of a store in a SQLite file.

Before the first write, a missing file is created, and an older file is copied and upgraded.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from store.db.schema import ddl, history, partition_files
from store.db.schema.history import MARKS, DatabaseInfo, read_info, refuse_behind
from store.db.schema.partition_files import Membership, PartitionPlace, StoreFile
from store.db.schema.sqlite_files import (
    PRIVATE_MODE,
    changed_while_read,
    connect,
    content_state,
    file_lock,
    flush,
    index_files,
    is_busy,
    set_journal_mode,
    store_errors,
    table_names,
    unlocked_state,
)
from store.db.schema.sqlite_place import (
    check_file_system,
    check_place,
    refuse_second_name,
    refuse_unwritable,
    second_name,
)
from store.db.url import sqlite_url
from store.errors import Conflict, Incompatible, NotFound, StoreError
from store.runtime.clock import Clock, system_clock
from store.runtime.urls import DEFAULT_PARTITION

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")

logger = logging.getLogger("store.db.schema")

MODE = 0o666
"""The permissions of a new file, before the umask is applied."""
_READS = 5
"""The maximum number of reads of a file, if the file changes during each read."""
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
    mode: int = MODE,
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
        place: the partition that the file contains, which the file then records; None to record nothing.
        mode: the permissions of a new file, before the umask is applied.

    Raises:
        NotFound: the file does not exist and may not be created, its directory does not exist, or the file does not
            contain the partition.
        Invalid: the path is a directory.
        Incompatible: the file is on a network file system, is not a store, is newer than this program, is older and
            opened only for reading, has a second name (such as a hard link) and is opened for writing, or is in the
            place of a partition that would be created.
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
    return refuse_behind(info, sqlite_url(path))


def prepare_for_writing(
    path: Path, *, create: bool, clock: Clock = system_clock, place: PartitionPlace | None = None, mode: int = MODE
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
        with creation_locks(path, place or PartitionPlace(path)):
            info = inspect_sqlite(path)
            if info is None:
                membership = None if place is None else new_membership(place)
                return Prepared(create_file(path, DatabaseInfo.new(clock), membership, mode), None)
            prepared = _upgrade(path, info) if info.is_behind else Prepared(info, info.revision)
            if place is not None:
                _complete_membership(path, place)
            return prepared


@contextmanager
def creation_locks(path: Path, place: PartitionPlace) -> Generator[None]:
    """Hold the locks for the creation of a file. Only one process at a time creates a file of a database."""
    if place.main.resolve() == path.resolve():
        with file_lock(path):
            yield
    else:
        with file_lock(place.main), file_lock(path):
            yield


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


def not_found(path: Path) -> NotFound:
    """Return the error for a file that is missing or empty."""
    return NotFound(
        "store",
        sqlite_url(path),
        f"there is no store at {sqlite_url(path)}; `rollbook demo` makes one and fills it, `rollbook migrate` and"
        " open_store(url) create an empty one",
    )


def store_file(path: Path) -> StoreFile | None:
    """Return the description of the store in a file; None if the file is missing, empty, or contains no store."""
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with closing(connect(path, read_only=True)) as connection:
            return partition_files.read(connection)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return None
        raise


def check_membership(path: Path, place: PartitionPlace, *, create: bool) -> StoreFile | None:
    """Check that a file, if it exists, contains a partition, and return the description of the file.

    Raises:
        NotFound: the file does not contain the partition, and `create` is False.
        Incompatible: the file does not contain the partition, and `create` is True.
    """
    file = store_file(path)
    if file is None:
        refuse_older_name(place)
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
        content = f"the partition {file.membership.partition}, which belongs to another database or has another name"
    text = f"the file {path} is {content}, and not the partition {place.partition} of {place.main.name}"
    if create:
        raise Incompatible(text, f"use another name, or rename the file, or open it by its own URL: {sqlite_url(path)}")
    raise NotFound("partition", place.partition, f"{text}; to read it, open it by its own URL: {sqlite_url(path)}")


def refuse_older_name(place: PartitionPlace) -> None:
    """Raise `Incompatible` if the partition may be in a file with the name that older versions used."""
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


def new_membership(place: PartitionPlace) -> Membership:
    """Return the membership of a new file at a place."""
    return Membership(place.partition, _database_id(place.main), place.main.name)


def _database_id(main: Path) -> str:
    """Return the id that the files of a database contain. If there is none, return a new id."""
    if (file := store_file(main)) is not None:
        return file.database_id
    for sibling in partition_files.candidates(main):
        file = store_file(sibling.path)
        if file is not None and file.membership is not None and sibling.holds(file, None):
            return file.membership.database_id
    return os.urandom(8).hex()


def _complete_membership(path: Path, place: PartitionPlace) -> None:
    """Store the membership of a file of an older version."""
    with closing(connect(path)) as connection:
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
        Corrupt: `alembic_version` or `store_info` does not have exactly one row.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    with closing(connect(path, read_only=read_only)) as connection:
        tables = table_names(connection)
        if not tables:
            return None
        if not tables >= MARKS:
            raise Incompatible(f"{path} is a SQLite database but not a Rollbook store", "choose another file")
        revisions = [revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")]
        infos = connection.execute("SELECT store_id, created_at, log_format FROM store_info").fetchall()
    return read_info(revisions, infos, sqlite_url(path))


def create_file(path: Path, info: DatabaseInfo, membership: Membership | None, mode: int) -> DatabaseInfo:
    """Create a store in a new or empty file, and return `info`."""
    path.touch(mode)
    with closing(connect(path)) as connection:
        set_journal_mode(connection, "WAL")
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
    return Prepared(refuse_behind(upgraded, sqlite_url(path)), info.revision, copy)


def _copy(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    copy = path.with_name(f"{path.name}.before-{history.HEAD}-{stamp}")
    try:
        copy.touch(PRIVATE_MODE, exist_ok=False)
        with closing(connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


@contextmanager
def migrating_sqlite(path: Path) -> Generator["Connection"]:
    """Open a connection for alembic and begin a transaction, which includes changes of the schema. Commit at the
    end.
    """
    from sqlalchemy import StaticPool, create_engine

    with closing(connect(path)) as connection:
        engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        with engine.connect() as wrapped:
            wrapped.exec_driver_sql("BEGIN IMMEDIATE")
            yield wrapped
            wrapped.commit()


def drop(path: Path, main: Path, partition: str) -> tuple[int, list[str]]:
    """Delete the files of a partition and revoke the keys that are valid only for it.

    The keys are revoked first. If the call is stopped, a repeat of the call deletes the remaining files.

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
    # If the path is a symbolic link, SQLite keeps its other files beside the target of the link.
    actual = path.resolve()
    other_files = [actual.with_name(actual.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    if not any(file.exists() for file in (actual, *other_files)):
        raise NotFound("partition", partition, f"there is no partition {partition} at {sqlite_url(path)}; {_LISTED}")
    refuse_unwritable(path)
    refuse_second_name(path)
    with store_errors(path):
        check_membership(path, PartitionPlace(main, partition), create=False)
    with store_errors(path), file_lock(path), _exclusive(actual):
        revoked = _revoke_keys(main, partition)
        size = sum(file.stat().st_size for file in (actual, *other_files) if file.exists())
        # The database file is deleted first, because without its write-ahead log it would contain an older state of the
        # store.
        for file in (actual, *other_files, path, *index_files(path)):
            file.unlink(missing_ok=True)
        flush(actual.parent)
    return size, revoked


@contextmanager
def _exclusive(path: Path) -> Generator[None]:
    """Prevent other connections from opening the file during the block. Do nothing if the file is already deleted."""
    if not path.exists():
        yield
        return
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=0)) as connection:
        # Each connection that has read the file holds a shared lock, so the exclusive lock fails while there is such a
        # connection.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        try:
            connection.execute("BEGIN EXCLUSIVE")
            is_store = table_names(connection) >= MARKS
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            reason = f"other processes have {path} open"
            raise Conflict(reason, "stop them, and drop the partition again") from error
        if not is_store:
            raise Incompatible(f"{path} is a SQLite database but not a Rollbook store", _LISTED)
        yield


def _revoke_keys(main: Path, partition: str) -> list[str]:
    if not main.exists() or not holds_store(main):
        return []
    with closing(connect(main)) as connection:
        if "keys" not in table_names(connection):
            return []
        rows = connection.execute(
            "UPDATE keys SET revoked_at = ? WHERE partition = ? AND revoked_at IS NULL RETURNING key_id",
            (system_clock(), partition),
        )
        return sorted(key_id for (key_id,) in rows.fetchall())


def holds_store(path: Path) -> bool:
    """Return whether a file contains a store of any revision."""
    with store_errors(path), closing(connect(path, read_only=True)) as connection:
        try:
            return table_names(connection) >= MARKS
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                return False
            raise
