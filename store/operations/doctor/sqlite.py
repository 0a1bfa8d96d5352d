"""Checks of a SQLite file, its directory and the SQLite library."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from store.db.drivers.sqlite.errors import LOCK_SECONDS
from store.db.schema import sqlite_files, sqlite_place
from store.db.schema.sqlite import not_found
from store.errors import ReadOnly
from store.operations.doctor.results import Verdict, ok, problem, warning
from store.operations.doctor.target import Target

_OLDEST: Final = (3, 35, 0)
"""The oldest version of SQLite that has UPDATE … RETURNING."""
_LONG_LOG_BYTES: Final = 64 * 1024 * 1024
"""Twice the size at which a store empties the write-ahead log if no reader prevents it."""
_LEAST_FREE_BYTES: Final = 128 * 1024 * 1024


async def check_file(target: Target) -> Verdict:
    """Check that the file exists, is a readable SQLite database, and has no second name."""
    path = _path(target)
    size = await asyncio.to_thread(_size_of_database, path)
    second = await asyncio.to_thread(sqlite_place.second_name, path)
    if second is not None:
        reason, cure = second
        return problem(f"{reason}, so commits may be lost: SQLite keeps a write-ahead log for each name", cure)
    return ok(f"the file {path} takes {_megabytes(size)}")


def _size_of_database(path: Path) -> int:
    sqlite_place.check_place(path)
    with sqlite_files.store_errors(path):
        if not path.exists() or not path.stat().st_size:
            raise not_found(path)
        _pragma(path, "schema_version")
        return path.stat().st_size


async def check_file_system(target: Target) -> Verdict:
    """Check that the file is not on a network file system."""
    kind = await asyncio.to_thread(sqlite_place.check_file_system, _path(target))
    return ok(f"the file system is {kind}, which is local" if kind else "this system does not list its file systems")


async def check_version(target: Target) -> Verdict:
    """Check the version of the SQLite library of this Python."""
    del target
    return version(sqlite3.sqlite_version_info)


def version(number: tuple[int, ...]) -> Verdict:
    """Return the result for a version of SQLite."""
    text = f"this Python uses SQLite {'.'.join(map(str, number))}"
    if number < _OLDEST:
        needed = ".".join(map(str, _OLDEST))
        return problem(f"{text}, and Rollbook needs {needed}", "use a Python with a newer SQLite")
    return ok(text)


async def check_permission(target: Target) -> Verdict:
    """Check that this user can write the file and create files beside it."""
    path = _path(target)
    try:
        await asyncio.to_thread(sqlite_place.refuse_unwritable, path)
    except ReadOnly as error:
        name = shlex.quote(str(path))
        return problem(str(error).partition(";")[0], f"chmod u+w {name} {shlex.quote(str(path.parent))}")
    return ok("this user can write the file and its directory")


async def check_write_ahead_log(target: Target) -> Verdict:
    """Check the journal mode, and the size of the write-ahead log."""
    path = _path(target)
    log = path.resolve().with_name(f"{path.resolve().name}-wal")
    size = log.stat().st_size if log.exists() else 0
    mode = await asyncio.to_thread(_pragma, path, "journal_mode")
    if mode != "wal":
        text = f"the journal mode is {mode}, so readers wait for writers until a process opens the store for writing"
        return warning(text, f"sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode = WAL'")
    if size > _LONG_LOG_BYTES:
        text = f"the write-ahead log has {_megabytes(size)}, because a reader holds an old state of the database"
        command = f"sqlite3 {shlex.quote(str(path))} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        return warning(text, f"end the processes with long reads, then run: {command}")
    return ok(f"the journal mode is WAL, and the write-ahead log has {_megabytes(size)}")


async def check_disk_space(target: Target) -> Verdict:
    """Check that the disk has room for the next writes, and for a copy of the database."""
    path = _path(target)
    usage = await asyncio.to_thread(shutil.disk_usage, path.parent)
    return disk_space(usage.free, path.stat().st_size)


def disk_space(free: int, size: int) -> Verdict:
    """Return the result for a disk with `free` bytes and a database with `size` bytes."""
    text = f"the disk has {_megabytes(free)} free, and the database takes {_megabytes(size)}"
    if free < _LEAST_FREE_BYTES:
        return problem(f"{text}, so writes may fail soon", "free space on the disk of the database")
    if free < size:
        return warning(
            f"{text}, so a backup on this disk and a VACUUM would not fit",
            "free space, or back up to another disk: rollbook backup FILE",
        )
    return ok(text)


def _path(target: Target) -> Path:
    assert target.url.path is not None  # only stores on SQLite are checked here
    return target.url.path.absolute()


def _pragma(path: Path, name: str) -> object:
    with (
        sqlite_files.store_errors(path),
        closing(sqlite3.connect(sqlite_files.read_only_uri(path), uri=True, timeout=LOCK_SECONDS)) as connection,
    ):
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _megabytes(size: int) -> str:
    return f"{size / 10**6:,.1f} MB"
