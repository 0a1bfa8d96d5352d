"""Export to a SQLite file. The file gets its final name when it is complete."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from store.errors import AlreadyExists, Conflict, Unavailable
from store.exports.databases.report import DatabaseReport
from store.exports.databases.rows import TableRows
from store.exports.databases.sqlite_tables import ORIGIN, SQLiteTables
from store.exports.formats.base import ExportOrigin
from store.exports.frames import for_both_stores
from store.exports.manifest import UNFINISHED, sync_directory
from store.exports.redaction import FieldRedaction
from store.exports.tables import tables_of
from store.interface.store import Store
from store.models.missing_rewards import MissingReward
from store.models.queries import RolloutQuery
from store.runtime.progress import OnProgress, ignore

_CURE: Final = "export to another file, or overwrite an export with --overwrite"


@for_both_stores
async def export_sqlite(
    store: Store,
    path: str | os.PathLike[str],
    *,
    query: RolloutQuery | None = None,
    tables: Sequence[str] | None = None,
    redact: Sequence[str] = (),
    unrewarded: str = "out",
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> DatabaseReport:
    """Export tables and views to a SQLite file. If the call is stopped, an earlier file stays unchanged.

    Args:
        store: the store. With a blocking store, the function returns the report itself and not a coroutine.
        path: the file.
        query: the conditions on rollouts, `as_at` and `reward_version`; None for all rollouts at the end of the log.
        tables: the names of the tables; None for all.
        redact: the fields to leave out; see `FieldRedaction`.
        unrewarded: see `export_store`. The table `export_origin` has the choice.
        overwrite: whether to replace the file of an earlier export.
        on_progress: called with the number of listed rollouts.

    Raises:
        AlreadyExists: the file exists, and `overwrite` is false or the file was not written by an export.
        Conflict: another process is exporting to the file.
        Invalid: an argument is invalid, or SQLite cannot store a value.
        Unavailable: the disk is full.
        Unsupported: the store has no log.
    """
    begun = time.perf_counter()
    query = RolloutQuery() if query is None else query
    chosen = tables_of(tables)
    moment = await store.log.position(query.as_at)
    missing = MissingReward.parse(unrewarded)
    origin = ExportOrigin(moment.store_id, moment.position, str(missing))
    redaction = FieldRedaction(redact)
    rows = TableRows(
        store, query, moment.position, chosen, redaction=redaction, missing=missing, on_progress=on_progress
    )
    file = Path(path)
    _refuse_existing(file, overwrite=overwrite)
    counts = Counter[str]()
    with _unfinished(file) as unfinished, ThreadPoolExecutor(1, "rollbook export") as thread:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        connection = await in_thread(
            partial(sqlite3.connect, unfinished, isolation_level=None, check_same_thread=False)
        )
        with closing(connection):
            target = await in_thread(_begin, connection, rows)
            async for batch in rows.batches():
                for table in rows.tables:
                    await in_thread(target.insert, table, batch[table.name])
                    counts[table.name] += len(batch[table.name])
            await in_thread(target.finish, origin)
            await in_thread(connection.execute, "COMMIT")
    return DatabaseReport(
        database=str(path),
        store_id=origin.store_id,
        position=origin.position,
        rollouts=rows.rollouts,
        rows={table.name: counts[table.name] for table in chosen},
        seconds=time.perf_counter() - begun,
    )


def _begin(connection: sqlite3.Connection, rows: TableRows) -> SQLiteTables:
    # The file is not used before it gets its final name, so its transaction needs no rollback journal.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("BEGIN")
    return SQLiteTables(connection, rows.tables)


def _refuse_existing(file: Path, *, overwrite: bool) -> None:
    """Raise `AlreadyExists` if the file exists and must not be replaced."""
    if not file.exists():
        return
    if not overwrite:
        raise AlreadyExists("file", str(file), _CURE)
    try:
        # An immutable file is opened without a write-ahead log, which a connection that only reads would leave behind.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            connection.execute(f"SELECT position FROM {ORIGIN}").fetchall()  # noqa: S608 - a constant
    except sqlite3.DatabaseError:
        raise AlreadyExists("file that no export wrote", str(file), "export to another file") from None


@contextmanager
def _unfinished(file: Path) -> Generator[Path]:
    """Yield the path of an empty file that replaces `file` after the block.

    Raises:
        Conflict: another process is exporting to the file.
        Unavailable: the disk is full.
    """
    path = file.with_name(file.name + UNFINISHED)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = path.exists() and os.path.samestat(path.stat(), os.fstat(handle))
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise Conflict(f"another process is exporting to {file}", "wait until it has ended")
        try:
            os.ftruncate(handle, 0)
            yield path
            os.fsync(handle)
            for name in (f"{file.name}-wal", f"{file.name}-journal"):
                # SQLite would apply the changes of the old file to the new one.
                if file.with_name(name).exists():
                    raise Conflict(f"a program has changes of {file} in {name}", "close the program and repeat")  # noqa: TRY301
            path.replace(file)
            sync_directory(file.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the export to {file} stopped: {error}; free some space and repeat the command") from error
    finally:
        os.close(handle)
