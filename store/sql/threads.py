"""What a SQL store keeps for LangGraph checkpointers: threads of checkpoints, and what was written on top of them."""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from store.db.dialect import ReadSession
from store.db.queries import threads as thread_queries
from store.domain.thread import CheckpointKey
from store.models.threads import ThreadCheckpoint, ThreadPlace, ThreadSummary, ThreadWrite
from store.sql.commands import threads as thread_commands
from store.sql.forks import SQLForks
from store.sql.mapping import threads as thread_mapping
from store.validation import arguments

_AT_ONCE = 50
"""How many checkpoints a list reads in one go: each may be large."""


class SQLThreads(SQLForks, ABC):
    """The threads of a SQL store. A thread named `<rollout_id>:<scope>` belongs to that rollout."""

    async def keep_thread_checkpoint(self, checkpoint: ThreadCheckpoint, *, attempt_id: str | None = None) -> None:
        """Keep a checkpoint, in the place of one that has its id; the writes it carries are not looked at.

        Args:
            checkpoint: what to keep.
            attempt_id: the attempt at the thread's rollout that shows a sign of life by it.

        Raises:
            Invalid: metadata that is not JSON; an id, a namespace or a channel that is empty or too long.
            NotFound: the rollout has no such attempt.
            TooLarge: more than 16 MiB after compression.
        """
        await self._call(thread_commands.checkpoint(checkpoint, attempt_id))

    async def keep_thread_writes(
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
        given = arguments.several(writes, "writes")
        if given:
            await self._call(thread_commands.writes(thread_id, ns, checkpoint_id, given, attempt_id))

    async def get_thread_checkpoint(
        self, thread_id: str, *, ns: str = "", checkpoint_id: str | None = None
    ) -> ThreadCheckpoint | None:
        """Return a checkpoint of a thread, or that with the greatest id; None if there is none."""

        async def read(session: ReadSession) -> list[ThreadCheckpoint]:
            rows = await thread_queries.checkpoints(
                self._dialect, session, thread_id=thread_id, ns=ns, checkpoint_id=checkpoint_id, limit=1
            )
            return await thread_mapping.whole(self._dialect, session, rows)

        found = await self._read(read, snapshot=True)
        return found[0] if found else None

    async def iterate_thread_checkpoints(
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
        after: thread_queries.Place | None = None
        left = limit
        while left:
            most = _AT_ONCE if left < 0 else min(left, _AT_ONCE)
            given = (thread_id, ns, checkpoint_id, before, after, most)
            page = await self._read(partial(self._page_of_threads, given=given), snapshot=True)
            for found in page:
                yield found
            if len(page) < most:
                return
            left -= len(page) if left > 0 else 0
            after = (page[-1].checkpoint_id, page[-1].thread_id, page[-1].ns)

    async def _page_of_threads(
        self,
        session: ReadSession,
        given: tuple[str | None, str | None, str | None, str | None, thread_queries.Place | None, int],
    ) -> list[ThreadCheckpoint]:
        thread_id, ns, checkpoint_id, before, after, limit = given
        rows = await thread_queries.checkpoints(
            self._dialect,
            session,
            thread_id=thread_id,
            ns=ns,
            checkpoint_id=checkpoint_id,
            before=before,
            after=after,
            limit=limit,
        )
        return await thread_mapping.whole(self._dialect, session, rows)

    async def list_thread_places(self, thread_id: str) -> list[ThreadPlace]:
        """Return all checkpoints of a thread without their payload, those with the greatest ids first."""
        rows = await self._read(lambda session: thread_queries.checkpoints(self._dialect, session, thread_id=thread_id))
        return [ThreadPlace(*row[:4]) for row in rows]

    async def list_threads(self, rollout_id: str) -> list[ThreadSummary]:
        """Return the threads of a rollout: that of its id, and those of its id, a colon and a scope."""
        arguments.text(rollout_id, "rollout_id")
        rows = await self._read(lambda session: thread_queries.threads_of(self._dialect, session, rollout_id))
        return [thread_mapping.summary(rollout_id, row) for row in rows]

    async def delete_thread(self, thread_id: str) -> bool:
        """Take away all that a thread holds; say whether there was anything. The log keeps what it was."""
        return await self._call(thread_commands.delete(thread_id))

    async def delete_thread_runs(self, run_ids: Sequence[str]) -> int:
        """Take away the checkpoints that some runs made, thread by thread; return how many."""
        given = arguments.texts(run_ids, "run_ids")
        if not given:
            return 0
        places = await self._read(lambda session: thread_queries.of_runs(self._dialect, session, given))
        gone = 0
        for thread_id, rows in groupby(places, key=itemgetter(0)):
            checkpoints: list[CheckpointKey] = [(row[1], row[2]) for row in rows]
            gone += await self._call(thread_commands.prune(thread_id, checkpoints, "runs"))
        return gone

    async def prune_thread(self, thread_id: str, checkpoints: Sequence[CheckpointKey]) -> int:
        """Take away some checkpoints of a thread, given by namespace and id, as far as they are there.

        Returns how many there were. What was written on top of them goes with them.
        """
        return await self._call(thread_commands.prune(thread_id, checkpoints, "keep_latest"))

    async def copy_thread(self, source_id: str, target_id: str) -> int:
        """Keep in a thread all that another one holds, payload not stored anew; return how many checkpoints.

        Raises:
            Invalid: both are the same thread.
            TooLarge: the thread holds more than 10,000 checkpoints and writes.
        """
        return await self._call(thread_commands.copy(source_id, target_id))
