"""Copy of a store to another database, with the same id, log and state. Decision 61."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from store.db.dialect import Dialect, Unfinished, WriteSession, dialect_for, existing_store
from store.db.url import parse
from store.errors import AlreadyExists, Corrupt, Invalid
from store.models import VerifyReport
from store.operations import receipts
from store.operations.compression import Compression
from store.operations.damage import store_damage_reported
from store.operations.log_copy import LogCopy
from store.operations.log_source import DatabaseSource, EndOfLog, LogSource, end_of
from store.operations.reports import CopyReport
from store.runtime.clock import Clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore
from store.verification import last
from store.verification.rebuild import rebuild
from store.verification.verify import verify

T = TypeVar("T")

Finish = Callable[[Unfinished, WriteSession, str], Awaitable[None]]
"""Function that is called with a complete copy, its session that writes, and the id of the store.

The function may append to the log of the copy.
"""


async def copy_store(
    source_url: str, target_url: str, *, verify: bool = True, on_progress: OnProgress = ignore
) -> CopyReport:
    """Copy a store to another database. Both databases may be SQLite or Postgres.

    The copy contains every write that was acknowledged before the call; other processes may write to the source
    meanwhile. The copy has the same store id, commits and positions. The target gets its name in one step when the copy
    is complete. Until then, the target is the file `<file>.partial` or the schema `partial_<schema>`. If the call is
    stopped, the same call continues the copy.

    Args:
        source_url: the URL of the store. It is opened read-only, so it may be on a read replica.
        target_url: the URL of the copy. There must be no store and no file.
        verify: whether to verify the whole copy before it gets its name.
        on_progress: called with the progress of the copy, in another thread.

    Raises:
        NotFound: the source does not exist.
        AlreadyExists: the target exists.
        Incompatible: the source has an older schema (the message names the command that upgrades it) or a newer log
            format; or an unfinished copy at the target belongs to another store or log.
        Corrupt: the source is damaged, so the copy fails verification and is deleted.
        Unavailable: a database does not answer, or a disk is full, or another process makes the same copy. The copy
            can be continued.
        Invalid: a URL does not name a SQLite file or a Postgres database.
    """
    source, target = database(source_url), database(target_url)
    refuse_same(source, target)
    reporter = ProgressReporter(on_progress)
    async with store_damage_reported(source_url, reporter):
        return await run_in_thread(
            "rollbook copy",
            make_copy(DatabaseSource(source), target.unfinished(), is_verified=verify, on_progress=reporter),
        )


def refuse_same(source: Dialect, target: Dialect) -> None:
    """Raise `Invalid` if the target of a copy is its source."""
    if source.url.path is not None and source.url.path == target.url.path:
        raise Invalid("target", f"{target.url.shown} is the source itself; choose another target")


def database(url: str, clock: Clock | None = None) -> Dialect:
    """Return the database at a URL, to read from. It is not open yet.

    Raises:
        Invalid: the URL does not name a SQLite file or a Postgres database.
    """
    parsed = parse(url)
    if parsed.path is None and parsed.dsn is None:
        reason = f"{parsed.shown} cannot be copied; give the URL of a SQLite file or a Postgres database"
        raise Invalid("url", reason)
    return dialect_for(parsed)(parsed, clock, read_only=True)


async def make_copy(
    source: LogSource,
    target: Unfinished,
    *,
    is_verified: bool,
    on_progress: OnProgress,
    finish: Finish | None = None,
    is_single_file: bool = False,
) -> CopyReport:
    """Copy a store as `copy_store` does. Writes to SQLite may block the event loop of this call.

    Only one call at a time fills a target. A second call could replace tables that the first call has compared. The
    arguments are the arguments of `fill_reserved`.

    Raises:
        Unavailable: another call makes the same copy.
    """
    async with target.reserved():
        return await fill_reserved(
            source,
            target,
            is_verified=is_verified,
            on_progress=on_progress,
            finish=finish,
            is_single_file=is_single_file,
        )


async def fill_reserved(
    source: LogSource,
    target: Unfinished,
    *,
    is_verified: bool,
    on_progress: OnProgress,
    finish: Finish | None = None,
    is_single_file: bool = False,
) -> CopyReport:
    """Copy a store to a target that the caller has reserved. `make_copy` reserves the target itself.

    Args:
        source: the log that is copied. It must not be open.
        target: the place of the copy. It must not be open.
        is_verified: whether to verify the copy.
        on_progress: called with the progress of the copy.
        finish: called with the copy when all its rows are written.
        is_single_file: whether the copy is a backup or an archive: only this user may read the file, and no files
            appear beside it while it is only read.
    """
    began = time.monotonic()
    try:
        async with _opened(source, target, is_single_file=is_single_file) as store_id:
            report = await _fill(
                source, target, store_id, is_verified=is_verified, on_progress=on_progress, finish=finish
            )
    except Corrupt:
        await target.discard()
        raise
    except AlreadyExists:
        earlier = await receipts.earlier_result(source, target, is_single_file=is_single_file)
        if earlier is None or earlier.is_verified < is_verified:
            raise
        await receipts.acknowledge(target)
        return earlier
    report = report.model_copy(update={"seconds": time.monotonic() - began})
    receipt = receipts.receipt_of(source, report, is_single_file=is_single_file)
    await target.publish(is_single_file=is_single_file, receipt=receipt)
    await receipts.acknowledge(target)
    return report


@asynccontextmanager
async def _opened(source: LogSource, target: Unfinished, *, is_single_file: bool) -> AsyncGenerator[str]:
    """Open the source and the target, and yield the id of the store."""
    async with source.opened() as identity:
        await target.prepare(*identity, is_single_file=is_single_file)
        async with existing_store(target):
            yield identity.store_id


async def _fill(
    source: LogSource,
    target: Unfinished,
    store_id: str,
    *,
    is_verified: bool,
    on_progress: OnProgress,
    finish: Finish | None,
) -> CopyReport:
    async with _writing(target) as writer:
        log = LogCopy(source, target, writer, on_progress)
        await log.resume()
        events_before = log.end.events
        end = await source.copy_tables(writer)
        await log.run(end)
        while log.needed > end.position:
            # A body was removed during the copy. The copy has to contain the event that ordered the removal, and the
            # tables beside the log have to be of the same moment.
            end = await source.copy_tables(writer)
            await log.run(end)
        # Payload may have been removed from the source during the copy.
        await Compression(writer).retire()

        def computed(progress: OperationProgress) -> None:
            on_progress(replace(progress, step="computing the tables"))

        built = await rebuild(target, store_id, lambda work: work(writer), on_progress=computed)
        if finish is not None:
            await finish(target, writer, store_id)
            async with target.read() as session:
                end = await end_of(session)
    if is_verified:
        report = await verify(target, store_id, on_progress=on_progress)
        _check(report, end)
        await last.record(target, report)
    return CopyReport(
        store_id=store_id,
        commit_id=end.commit_id,
        position=end.position,
        chain_head=end.chain_hash.hex(),
        state_hash=built.state_hash,
        events=end.events,
        events_before=events_before,
        size_bytes=await target.size_bytes(),
        is_verified=is_verified,
        seconds=0,
        part=source.contents,
    )


@asynccontextmanager
async def _writing(target: Dialect) -> AsyncGenerator[WriteSession]:
    writer = await target.writer()
    try:
        yield writer
    except BaseException:
        # If the disk is full, closing fails as well. Only the first error is raised.
        with suppress(Exception):
            await writer.close()
        raise
    await writer.close()


def _check(report: VerifyReport, end: EndOfLog) -> None:
    if report.chain_head != end.chain_hash.hex():
        raise Corrupt("the hash of the last commit of the copy", report.chain_head, end.chain_hash.hex())
    if not report.ok:
        first = report.differences[0]
        subject = f"the copy has {report.difference_count:,} differences, the first in {first.check}, {first.key}"
        raise Corrupt(subject if first.field is None else f"{subject}, {first.field}", first.found, first.expected)
