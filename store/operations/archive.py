"""Archives: files to which payload of finished rollouts is moved from the store. Decision 68.

The file is a backup from which the payload of all other rollouts was removed. It contains the whole log, so it can be
verified, and every command that reads can read it. Payload is removed from the store only after the file is verified
and on disk, and only if its log agrees with the log of the store. Only payload that the file contains is removed. Then
the blobs are removed to which no remaining payload refers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from store.db.dialect import Dialect, Unfinished, WriteSession, existing_store
from store.db.queries.removal import payload_between
from store.db.schema import sqlite_copies, sqlite_files, sqlite_place
from store.db.schema.sealed import refuse_sealed
from store.errors import AlreadyExists, Conflict, Corrupt, Incompatible, NotFound, Unavailable
from store.operations.backup import checked_seal, damage_reported, database_in, new_file, write_seal
from store.operations.compression import Compression
from store.operations.copying import fill_reserved
from store.operations.damage import store_damage_reported
from store.operations.log_source import DatabaseSource, end_of
from store.operations.pace import Pace
from store.operations.policy import RetentionPolicy
from store.operations.removal import Remover, blobs_without_event, database, remover
from store.operations.reports import ArchiveContents, BackupSeal
from store.operations.retention import KEPT, RetentionReport, remove_payload, report_of, selected_payload
from store.operations.sealed_files import has_seal, has_seal_table, make_seal_table, read_seal
from store.runtime.clock import Clock
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore
from store.verification.verify import verify

_POSITIONS = 2000
"""The number of positions whose payload is read in one query."""


class ArchiveReport(RetentionReport):
    """The payload that was moved to an archive, or would be moved."""

    file: str
    """The path of the archive."""
    seal: BackupSeal | None = None
    """The seal in the file. None if nothing was moved."""
    archive_bytes: int = 0
    """The size of the file in bytes."""
    rollouts_left: int = 0
    """The number of rollouts that the policy selects now, but whose payload is not in the file."""


async def archive_payload(
    url: str,
    file: str | os.PathLike[str],
    policy: RetentionPolicy,
    *,
    apply: bool = False,
    vacuum: bool = False,
    actor: str | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = ignore,
) -> ArchiveReport:
    """Move the payload of the finished rollouts that a policy selects into a file, or only count it.

    The file is a SQLite store with the whole log, and with the payload of these rollouts only. `verify`, `history`,
    `show` and the dashboard can read it, and `restore_store` makes a new store from it. Resources, notes and threads
    stay in the store and are in the file too. Other processes may write to the store meanwhile. If a call was stopped,
    the same call continues, or writes the file again. A call moves only payload that the file contains. If the policy
    selects nothing, no file is written.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        file: the path of the archive. It must not exist, unless an earlier call with the same policy wrote it.
        policy: the conditions.
        apply: whether to move the payload. Otherwise nothing is written.
        vacuum: as in `remove_payload`.
        actor: the name of the user who requested the move; the log records the name.
        clock: the clock by which ages are measured; the system's clock if None.
        on_progress: called with the progress, in another thread.

    Raises:
        AlreadyExists: the file exists, and is not an archive that was made with this policy.
        Incompatible: as in `copy_store`; or the store itself is a backup or an archive.
        Corrupt: the store or an existing archive is damaged. Nothing is removed from the store.
        Conflict: the existing archive belongs to another store, an unfinished archive was made with another policy, or
            the file was replaced during the call.
        NotFound: there is no store at the URL, or no directory for the file.
        Invalid: the URL does not name a database, or this name of the file is not allowed.
        ReadOnly: the database user may not delete payload.
        Unavailable: a database does not answer, a disk is full, or another process writes the same archive. The call
            can be repeated.
    """
    began = time.monotonic()
    path = await asyncio.to_thread(new_file, file)
    await asyncio.to_thread(sqlite_place.check_place, path)
    counted = await remove_payload(url, policy, clock=clock, on_progress=on_progress)
    preview = ArchiveReport(**counted.model_dump(), file=str(path))
    if not apply:
        if await asyncio.to_thread(path.exists):
            await run_in_thread("rollbook copy", _archive_seal(path, policy))
        return preview
    reporter = ProgressReporter(on_progress)
    async with store_damage_reported(url, reporter):
        report = await run_in_thread(
            "rollbook copy",
            _move(url, path, policy, preview, vacuum=vacuum, actor=actor, clock=clock, on_progress=reporter),
        )
    if report.is_applied:
        rest = await remove_payload(url, policy, clock=clock)
        report = report.model_copy(update={"rollouts_left": rest.rollouts})
    return report.model_copy(update={"seconds": time.monotonic() - began})


async def _move(
    url: str,
    path: Path,
    policy: RetentionPolicy,
    preview: ArchiveReport,
    *,
    vacuum: bool,
    actor: str | None,
    clock: Clock | None,
    on_progress: OnProgress,
) -> ArchiveReport:
    """Write the archive unless it exists, and remove its payload from the store.

    If the policy selects nothing and there is no archive, return `preview`.
    """
    async with _locked(path):
        store_id = await _check_writable(database(url, clock))
        await _publish_sealed(database_in(path).unfinished(), path, store_id, policy)
        if await asyncio.to_thread(path.exists):
            seal = await _verified_seal(path, policy, on_progress)
        elif preview.events:
            seal = await _write(database(url, clock, read_only=True), path, policy, clock, on_progress)
        else:
            await _discard(database_in(path).unfinished(), store_id)
            return preview
        return await _remove(
            database(url, clock), path, seal, policy, vacuum=vacuum, actor=actor, on_progress=on_progress
        )


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
    """Lock an archive, so that no other process writes it during the block."""
    lock = sqlite_files.file_lock(sqlite_copies.unfinished(path))
    try:
        with sqlite_files.store_errors(path):
            await asyncio.to_thread(lock.__enter__)
    except Unavailable as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise Unavailable(f"another process writes the archive {path}; wait until it ends", 60.0) from None
    try:
        yield
    finally:
        await asyncio.to_thread(lock.__exit__, None, None, None)


async def _check_writable(source: Dialect) -> str:
    """Check that the store can be changed, before an archive is written. Return the id of the store."""
    # This check comes before `open`, because `open` may upgrade the file.
    await refuse_sealed(source.url)
    async with existing_store(source) as store_id:
        writer = await source.writer()
        try:
            await writer.begin()
            await writer.rollback()
        finally:
            await writer.close()
    return store_id


async def _write(
    source: Dialect, path: Path, policy: RetentionPolicy, clock: Clock | None, on_progress: OnProgress
) -> BackupSeal:
    """Write the archive, verify it, rename it to its path, and return its seal."""
    written: list[BackupSeal] = []

    async def finish(copy: Unfinished, writer: WriteSession, store_id: str) -> None:
        async with copy.read() as session:
            end = await end_of(session)
        await make_seal_table(writer)
        chosen = {row.rollout_id async for _, _, some in selected_payload(copy, policy) for row in some}
        await _reduce(copy, writer, chosen, policy, end.position, on_progress)
        await Compression(writer, Pace(is_shared=False)).compress(on_progress)
        on_progress(OperationProgress("freeing space"))
        await copy.vacuum()
        contents = ArchiveContents(
            policy=str(policy), commit_id=end.commit_id, chain_head=end.chain_hash.hex(), position=end.position
        )
        written.append(await write_seal(writer, store_id, contents))

    target = database_in(path, clock).unfinished()
    await fill_reserved(
        DatabaseSource(source), target, is_verified=True, on_progress=on_progress, finish=finish, is_single_file=True
    )
    return written[-1]


async def _publish_sealed(target: Unfinished, path: Path, store_id: str, policy: RetentionPolicy) -> None:
    """Rename an unfinished archive that has a seal, because it is complete.

    If the file has no seal, but payload was already removed from it, delete the file. Then the log of the file differs
    from the log of the store, so the archive cannot be continued.
    """
    try:
        found_id = await target.open(create=False)
    except (NotFound, Incompatible):  # `fill_reserved` reports these errors
        return
    try:
        if found_id != store_id:
            return
        async with target.read() as session:
            has_table = await has_seal_table(session)
            seal = await read_seal(session, path) if await has_seal(session) else None
    finally:
        await target.close()
    if seal is None:
        if has_table:
            await target.discard()
    elif seal.archive is not None and seal.archive.policy == str(policy):
        await target.publish(is_single_file=True, receipt=None)
    elif seal.archive is not None:
        unfinished = sqlite_copies.unfinished(path)
        raise Conflict(
            f"{unfinished} is a complete archive that was made with the policy {seal.archive.policy!r}",
            f"repeat the command with this policy, or move the file away: mv '{unfinished}' NAME",
        )


async def _discard(target: Unfinished, store_id: str) -> None:
    """Delete an unfinished archive, unless it belongs to another store."""
    try:
        found_id = await target.open(create=False)
    except (NotFound, Incompatible):
        return
    await target.close()
    if found_id == store_id:
        await target.discard()


async def _reduce(
    copy: Unfinished,
    writer: WriteSession,
    chosen: Collection[str],
    policy: RetentionPolicy,
    end: int,
    on_progress: OnProgress,
) -> None:
    """Remove the payload of all rollouts except `chosen` from the copy. The copy's log records the removal."""
    wakeups = copy.wakeups()
    policy_text = f"removed from this archive, because the policy did not select it: {policy}"
    removing = Remover(writer, wakeups, policy_text, actor="archive", keep_unfinished=False, pace=Pace(is_shared=False))
    try:
        for after in range(0, end, _POSITIONS):
            on_progress(OperationProgress("removing other payload from the archive", after, end))
            async with copy.read() as session:
                some = await payload_between(session, after, after + _POSITIONS)
            await removing.remove([row for row in some if row.rollout_id not in chosen])
        async with copy.read(snapshot=True) as session:
            blobs = await blobs_without_event(session)
        await removing.remove_blobs(blobs)
    finally:
        await wakeups.close()


async def _archive_seal(path: Path, policy: RetentionPolicy) -> BackupSeal:
    """Return the seal of an archive that an earlier call with the policy wrote."""
    try:
        seal = await checked_seal(path)
    except (Incompatible, NotFound) as error:
        raise AlreadyExists("file", str(path), "it is not an archive; choose another name") from error
    if seal.archive is None:
        raise AlreadyExists("file", str(path), "it is a backup and not an archive; choose another name")
    if seal.archive.policy != str(policy):
        cure = f"it was made with the policy {seal.archive.policy!r}; use this policy, or choose another name"
        raise AlreadyExists("file", str(path), cure)
    return seal


async def _verified_seal(path: Path, policy: RetentionPolicy, on_progress: OnProgress) -> BackupSeal:
    """Return the seal of an archive that an earlier call wrote, after a verification of the whole file."""
    seal = await _archive_seal(path, policy)
    archive = database_in(path)
    with damage_reported(path):
        async with existing_store(archive) as store_id:
            report = await verify(archive, store_id, on_progress=on_progress)
    if not report.ok:
        first = report.differences[0]
        raise Corrupt(f"the archive {path}: {first.check}, {first.key}", first.found, first.expected)
    # The call that wrote the file may have been stopped before the rename was flushed to disk.
    await asyncio.to_thread(sqlite_files.flush, path.parent)
    return seal


async def _remove(
    source: Dialect,
    path: Path,
    seal: BackupSeal,
    policy: RetentionPolicy,
    *,
    vacuum: bool,
    actor: str | None,
    on_progress: OnProgress,
) -> ArchiveReport:
    """Remove the payload that is in the archive from the store."""
    contents = seal.archive
    assert contents is not None
    async with existing_store(source) as store_id:
        async with source.read() as session:
            end = await end_of(session, contents.commit_id)
        if (store_id, end.commit_id, end.chain_hash.hex()) != (seal.store_id, contents.commit_id, contents.chain_head):
            raise Conflict(
                f"{path} is not an archive of this store: it contains commit {contents.commit_id} of store"
                f" {seal.store_id} with the hash {contents.chain_head}, and this store does not contain this commit",
                "choose another name for the archive",
            )
        size_before = await source.size_bytes()
        policy_text = f"archived to {path.name} at commit {contents.commit_id}: {policy}"
        async with remover(source, policy_text, actor=actor) as removing:
            with damage_reported(path):
                await _remove_archived(source, path, seal, removing, contents.position, on_progress)
            async with source.read(snapshot=True) as session:
                blobs = await blobs_without_event(session)
            await removing.remove_blobs(blobs)
        if vacuum:
            on_progress(OperationProgress("freeing space"))
            await source.vacuum()
        size_after = await source.size_bytes()
    report = report_of(policy, removing.removed, is_applied=True, size_before=size_before, size_after=size_after)
    archive_bytes = (await asyncio.to_thread(path.stat)).st_size
    return ArchiveReport(**report.model_dump(), file=str(path), seal=seal, archive_bytes=archive_bytes)


async def _remove_archived(
    source: Dialect, path: Path, seal: BackupSeal, removing: Remover, end: int, on_progress: OnProgress
) -> None:
    archive = database_in(path)
    async with existing_store(archive), archive.read(snapshot=True) as session:
        if await read_seal(session, path) != seal:
            raise Conflict(f"another process has replaced {path}", "run the same command again")
        for after in range(0, end, _POSITIONS):
            until = min(after + _POSITIONS, end)
            on_progress(OperationProgress("removing payload", after, end))
            archived = await payload_between(session, after, until)
            positions = {row.position for row in archived if row.type not in KEPT}
            if positions:
                async with source.read() as reader:
                    stored = await payload_between(reader, after, until)
                await removing.remove([row for row in stored if row.position in positions])
