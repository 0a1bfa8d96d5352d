"""The history of one rollout: pages of its events without payload, changes of status, and its place in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import ReadSession
from store.db.queries import log as log_queries
from store.db.queries.paging import compiled
from store.db.queries.records import records
from store.db.queries.run_views import END
from store.db.tables import core as core_tables

MOST_TURNS: Final = 1_000
"""The maximum number of events that `turns` returns. If there are more, the newest are returned."""
_TURNS: Final = "attempt.status_changed"


def _int(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=BigInteger)


async def events(
    session: ReadSession,
    rollout_id: str,
    *,
    types: Sequence[str] = (),
    after: int = 0,
    until: int | None = None,
    limit: int,
    newest: bool = False,
) -> list[dict[str, Any]]:
    """Return events of a rollout in order, as the fields of `HistoryEvent` without the body.

    The other arguments are the same as in `stream_events`.
    """
    rows = await log_queries.stream_events(
        session, f"rollout/{rollout_id}", types=types, after=after, until=until, limit=limit, newest=newest
    )
    return [log_queries.described(row, None) for row in rows]


async def event_types(session: ReadSession, rollout_id: str, until: int | None = None) -> list[tuple[str, int]]:
    """Return the types of a rollout's events, each with the number of events, sorted by type."""

    def build() -> Select[*tuple[Any, ...]]:
        event = core_tables.events.c
        return (
            select(event.type, func.count().label("total"))
            .where(event.stream == bindparam("of_stream", type_=Text), event.position <= _int("until"))
            .group_by(event.type)
            .order_by(event.type)
        )

    params = {"of_stream": f"rollout/{rollout_id}", "until": END if until is None else until}
    rows = await session.fetch(compiled(session, "rollout_event_types", build), params)
    return [(row.type, row.total) for row in rows]


async def turns(session: ReadSession, rollout_id: str, *, until: int | None) -> list[dict[str, Any]]:
    """Return the events that changed the status of an attempt of a rollout."""
    return await events(session, rollout_id, types=(_TURNS,), until=until, limit=MOST_TURNS, newest=True)


@dataclass(frozen=True, slots=True)
class RolloutWait:
    """The place of a rollout in the queue, or the next check of a running rollout. Times are µs since the epoch."""

    ahead: int | None
    """The number of rollouts before this rollout in the queue; None if this rollout is not in the queue."""
    idle_workers: int
    """The number of idle workers."""
    workers: int
    """The number of all workers."""
    asked_at: int | None
    """The time at which any worker last polled the queue; None if no worker has polled the queue."""
    check_at: int | None
    """The time of the next check by the watchdog, which ends attempts that exceed a time limit.

    None if no check is due.
    """


async def waiting(session: ReadSession, rollout_id: str, queued_position: int | None) -> RolloutWait:
    """Return the place of a rollout in the queue, and the time of the next check of the rollout."""

    def build() -> Select[*tuple[Any, ...]]:
        queue, worker, signal, watch = (
            core_tables.queue.c,
            core_tables.workers.c,
            core_tables.worker_signals.c,
            core_tables.watch.c,
        )
        ahead = select(func.count()).select_from(core_tables.queue).where(queue.position < _int("queued"))
        workers = select(func.count()).select_from(core_tables.workers)
        latest_dequeue = select(func.max(signal.last_dequeue_at))
        check = select(watch.check_at).where(watch.rollout_id == bindparam("rollout", type_=Text))
        values = {
            "ahead": ahead,
            "idle_workers": workers.where(worker.status == "idle"),
            "workers": workers,
            "asked_at": latest_dequeue,
            "check_at": check,
        }
        return select(*(value.scalar_subquery().label(name) for name, value in values.items()))

    params = {"queued": queued_position or 0, "rollout": rollout_id}
    rows = await session.fetch(compiled(session, "rollout_waiting", build), params)
    (wait,) = records(RolloutWait, rows)
    return replace(wait, ahead=None) if queued_position is None else wait
