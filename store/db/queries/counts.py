"""The current counts of a store, for metrics.

A rollout is a task for an agent. It waits in a queue until a worker claims it, which starts an attempt to execute it.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from store.db.dialect import Dialect, ReadSession
from store.db.queries.pages import queue_depth
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables


@dataclass(frozen=True, slots=True)
class Counts:
    """Current counts of a store."""

    rollouts: dict[str, int]
    """The number of rollouts by status."""
    attempts: dict[str, int]
    """The number of attempts by status. An attempt whose claim was released again is not counted."""
    waiting: int
    """The number of rollouts in the queue."""
    oldest_waiting_at: int | None
    """The time at which the first rollout in the queue entered the queue, in µs since the epoch."""
    head: int
    """The position of the last event of the log; 0 for an empty log."""


async def counts(dialect: Dialect, session: ReadSession) -> Counts:
    """Return the counts.

    The counts by status need scans of two tables, so do not call this function for every request.
    """
    rollouts, attempts, queue, events = (
        core_tables.rollouts.c,
        core_tables.attempts.c,
        core_tables.queue.c,
        core_tables.events.c,
    )

    def by_status() -> Select[Any]:
        return _counted(rollouts.status).group_by(rollouts.status)

    def attempts_by_status() -> Select[Any]:
        counted = _counted(attempts.status).where(attempts.released_position.is_(None))
        return counted.group_by(attempts.status)

    of_rollouts = compiled(dialect, "counts of rollouts", by_status)
    of_attempts = compiled(dialect, "counts of attempts", attempts_by_status)
    oldest = compiled(
        dialect,
        "oldest in the queue",
        lambda: select(events.at).where(events.position == select(func.min(queue.position)).scalar_subquery()),
    )
    head = compiled(dialect, "head of the log", lambda: select(func.max(core_tables.commits.c.last_position)))
    first = await session.fetch(oldest, {})
    return Counts(
        rollouts={row[0]: row[1] for row in await session.fetch(of_rollouts, {})},
        attempts={row[0]: row[1] for row in await session.fetch(of_attempts, {})},
        waiting=await queue_depth(dialect, session),
        oldest_waiting_at=first[0][0] if first else None,
        head=(await session.fetch(head, {}))[0][0] or 0,
    )


def _counted(column: Any) -> Select[Any]:
    counted: Any = select(column, func.count())
    return counted
