"""Contents of the events that are recorded when a LangGraph checkpointer saves, copies or deletes. Decision 28.

A thread contains the checkpoints of a LangGraph conversation, and the writes of tasks on each checkpoint.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class ThreadCheckpointSaved:
    """The state of a graph was saved as a checkpoint, which replaces any earlier checkpoint with the same id."""

    type: ClassVar = "thread.checkpoint_saved"
    shape: ClassVar = 1
    ns: str
    """The namespace of the checkpoint. It is empty for the outermost graph, and names the place of a subgraph."""
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    source: str | None = None
    """The reason why LangGraph saved the checkpoint: `input`, `loop`, `update` or `fork`."""
    step: int | None = None
    sha256s: list[str] | None = None
    """The hashes, in hex, of the blobs to which the body of this event refers."""
    origin: int | None = None
    """For a copy: the position of the event that has the body. None if this event has its own body."""


@dataclass(slots=True)
class ThreadWritesSaved:
    """The writes of a task on a checkpoint were saved."""

    type: ClassVar = "thread.writes_saved"
    shape: ClassVar = 1
    ns: str
    checkpoint_id: str
    task_id: str
    writes: list[list[Any]]
    """The number and the channel of each write.

    A write with a negative number replaces an earlier write of the task with this number.
    """
    task_path: str | None = None
    sha256s: list[str] | None = None
    """The hashes, in hex, of the blobs to which the body of this event refers."""
    origin: int | None = None
    """For a copy: the position of the event that has the body. None if this event has its own body."""


@dataclass(slots=True)
class ThreadCopied:
    """The contents of another thread were copied. Later events of the same call record the copied contents."""

    type: ClassVar = "thread.copied"
    shape: ClassVar = 1
    source: str
    """The id of the other thread."""


@dataclass(slots=True)
class ThreadPruned:
    """Some checkpoints and their writes were deleted."""

    type: ClassVar = "thread.pruned"
    shape: ClassVar = 1
    reason: str
    """`keep_latest` if all checkpoints except the latest were deleted; `runs` if those of some runs were deleted."""
    checkpoints: list[list[str]]
    """The namespace and the id of each checkpoint."""


@dataclass(slots=True)
class ThreadDeleted:
    """The contents of the thread were deleted."""

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
"""Types of events whose bodies may refer to blobs."""
