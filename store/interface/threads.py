"""Threads of LangGraph checkpointers.

A thread is a conversation or an execution of a graph. It consists of checkpoints, which contain the state after a step
of the graph, and of writes. A write is a value that a task of the graph has written to a channel after a checkpoint.
The checkpoints of a subgraph have a namespace (`ns`) of their own.
"""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from store.errors import Unsupported
from store.models.threads import ThreadCheckpoint, ThreadPlace, ThreadSummary, ThreadWrite
from store.runtime.blocking import Blocking, blocking, blocking_iterator

if TYPE_CHECKING:
    # `store.domain.thread` imports the events of the log, which the store over HTTP does not need.
    from store.domain.thread import CheckpointKey


class StoreThreads:
    """The threads of a store. For a store without threads, this base class is used, whose methods raise `Unsupported`.

    A thread belongs to a rollout if its id is `<rollout_id>` or `<rollout_id>:<scope>`. A scope is a subject within the
    rollout, such as a ticker.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def save_checkpoint(self, checkpoint: ThreadCheckpoint, *, attempt_id: str | None = None) -> None:
        """Store a checkpoint, or replace the stored checkpoint with the same thread, namespace and id.

        Args:
            checkpoint: the checkpoint; its field `writes` is ignored.
            attempt_id: the attempt that makes the call; the call counts as a sign of life of this attempt. None for a
                thread without a rollout.

        Raises:
            Invalid: the metadata is not JSON, or an id, a namespace or a channel is empty or too long.
            NotFound: the rollout has no such attempt.
            TooLarge: the checkpoint has more than 16 MiB after compression.
        """
        raise Unsupported("threads.save_checkpoint", self.backend)

    async def save_writes(
        self,
        thread_id: str,
        writes: Sequence[ThreadWrite],
        *,
        ns: str = "",
        checkpoint_id: str,
        attempt_id: str | None = None,
    ) -> None:
        """Store values that a task has written after a checkpoint.

        A write is identified by its task and its number. A new write with the task and the number of a stored write is
        ignored if the number is 0 or more. If the number is negative, the new write replaces the stored write.

        Raises:
            Invalid: an id, a namespace or a channel is empty or too long.
            NotFound: the rollout has no such attempt.
            TooLarge: there are more than 10,000 writes, or more than 16 MiB after compression.
        """
        raise Unsupported("threads.save_writes", self.backend)

    async def get_checkpoint(
        self, thread_id: str, *, ns: str = "", checkpoint_id: str | None = None
    ) -> ThreadCheckpoint | None:
        """Return a checkpoint of a thread, by default the one with the greatest id; None if there is none."""
        raise Unsupported("threads.get_checkpoint", self.backend)

    def iterate_checkpoints(
        self,
        thread_id: str | None = None,
        *,
        ns: str | None = None,
        checkpoint_id: str | None = None,
        before: str | None = None,
        limit: int = -1,
    ) -> AsyncIterator[ThreadCheckpoint]:
        """Yield checkpoints in descending order of their ids, read in batches.

        Args:
            thread_id: only this thread; None for all.
            ns: only this namespace; None for all.
            checkpoint_id: only this checkpoint; None for all.
            before: only checkpoints with smaller ids.
            limit: the maximum number of checkpoints; -1 for all.
        """
        raise Unsupported("threads.iterate_checkpoints", self.backend)

    async def list_places(self, thread_id: str) -> list[ThreadPlace]:
        """Return the ids of each checkpoint of a thread and of its parent, in descending order of checkpoint ids."""
        raise Unsupported("threads.list_places", self.backend)

    async def list_threads(self, rollout_id: str) -> list[ThreadSummary]:
        """Return the threads of a rollout: those named `<rollout_id>` and `<rollout_id>:<scope>`."""
        raise Unsupported("threads.list_threads", self.backend)

    async def delete(self, thread_id: str) -> bool:
        """Delete the checkpoints and writes of a thread, and return whether there were any.

        The log still contains the deleted contents.
        """
        raise Unsupported("threads.delete", self.backend)

    async def delete_runs(self, run_ids: Sequence[str]) -> int:
        """Delete the checkpoints of LangGraph runs, one thread at a time; return the number of deleted checkpoints."""
        raise Unsupported("threads.delete_runs", self.backend)

    async def prune(self, thread_id: str, checkpoints: Sequence[CheckpointKey]) -> int:
        """Delete checkpoints of a thread together with the writes after them.

        The argument `checkpoints` contains the namespace and the id of each checkpoint. The result is the number of
        these checkpoints that existed.
        """
        raise Unsupported("threads.prune", self.backend)

    async def copy(self, source_id: str, target_id: str) -> int:
        """Copy the checkpoints and writes of a thread to another thread; return the number of checkpoints.

        The copies refer to the stored payloads of the source. The payloads are not copied.

        Raises:
            Invalid: both ids are the same.
            TooLarge: the thread has more than 10,000 checkpoints and writes.
        """
        raise Unsupported("threads.copy", self.backend)


class SyncThreads(Blocking[StoreThreads]):
    """Blocking methods for threads; see `StoreThreads`."""

    save_checkpoint = blocking(StoreThreads.save_checkpoint)
    save_writes = blocking(StoreThreads.save_writes)
    get_checkpoint = blocking(StoreThreads.get_checkpoint)
    iterate_checkpoints = blocking_iterator(StoreThreads.iterate_checkpoints)
    list_places = blocking(StoreThreads.list_places)
    list_threads = blocking(StoreThreads.list_threads)
    delete = blocking(StoreThreads.delete)
    delete_runs = blocking(StoreThreads.delete_runs)
    prune = blocking(StoreThreads.prune)
    copy = blocking(StoreThreads.copy)
