"""Export of runs to run folders."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.models import Rollout
from store.models.runs import AttemptNode, CheckpointRef
from store.run_folders import forms, names, records
from store.run_folders.contents import imported_bytes, native_bytes
from store.run_folders.importing import last_record
from store.run_folders.lines import extension_line, is_extension, line_of
from store.run_folders.records import FileRecord, Record, SidecarFile
from store.run_folders.writing import RunFiles, write
from store.semconv import GROUP_KEY

_PAGE: Final = 2000
_STATUSES: Final = {
    "queuing": "queued",
    "preparing": "running",
    "running": "running",
    "requeuing": "running",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "failed",
}
_ATTEMPT_STATUSES: Final = {"succeeded": "completed", "preparing": "running", "running": "running"}
"""The status of a run by the status of its head, if the head is not the latest attempt.

With any other status of the head, the run is failed.
"""


async def export_run_folder(store: Store, rollout_id: str, root: str | Path, *, view: str = "head") -> Path:
    """Write a run below a directory, and return its folder `daily/<date>/<flow>`; the flow is the group of the run.

    The folder is replaced atomically: an interrupted export does not change the old folder. Files of other runs of the
    flow, and files that other programs have written, stay in the folder.

    Args:
        store: the store of the run.
        rollout_id: the id of the run.
        root: the directory below which the folder is written; created if it does not exist.
        view: the view to export, as for `runs.query_events`.

    Raises:
        NotFound: the rollout does not exist.
        Invalid: the group, the date, a scope or a name cannot be part of a path.
    """
    exported = await _read_run(store, rollout_id, view)
    return await asyncio.to_thread(write, Path(root), exported)


async def _read_run(store: Store, rollout_id: str, view: str) -> RunFiles:
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound.rollout(rollout_id)
    last = await last_record(store, rollout_id)
    record = None if last is None else last[0]
    lineage = await store.runs.list_lineage(rollout_id)
    run_id = record.run_id if record is not None else names.checked_id(rollout_id, "rollout_id")
    flow = names.checked_id((rollout.metadata or {}).get(GROUP_KEY) or rollout_id, GROUP_KEY)
    events, extension = await _events(store, rollout_id, run_id, view)
    files = await _files(store, rollout_id, view, record)
    outcome = await _outcome(store, rollout, lineage)
    meta, text = _meta(rollout, outcome, run_id, flow, record)
    if text is None:
        if outcome.status == "failed" and outcome.head is not None:
            meta["error"] = await _error(store, rollout_id, outcome.head.attempt_id)
        text = forms.dumps(meta, "2+end")
    return RunFiles(
        run_id=run_id,
        flow=flow,
        date=names.checked_id(meta.get("date") or date_of(rollout), "date"),
        meta=meta,
        meta_text=text,
        events=None if record is not None and not record.has_events and not events else events,
        extension=extension,
        files=files.contents,
        described=files.described,
        needs_sidecar=files.need_a_sidecar or (record is not None and record.has_sidecar),
        gone=files.gone,
    )


async def _events(store: Store, rollout_id: str, run_id: str, view: str) -> tuple[bytes, bytes | None]:
    """Return the contents of `run_events.jsonl` and `run_extension.jsonl`; None if the second file has no events."""
    lines: list[str] = []
    extension: list[str] = []
    after = 0
    while True:
        page = await store.runs.query_events(rollout_id, view=view, after=after, limit=_PAGE)
        for row in page.items:
            line = line_of(run_id, row)
            if is_extension(row):
                extension.append(extension_line(line, len(lines)))
            else:
                lines.append(line)
        after = page.next_after
        if not page.has_more:
            return "".join(_with_line_breaks(lines)).encode(), "".join(extension).encode() or None


def _with_line_breaks(lines: list[str]) -> list[str]:
    """Return the lines, with a line break added to each line that has none before the next line."""
    return [
        line if number == len(lines) or line.endswith("\n") or lines[number].startswith(("\n", "\r\n")) else f"{line}\n"
        for number, line in enumerate(lines, 1)
    ]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a run, as determined by its head."""

    head: AttemptNode | None
    status: str
    completed_at: float | None


async def _outcome(store: Store, rollout: Rollout, lineage: list[AttemptNode]) -> _Outcome:
    head = next((node for node in lineage if node.is_head), None)
    status, end_time = _STATUSES[rollout.status], rollout.end_time
    if head is not None and head is not lineage[-1]:
        # After an undo, the head is an earlier attempt, but the rollout still has the status of the latest attempt.
        attempts = await store.query_attempts(rollout.rollout_id)
        attempt = next(candidate for candidate in attempts if candidate.attempt_id == head.attempt_id)
        status, end_time = _ATTEMPT_STATUSES.get(attempt.status, "failed"), attempt.end_time
    return _Outcome(head, status, end_time if status in {"completed", "failed"} else None)


def _meta(
    rollout: Rollout, outcome: _Outcome, run_id: str, flow: str, record: Record | None
) -> tuple[dict[str, Any], str | None]:
    """Return the contents of `run_meta.json`, and the imported text of this file if it is still correct, else None."""
    status = outcome.status
    rerun_seq = 0 if outcome.head is None else outcome.head.rerun_seq
    if record is not None:
        imported_meta: dict[str, Any] = forms.loads(record.meta)
        if status == "completed" and imported_meta.get("status") == "historical":
            status = "historical"
        changes: dict[str, Any] = {"status": status}
        if outcome.head is not None and outcome.head.sequence_id > record.attempts:
            changes |= {"completed_at": outcome.completed_at, "rerun_seq": rerun_seq}
        if changes.items() <= {name: imported_meta.get(name) for name in changes}.items():
            return imported_meta, record.meta
        return imported_meta | changes | {"error": None, "history_complete": record.history_complete}, None
    return new_meta(rollout, run_id, flow, status=status, completed_at=outcome.completed_at, rerun_seq=rerun_seq), None


def new_meta(
    rollout: Rollout, run_id: str, flow: str, *, status: str, completed_at: float | None, rerun_seq: int
) -> dict[str, Any]:
    """Return the contents of `run_meta.json` for a run that was not imported."""
    input_: Any = rollout.input
    params = cast("dict[str, Any]", input_ if isinstance(input_, dict) else {"input": input_})
    metadata = rollout.metadata or {}
    return {
        "id": run_id,
        "flow_id": flow,
        "short_rid": run_id[-8:],
        "type": str(metadata.get("type") or params.get("type") or "auto"),
        "status": status,
        "created_at": rollout.start_time,
        "completed_at": completed_at,
        "user_id": str(metadata.get("user_id") or params.get("user_id") or "anonymous"),
        "date": date_of(rollout),
        "params": params,
        "rerun_seq": rerun_seq,
        "error": None,
        "history_complete": True,
    }


def date_of(rollout: Rollout) -> str:
    """Return the date of a run, which is part of the path of its folder."""
    input_: Any = rollout.input
    date = cast("dict[str, Any]", input_).get("date") if isinstance(input_, dict) else None
    date = date or (rollout.metadata or {}).get("date")
    return str(date) if date else f"{datetime.fromtimestamp(rollout.start_time, UTC):%Y-%m-%d}"


async def _error(store: Store, rollout_id: str, attempt_id: str) -> str | None:
    """Return the error of an attempt."""
    error: str | None = None
    async for event in store.log.tail(types=["attempt.status_changed"], rollout_id=rollout_id):
        if event.data.get("attempt_id") == attempt_id:
            error_data: dict[str, Any] = event.data.get("error") or {}
            error = str(error_data.get("message") or error_data.get("type") or event.data.get("reason"))
    return error


@dataclass(slots=True)
class _Files:
    """The files of a run, with their contents and descriptions."""

    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    described: dict[str, SidecarFile] = field(default_factory=dict[str, SidecarFile])
    gone: set[str] = field(default_factory=set[str])
    """The paths of files that an earlier export may have written and that are no longer in the view."""
    need_a_sidecar: bool = False
    """Whether the name of a file does not give its whole description, so that a sidecar must describe the file.

    Imported files do not count here.
    """


async def _files(store: Store, rollout_id: str, view: str, record: Record | None) -> _Files:
    imported = {file.id: file for file in record.files} if record is not None else {}
    files, taken = _Files(), {file.path for file in imported.values()}
    ids = {ref.checkpoint_id for ref in await store.runs.list_checkpoints(rollout_id, view=view)}
    for checkpoint in await store.runs.list_checkpoints(rollout_id, view="raw"):
        described = SidecarFile(
            kind="checkpoint",
            scope=checkpoint.scope,
            name=checkpoint.name,
            phase=checkpoint.after_phase,
            external=checkpoint.external,
        )
        is_kept = checkpoint.checkpoint_id in ids
        value = await _state(store, checkpoint) if is_kept else None
        _add(files, taken, described, value, checkpoint.at, imported.get(checkpoint.checkpoint_id), is_kept=is_kept)
    ids = {artifact.artifact_id for artifact in await store.runs.query_artifacts(rollout_id, view=view)}
    for artifact in await store.runs.query_artifacts(rollout_id, view="raw"):
        if (artifact.scope, artifact.name) != (records.SCOPE, records.NAME):
            is_kept = artifact.artifact_id in ids
            _add(
                files,
                taken,
                SidecarFile(
                    kind="artifact",
                    scope=artifact.scope,
                    name=artifact.name,
                    media_type=artifact.media_type,
                    phase=artifact.phase,
                ),
                artifact.content,
                artifact.at,
                imported.get(artifact.artifact_id),
                is_kept=is_kept,
            )
    return files


async def _state(store: Store, ref: CheckpointRef) -> Any:
    """Return the state of a checkpoint."""
    # At the version of this checkpoint, it was the latest checkpoint with its name.
    checkpoint = await store.runs.get_checkpoint(
        ref.rollout_id, scope=ref.scope, name=ref.name, view=f"own:{ref.attempt}", at=ref.version
    )
    return None if checkpoint is None else checkpoint.state


def _add(
    files: _Files,
    taken: set[str],
    described: SidecarFile,
    value: Any,
    at: float,
    imported: FileRecord | None,
    *,
    is_kept: bool,
) -> None:
    if imported is not None:
        if imported.is_replaced:
            return
        path = imported.path
        data = imported_bytes(value, imported) if is_kept else b""
        if described.kind == "checkpoint":
            described = described.model_copy(update={"media_type": names.MEDIA_TYPES[".json"]})
    else:
        path, data, described = native_file(taken, described, value, at)
        if path.endswith(f"/{names.COMPLETE_REPORT}"):
            # Earlier versions wrote this file with a time in its name.
            files.gone.add(path.replace(names.COMPLETE_REPORT, f"{names.stamp(at)}_{names.COMPLETE_REPORT}"))
        files.need_a_sidecar |= is_kept and SidecarFile.of_path(path) != described
    if is_kept:
        files.contents[path], files.described[path] = data, described
        files.gone.discard(path)
    elif path not in files.contents:
        files.gone.add(path)


def native_file(taken: set[str], described: SidecarFile, value: Any, at: float) -> tuple[str, bytes, SidecarFile]:
    """Return the path, the bytes and the description of a file for content that was created in the store.

    The path contains the time `at`. If the path is in `taken`, the time is increased by one millisecond until the path
    is new. The new path is added to `taken`. The path of a file without a time may be in `taken`; the new content then
    replaces the old content.
    """
    if described.kind == "checkpoint":
        end, data = ".json", native_bytes(value, None)[1] if not isinstance(value, str) else b""
        described = described.model_copy(update={"media_type": names.MEDIA_TYPES[".json"]})
    else:
        end, data = native_bytes(value, described.media_type)
    milliseconds = int(at * 1000)
    while (path := names.path_for(described.scope, described.name, names.stamp(milliseconds / 1000), end)) in taken:
        if path.endswith(f"/{names.COMPLETE_REPORT}"):
            break
        milliseconds += 1
    taken.add(path)
    return path, data, described


async def has_run(store: Store, rollout_id: str) -> bool:
    """Return whether a rollout has run events, checkpoints or artifacts.

    Raises:
        Invalid: the id is not text.
    """
    if not isinstance(rollout_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid("rollout_id", "is not text")
    if (await store.runs.query_events(rollout_id, view="raw", limit=1, bodies=False)).items:
        return True
    return bool(
        await store.runs.query_artifacts(rollout_id, view="raw", limit=1)
        or await store.runs.list_checkpoints(rollout_id, view="raw")
    )
