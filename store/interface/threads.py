"""Threads of checkpoints, as LangGraph's checkpointers keep them, and what was written on top of the checkpoints."""
# ruff: noqa: ARG002 - a default that only refuses uses no argument.

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from store.domain.thread import CheckpointKey
from store.errors import Unsupported
from store.models.threads import ThreadCheckpoint, ThreadPlace, ThreadSummary, ThreadWrite
from store.runtime.blocking import Blocking, blocking, blocking_iterator


class StoreThreads:
    """The threads of a store. A thread named `<rollout_id>:<scope>` belongs to that rollout.

    This class is the default of a store without threads: every method raises `Unsupported`.

    Args:
        backend: the name of the store's class, for the error.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def save_checkpoint(self, checkpoint: ThreadCheckpoint, *, attempt_id: str | None = None) -> None:
        """Keep a checkpoint, in the place of one that has its id; the writes it carries are not looked at.

        Args:
            checkpoint: what to keep.
            attempt_id: the attempt at the thread's rollout that shows a sign of life by it.

        Raises:
            Invalid: metadata that is not JSON; an id, a namespace or a channel that is empty or too long.
            NotFound: the rollout has no such attempt.
            TooLarge: more than 16 MiB after compression.
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
        """Keep what one task has written on top of a checkpoint.

        A write is known by its task and its number: a known one stays as it is, but if the number is negative it is
        replaced.

        Raises:
            Invalid: an id, a namespace or a channel that is empty or too long.
            NotFound: the rollout has no such attempt.
            TooLarge: more than 10,000 writes, or 16 MiB after compression.
        """
        raise Unsupported("threads.save_writes", self.backend)

    async def get_checkpoint(
        self, thread_id: str, *, ns: str = "", checkpoint_id: str | None = None
    ) -> ThreadCheckpoint | None:
        """Return a checkpoint of a thread, or that with the greatest id; None if there is none."""
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
        """Yield checkpoints with the greatest ids first, some read at a time.

        Args:
            thread_id: of this thread; None for all.
            ns: only of this namespace.
            checkpoint_id: only this one.
            before: only those with smaller ids.
            limit: at most so many; -1 for all.
        """
        raise Unsupported("threads.iterate_checkpoints", self.backend)

    async def list_places(self, thread_id: str) -> list[ThreadPlace]:
        """Return all checkpoints of a thread without their payload, those with the greatest ids first."""
        raise Unsupported("threads.list_places", self.backend)

    async def list_threads(self, rollout_id: str) -> list[ThreadSummary]:
        """Return the threads of a rollout: that of its id, and those of its id, a colon and a scope."""
        raise Unsupported("threads.list_threads", self.backend)

    async def delete(self, thread_id: str) -> bool:
        """Take away all that a thread holds; say whether there was anything. The log keeps what it was."""
        raise Unsupported("threads.delete", self.backend)

    async def delete_runs(self, run_ids: Sequence[str]) -> int:
        """Take away the checkpoints that some runs made, thread by thread; return how many."""
        raise Unsupported("threads.delete_runs", self.backend)

    async def prune(self, thread_id: str, checkpoints: Sequence[CheckpointKey]) -> int:
        """Take away some checkpoints of a thread, given by namespace and id, as far as they are there.

        Returns how many there were. What was written on top of them goes with them.
        """
        raise Unsupported("threads.prune", self.backend)

    async def copy(self, source_id: str, target_id: str) -> int:
        """Keep in a thread all that another one holds, payload not stored anew; return how many checkpoints.

        Raises:
            Invalid: both are the same thread.
            TooLarge: the thread holds more than 10,000 checkpoints and writes.
        """
        raise Unsupported("threads.copy", self.backend)


class SyncThreads(Blocking[StoreThreads]):
    """Threads of checkpoints; see `StoreThreads`."""

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
