"""Commands of a LangGraph checkpointer, validated and encoded.

A thread contains the checkpoints of a LangGraph conversation, and the writes of tasks on each checkpoint. Each command
has a method that requests rows. These rows must be loaded before the command is decided.
"""

from dataclasses import dataclass, field

from store.domain.body import Body
from store.domain.commands import Command, LoadRequest
from store.domain.thread import CheckpointKey
from store.domain.thread_events import ThreadCheckpointSaved, ThreadWritesSaved


@dataclass(slots=True)
class NewThreadFact:
    """An event to record in a thread: one checkpoint, or writes of one task."""

    fact: ThreadCheckpointSaved | ThreadWritesSaved
    body: Body
    blobs: list[Body] = field(default_factory=list[Body])
    """The large values to which the body refers by their hashes."""

    @property
    def size(self) -> int:
        """The size of the body and the blobs in bytes."""
        return len(self.body.stored) + sum(len(blob.stored) for blob in self.blobs)


@dataclass(slots=True, kw_only=True)
class KeepInThread(Command):
    """Save a checkpoint, or the writes of a task on a checkpoint."""

    thread_id: str
    items: list[NewThreadFact]
    """One item with the checkpoint, or one or more items with the writes of the task."""
    rollout_id: str | None = None
    """The rollout to which the attempt belongs; None if the call names no attempt."""
    attempt_id: str | None = None
    """The attempt that makes the call. The call is a sign of life of this attempt."""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def request_rows(self, request: LoadRequest) -> None:
        request.threads.add(self.thread_id)
        for item in self.items:
            request.thread_namespaces.add(item.fact.ns)
            request.thread_checkpoints.add(item.fact.checkpoint_id)
            request.blobs.update(blob.sha256.hex() for blob in item.blobs)
            if isinstance(item.fact, ThreadWritesSaved):
                request.thread_tasks.add(item.fact.task_id)
        if self.rollout_id is not None and self.attempt_id is not None:
            request.rollouts.add(self.rollout_id)
            request.attempts.add(self.attempt_id)
            request.leavers += 1


@dataclass(slots=True, kw_only=True)
class DeleteThread(Command):
    """Delete the contents of a thread."""

    thread_id: str

    def request_rows(self, request: LoadRequest) -> None:
        request.threads.add(self.thread_id)
        request.whole_threads.add(self.thread_id)


@dataclass(slots=True, kw_only=True)
class PruneThread(Command):
    """Delete some checkpoints of a thread, with their writes."""

    thread_id: str
    checkpoints: list[CheckpointKey]
    reason: str

    def request_rows(self, request: LoadRequest) -> None:
        request.threads.add(self.thread_id)
        request.whole_threads.add(self.thread_id)


@dataclass(slots=True, kw_only=True)
class CopyThread(Command):
    """Copy the contents of a thread into another thread."""

    source_id: str
    target_id: str

    def request_rows(self, request: LoadRequest) -> None:
        request.threads.update((self.source_id, self.target_id))
        request.whole_threads.update((self.source_id, self.target_id))
