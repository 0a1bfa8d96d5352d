"""What an import leaves behind in the run it made, so that the same folder is not imported twice and goes out again."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from pydantic import Field

from store.models.enums import Frozen
from store.run_folders.names import FileKind

SCOPE, NAME, MEDIA_TYPE = "rollbook", "import", "application/json"
"""Under what the record is kept among a run's artefacts."""
RUN_ID_KEY: Final = "run_id"
"""The key of a rollout's metadata that holds the id its run had in the folder."""
ORPHANED: Final = "Run did not complete (server restarted)"
"""The error of a run that its folder calls queued or running."""

Outcome = Literal["imported", "grown", "unchanged", "skipped", "refused"]


class Warned(Frozen):
    """Something in a folder that could not be imported."""

    file: str
    line: int | None = None
    problem: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.problem}"


class ImportReport(Frozen):
    """What became of one run of a folder."""

    path: str
    """The folder."""
    run_id: str | None
    """As the folder has it; None where it could not be read."""
    rollout_id: str | None = None
    outcome: Outcome
    reason: str | None = None
    """Why it was skipped or refused."""
    events: int = 0
    """How many were appended; so are the next two."""
    checkpoints: int = 0
    artifacts: int = 0
    history_complete: bool = True
    """False where re-runs happened before, of which a folder keeps only what they left over."""
    warnings: list[Warned] = Field(default_factory=list[Warned])


class FileRecord(Frozen):
    """One file that was imported as a checkpoint or an artefact."""

    path: str
    sha256: str
    kind: FileKind
    id: str
    form: str | None = None
    """How its JSON was written; None for what is no JSON, and where `raw` says it."""
    raw: str | None = None
    """The text itself, where no form gives it back."""
    is_replaced: bool = False
    """Whether the file has been written anew since, and another record says how it is."""


class Record(Frozen):
    """One import of a run."""

    form: Literal[1] = 1
    run_id: str
    source: str
    digest: str
    """SHA-256 of all that the folder held."""
    meta: str
    """The text of `run_meta.json`."""
    events_bytes: int
    """How much of `run_events.jsonl` is imported; 0 also where there is no such file."""
    events_sha256: str
    """Of that much of it."""
    has_events: bool
    has_sidecar: bool
    attempts: int
    history_complete: bool
    files: list[FileRecord]
    warnings: list[Warned]


class SidecarFile(Frozen):
    """What a file of a run is, where its name does not say it."""

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


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(data).hexdigest()
