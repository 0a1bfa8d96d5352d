"""Events of threads: what a LangGraph checkpointer saved and deleted."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class ThreadCheckpointSaved:
    """The state of a graph was kept; one that was kept under the same id before is replaced."""

    type: ClassVar = "thread.checkpoint_saved"
    shape: ClassVar = 1
    ns: str
    """The namespace: empty for the graph itself, else that of a subgraph."""
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    source: str | None = None
    """input, loop, update or fork."""
    step: int | None = None
    sha256s: list[str] | None = None
    """In hex, of the blobs that hold values of its body."""
    origin: int | None = None
    """The position of the event whose body it has, if it is a copy."""


@dataclass(slots=True)
class ThreadWritesSaved:
    """What a task has written on top of a checkpoint was kept."""

    type: ClassVar = "thread.writes_saved"
    shape: ClassVar = 1
    ns: str
    checkpoint_id: str
    task_id: str
    writes: list[list[Any]]
    """The number of each, and its channel; those with negative numbers replace what was there."""
    task_path: str | None = None
    sha256s: list[str] | None = None
    origin: int | None = None


@dataclass(slots=True)
class ThreadCopied:
    """Everything that another thread held comes next, in the same call."""

    type: ClassVar = "thread.copied"
    shape: ClassVar = 1
    source: str
    """The other thread's id."""


@dataclass(slots=True)
class ThreadPruned:
    """Some checkpoints, and what was written on top of them, do not count any more."""

    type: ClassVar = "thread.pruned"
    shape: ClassVar = 1
    reason: str
    """keep_latest, or runs: those of some runs."""
    checkpoints: list[list[str]]
    """Namespace and id of each."""


@dataclass(slots=True)
class ThreadDeleted:
    """Nothing of what the thread held counts any more."""

    type: ClassVar = "thread.deleted"
    shape: ClassVar = 1


ThreadFact = ThreadCheckpointSaved | ThreadWritesSaved | ThreadCopied | ThreadPruned | ThreadDeleted
THREAD_FACTS: tuple[type[ThreadFact], ...] = (
    ThreadCheckpointSaved,
    ThreadWritesSaved,
    ThreadCopied,
    ThreadPruned,
    ThreadDeleted,
)
WITH_BLOBS = frozenset({ThreadCheckpointSaved.type, ThreadWritesSaved.type})
"""Types of events whose bodies name values that lie in `blobs`."""
