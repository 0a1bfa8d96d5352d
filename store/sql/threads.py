"""Threads of a SQL store, for LangGraph checkpointers: conversations of an agent, stored as checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from store.db.dialect import ReadSession
from store.db.queries import threads as thread_queries
from store.domain.thread import CheckpointKey
from store.interface.threads import StoreThreads
from store.models.threads import ThreadCheckpoint, ThreadPlace, ThreadSummary, ThreadWrite
from store.sql.commands import threads as thread_commands
from store.sql.core import SQLCore
from store.sql.mapping import threads as thread_mapping
from store.validation import arguments

_AT_ONCE = 50
"""The maximum number of checkpoints in one read of `iterate_checkpoints`. Checkpoints may be large."""


class SQLThreads(StoreThreads):
    """Threads in a SQL database."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    async def save_checkpoint(self, checkpoint: ThreadCheckpoint, *, attempt_id: str | None = None) -> None:
        await self.core.call(thread_commands.checkpoint(checkpoint, attempt_id))

    async def save_writes(
        self,
        thread_id: str,
        writes: Sequence[ThreadWrite],
        *,
        ns: str = "",
        checkpoint_id: str,
        attempt_id: str | None = None,
    ) -> None:
        checked = arguments.several(writes, "writes")
        if checked:
            await self.core.call(thread_commands.writes(thread_id, ns, checkpoint_id, checked, attempt_id))

    async def get_checkpoint(
        self, thread_id: str, *, ns: str = "", checkpoint_id: str | None = None
    ) -> ThreadCheckpoint | None:
        read = partial(_checkpoints, thread_id=thread_id, ns=ns, checkpoint_id=checkpoint_id, limit=1)
        checkpoints = await self.core.read(read, snapshot=True)
        return checkpoints[0] if checkpoints else None

    async def iterate_checkpoints(
        self,
        thread_id: str | None = None,
        *,
        ns: str | None = None,
        checkpoint_id: str | None = None,
        before: str | None = None,
        limit: int = -1,
    ) -> AsyncIterator[ThreadCheckpoint]:
        after: thread_queries.Place | None = None
        remaining = limit
        while remaining:
            page_limit = _AT_ONCE if remaining < 0 else min(remaining, _AT_ONCE)
            read = partial(
                _checkpoints,
                thread_id=thread_id,
                ns=ns,
                checkpoint_id=checkpoint_id,
                before=before,
                after=after,
                limit=page_limit,
            )
            page = await self.core.read(read, snapshot=True)
            for checkpoint in page:
                yield checkpoint
            if len(page) < page_limit:
                return
            remaining -= len(page) if remaining > 0 else 0
            after = (page[-1].checkpoint_id, page[-1].thread_id, page[-1].ns)

    async def list_places(self, thread_id: str) -> list[ThreadPlace]:
        rows = await self.core.read(lambda session: thread_queries.checkpoints(session, thread_id=thread_id))
        return [ThreadPlace(row.thread_id, row.ns, row.checkpoint_id, row.parent_id) for row in rows]

    async def list_threads(self, rollout_id: str) -> list[ThreadSummary]:
        arguments.text(rollout_id, "rollout_id")
        rows = await self.core.read(lambda session: thread_queries.threads_of(session, rollout_id))
        return [thread_mapping.summary(rollout_id, row) for row in rows]

    async def delete(self, thread_id: str) -> bool:
        return await self.core.call(thread_commands.delete(thread_id))

    async def delete_runs(self, run_ids: Sequence[str]) -> int:
        ids = arguments.texts(run_ids, "run_ids")
        if not ids:
            return 0
        places = await self.core.read(lambda session: thread_queries.of_runs(session, ids))
        count = 0
        for thread_id, rows in groupby(places, key=attrgetter("thread_id")):
            checkpoints: list[CheckpointKey] = [(row.ns, row.checkpoint_id) for row in rows]
            count += await self.core.call(thread_commands.prune(thread_id, checkpoints, "runs"))
        return count

    async def prune(self, thread_id: str, checkpoints: Sequence[CheckpointKey]) -> int:
        return await self.core.call(thread_commands.prune(thread_id, checkpoints, "keep_latest"))

    async def copy(self, source_id: str, target_id: str) -> int:
        return await self.core.call(thread_commands.copy(source_id, target_id))


async def _checkpoints(session: ReadSession, **conditions: Any) -> list[ThreadCheckpoint]:
    """Return checkpoints with their payload; the conditions are the arguments of `thread_queries.checkpoints`."""
    return await thread_mapping.checkpoints_of(session, await thread_queries.checkpoints(session, **conditions))
