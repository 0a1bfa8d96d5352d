"""The current counts of a store, for metrics."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import BigInteger, Integer, Select, bindparam, func, select

from store.db.dialect import ReadSession
from store.db.queries.pages import queue_depth
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.models import Worker
from store.runtime.clock import MICROSECONDS, to_seconds

_RECENT_MICROS = 24 * 3_600 * MICROSECONDS
_MOST_WORKERS = 10_000


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
    rewarded: int
    """The number of rollouts with a reward."""
    reward_sum: float
    """The sum of the last rewards of all rollouts."""
    workers: dict[str, int]
    """The number of workers with a heartbeat within the last day, by state."""


async def counts(session: ReadSession, now: int) -> Counts:
    """Read the counts with six statements.

    The counts by status need scans of two tables, so do not call this function for every request.

    Args:
        session: a session that reads.
        now: the current time in µs since the epoch. Whether a worker is lost depends on this time.
    """
    rollouts, attempts = core_tables.rollouts.c, core_tables.attempts.c

    def by_status() -> Select[Any]:
        rewards: Any = select(
            rollouts.status,
            func.count().label("total"),
            func.count(rollouts.last_reward).label("rewarded"),
            func.sum(rollouts.last_reward).label("reward_sum"),
        )
        return rewards.group_by(rollouts.status)

    def attempts_by_status() -> Select[Any]:
        counted = _counted(attempts.status).where(attempts.released_position.is_(None))
        return counted.group_by(attempts.status)

    of_rollouts = compiled(session, "counts of rollouts", by_status)
    of_attempts = compiled(session, "counts of attempts", attempts_by_status)
    head = compiled(
        session, "head of the log", lambda: select(func.max(core_tables.commits.c.last_position).label("head"))
    )
    by_rollout_status = await session.fetch(of_rollouts, {})
    return Counts(
        rollouts={row.status: row.total for row in by_rollout_status},
        attempts={row.status: row.total for row in await session.fetch(of_attempts, {})},
        waiting=await queue_depth(session),
        oldest_waiting_at=await oldest_waiting_at(session),
        head=(await session.fetch(head, {}))[0].head or 0,
        rewarded=sum(row.rewarded for row in by_rollout_status),
        reward_sum=float(sum(row.reward_sum or 0 for row in by_rollout_status)),
        workers=dict(Counter((await worker_states(session, now)).values())),
    )


async def oldest_waiting_at(session: ReadSession) -> int | None:
    """Return the time at which the first rollout in the queue entered the queue, in µs; None if the queue is empty."""
    event, queue = core_tables.events.c, core_tables.queue.c

    def build() -> Select[Any]:
        first = select(func.min(queue.position)).scalar_subquery()
        statement: Any = select(event.at)
        return statement.where(event.position == first)

    rows = await session.fetch(compiled(session, "oldest in the queue", build), {})
    return rows[0].at if rows else None


async def overdue_checks(session: ReadSession, before: int) -> int:
    """Return the number of rollouts whose next check by the watchdog was due before a time in µs since the epoch."""
    due = bindparam("before", type_=BigInteger)

    def build() -> Select[Any]:
        statement: Any = select(func.count().label("overdue")).select_from(core_tables.watch)
        return statement.where(core_tables.watch.c.check_at < due)

    return (await session.fetch(compiled(session, "overdue checks", build), {"before": before}))[0].overdue


async def worker_states(session: ReadSession, now: int) -> dict[str, str]:
    """Return the states, by id, of at most 10,000 workers with a heartbeat within the last day.

    Args:
        session: a session that reads.
        now: the current time in µs since the epoch. Whether a worker is lost depends on this time.
    """
    worker, signal = core_tables.workers.c, core_tables.worker_signals.c

    def build() -> Select[Any]:
        statement: Any = select(worker.worker_id, worker.status, signal.heartbeat_stats, signal.last_heartbeat_at)
        recent = statement.join(core_tables.worker_signals, signal.worker_id == worker.worker_id).where(
            signal.last_heartbeat_at >= bindparam("since", type_=BigInteger)
        )
        return recent.order_by(signal.last_heartbeat_at.desc()).limit(bindparam("at_most", type_=Integer))

    sql = compiled(session, "recent workers", build)
    states: dict[str, str] = {}
    for row in await session.fetch(sql, {"since": now - _RECENT_MICROS, "at_most": _MOST_WORKERS}):
        latest = Worker(
            worker_id=row.worker_id,
            status=row.status,
            heartbeat_stats=orjson.loads(row.heartbeat_stats) if row.heartbeat_stats else None,
            last_heartbeat_time=to_seconds(row.last_heartbeat_at),
        )
        states[row.worker_id] = latest.state_at(to_seconds(now))
    return states


def _counted(column: Any) -> Select[Any]:
    counted: Any = select(column, func.count().label("total"))
    return counted
