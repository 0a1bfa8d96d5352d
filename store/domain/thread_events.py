"""Events of threads: a LangGraph checkpointer saved, copied or deleted something."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class ThreadCheckpointSaved:
    """The state of a graph was saved. It replaces a state that was saved under the same id before."""

    type: ClassVar = "thread.checkpoint_saved"
    shape: ClassVar = 1
    ns: str
    """The namespace, which is empty for the graph itself."""
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    source: str | None = None
    """input, loop, update or fork."""
    step: int | None = None
    sha256s: list[str] | None = None
    """The hashes, in hex, of the blobs that contain values of its body."""
    origin: int | None = None
    """The position of the event whose body this copy shares; None if the event is not a copy."""


@dataclass(slots=True)
class ThreadWritesSaved:
    """The writes of a task on a checkpoint were saved."""

    type: ClassVar = "thread.writes_saved"
    shape: ClassVar = 1
    ns: str
    checkpoint_id: str
    task_id: str
    writes: list[list[Any]]
    """The number and the channel of each write. A write with a negative number replaces an earlier one."""
    task_path: str | None = None
    sha256s: list[str] | None = None
    origin: int | None = None


@dataclass(slots=True)
class ThreadCopied:
    """The contents of another thread follow in the same call."""

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
    """`keep_latest`, or `runs` if the checkpoints of some runs were deleted."""
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
"""Types of events whose bodies refer to values in `blobs`."""
