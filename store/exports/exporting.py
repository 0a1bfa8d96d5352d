"""Export of a store to files."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from store.errors import Invalid
from store.exports import manifest as manifests
from store.exports.files import ExportPart, full_disk_reported
from store.exports.formats import format_of
from store.exports.formats.base import ExportOrigin, Format
from store.exports.manifest import FileEntry, Manifest
from store.exports.records import RolloutRecord
from store.exports.redaction import FieldRedaction
from store.exports.schema import SCHEMA_VERSION, Table
from store.exports.source import EVENTS, SPANS, ExportSource
from store.exports.splits import SplitField, Splits
from store.interface.store import Store
from store.models.enums import Frozen
from store.models.missing_rewards import MissingReward
from store.models.queries import RolloutQuery
from store.runtime.progress import OnProgress, OperationProgress, ignore

_RECORDED_ONLY: Final = frozenset({"otlp", "atif"})
"""The formats whose documents can be imported again."""
_WRITES_AHEAD: Final = 4
"""The most lists of records that are read before they are written. Most writes only collect rows, and some compress
what was collected; with a single list, each side would wait for the other one."""

InThread = Callable[..., asyncio.Future[Any]]
"""A function that calls another function in the thread that writes."""


class ExportReport(Frozen):
    """The result of an export."""

    directory: str
    format: str
    store_id: str
    position: int
    """The position of the log at which everything was read."""
    rollouts: int
    rows: dict[str, int]
    """The number of rows of each table."""
    files: int
    size_bytes: int
    rollouts_before: int
    """The number of rollouts that an earlier, stopped call had exported. This call continued after them."""
    seconds: float


async def export_store(
    store: Store,
    format: str,  # noqa: A002 - the name in the command line
    directory: str | os.PathLike[str],
    *,
    query: RolloutQuery | None = None,
    tables: Sequence[str] | None = None,
    split: Mapping[str, float] | None = None,
    split_by: SplitField | None = None,
    redact: Sequence[str] = (),
    unrewarded: str = "out",
    overwrite: bool = False,
    rows_per_file: int | None = None,
    on_progress: OnProgress = ignore,
) -> ExportReport:
    """Export the rollouts that a query matches, with everything that belongs to them, to files in a directory.

    The same call at the same position of the log writes the same bytes. To continue a stopped call, repeat it.

    Args:
        store: the store.
        format: `parquet`, `jsonl`, `hf`, `sft`, `otlp` or `atif`.
        directory: a new or empty directory, or the directory of a stopped call that this call continues.
        query: the conditions on rollouts, `as_at` and `reward_version`; None for all rollouts at the end of the log.
            The scores of `reward_version` replace the recorded rewards in all tables but `rewards`, which contains
            both. The order, the limit and the offset are ignored.
        tables: the names of the tables; None for all tables of the format.
        split: the fraction of the groups that each split gets; see `Splits`.
        split_by: the field whose values are the splits.
        redact: the fields to leave out; see `FieldRedaction`.
        unrewarded: the exported reward of ended rollouts without one: `out` (null), `failed:0` or `ended:0`.
        overwrite: whether to delete the files of an earlier export in the directory first.
        rows_per_file: a part ends after the rollout with which the part has this many rows of one table; None for the
            default of the format.
        on_progress: called with the number of listed rollouts.

    Raises:
        AlreadyExists: the directory contains a finished export, or files that no export wrote.
        Conflict: the directory contains an export of another command, or another process is exporting to it.
        Incompatible: the directory contains an export with another version of the tables.
        Invalid: an argument is invalid, a package is missing, or a value does not fit into its column.
        Unavailable: the disk is full; free some space and repeat the call.
        Unsupported: the store has no log.
    """
    begun, query = time.perf_counter(), query or RolloutQuery()
    plan = _plan(format, tables, split, split_by, redact, rows_per_file, MissingReward.parse(unrewarded))
    moment = await store.log.position(query.as_at)
    planned = Manifest(
        schema_version=SCHEMA_VERSION,
        format=plan.form.name,
        store_id=moment.store_id,
        position=moment.position,
        command=_command(plan, query, split, split_by, redact),
    )
    path = Path(directory)
    # The same thread writes everything, so that its memory is reused for all writes.
    with full_disk_reported(path), manifests.locked(path), ThreadPoolExecutor(1, "rollbook export") as thread:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        started = await in_thread(
            partial(manifests.begin, path, planned, is_position_given=query.as_at is not None, overwrite=overwrite)
        )
        writer = _Writer(path, plan, started)
        try:
            source = ExportSource(store, query, started.position, plan.reads, plan.is_whole, plan.missing)
            await _copy(source, writer, plan.writes_ahead, in_thread, on_progress)
            finished = await in_thread(writer.finish)
        finally:
            await in_thread(writer.discard)
    return ExportReport(
        directory=str(directory),
        format=finished.format,
        store_id=finished.store_id,
        position=finished.position,
        rollouts=finished.rollouts,
        rows={table.name: finished.rows().get(table.name, 0) for table in plan.tables},
        files=len(finished.files),
        size_bytes=sum(file.size_bytes for file in finished.files),
        rollouts_before=started.rollouts,
        seconds=time.perf_counter() - begun,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The checked arguments of a call, apart from the query."""

    form: Format
    tables: tuple[Table, ...]
    """The tables with redacted columns."""
    splits: Splits
    redaction: FieldRedaction
    rows_per_file: int
    missing: MissingReward

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(part for table in self.tables for part in table.reads)

    @property
    def is_whole(self) -> bool:
        """Whether a table needs all spans of a rollout at once."""
        return any(not table.is_row_per_span for table in self.tables if SPANS in table.reads)

    @property
    def writes_ahead(self) -> int:
        """The number of lists of records that may wait for the writer. A list with whole rollouts can have any size."""
        return 1 if self.is_whole or EVENTS in self.reads else _WRITES_AHEAD


def _plan(
    name: str,
    tables: Sequence[str] | None,
    split: Mapping[str, float] | None,
    split_by: SplitField | None,
    redact: Sequence[str],
    rows_per_file: int | None,
    missing: MissingReward,
) -> _Plan:
    form = format_of(name)
    if missing.substituted != "out" and name in _RECORDED_ONLY:
        raise Invalid("unrewarded", f"{name} has recorded rewards only; leave the choice out, or export tables")
    rows_per_file = form.rows_per_file if rows_per_file is None else rows_per_file
    chosen = form.tables(tables)
    redaction = FieldRedaction(redact)
    redaction.check(chosen)
    if rows_per_file < 1:
        raise Invalid("rows_per_file", f"{rows_per_file} is not a number of rows; give at least 1")
    return _Plan(
        form,
        tuple(table.without(redaction.columns.get(table.name, ())) for table in chosen),
        Splits(form.default_split, split, split_by),
        redaction,
        rows_per_file,
        missing,
    )


def _command(
    plan: _Plan,
    query: RolloutQuery,
    split: Mapping[str, float] | None,
    split_by: SplitField | None,
    redact: Sequence[str],
) -> dict[str, Any]:
    """Return the arguments that determine the content of the files, as JSON."""
    conditions = {name: value for name in query.conditions() if (value := getattr(query, name)) is not None}
    return {
        "tables": [table.name for table in plan.tables],
        # Another version of this program may have more columns. Files with and without them are not mixed.
        "columns": [len(table.columns) for table in plan.tables],
        "conditions": conditions,
        "filter_logic": query.filter_logic,
        "reward_version": query.reward_version,
        "split": dict(split or {}),
        "split_by": split_by,
        "redact": sorted(set(redact)),
        "rows_per_file": plan.rows_per_file,
        # Without a choice, the command is that of earlier versions, so that their exports can be continued.
        **({} if plan.missing.substituted == "out" else {"unrewarded": str(plan.missing)}),
    }


async def _copy(
    source: ExportSource, writer: _Writer, ahead: int, in_thread: InThread, on_progress: OnProgress
) -> None:
    """Read all records and write them. While up to `ahead` lists of records are written, the next ones are read."""
    writes: deque[asyncio.Future[None]] = deque()
    try:
        async for records in source.records(writer.listed):
            if len(writes) == ahead:
                await writes.popleft()
            writes.append(in_thread(writer.add, records))
            on_progress(OperationProgress("exporting", records[-1].offset, source.listed, "rollouts"))
        while writes:
            await writes.popleft()
    finally:
        # If the read or a write failed, or the call was cancelled, the thread may still be writing.
        if writes:
            await asyncio.wait(writes)


class _Writer:
    """Writer of records into the parts of an export.

    Args:
        directory: the directory.
        plan: the checked arguments of the call.
        manifest: the manifest from which the export continues.
    """

    def __init__(self, directory: Path, plan: _Plan, manifest: Manifest) -> None:
        self._directory = directory
        self._plan = plan
        self._manifest = manifest
        self._origin = ExportOrigin(manifest.store_id, manifest.position, str(plan.missing))
        self._part = self._next_part()
        self._rollouts = manifest.rollouts
        self._has_failed = False
        self.listed = manifest.listed

    def add(self, records: Sequence[RolloutRecord]) -> None:
        """Write records. A part ends after the rollout with which it has `rows_per_file` rows of one table.

        After a call that raised an error, the calls that already wait write nothing. Otherwise a part could end without
        the rows of the failed call.
        """
        if not self._has_failed:
            self._has_failed = True
            self._add(records)
            self._has_failed = False

    def _add(self, records: Sequence[RolloutRecord]) -> None:
        plan = self._plan
        for record in records:
            plan.redaction.apply(record)
            split = plan.splits.of(record)
            for table in plan.tables:
                if rows := table.rows(record):
                    self._part.add(table, split, rows)
            self._part.flush_if_large()
            if not record.is_last:
                continue
            self._rollouts += 1
            self.listed = record.offset
            if self._part.rows >= plan.rows_per_file:
                self._end_part()

    def finish(self) -> Manifest:
        """Write the last part and the files about the whole export, and return the complete manifest."""
        if self._plan.form.writes_empty_tables:
            listed = {file.table for file in self._manifest.files}
            for table in self._plan.tables:
                if table.name not in listed and not self._part.has(table):
                    self._part.add(table, self._plan.form.default_split, ())
        self._end_part()
        update = {"is_complete": True, "rollouts": self._rollouts, "listed": self.listed}
        complete = self._manifest.model_copy(update=update)
        self._plan.form.finish(self._directory, complete, self._plan.tables)
        manifests.write(self._directory, complete)
        return complete

    def discard(self) -> None:
        """Delete the files of the part that is not finished."""
        self._part.discard()

    def _end_part(self) -> None:
        entries: list[FileEntry] = self._part.finish()
        if entries:
            update = {
                "rollouts": self._rollouts,
                "listed": self.listed,
                "parts": self._manifest.parts + 1,
                "files": [*self._manifest.files, *entries],
            }
            self._manifest = self._manifest.model_copy(update=update)
            manifests.write(self._directory, self._manifest)
        self._part = self._next_part()

    def _next_part(self) -> ExportPart:
        return ExportPart(self._directory, self._manifest.parts, self._plan.form, self._origin)
