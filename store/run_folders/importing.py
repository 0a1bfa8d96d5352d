"""Import of run folders as runs of a store. A repeated import adds only new events and files.

Each import stores a record of the imported contents in the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast

from store.errors import Conflict, Invalid
from store.interface.phase_graphs import graph_of, publish_default
from store.interface.store import Store
from store.models import AttemptError
from store.models.runs import AttemptNode
from store.planning import imported_runs
from store.run_folders import forms, reading, records
from store.run_folders.contents import Content, content_of
from store.run_folders.folder_phases import TA
from store.run_folders.importing_events import NOTHING, LineFile, LineImporter
from store.run_folders.lines import LINE, line_of, merge, split
from store.run_folders.names import EVENTS, EXTENSION
from store.run_folders.outdated import as_artifact, outdated
from store.run_folders.reading import Folder
from store.run_folders.records import FileRecord, ImportReport, Record, Sidecar, SidecarFile, Warned
from store.run_folders.writing import moment_of
from store.semconv import GROUP_KEY, PLAN_KEY
from store.validation.json_limits import dumps

OnConflict = Literal["skip", "new_generation"]

_SUCCEEDED: Final = frozenset({"completed", "historical"})
_UNENDED: Final = frozenset({"queued", "running"})


async def import_runs(
    store: Store,
    directory: str | Path,
    *,
    on_conflict: OnConflict = "skip",
    resources_id: str | None = None,
) -> AsyncIterator[ImportReport]:
    """Import every run below a directory, and yield a report on each run.

    If a run was imported before and its folder has not changed, the run does not change. If the folder has grown, the
    new part is appended. A damaged run is not imported: its report contains the reason, and the import continues with
    the next run.

    Args:
        store: the store that receives the runs.
        directory: a directory that contains run folders, or one run folder.
        on_conflict: the action if an already imported part of a folder has changed: `skip` does not import the run,
            `new_generation` imports the folder as another rollout.
        resources_id: the resources of the rollouts. These resources must contain the phase graph that re-runs need. If
            None, the rollouts get the latest resources if these contain a phase graph, else resources with the graph of
            trading runs.

    Raises:
        Invalid: the directory does not exist.
    """
    root = Path(directory)
    places = await asyncio.to_thread(reading.find, root)
    rollouts_by_run = await _rollouts_by_run(store)
    folders: dict[str, Path] = {}
    for place in places:
        try:
            folder = await asyncio.to_thread(reading.read, place)
        except Invalid as error:
            yield ImportReport(path=str(place.folder), run_id=None, outcome="refused", reason=str(error))
            continue
        if folder.run_id in folders:
            reason = f"{folders[folder.run_id]} contains the same run"
            yield _report(folder, outcome="skipped", reason=reason)
            continue
        folders[folder.run_id] = place.folder
        rollouts = rollouts_by_run.setdefault(folder.run_id, [])
        yield await _Import(store, folder, rollouts, on_conflict, resources_id).run()


async def import_run_folder(
    store: Store, folder: str | Path, *, on_conflict: OnConflict = "skip", resources_id: str | None = None
) -> list[ImportReport]:
    """Import the runs of one folder in the same way as `import_runs`. A folder may contain several runs.

    Raises:
        Invalid: the folder is not a run folder.
    """
    place = Path(folder)
    if not await asyncio.to_thread(reading.is_run_folder, place):
        raise Invalid("folder", f"{place} holds no run_meta.json; give the folder of a run")
    arguments: dict[str, Any] = {"on_conflict": on_conflict, "resources_id": resources_id}
    return [report async for report in import_runs(store, place, **arguments) if Path(report.path) == place]


async def _rollouts_by_run(store: Store) -> dict[str, list[str]]:
    """Return the rollouts into which each run was imported, by the run's id; the newest rollout of a run is last."""
    rollouts_by_run: dict[str, list[str]] = {}
    for rollout in await store.query_rollouts(sort_by="start_time"):
        run_id = imported_runs.imported_id(rollout.metadata or {})
        if run_id is not None:
            rollouts_by_run.setdefault(run_id, []).append(rollout.rollout_id)
    return rollouts_by_run


async def last_record(store: Store, rollout_id: str) -> tuple[Record, int] | None:
    """Return the record of the last import of a run, and its version; None if the run was never imported."""
    artifacts = await store.runs.query_artifacts(
        rollout_id, scope=records.SCOPE, name=records.NAME, view="raw", limit=1
    )
    return (Record.model_validate(artifacts[-1].content), artifacts[-1].version) if artifacts else None


def _report(folder: Folder, **fields: Any) -> ImportReport:
    return ImportReport(path=str(folder.place.folder), run_id=folder.run_id, **fields)


class _Import:
    """The import of one run."""

    def __init__(
        self, store: Store, folder: Folder, rollouts: list[str], on_conflict: OnConflict, resources_id: str | None
    ) -> None:
        self._store = store
        self._folder = folder
        self._rollouts = rollouts
        self._on_conflict = on_conflict
        self._resources_id = resources_id
        self._digest = _digest(folder)
        self._warnings = list(folder.warnings)
        self._saved = {"checkpoint": 0, "artifact": 0}

    async def run(self) -> ImportReport:
        """Import the part of the folder that was not imported before, and return the report."""
        if not self._rollouts:
            if await self._store.get_rollout_by_id(self._folder.run_id) is not None:
                reason = "this store already has the run under the same id"
                return _report(self._folder, rollout_id=self._folder.run_id, outcome="skipped", reason=reason)
            return await self._carry_over(await self._begin(), None)
        rollout_id = self._rollouts[-1]
        last = await last_record(self._store, rollout_id)
        record = None if last is None else last[0]
        if record is not None and record.digest == self._digest:
            return _report(
                self._folder,
                rollout_id=rollout_id,
                outcome="unchanged",
                history_complete=record.history_complete,
                warnings=record.warnings,
            )
        if last is not None and await self._was_continued(rollout_id, *last):
            reason = "its run has gone on in the store; export it to bring the folder up to date"
        elif _has_grown(record, self._folder) if record is not None else await self._begins_alike(rollout_id):
            return await self._carry_over(rollout_id, record)
        else:
            reason = "its run_events.jsonl no longer begins with what was imported"
        if self._on_conflict == "new_generation":
            return await self._carry_over(await self._begin(), None)
        return _report(self._folder, rollout_id=rollout_id, outcome="skipped", reason=reason)

    async def _begin(self) -> str:
        """Start a rollout for the run, and return the id of the rollout."""
        generation = f"#{len(self._rollouts) + 1}" if self._rollouts else ""
        flow = self._folder.flow_id or self._folder.run_id[:8]
        metadata: dict[str, Any] = {
            GROUP_KEY: flow,
            PLAN_KEY: f"{imported_runs.PLAN_PREFIX}{self._folder.run_id}{generation}",
            imported_runs.RUN_ID_KEY: self._folder.run_id,
        }
        for name in ("type", "user_id"):
            if isinstance(value := self._folder.meta.get(name), str) and forms.is_storable(value):
                metadata[name] = value
        if self._folder.date is not None:
            metadata["date"] = self._folder.date
        metadata |= self._times()
        params = self._folder.meta.get("params")
        input_ = cast("dict[str, Any]", params if isinstance(params, dict) and forms.is_storable(params) else {})
        try:
            started = await self._store.start_rollout(input_, metadata=metadata)
        except Conflict as error:
            raise Conflict(error.reason, "another import of the same run is under way; import again after it") from None
        self._rollouts.append(started.rollout_id)
        return started.rollout_id

    async def _carry_over(self, rollout_id: str, previous: Record | None) -> ImportReport:
        importer = LineImporter(self._store, rollout_id, self._warnings)
        place, events, extension = self._folder.place, self._folder.events or b"", self._folder.extension or b""
        end, extension_end = await importer.carry_over(
            LineFile(place.own(EVENTS).name, events, 0 if previous is None else previous.events_bytes),
            LineFile(place.own(EXTENSION).name, extension, 0 if previous is None else previous.extension_bytes),
            1 if previous is None else previous.attempts,
            self._folder.meta.get("rerun_seq"),
        )
        files = await self._carry_over_files(rollout_id, importer, () if previous is None else previous.files)
        node = await importer.last_attempt()
        record = Record(
            run_id=self._folder.run_id,
            source=str(self._folder.place.folder),
            digest=self._digest,
            meta=self._folder.meta_text,
            events_bytes=end,
            events_sha256=records.sha256(events[:end]),
            extension_bytes=extension_end,
            extension_sha256=records.sha256(extension[:extension_end]) if extension_end else None,
            has_events=self._folder.events is not None,
            has_sidecar=self._folder.has_sidecar,
            attempts=node.sequence_id,
            history_complete=node.rerun_seq == 0 or self._folder.meta.get("history_complete") is True,
            files=files,
            warnings=self._warnings,
        )
        await self._end(rollout_id, node)
        await self._store.runs.save_artifact(
            rollout_id,
            node.attempt_id,
            scope=records.SCOPE,
            name=records.NAME,
            content=record.model_dump(mode="json", exclude_none=True),
            media_type=records.MEDIA_TYPE,
        )
        return _report(
            self._folder,
            rollout_id=rollout_id,
            outcome="imported" if previous is None else "grown",
            events=importer.imported,
            checkpoints=self._saved["checkpoint"],
            artifacts=self._saved["artifact"],
            history_complete=record.history_complete,
            warnings=self._warnings,
        )

    async def _end(self, rollout_id: str, node: AttemptNode) -> None:
        """Set the status of the run from its folder. A run that has not ended in the folder becomes failed."""
        status, error = self._folder.meta.get("status"), None
        if status not in _SUCCEEDED:
            error_given = self._folder.meta.get("error")
            message = (
                records.ORPHANED
                if status in _UNENDED
                else error_given
                if isinstance(error_given, str)
                else "unknown error"
            )
            error = AttemptError(
                type="Orphaned" if status in _UNENDED else "RunFailed",
                message=message if forms.is_storable(message) else "unknown error",
            )
        target = "succeeded" if error is None else "failed"
        if node.status != target:
            more: dict[str, Any] = {} if error is None else {"error": error}
            await self._store.update_attempt(rollout_id, node.attempt_id, status=target, **more)
        rollout = await self._store.get_rollout_by_id(rollout_id)
        assert rollout is not None  # it was just imported
        changes: dict[str, Any] = {}
        if self._resources_id is not None:
            changes["resources_id"] = self._resources_id
        elif await graph_of(self._store, rollout) is None:
            changes["resources_id"] = await publish_default(self._store, TA)
        metadata = rollout.metadata or {}
        new_metadata = metadata | self._times() | {imported_runs.ATTEMPTS: node.sequence_id}
        if new_metadata != metadata:
            changes["metadata"] = new_metadata
        if changes:
            await self._store.update_rollout(rollout_id, **changes)

    def _times(self) -> dict[str, float]:
        """Return the times in the folder as metadata of the rollout."""
        names = (imported_runs.CREATED_AT, imported_runs.COMPLETED_AT)
        times = {name: moment_of(self._folder.meta.get(name)) for name in names}
        return {name: at for name, at in times.items() if at}

    async def _carry_over_files(
        self, rollout_id: str, importer: LineImporter, previous_files: Sequence[FileRecord]
    ) -> list[FileRecord]:
        by_path = {file.path: file for file in previous_files if not file.is_replaced}
        replaced = [file for file in previous_files if file.is_replaced]
        attempt_id = (await importer.last_attempt()).attempt_id
        replaced_by_reruns = outdated(self._folder, TA)
        async with _without_graph(self._store, rollout_id):
            for path, data in self._folder.files.items():
                if path in by_path and by_path[path].sha256 == records.sha256(data):
                    continue
                described = self._folder.described.get(path) or SidecarFile.of_path(path)
                if described.kind == "checkpoint" and (described.scope, described.name) in replaced_by_reruns:
                    self._warnings.append(
                        Warned(file=path, problem="was replaced by a re-run; imported as an artifact")
                    )
                    described = as_artifact(described)
                content = content_of(path, data, described)
                if content.problem is not None:
                    self._warnings.append(Warned(file=path, problem=content.problem))
                if content.is_kept:
                    if path in by_path:
                        replaced.append(by_path[path].model_copy(update={"is_replaced": True}))
                    by_path[path] = await self._save(rollout_id, attempt_id, path, data, content)
        return [*(by_path[path] for path in sorted(by_path)), *replaced]

    async def _save(self, rollout_id: str, attempt_id: str, path: str, data: bytes, content: Content) -> FileRecord:
        described, sha256 = content.described, records.sha256(data)
        key = f"import:{records.sha256(path.encode())[:16]}:{sha256[:16]}"
        if described.kind == "checkpoint":
            saved = await self._store.runs.save_checkpoint(
                rollout_id,
                attempt_id,
                scope=described.scope,
                name=described.name,
                state=None if described.external is not None else content.value,
                external=described.external,
                after_phase=described.phase,
                key=key,
            )
            assert saved is not None  # only a graph can reject a checkpoint
            content_id = saved.checkpoint_id
        else:
            artifact = await self._store.runs.save_artifact(
                rollout_id,
                attempt_id,
                scope=described.scope,
                name=described.name,
                content=content.value,
                phase=described.phase,
                media_type=described.media_type,
                key=key,
            )
            content_id = artifact.artifact_id
        self._saved[described.kind] += 1
        return FileRecord(
            path=path, sha256=sha256, kind=described.kind, id=content_id, form=content.form, raw=content.raw
        )

    async def _was_continued(self, rollout_id: str, record: Record, version: int) -> bool:
        """Return whether the run has attempts or events after its last import that were not imported from a folder."""
        for node in (await self._store.runs.list_lineage(rollout_id))[record.attempts :]:
            # An interrupted import may have created attempts that its record does not count.
            if node.fork is None or node.fork.graph != NOTHING.digest:
                return True
        later = await self._store.runs.query_events(rollout_id, view="raw", after=version, limit=1)
        return any(LINE not in (event.extra or {}) for event in later.items)

    async def _begins_alike(self, rollout_id: str) -> bool:
        """Return whether the folder begins with the lines that were already imported.

        This check is for an import that was interrupted before it stored its record.
        """
        events = (await self._store.runs.query_events(rollout_id, view="raw", limit=-1)).items
        event_lines, extension_lines = (split(data or b"")[0] for data in (self._folder.events, self._folder.extension))
        merged = merge(event_lines, 0, extension_lines)
        texts = [line.text for line in merged[: len(events)]]
        return texts == [line_of(self._folder.run_id, row) for row in events]


@asynccontextmanager
async def _without_graph(store: Store, rollout_id: str) -> AsyncGenerator[None]:
    """Remove the resources of a rollout temporarily, so that its phase graph does not change or reject checkpoints."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None  # the import has just found or created it
    if rollout.resources_id is None:
        yield
        return
    await store.update_rollout(rollout_id, resources_id=None)
    yield
    await store.update_rollout(rollout_id, resources_id=rollout.resources_id)


def _has_grown(record: Record, folder: Folder) -> bool:
    events, extension = folder.events or b"", folder.extension or b""
    is_grown = records.sha256(events[: record.events_bytes]) == record.events_sha256
    if record.extension_sha256 is not None:
        is_grown &= records.sha256(extension[: record.extension_bytes]) == record.extension_sha256
    return is_grown


def _digest(folder: Folder) -> str:
    files = {path: records.sha256(data) for path, data in folder.files.items()}
    sidecar = Sidecar(run_id=folder.run_id, files=folder.described).model_dump(mode="json")
    events = None if folder.events is None else records.sha256(folder.events)
    contents = [folder.run_id, folder.meta_text, events, files, sidecar]
    if folder.extension is not None:
        contents.append(records.sha256(folder.extension))
    return records.sha256(dumps(contents, "folder"))
