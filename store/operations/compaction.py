"""Compaction, which compresses events and their payload, and frees the space of deleted rows."""

from __future__ import annotations

import time

from store.db.dialect import Dialect, existing_store
from store.models.enums import Frozen
from store.operations.compression import CompressionCounts, compression
from store.operations.damage import store_damage_reported
from store.operations.removal import database
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore


class CompactReport(Frozen):
    """The result of a compaction."""

    size_before: int
    """The size of the store on disk in bytes."""
    size_after: int
    is_complete: bool
    """Whether the space of all deleted rows was freed.

    False if a transaction still reads an old state: repeat the call later.
    """
    seconds: float
    dictionaries: int
    """The number of dictionaries that this call trained."""
    bodies: int
    """The number of bodies (payload of events) that this call stored in another form."""
    events: int
    """The number of events whose data (JSON without payload) this call stored in blocks."""
    longest_seconds: float
    """The longest time that one transaction of the compression held the write lock."""


async def compact(url: str, *, rewrite: bool = False, on_progress: OnProgress = ignore) -> CompactReport:
    """Compress events, free the space of deleted rows, and update the statistics of the query planner of Postgres.

    Bodies of events are compressed with zstd and a dictionary for each type of event that has at least 2,000 bodies.
    The dictionaries are stored in the store. The data of events (JSON without payload) is compressed in blocks of 128
    events. Some data stays in its row, see `store.operations.packing`. Programs that do not know schema revision 0015
    cannot read compressed events.
    Other programs can read and write until the space is freed. SQLite then rewrites the file, which needs room for a
    second copy, and writers wait. Postgres runs `VACUUM (ANALYZE)`, after which the tables use the space for new rows.
    The content of the store does not change. A call that was stopped leaves a correct store, and the next call
    continues the work.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        rewrite: whether Postgres rewrites the tables (`VACUUM FULL`), one after the other, which returns the space to
            the operating system. This blocks readers and writers, and needs room for a second copy of a table.
        on_progress: called with the progress, in another thread.

    Raises:
        NotFound: there is no store at the URL.
        Invalid: the URL does not name a database.
        Incompatible: the store has an older schema, and the message names the command that upgrades it; or the role
            does not own the tables on Postgres.
        Corrupt: a table is damaged.
        Unavailable: the database does not answer, is locked for too long, or its disk is full.
    """
    began = time.monotonic()
    dialect = database(url)
    reporter = ProgressReporter(on_progress)
    async with store_damage_reported(url, reporter):
        before, after, is_complete, counts = await run_in_thread(
            "rollbook compact", _run(dialect, reporter, rewrite=rewrite)
        )
    return CompactReport(
        size_before=before,
        size_after=after,
        is_complete=is_complete,
        seconds=time.monotonic() - began,
        dictionaries=counts.dictionaries,
        bodies=counts.bodies,
        events=counts.events,
        longest_seconds=counts.longest_seconds,
    )


async def _run(dialect: Dialect, on_progress: OnProgress, *, rewrite: bool) -> tuple[int, int, bool, CompressionCounts]:
    async with existing_store(dialect):
        before = await dialect.size_bytes()
        async with compression(dialect) as work:
            await work.compress(on_progress)
        on_progress(OperationProgress("freeing space"))
        is_complete = await dialect.compact(rewrite=rewrite)
        return before, await dialect.size_bytes(), is_complete, work.counts
