"""Export of the log of a store to files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.errors import Conflict
from store.exports.files import HashedFile, full_disk_reported
from store.exports.manifest import UNFINISHED, locked, sync_directory
from store.models.enums import Frozen
from store.operations import beside_log
from store.operations.copying import database
from store.operations.damage import store_damage_reported
from store.operations.log_files import lines
from store.operations.log_files import manifest as manifests
from store.operations.log_files.manifest import TABLES, LogFile, LogManifest
from store.operations.log_source import (
    ALL,
    COMMITS_AT_ONCE,
    ORDERS,
    DatabaseSource,
    EndOfLog,
    StoreIdentity,
    blob_groups,
    blobs_of,
    end_at,
    end_of,
    fitting,
)
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, OperationProgress, ProgressReporter, ignore

_FILE_BYTES: Final = 64 * 1024 * 1024
"""The size at which the next file begins."""


class LogExportReport(Frozen):
    """The result of an export of a log."""

    directory: str
    store_id: str
    commit_id: int
    """The last exported commit; 0 for an empty log."""
    position: int
    """The position of the last exported event."""
    chain_head: str
    """The hash of the last exported commit, in hex."""
    events: int
    events_before: int
    """The number of events that an earlier call, which was stopped, had exported."""
    files: int
    size_bytes: int
    seconds: float


async def export_log(
    url: str, directory: str | os.PathLike[str], *, overwrite: bool = False, on_progress: OnProgress = ignore
) -> LogExportReport:
    """Export the whole log of a store, and the tables beside it, to files of JSON lines.

    `import_log` makes an equal store from the files, on any database. The files contain every event with its exact
    text, and payload without compression. They do not contain API keys. The same log gives the same bytes on every
    database. Other processes may write to the store meanwhile. If a call is stopped, the same call continues the
    export, up to the same end of the log. If payload was removed from the store in between, the export begins again.

    Args:
        url: the URL of a SQLite file or a Postgres database.
        directory: a new or empty directory, or the directory of a stopped call.
        overwrite: whether to delete the files of an earlier export in the directory first.
        on_progress: called with the number of exported events, in another thread.

    Raises:
        AlreadyExists: the directory contains a finished export, or files that no export wrote.
        Conflict: the directory contains an export of another store, or another process exports to it.
        Corrupt: the store is damaged.
        Incompatible: the store has an older schema, or the directory contains a manifest of another format or of a
            newer version.
        Invalid: the URL does not name a database.
        NotFound: there is no store at the URL.
        Unavailable: the disk is full, or the database does not answer. The call can be repeated.
    """
    began = time.monotonic()
    source, path = database(url), Path(directory)
    reporter = ProgressReporter(on_progress)

    async def export() -> tuple[LogManifest, int]:
        async with DatabaseSource(source).opened() as identity:
            with full_disk_reported(path), locked(path):
                return await _export(source, identity, path, overwrite=overwrite, on_progress=reporter)

    async with store_damage_reported(url, reporter):
        manifest, events_before = await run_in_thread("rollbook export", export())
    return LogExportReport(
        directory=str(directory),
        store_id=manifest.store_id,
        commit_id=manifest.commit_id,
        position=manifest.position,
        chain_head=manifest.chain_head,
        events=manifest.events,
        events_before=events_before,
        files=len(manifest.files),
        size_bytes=sum(file.size_bytes for file in manifest.files),
        seconds=time.monotonic() - began,
    )


async def _export(
    source: Dialect, identity: StoreIdentity, directory: Path, *, overwrite: bool, on_progress: OnProgress
) -> tuple[LogManifest, int]:
    """Export the log to a locked directory; return the manifest and the number of events from an earlier call."""
    # In one snapshot, no payload is removed between two reads.
    async with source.read(snapshot=True) as session:
        earlier = manifests.earlier(directory, identity, overwrite=overwrite)
        if earlier is not None:
            if await end_of(session, earlier.commit_id) != earlier.end:
                raise Conflict(
                    f"the log of the store does not contain commit {earlier.commit_id} of the unfinished export, whose"
                    f" hash is {earlier.chain_head}",
                    "the store was replaced; export to another directory, or begin again with --overwrite",
                )
            # Payload that is in the finished files, or belongs in the next files, may have been removed since.
            if await scan.has_drops_after(session, earlier.position):
                manifests.delete(directory, earlier)
                earlier = None
        manifest = earlier or LogManifest.of(identity, await end_of(session))
        writer = _LogWriter(directory, manifest)
        try:
            if not manifest.files:
                writer.begin(TABLES)
                for table in beside_log.PORTABLE:
                    async for rows in scan.all_rows(session, table):
                        writer.write([lines.table_line(table, row) for row in rows])
                writer.end(0)
            reached = await end_of(session, writer.manifest.files[-1].commit_id)
            events_before = reached.events
            await _export_commits(session, writer, reached, on_progress)
            return writer.finish(), events_before
        finally:
            writer.discard()


async def _export_commits(session: ReadSession, writer: _LogWriter, reached: EndOfLog, on_progress: OnProgress) -> None:
    end = writer.manifest.end
    while True:
        on_progress(OperationProgress("exporting the log", reached.events, end.events))
        after = reached.commit_id
        commits = await log_queries.commits(session, after=after, until=end.commit_id, limit=COMMITS_AT_ONCE)
        if not commits:
            break
        if not writer.is_open:
            writer.begin(f"log-{len(writer.manifest.files):05d}.jsonl")
        commits = fitting(commits, reached)
        await writer.write_commits(session, commits, reached)
        reached = end_at(commits[-1])
        if writer.size >= _FILE_BYTES:
            writer.end(reached.commit_id)
    if writer.is_open:
        writer.end(reached.commit_id)


class _LogWriter:
    """Writer of the files of a log, one after another.

    Args:
        directory: the directory.
        manifest: the manifest from which the export continues.
    """

    def __init__(self, directory: Path, manifest: LogManifest) -> None:
        self._directory = directory
        self.manifest = manifest
        self._file: HashedFile | None = None
        self._name = ""
        self._lines = 0
        self._blob_names: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether a file is being written."""
        return self._file is not None

    @property
    def size(self) -> int:
        """The number of bytes of the file that is being written."""
        return 0 if self._file is None else self._file.size

    def begin(self, name: str) -> None:
        """Begin a file."""
        self._file, self._name, self._lines = HashedFile(self._directory / (name + UNFINISHED)), name, 0
        self._blob_names = set()

    def write(self, some: Sequence[bytes]) -> None:
        """Add lines to the file."""
        assert self._file is not None  # begun
        self._lines += len(some)
        self._file.write(b"".join(some))

    async def write_commits(self, session: ReadSession, commits: Sequence[NamedRow], after: EndOfLog) -> None:
        """Write commits with their events and blobs, and with the removals of bodies that the events ordered.

        `after` is the end of the log before these commits.

        Each file contains all blobs to which its events refer, before the first commit that needs them.
        """
        until = commits[-1].last_position
        rows = await scan.events_and_bodies(session, after=after.position, until=until, limit=ALL)
        drops = await scan.drops_ordered_at(session, [row.position for row in rows if row.type in ORDERS])
        names = blobs_of(rows) - self._blob_names
        self._blob_names |= names
        async for group in blob_groups(session, names):
            self.write([lines.blob_line(blob.name, blob.codec, blob.body) for blob in group])
        start = drop_start = 0
        drops.sort(key=lambda row: (row.event_position, row.position))
        for commit in commits:
            end = start
            while end < len(rows) and rows[end].position <= commit.last_position:
                end += 1
            drop_end = drop_start
            while drop_end < len(drops) and drops[drop_end].event_position <= commit.last_position:
                drop_end += 1
            self.write([lines.commit_line(commit)])
            self.write([lines.event_line(row) for row in rows[start:end]])
            self.write([lines.dropped_line(row) for row in drops[drop_start:drop_end]])
            start, drop_start = end, drop_end

    def end(self, commit_id: int) -> None:
        """Give the file its name, and list it in the manifest. `commit_id` is the last commit written so far."""
        assert self._file is not None  # begun
        digest = self._file.finish()
        self._file.path.replace(self._directory / self._name)
        sync_directory(self._directory)
        entry = LogFile(
            path=self._name, lines=self._lines, size_bytes=self._file.size, sha256=digest, commit_id=commit_id
        )
        self._file = None
        self.manifest = self.manifest.model_copy(update={"files": [*self.manifest.files, entry]})
        manifests.write(self._directory, self.manifest)

    def finish(self) -> LogManifest:
        """Mark the export as complete, and return the manifest."""
        self.manifest = self.manifest.model_copy(update={"is_complete": True})
        manifests.write(self._directory, self.manifest)
        return self.manifest

    def discard(self) -> None:
        """Delete the file that is being written."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk, `close` cannot write the buffered bytes
                self._file.close()
            self._file.path.unlink(missing_ok=True)
            self._file = None
