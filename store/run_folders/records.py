"""Records of imports of run folders.

Each import stores its record as an artifact of the imported run. Because of the record, the same contents are not
imported again, and an export writes the same bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from pydantic import Field

from store.models.enums import Frozen
from store.run_folders.names import FileKind, description_of

SCOPE, NAME, MEDIA_TYPE = "rollbook", "import", "application/json"
"""The scope, name and media type of the artifact that contains the record."""
ORPHANED: Final = "Run did not complete (server restarted)"
"""The error of a run whose status in its folder is queued or running."""

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
    """The path of the folder."""
    run_id: str | None
    """The id of the run in the folder; None if the id could not be read."""
    rollout_id: str | None = None
    outcome: Outcome
    reason: str | None = None
    """The reason why the run was skipped or refused."""
    events: int = 0
    """The number of appended events. The next two fields are the numbers of saved checkpoints and saved artifacts."""
    checkpoints: int = 0
    artifacts: int = 0
    history_complete: bool = True
    """False if the run had re-runs before the import. The folder lacks the events that the re-runs replaced."""
    warnings: list[Warned] = Field(default_factory=list[Warned])


class FileRecord(Frozen):
    """One file that was imported as a checkpoint or an artifact."""

    path: str
    sha256: str
    kind: FileKind
    id: str
    form: str | None = None
    """The format that reproduces the file from the value: a format of JSON, or `base64`.

    None for text that is not JSON, and if `raw` contains the JSON text.
    """
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
    """The number of imported bytes of `run_events.jsonl`; 0 if there is no such file."""
    events_sha256: str
    """SHA-256 of the imported bytes of `run_events.jsonl`."""
    extension_bytes: int = 0
    """The number of imported bytes of `run_extension.jsonl`. The next field is the SHA-256 of these bytes."""
    extension_sha256: str | None = None
    has_events: bool
    has_sidecar: bool
    attempts: int
    history_complete: bool
    files: list[FileRecord]
    warnings: list[Warned]


class SidecarFile(Frozen):
    """The description of a file in a sidecar, for files whose names do not give the whole description."""

    kind: FileKind
    scope: str
    name: str
    media_type: str | None = None
    phase: str | None = None
    external: dict[str, Any] | None = None

    @classmethod
    def of_path(cls, path: str) -> SidecarFile:
        """Return the description that follows from the path of a file. The path is relative to the run folder."""
        named = description_of(path)
        return cls(kind=named.kind, scope=named.scope, name=named.name, media_type=named.media_type, phase=named.phase)


class Sidecar(Frozen):
    """The sidecar `run_files.json`, with descriptions of the files of one run by path."""

    run_id: str
    files: dict[str, SidecarFile]


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(data).hexdigest()
