"""Commands of a LangGraph checkpointer, validated and encoded, each with a method that requests the rows it needs."""

from dataclasses import dataclass, field

from store.domain.commands import Command, LoadRequest
from store.domain.events import Body
from store.domain.thread import CheckpointKey
from store.domain.thread_events import ThreadCheckpointSaved, ThreadWritesSaved


@dataclass(slots=True)
class NewThreadFact:
    """One item to save in a thread."""

    fact: ThreadCheckpointSaved | ThreadWritesSaved
    body: Body
    blobs: list[Body] = field(default_factory=list[Body])
    """The values that the body refers to by their hashes."""

    @property
    def size(self) -> int:
        """The size of the payload in bytes."""
        return len(self.body.stored) + sum(len(blob.stored) for blob in self.blobs)


@dataclass(slots=True, kw_only=True)
class KeepInThread(Command):
    """Save a checkpoint, or the writes of a task on a checkpoint."""

    thread_id: str
    items: list[NewThreadFact]
    """One checkpoint, or the writes of one task."""
    rollout_id: str | None = None
    attempt_id: str | None = None
    """The attempt that shows a sign of life by this call. It is None if and only if `rollout_id` is None."""

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
    """Copy the contents of a thread into another one."""

    source_id: str
    target_id: str

    def request_rows(self, request: LoadRequest) -> None:
        request.threads.update((self.source_id, self.target_id))
        request.whole_threads.update((self.source_id, self.target_id))
