"""State of a thread of a LangGraph checkpointer, and the function that applies an event to this state.

A thread contains the checkpoints of a LangGraph conversation, and the writes of tasks on each checkpoint.
"""

from dataclasses import dataclass, field

from store.domain.events import Event
from store.domain.thread_events import (
    ThreadCheckpointSaved,
    ThreadCopied,
    ThreadDeleted,
    ThreadPruned,
    ThreadWritesSaved,
)
from store.errors import Corrupt

CheckpointKey = tuple[str, str]
"""The namespace and the id of a checkpoint."""
WriteKey = tuple[str, str, str, int]
"""The namespace and the id of the checkpoint, the task, and the number of the write among the writes of the task."""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that was saved and not deleted."""

    parent_id: str | None
    """The id of the checkpoint before."""
    run_id: str | None
    """The id of the LangGraph run that saved the checkpoint."""
    source: str | None
    """The reason why LangGraph saved the checkpoint; see `ThreadCheckpointSaved`."""
    step: int | None
    """The number of the graph's step."""
    position: int
    """The position of the event that saved the checkpoint."""
    body_position: int
    """The position of the event whose body contains the checkpoint. For a copy, it is an event of another thread."""


@dataclass(frozen=True, slots=True)
class KeptWrite:
    """A write that was saved and neither replaced nor deleted."""

    channel: str
    task_path: str
    position: int
    """The position of the event that saved the write."""
    body_position: int
    """The position of the event whose body contains the write. For a copy, it is an event of another thread."""


@dataclass(slots=True)
class ThreadState:
    """A thread. While commands are decided, it contains only the checkpoints and writes that these commands request."""

    thread_id: str
    stream_version: int
    first_position: int
    last_position: int
    checkpoints: dict[CheckpointKey, KeptCheckpoint] = field(default_factory=dict[CheckpointKey, KeptCheckpoint])
    writes: dict[WriteKey, KeptWrite] = field(default_factory=dict[WriteKey, KeptWrite])


def evolve(state: ThreadState | None, event: Event) -> ThreadState:
    """Apply the next event of a thread's stream, and return the new state, which may be the same object.

    Raises:
        Corrupt: the event does not follow from the state.
    """
    if state is None:
        state = ThreadState(event.stream.removeprefix("thread/"), 0, event.position, event.position)
    if event.version != state.stream_version + 1:
        raise Corrupt(event.stream, f"version {event.version}", f"version {state.stream_version + 1}")
    match event.fact:
        case ThreadCheckpointSaved() as fact:
            state.checkpoints[fact.ns, fact.checkpoint_id] = KeptCheckpoint(
                fact.parent_id, fact.run_id, fact.source, fact.step, event.position, fact.origin or event.position
            )
        case ThreadWritesSaved() as fact:
            body_position = fact.origin or event.position
            for number, channel in fact.writes:
                write = KeptWrite(channel, fact.task_path or "", event.position, body_position)
                state.writes[fact.ns, fact.checkpoint_id, fact.task_id, number] = write
        case ThreadPruned() as fact:
            forget(state, {(ns, checkpoint_id) for ns, checkpoint_id in fact.checkpoints})
        case ThreadDeleted():
            state.checkpoints.clear()
            state.writes.clear()
        case ThreadCopied():
            pass
        case other:
            raise Corrupt(event.stream, other.type, "a fact of a thread")
    state.stream_version = event.version
    state.last_position = event.position
    return state


def forget(state: ThreadState, keys: set[CheckpointKey]) -> None:
    """Remove checkpoints and the writes that belong to them."""
    for key in keys:
        state.checkpoints.pop(key, None)
    for key in [key for key in state.writes if key[:2] in keys]:
        del state.writes[key]
