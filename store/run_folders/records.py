"""Records of an import, stored in the imported run: they prevent a second import and allow an exact export."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from store.models import AttemptedRollout, Rollout
from store.models.enums import Frozen
from store.run_folders.names import FileKind
from store.semconv import PLAN_KEY

SCOPE, NAME, MEDIA_TYPE = "rollbook", "import", "application/json"
"""The scope, name and media type of the record among a run's artifacts."""
RUN_ID_KEY: Final = "run_id"
"""The key in a rollout's metadata for the id of the run in its folder."""
CREATED_AT, COMPLETED_AT, ATTEMPTS = "created_at", "completed_at", "imported_attempts"
"""The keys in a rollout's metadata for the times in its folder, in seconds since the epoch, and for the number of its
attempts after the import."""
ORPHANED: Final = "Run did not complete (server restarted)"
"""The error of a run whose status in its folder is queued or running."""

PLAN_PREFIX: Final = "run:"
"""The beginning of the plan key of an imported run; the id of the run follows."""

Outcome = Literal["imported", "grown", "unchanged", "skipped", "refused"]


class Warned(Frozen):
    """A part of a folder that could not be imported."""

    file: str
    line: int | None = None
    problem: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.problem}"


class ImportReport(Frozen):
    """The result of the import of one run."""

    path: str
    """The folder."""
    run_id: str | None
    """The id in the folder; None if it could not be read."""
    rollout_id: str | None = None
    outcome: Outcome
    reason: str | None = None
    """Why the run was skipped or refused."""
    events: int = 0
    """The number of appended events; the next two fields are the numbers of saved checkpoints and artifacts."""
    checkpoints: int = 0
    artifacts: int = 0
    history_complete: bool = True
    """False if there were re-runs before the import, whose replaced events the folder does not contain."""
    warnings: list[Warned] = Field(default_factory=list[Warned])


class FileRecord(Frozen):
    """One file that was imported as a checkpoint or an artifact."""

    path: str
    sha256: str
    kind: FileKind
    id: str
    form: str | None = None
    """The format of its JSON text, or `base64`; None for other text, and if `raw` holds the JSON text."""
    raw: str | None = None
    """The JSON text, if no format reproduces it."""
    is_replaced: bool = False
    """Whether a later import found the file changed; another record then describes the new content."""


class Record(Frozen):
    """The record of one import of a run."""

    form: Literal[1] = 1
    run_id: str
    source: str
    digest: str
    """SHA-256 of all contents of the folder."""
    meta: str
    """The text of `run_meta.json`."""
    events_bytes: int
    """The number of imported bytes of `run_events.jsonl`; 0 also if there is no such file."""
    events_sha256: str
    """SHA-256 of these bytes."""
    extension_bytes: int = 0
    """The number of imported bytes of `run_extension.jsonl`, and their SHA-256 in the next field."""
    extension_sha256: str | None = None
    has_events: bool
    has_sidecar: bool
    attempts: int
    history_complete: bool
    files: list[FileRecord]
    warnings: list[Warned]


class SidecarFile(Frozen):
    """The description of a file, for files whose names do not state all of it."""

    kind: FileKind
    scope: str
    name: str
    media_type: str | None = None
    phase: str | None = None
    external: dict[str, Any] | None = None


class Sidecar(Frozen):
    """`run_files.json`: the files of one run of a folder."""

    run_id: str
    files: dict[str, SidecarFile]


def imported_id(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of an imported run in its folder, from its rollout's metadata; None if it was not imported."""
    run_id = metadata.get(RUN_ID_KEY)
    is_imported = isinstance(run_id, str) and str(metadata.get(PLAN_KEY, "")).startswith(f"{PLAN_PREFIX}{run_id}")
    return run_id if is_imported else None


def times_of(rollout: Rollout) -> tuple[float, float | None]:
    """Return when a run began and when it ended; for an imported run, the times in its folder.

    If the store has attempts of an imported run that are newer than the import, the end is that of the rollout.
    """
    metadata = rollout.metadata or {}
    if imported_id(metadata) is None:
        return rollout.start_time, rollout.end_time
    created, completed = metadata.get(CREATED_AT), metadata.get(COMPLETED_AT)
    went_on = isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id != metadata.get(ATTEMPTS)
    return (
        float(created) if isinstance(created, int | float) else rollout.start_time,
        float(completed) if isinstance(completed, int | float) and not went_on else rollout.end_time,
    )


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(data).hexdigest()
