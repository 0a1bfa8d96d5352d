"""Store calls of a run that were recorded while the store was unavailable, and the run folder with their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

from store.models import AttemptedRollout
from store.models.calls import ChangingCall
from store.models.enums import Frozen
from store.models.runs import PHASE_KINDS, RunEvent, RunEventRow
from store.planning import imported_runs
from store.run_folders import forms, names, reading
from store.run_folders.exporting import date_of, native_file, new_meta
from store.run_folders.lines import extension_line, is_extension, line_of
from store.run_folders.records import SidecarFile
from store.run_folders.writing import RunFiles, write
from store.semconv import GROUP_KEY
from store.wire.calls import json_of_call

Method = Literal[
    "append_events", "save_checkpoint", "save_artifact", "retract_artifact", "record_spans", "update_attempt"
]

_IDS: Final = frozenset({"rollout_id", "attempt_id"})
_STATUSES: Final = {"succeeded": "completed", "preparing": "running", "running": "running"}
"""The status of a run by the status of its attempt. With any other status of the attempt, the run is failed."""


class RecordedCall(Frozen):
    """A call of a store that was recorded instead of being made."""

    method: Method
    at: float
    """The time of the call, in seconds since the epoch."""
    arguments: dict[str, Any]
    """The arguments as JSON values, including the idempotency key, but not the ids of the rollout and the attempt."""

    @classmethod
    def of(cls, call: ChangingCall[Any], at: float, **more: Any) -> RecordedCall:
        """Return the record of a call. `more` are further arguments."""
        values = {name: value for name, value in json_of_call(call).items() if name not in _IDS}
        method = cast("Method", call.method.rpartition(".")[2])
        return cls(method=method, at=at, arguments=values | more)


class RecordedRun:
    """The folder of a run, with its existing contents and the results of the recorded calls.

    Args:
        root: the directory that contains the run folders.
        rollout: the run with the attempt that recorded the calls.
        rerun_seq: the number of the re-run that the attempt is; 0 for the first run.
        is_written: whether an earlier process already wrote the results of the calls to the folder. The existing
            contents are then not read, because they include these results.

    Raises:
        Invalid: the group or the date cannot be part of a path, or the existing folder of the run is damaged.
    """

    def __init__(self, root: Path, rollout: AttemptedRollout, rerun_seq: int = 0, *, is_written: bool = False) -> None:
        self._root = root
        self._rollout = rollout
        self._rerun_seq = rerun_seq
        run_id = imported_runs.imported_id(rollout.metadata or {}) or rollout.rollout_id
        self._run_id = names.checked_id(run_id, "rollout_id")
        self._flow = names.checked_id((rollout.metadata or {}).get(GROUP_KEY) or rollout.rollout_id, GROUP_KEY)
        self._date = names.checked_id(date_of(rollout), "date")
        self._status, self._ended_at, self._error = "running", None, None
        self._events, self._extension = b"", b""
        self._described: dict[str, SidecarFile] = {}
        self._needs_sidecar = False
        self._meta: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}
        self._gone: set[str] = set()
        self._taken: set[str] = set()
        self._paths_of: dict[str, str] = {}
        self._number = 0
        if not is_written:
            self._read_existing()

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._root / "daily" / self._date / self._flow

    def _read_existing(self) -> None:
        """Read the part of the run that a mirror of the store has already written to the folder."""
        if not reading.is_run_folder(self.folder):
            return
        for place in reading.places_of(self.folder):
            if (reading.meta_of(place) or {}).get("id") == self._run_id:
                existing = reading.read(place)
                self._meta, self._described = existing.meta, dict(existing.described)
                self._events, self._extension = _with_line_break(existing.events), _with_line_break(existing.extension)
                self._needs_sidecar, self._taken = existing.has_sidecar, set(existing.files)

    def add(self, call: RecordedCall) -> None:
        """Add the results of a call to the contents.

        Raises:
            Invalid: a scope or a name cannot be part of a path.
        """
        arguments = call.arguments
        match call.method:
            case "append_events":
                for event in arguments["events"]:
                    self._add_event(RunEvent.model_validate(event), call.at)
            case "save_checkpoint":
                described = SidecarFile(
                    kind="checkpoint",
                    scope=arguments["scope"],
                    name=arguments["name"],
                    phase=arguments.get("after_phase"),
                    external=arguments.get("external"),
                )
                self._add_file(described, arguments.get("state"), call)
            case "save_artifact":
                described = SidecarFile(
                    kind="artifact",
                    scope=arguments["scope"],
                    name=arguments["name"],
                    media_type=arguments.get("media_type"),
                    phase=arguments.get("phase"),
                )
                self._add_file(described, arguments["content"], call)
            case "retract_artifact":
                path = self._paths_of.pop(arguments["artifact_id"], "")
                if self._files.pop(path, None) is not None:
                    del self._described[path]
                    self._gone.add(path)
            case "update_attempt":
                self._status = _STATUSES.get(arguments["status"], "failed")
                self._ended_at = None if self._status == "running" else call.at
                error: Mapping[str, Any] = arguments.get("error") or {}
                self._error = str(error.get("message") or error.get("type") or arguments["status"]) if error else None
            case "record_spans":
                # Run folders contain no spans.
                pass

    def _add_event(self, event: RunEvent, at: float) -> None:
        self._number += 1
        values = event.model_dump(exclude_none=True)
        fields = {name: value for name, value in values.items() if name in RunEventRow.model_fields}
        extra = {name: value for name, value in values.items() if name not in RunEventRow.model_fields}
        attempt = self._rollout.attempt
        row = RunEventRow(
            rollout_id=self._rollout.rollout_id,
            # The store assigns the final version later, when it is available and gets the call. So the line has an id
            # that does not depend on that version.
            version=self._number,
            position=0,
            at=at,
            attempt=attempt.sequence_id,
            attempt_id=attempt.attempt_id,
            rerun_seq=self._rerun_seq,
            source="phase" if event.kind in PHASE_KINDS else "event",
            extra={"id": f"{self._run_id}_{attempt.sequence_id}r{self._number}"} | extra,
            **fields,
        )
        line = line_of(self._run_id, row)
        if is_extension(row):
            self._extension += extension_line(line, self._events.count(b"\n")).encode()
        else:
            self._events += line.encode()

    def _add_file(self, described: SidecarFile, value: Any, call: RecordedCall) -> None:
        path, data, described = native_file(self._taken, described, value, call.at)
        self._needs_sidecar |= SidecarFile.of_path(path) != described
        self._files[path], self._described[path] = data, described
        self._paths_of[pending_id(call.arguments["key"])] = path

    def contents(self) -> RunFiles:
        """Return the contents of the folder, including the calls that were added so far."""
        state: dict[str, Any] = {"status": self._status, "completed_at": self._ended_at, "rerun_seq": self._rerun_seq}
        new = new_meta(self._rollout, self._run_id, self._flow, **state)
        meta = new | self._meta | state | {"error": self._error}
        return RunFiles(
            run_id=self._run_id,
            flow=self._flow,
            date=self._date,
            meta=meta,
            meta_text=forms.dumps(meta, "2+end"),
            events=self._events,
            extension=self._extension or None,
            files=dict(self._files),
            described=dict(self._described),
            needs_sidecar=self._needs_sidecar,
            gone=set(self._gone),
        )

    def write(self, contents: RunFiles) -> Path:
        """Write the contents to the folder, and return the path of the folder.

        Raises:
            Invalid: the folder is outside of `root` because of a link, or another run of the folder is damaged.
            OSError: the folder cannot be written.
        """
        return write(self._root, contents)

    def remove_files(self) -> None:
        """Remove the files of recorded checkpoints and artifacts.

        A later export from the store writes these files again, with other names.
        """
        for path in [*self._files, *self._gone]:
            (self.folder / path).unlink(missing_ok=True)


def pending_id(key: str) -> str:
    """Return the id that a recorded checkpoint or artifact has until the store assigns its final id.

    Args:
        key: the idempotency key of the recorded call.
    """
    return f"pending-{key}"


def _with_line_break(data: bytes | None) -> bytes:
    """Return the lines of a file, with a line break after the last line; no bytes if there is no file."""
    return data + b"\n" if data and not data.endswith(b"\n") else data or b""
