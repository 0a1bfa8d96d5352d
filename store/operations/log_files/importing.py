"""Import of a log from files, into a new store that is equal to the exported one."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import orjson
from sqlalchemy import Table

from store.db.dialect import Changes, Row, WriteSession
from store.db.queries import blobs
from store.db.tables import core as core_tables
from store.errors import Corrupt, StoreError
from store.operations import beside_log
from store.operations.copying import database, make_copy
from store.operations.damage import VALUE_ERRORS
from store.operations.log_files import lines
from store.operations.log_files.manifest import LogFile, LogManifest, read_complete
from store.operations.log_source import (
    BEGINNING,
    BYTES_AT_ONCE,
    EndOfLog,
    LogChunk,
    LogSource,
    StoreIdentity,
    fits,
)
from store.operations.reports import CopyReport
from store.runtime.loop_thread import run_in_thread
from store.runtime.progress import OnProgress, ProgressReporter, ignore

_ROWS_AT_ONCE: Final = 5000


async def import_log(
    directory: str | os.PathLike[str], target_url: str, *, on_progress: OnProgress = ignore
) -> CopyReport:
    """Make a new store from the files that `export_log` wrote, and verify it.

    The store has the same id, events, positions, commits and hashes as the exported one. Payload is stored like new
    payload. The store gets its name when it is complete and verified. If the call is stopped, the same call
    continues it.

    Args:
        directory: the directory of the files.
        target_url: the URL of the new store. There must be no store and no file.
        on_progress: called with the progress, in another thread.

    Raises:
        NotFound: the directory contains no log.
        Incompatible: the export is not finished, the manifest is not that of a log, or a newer version of this program
            wrote it.
        Corrupt: a file is missing, or was changed or damaged. Nothing is left of the new store.
        StoreError: the errors of `copy_store` for the target.
    """
    path = Path(directory)
    target = database(target_url)
    source = LogFiles(path, await asyncio.to_thread(read_complete, path))
    reporter = ProgressReporter(on_progress)
    return await run_in_thread(
        "rollbook import", make_copy(source, target.unfinished(), is_verified=True, on_progress=reporter)
    )


class LogFiles(LogSource):
    """A complete log in files.

    Args:
        directory: the directory.
        manifest: its manifest.
    """

    def __init__(self, directory: Path, manifest: LogManifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._commits: Iterator[lines.CommitLines] | None = None
        self._next: lines.CommitLines | None = None

    @property
    def name(self) -> str:
        return f"log {self._directory.absolute()}"

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[StoreIdentity]:
        yield self._manifest.identity

    async def has_made(self, report: CopyReport) -> bool:
        return (report.store_id, report.chain_head) == (self._manifest.store_id, self._manifest.chain_head)

    async def copy_tables(self, writer: WriteSession) -> EndOfLog:
        portable = {table.name: table for table in beside_log.PORTABLE}
        for table in portable.values():
            await beside_log.clear(writer, table)
        for file in self._manifest.files:
            if file.commit_id:
                continue
            with _damage_reported(self._directory / file.path):
                for name, some in groupby(self._lines(file), itemgetter(lines.TABLE)):
                    rows = (lines.table_row(portable[name], line) for line in some)
                    while part := list(islice(rows, _ROWS_AT_ONCE)):
                        await beside_log.insert(writer, portable[name], part)
        return self._manifest.end

    async def end(self, until: int) -> EndOfLog:
        end = BEGINNING
        for file in self._files_after(until - 1) if until else ():
            for line in self._lines(file):
                if (commit := line.get(lines.COMMIT)) is not None:
                    if commit["commit_id"] > until:
                        return end
                    end = lines.commit_end(commit)
        return end

    @asynccontextmanager
    async def chunk(self, after: EndOfLog, until: EndOfLog) -> AsyncGenerator[LogChunk | None]:
        if self._commits is None:
            self._commits = self.commits_after(after.commit_id)
            self._next = next(self._commits, None)
        some: list[lines.CommitLines] = []
        blob_bytes = 0
        while (commit := self._next) is not None:
            blob_bytes += sum(len(blob.body) for blob in commit.blobs)
            if some and not (fits(commit.end, after) and blob_bytes <= BYTES_AT_ONCE):
                break
            some.append(commit)
            self._next = next(self._commits, None)
        if not some and after.commit_id != until.commit_id:
            raise Corrupt(f"the last commit in {self._directory}", after.commit_id, until.commit_id)
        yield _FileChunk(some) if some else None

    def commits_after(self, commit_id: int) -> Generator[lines.CommitLines]:
        """Yield the commits whose ids are greater than `commit_id`."""
        for file in self._files_after(commit_id):
            with _damage_reported(self._directory / file.path):
                for commit in lines.grouped(self._lines(file)):
                    if commit.end.commit_id > commit_id:
                        yield commit

    def _files_after(self, commit_id: int) -> list[LogFile]:
        return [file for file in self._manifest.files if file.commit_id > commit_id]

    def _lines(self, file: LogFile) -> Generator[dict[str, Any]]:
        """Yield the lines of a file, and check the file at its end.

        Raises:
            Corrupt: the file is missing, or is not the file that was exported.
        """
        path = self._directory / file.path
        digest = hashlib.sha256()
        try:
            with path.open("rb") as content:
                for line in content:
                    digest.update(line)
                    yield orjson.loads(line)
        except FileNotFoundError:
            raise Corrupt(f"the file {path}", None, "a file of the log") from None
        except orjson.JSONDecodeError as error:
            raise Corrupt(f"a line of {path}", error, "JSON") from None
        if digest.hexdigest() != file.sha256:
            raise Corrupt(f"the SHA-256 of {path}", digest.hexdigest(), file.sha256)


@contextmanager
def _damage_reported(path: Path) -> Generator[None]:
    """Raise `Corrupt` instead of an error that only a changed line causes."""
    try:
        yield
    except StoreError:  # some errors of the store are also in `VALUE_ERRORS`
        raise
    except VALUE_ERRORS as error:
        raise Corrupt(f"a line of {path}", f"one that causes {type(error).__name__}: {error}", "a row") from error


class _FileChunk(LogChunk):
    """Some commits of a log in files."""

    def __init__(self, commits: Sequence[lines.CommitLines]) -> None:
        self._commits = commits
        self.reached = commits[-1].end
        self.dropped = [position for commit in commits for position, *_ in commit.dropped]

    async def rows(self, writer: WriteSession) -> Mapping[Table, Sequence[Row]]:
        by_name = {blob.name: blob for commit in self._commits for blob in commit.blobs}
        if by_name:
            lacking = by_name.keys() - await blobs.existing(writer, sorted(by_name))
            if lacking:
                rows: list[Row] = [by_name[name] for name in sorted(lacking)]
                await writer.write(Changes({core_tables.blobs: rows}, {}, {}))
        return {
            core_tables.commits: [commit.commit for commit in self._commits],
            core_tables.events: [row for commit in self._commits for row in commit.events],
            core_tables.bodies: [row for commit in self._commits for row in commit.bodies],
            core_tables.dropped: [row for commit in self._commits for row in commit.dropped],
        }
