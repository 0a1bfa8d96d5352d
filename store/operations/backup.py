"""Backups. A backup is a copy of a store in a SQLite file, which also contains a seal of the copy.

The file is a store: every command that reads can read it. Its seal shows later whether the file was changed.
"""

import asyncio
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from store.db.dialect import Dialect, ReadSession, Sql, Unfinished, WriteSession, existing_store
from store.db.schema.partition_files import place_like
from store.db.url import sqlite_url
from store.errors import Corrupt, Incompatible, Invalid, NotFound, StoreError
from store.operations import beside_log, damage
from store.operations.copying import database, make_copy
from store.operations.log_source import DatabaseSource
from store.operations.reports import ArchiveContents, BackupSeal, CopyReport
from store.operations.sealed_files import read_seal, store_seal
from store.runtime.clock import Clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, ProgressReporter, ignore
from store.verification import seal as seals

# This check finds damage of the file's structure. Damage of values is found by the hashes of the log and of the seal.
_CHECK: Final = Sql("PRAGMA quick_check(1)", (), {})


async def backup_store(
    source_url: str, file: str | os.PathLike[str], *, verify: bool = True, on_progress: OnProgress = ignore
) -> CopyReport:
    """Back up a store into one file, while other processes write to the store.

    The file is a SQLite store, so `verify`, `show` and the other commands that read can read it. The file contains a
    seal, and gets its name when it is complete and on disk. If the call is stopped, the same call continues the backup.

    Args:
        source_url: the URL of the store.
        file: the file of the backup, which must not exist.
        verify: whether to verify the whole backup before it gets its name.
        on_progress: called with the progress, in another thread.

    Raises:
        AlreadyExists: the file exists.
        Invalid: this name of the file is not allowed.
        StoreError: the errors of `copy_store`.
    """
    source, target = database(source_url), database_in(await asyncio.to_thread(new_file, file))
    written: list[BackupSeal] = []

    async def finish(_: Unfinished, writer: WriteSession, store_id: str) -> None:
        written.append(await write_seal(writer, store_id))

    reporter = ProgressReporter(on_progress)

    async def back_up() -> CopyReport:
        report = await make_copy(
            DatabaseSource(source),
            target.unfinished(),
            is_verified=verify,
            on_progress=reporter,
            finish=finish,
            is_single_file=True,
        )
        assert target.url.path is not None  # a file
        # If `report` is the result of an earlier call, that call has written the seal.
        return report.model_copy(update={"seal": written[-1] if written else await checked_seal(target.url.path)})

    async with damage.store_damage_reported(source_url, reporter):
        return await run_in_thread("rollbook copy", back_up())


async def restore_store(
    file: str | os.PathLike[str], target_url: str, *, on_progress: OnProgress = ignore
) -> CopyReport:
    """Check a backup against its seal, copy it to a new store, and verify the store.

    The store gets its name when it is complete and verified. If the call is stopped, the same call continues the copy.

    Args:
        file: a file that `backup_store` or `archive_payload` wrote.
        target_url: the URL of the new store. There must be no store and no file.
        on_progress: called with the progress, in another thread.

    Raises:
        NotFound: the file does not exist.
        Incompatible: the file is not a backup, or it has an older schema or a newer log format.
        Corrupt: the file was changed or damaged after it was written.
        StoreError: the errors of `copy_store` for the target.
    """
    source, target = database_in(file), database(target_url)

    async def restore() -> CopyReport:
        seal = await checked_seal(Path(file))
        unfinished = target.unfinished()
        try:
            with damage_reported(Path(file)):
                report = await make_copy(DatabaseSource(source), unfinished, is_verified=True, on_progress=on_progress)
        except Corrupt:
            await unfinished.discard()
            raise
        return report.model_copy(update={"seal": seal})

    return await run_in_thread("rollbook copy", restore())


def new_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a backup or an archive, with all symbolic links resolved.

    Raises:
        Invalid: the path contains ? or #, or a store in the same directory would use the file as one of its partitions.
    """
    path = Path(file).resolve()
    if (partition_file := place_like(path)) is not None:
        reason = f"{path.name} would be the partition {partition_file.partition!r} of {partition_file.main.name}"
        raise Invalid("file", f"{reason}; choose a name that does not end in .db")
    database_in(path)
    return path


def database_in(file: str | os.PathLike[str], clock: Clock | None = None) -> Dialect:
    """Return the database in a file, to read from. It is not open yet.

    Raises:
        Invalid: the path contains ? or #.
    """
    path = Path(file).absolute()
    if not {"?", "#"}.isdisjoint(str(path)):
        raise Invalid("file", f"the path {path} contains ? or #, which a URL cannot contain; choose another name")
    return database(sqlite_url(path), clock)


async def write_seal(writer: WriteSession, store_id: str, contents: ArchiveContents | None = None) -> BackupSeal:
    """Store a seal in the file of a complete copy, and return the seal."""
    async with writer.dialect.read(snapshot=True) as session:
        seal = (await _seal_of(session, store_id)).model_copy(update={"archive": contents})
    await store_seal(writer, seal)
    return seal


async def _seal_of(session: ReadSession, store_id: str) -> BackupSeal:
    head = await seals.head(session, store_id)
    return BackupSeal(**head.model_dump(), tables=await beside_log.digest(session))


async def checked_seal(path: Path) -> BackupSeal:
    """Return the seal in a backup, after a check that the file agrees with it.

    Raises:
        NotFound: there is no file.
        Incompatible: the file is not a backup.
        Corrupt: the file was changed or damaged after it was written.
    """
    if not await asyncio.to_thread(path.exists):
        raise NotFound("backup", str(path), f"there is no file {path}; `rollbook backup {path}` writes one")
    source = database_in(path)
    with damage_reported(path):
        async with existing_store(source) as store_id, source.read(snapshot=True) as session:
            ((state,),) = await session.fetch(_CHECK, {})
            if state != "ok":
                raise Corrupt(f"the backup {path}", state, "a sound SQLite database")
            sealed, actual = await read_seal(session, path), await _seal_of(session, store_id)
    for name in ("store_id", "commit_id", "position", "chain_head", "tables"):
        if getattr(actual, name) != getattr(sealed, name):
            expected = f"{getattr(sealed, name)} as in its seal"
            raise Corrupt(f"{name} of the backup {path}", getattr(actual, name), expected)
    return sealed


@contextmanager
def damage_reported(path: Path) -> Generator[None]:
    """Raise `Corrupt` instead of an error that only a damaged file causes."""
    try:
        yield
    except Incompatible as error:
        cause = error.__cause__
        is_sqlite = isinstance(cause, sqlite3.Error)
        # If the file is not a SQLite database, `Incompatible` says so. Errors that Python's driver raises by itself
        # have no code.
        if is_sqlite and getattr(cause, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
            raise Corrupt(f"the backup {path}", cause, "a sound SQLite database") from error
        raise
    except StoreError:  # some errors of the store are also in `VALUE_ERRORS`
        raise
    except damage.VALUE_ERRORS as error:
        # SQLite stores a value of any type in any column.
        raise Corrupt(f"the backup {path}", error, "values that a store wrote") from error
