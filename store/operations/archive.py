"""Archives. An archive is one file with the payload of some finished rollouts, which the store no longer has.

The file is a backup of the store without the payload of all other rollouts: it contains the whole log, so it can be
verified, and every command that reads can read it. The payload is removed from the store only after the file is
verified, on disk and compared with the store, and only as far as the file contains it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from pathlib import Path

from store.db.dialect import Dialect, Unfinished, WriteSession
from store.db.queries.removal import payload_between
from store.errors import AlreadyExists, Conflict, Corrupt, Incompatible, NotFound
from store.operations.backup import checked_seal, damage_reported, database_in, has_seal, make_seal_table, write_seal
from store.operations.compression import Compression
from store.operations.copying import in_thread, make_copy
from store.operations.log_copy import end_of
from store.operations.policy import RetentionPolicy
from store.operations.progress import OnProgress, OperationProgress, ignore
from store.operations.removal import Remover, blobs_without_event, database, remover
from store.operations.reports import ArchiveContents, BackupSeal
from store.operations.retention import KEPT, RetentionReport, remove_payload, report_of, selected_payload
from store.runtime.clock import Clock
from store.verification.verify import verify

_POSITIONS = 2000
"""The number of positions of which the payload is read at once."""


class ArchiveReport(RetentionReport):
    """What was moved to an archive, or would be moved."""

    file: str
    """The path of the archive."""
    seal: BackupSeal | None = None
    """The seal in the file. None if nothing was moved."""
    archive_bytes: int = 0
    """The size of the file in bytes."""


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
    stay in the store and are in the file too. Other processes may write to the store meanwhile. A call that was stopped
    is continued by the same call. If the policy selects nothing, no file is written.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        file: the path of the archive. It must not exist, unless an earlier call with the same policy wrote it.
        policy: the conditions.
        apply: whether to move the payload. Otherwise nothing is written.
        vacuum: as in `remove_payload`.
        actor: who ordered the move; the log records it.
        clock: the clock by which ages are measured; the system's clock if None.
        on_progress: called with the progress, in another thread.

    Raises:
        AlreadyExists: the file exists, and is not an archive of this store by this policy.
        Incompatible: as in `copy_store`.
        Corrupt: the store or an existing archive is damaged. Nothing is removed from the store.
        Conflict: the log of the store is no longer the log from which an existing archive was made.
        NotFound: there is no store at the URL.
        Invalid: the URL is not that of a database, or a URL cannot contain the path.
        ReadOnly: the database user may not delete payload.
        Unavailable: a database does not answer, or a disk is full. The call can be repeated.
    """
    began = time.monotonic()
    archive = database_in(file, clock)
    path = archive.url.path
    assert path is not None
    exists = await asyncio.to_thread(path.exists)
    counted = await remove_payload(url, policy, clock=clock)
    nothing = ArchiveReport(**counted.model_dump(), file=str(path))
    if not apply or not (counted.events or exists):
        return nothing
    if exists:
        seal = await in_thread(_proven(archive, path, policy, on_progress))
    else:
        source = database(url, clock, read_only=True)
        seal = await in_thread(_write(source, archive, policy, on_progress))
    report = await in_thread(
        _remove(database(url, clock), path, seal, policy, vacuum=vacuum, actor=actor, on_progress=on_progress)
    )
    return report.model_copy(update={"seconds": time.monotonic() - began})


# -- the file ----------------------------------------------------------------------------------------------------------


async def _write(source: Dialect, archive: Dialect, policy: RetentionPolicy, on_progress: OnProgress) -> BackupSeal:
    """Write the archive, verify it, give it its name, and return its seal."""
    written: list[BackupSeal] = []

    async def finish(copy: Unfinished, writer: WriteSession, store_id: str) -> None:
        async with copy.read() as session:
            end = await end_of(copy, session)
        await make_seal_table(writer)
        chosen = {each.rollout_id async for _, _, some in selected_payload(copy, policy) for each in some}
        await _reduce(copy, writer, chosen, policy, end.position, on_progress)
        await Compression(copy, writer).compress(on_progress)
        on_progress(OperationProgress("freeing space"))
        await copy.vacuum()
        contents = ArchiveContents(
            policy=str(policy), commit_id=end.commit_id, chain_head=end.chain_hash.hex(), position=end.position
        )
        written.append(await write_seal(copy, writer, store_id, contents))

    await _discard_reduced(archive.unfinished())
    await make_copy(
        source, archive.unfinished(), is_verified=True, on_progress=on_progress, finish=finish, is_single_file=True
    )
    return written[-1]


async def _discard_reduced(target: Unfinished) -> None:
    """Discard an unfinished archive from which payload was already removed: its log is no longer that of the store."""
    try:
        await target.open(create=False)
    except (NotFound, Incompatible):  # `make_copy` reports what it cannot continue
        return
    try:
        async with target.read() as session:
            is_reduced = await has_seal(session)
    finally:
        await target.close()
    if is_reduced:
        await target.discard()


async def _reduce(
    copy: Unfinished,
    writer: WriteSession,
    chosen: Collection[str],
    policy: RetentionPolicy,
    end: int,
    on_progress: OnProgress,
) -> None:
    """Remove the payload of all rollouts but some from the copy. Its log records this."""
    wakeups = copy.wakeups()
    removing = Remover(
        copy, writer, wakeups, f"not selected for the archive: {policy}", actor="archive", keep_unfinished=False
    )
    try:
        for after in range(0, end, _POSITIONS):
            on_progress(OperationProgress("removing other payload from the archive", after, end))
            async with copy.read() as session:
                some = await payload_between(copy, session, after, after + _POSITIONS)
            await removing.remove([each for each in some if each.rollout_id not in chosen])
        async with copy.read(snapshot=True) as session:
            found = await blobs_without_event(copy, session)
        await removing.remove_blobs(found)
    finally:
        await wakeups.close()


async def _proven(archive: Dialect, path: Path, policy: RetentionPolicy, on_progress: OnProgress) -> BackupSeal:
    """Return the seal of an archive that an earlier call wrote, after a verification of the whole file."""
    try:
        seal = await checked_seal(path)
    except Incompatible as error:
        raise AlreadyExists("file", str(path), "it is not an archive; choose another name") from error
    if seal.archive is None:
        raise AlreadyExists("file", str(path), "it is a backup and not an archive; choose another name")
    if seal.archive.policy != str(policy):
        raise AlreadyExists("file", str(path), f"its policy is {seal.archive.policy!r}; give it, or another name")
    on_progress(OperationProgress("verifying"))
    with damage_reported(path):
        store_id = await archive.open(create=False)
        try:
            report = await verify(archive, store_id, None, _no_calls)
        finally:
            await archive.close()
    if not report.ok:
        first = report.differences[0]
        raise Corrupt(f"the archive {path}: {first.check}, {first.key}", first.found, first.expected)
    return seal


def _no_calls() -> int:
    return 0


# -- the store ---------------------------------------------------------------------------------------------------------


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
    store_id = await source.open(create=False)
    try:
        async with source.read() as session:
            end = await end_of(source, session, contents.commit_id)
        if (store_id, end.commit_id, end.chain_hash.hex()) != (seal.store_id, contents.commit_id, contents.chain_head):
            raise Conflict(
                f"{path} is not an archive of this store: it was made from store {seal.store_id} at commit"
                f" {contents.commit_id} with the hash {contents.chain_head}",
                "choose another name for the archive",
            )
        size_before = await source.size_bytes()
        words = f"archived to {path.name} at commit {contents.commit_id}: {policy}"
        async with remover(source, words, actor=actor) as removing:
            with damage_reported(path):
                await _remove_archived(source, database_in(path), removing, contents.position, on_progress)
            async with source.read(snapshot=True) as session:
                found = await blobs_without_event(source, session)
            await removing.remove_blobs(found)
        if vacuum:
            on_progress(OperationProgress("freeing space"))
            await source.vacuum()
        size_after = await source.size_bytes()
    finally:
        await source.close()
    report = report_of(policy, removing.removed, is_applied=True, size_before=size_before, size_after=size_after)
    archive_bytes = (await asyncio.to_thread(path.stat)).st_size
    return ArchiveReport(**report.model_dump(), file=str(path), seal=seal, archive_bytes=archive_bytes)


async def _remove_archived(
    source: Dialect, archive: Dialect, removing: Remover, end: int, on_progress: OnProgress
) -> None:
    await archive.open(create=False)
    try:
        for after in range(0, end, _POSITIONS):
            until = min(after + _POSITIONS, end)
            on_progress(OperationProgress("removing payload", after, end))
            async with archive.read() as session:
                archived = await payload_between(archive, session, after, until)
            positions = {each.position for each in archived if each.type not in KEPT}
            if positions:
                async with source.read() as session:
                    found = await payload_between(source, session, after, until)
                await removing.remove([each for each in found if each.position in positions])
    finally:
        await archive.close()
