"""The current activity of a store: rollouts by status, ended, active and queued rollouts, workers, and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, case, func, select

from store.db.dialect import Params, ReadSession
from store.db.queries import pages
from store.db.queries.expressions import big, one_of
from store.db.queries.records import columns_of, records
from store.db.tables import core as core_tables
from store.domain.rollout import ACTIVE, TERMINAL
from store.runtime.clock import MICROSECONDS, system_clock

_MINUTE: Final = 60 * MICROSECONDS


@dataclass(frozen=True, slots=True)
class Ended:
    """The number of rollouts that ended with one status in one minute."""

    minute: int
    """The minute, as a number of minutes since the epoch."""
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class Active:
    """An active rollout with its latest attempt. Times are microseconds since the epoch, except `last_sign`."""

    rollout_id: str
    status: str
    config: str
    """The config of the rollout as JSON text."""
    attempt_id: str
    sequence_id: int
    worker_id: str | None
    started_at: int
    last_sign: float | None
    """The last sign of life of the attempt, such as a heartbeat or a span, in seconds since the epoch."""
    worker_rollout_id: str | None
    """The id of the rollout on which the worker works, according to the record of the worker."""


@dataclass(frozen=True, slots=True)
class QueuedRollout:
    """A rollout in the queue."""

    rollout_id: str
    status: str
    since: int
    """The time at which the rollout entered the queue, in µs since the epoch."""
    attempts: int


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """Totals of all workers."""

    known: int
    """The number of workers."""
    busy: int
    """The number of busy workers."""
    last_asked_at: int | None
    """The time at which any worker last polled the queue or claimed a rollout, in µs since the epoch."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log."""

    position: int
    commit_id: int
    recorded_at: int
    """The time of the last commit, in µs since the epoch."""
    events: int
    spans: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The current activity of a store."""

    now: int
    """The time of the store's clock, in µs since the epoch."""
    statuses: dict[str, int]
    """The number of rollouts by status."""
    ended: Sequence[Ended]
    """The rollouts that ended in the last minutes, counted by minute and status."""
    active: Sequence[Active]
    """The active rollouts that began first, sorted by the start of their latest attempt."""
    queued: int
    """The number of rollouts in the queue."""
    waiting: Sequence[QueuedRollout]
    """The rollouts in the queue that have waited longest, the longest first."""
    workers: WorkerTotals
    log: LogEnd | None
    """The end of the log; None for an empty log."""


async def read_overview(session: ReadSession, *, minutes: int, most_active: int, most_waiting: int) -> Overview:
    """Return the current activity of a store.

    Args:
        session: a connection to the database.
        minutes: the number of minutes for which ended rollouts are counted.
        most_active: the maximum number of active rollouts.
        most_waiting: the maximum number of queued rollouts.
    """
    now = (session.dialect.clock or system_clock)()
    statuses, ended = await _counted(session, (now // _MINUTE - minutes + 1) * _MINUTE)
    return Overview(
        now=now,
        statuses=statuses,
        ended=ended,
        active=await _active(session, most_active),
        queued=await pages.queue_depth(session),
        waiting=await _waiting(session, most_waiting),
        workers=await _workers(session),
        log=await _log_end(session),
    )


async def rollouts_by_status(
    session: ReadSession, matching: ColumnElement[bool] | None = None, params: Params | None = None
) -> dict[str, int]:
    """Return the number of rollouts by status, for statuses that occur.

    Only rollouts that meet the condition `matching` are counted; None for all. `params` are the parameters of
    `matching`.
    """
    status = core_tables.rollouts.c.status
    counts: Select[*tuple[Any, ...]] = select(status, func.count().label("total")).group_by(status)
    rows = await session.fetch(
        session.dialect.sql(counts if matching is None else counts.where(matching)), params or {}
    )
    return {row.status: row.total for row in rows}


async def _counted(session: ReadSession, since: int) -> tuple[dict[str, int], list[Ended]]:
    """Return the number of rollouts by status, and the numbers of rollouts that ended in each minute since a time.

    One scan of the table computes both.
    """
    rollout = core_tables.rollouts.c
    # A retried rollout keeps its old end time until it ends again, so the status is checked too.
    is_late = and_(rollout.end_at >= big(since), one_of(rollout.status, TERMINAL))
    minute = case((is_late, rollout.end_at // big(_MINUTE)))
    # The expression `minute` is not selected, because it would have other parameters in the SELECT list than in GROUP
    # BY. Postgres would then consider the two expressions different. Instead, the minute of a group is computed from
    # its first end time.
    columns: list[ColumnElement[Any]] = [
        func.min(rollout.end_at).label("first_end"),
        rollout.status,
        func.count().label("total"),
    ]
    statement = select(*columns).group_by(minute, rollout.status)
    statuses: Counter[str] = Counter()
    ended: list[Ended] = []
    for row in await session.fetch(session.dialect.sql(statement), {}):
        statuses[row.status] += row.total
        if row.status in TERMINAL and row.first_end is not None and row.first_end >= since:
            ended.append(Ended(row.first_end // _MINUTE, row.status, row.total))
    return dict(statuses), ended


async def _active(session: ReadSession, limit: int) -> list[Active]:
    rollout, attempt, worker = core_tables.rollouts.c, core_tables.attempts.c, core_tables.workers.c
    # The few active rollouts are selected first, because SQLite would otherwise begin with all attempts.
    active_rollouts = (
        select(rollout.rollout_id, rollout.status, rollout.config, rollout.attempt_count)
        .where(one_of(rollout.status, ACTIVE))
        .order_by(rollout.start_at, rollout.first_position)
        .limit(big(limit))
        .subquery()
    )
    source = active_rollouts.join(core_tables.attempts, pages.joins_latest(dict(active_rollouts.c)))
    source = source.outerjoin(core_tables.attempt_signals, pages.signal_of(dict(attempt)))
    source = source.outerjoin(core_tables.workers, worker.worker_id == attempt.worker_id)
    computed = {
        "started_at": attempt.start_at,
        "last_sign": pages.sign_of_life(),
        "worker_rollout_id": worker.current_rollout_id,
    }
    columns = columns_of(Active, dict(attempt), dict(active_rollouts.c), computed)
    statement = select(*columns).select_from(source).order_by(attempt.start_at, attempt.first_position)
    return records(Active, await session.fetch(session.dialect.sql(statement), {}))


async def workers_by_status(session: ReadSession) -> dict[str, int]:
    """Return the number of workers by status, for statuses that occur, sorted by status."""
    status = core_tables.workers.c.status
    columns: list[ColumnElement[Any]] = [status, func.count().label("total")]
    rows = await session.fetch(session.dialect.sql(select(*columns).group_by(status).order_by(status)), {})
    return {row.status: row.total for row in rows}


async def _waiting(session: ReadSession, limit: int) -> list[QueuedRollout]:
    queue, rollout, event = core_tables.queue.c, core_tables.rollouts.c, core_tables.events.c
    source = core_tables.queue.join(core_tables.rollouts, rollout.rollout_id == queue.rollout_id)
    source = source.join(core_tables.events, event.position == queue.position)
    columns = columns_of(QueuedRollout, dict(rollout), {"since": event.at, "attempts": rollout.attempt_count})
    statement = select(*columns).select_from(source).order_by(queue.position).limit(big(limit))
    return records(QueuedRollout, await session.fetch(session.dialect.sql(statement), {}))


async def _workers(session: ReadSession) -> WorkerTotals:
    by_status = await workers_by_status(session)
    # A caller that claims rollouts without a worker id has no row in the tables of workers. Only the attempts of such a
    # caller are recorded, so the start times of attempts count too.
    latest: list[ColumnElement[Any]] = [
        select(func.max(core_tables.worker_signals.c.last_dequeue_at)).scalar_subquery().label("dequeue_at"),
        select(func.max(core_tables.attempts.c.start_at)).scalar_subquery().label("claim_at"),
    ]
    rows = await session.fetch(session.dialect.sql(select(*latest)), {})
    last = max((at for at in (rows[0].dequeue_at, rows[0].claim_at) if at is not None), default=None)
    return WorkerTotals(sum(by_status.values()), by_status.get("busy", 0), last)


async def _log_end(session: ReadSession) -> LogEnd | None:
    commit = core_tables.commits.c
    columns = columns_of(LogEnd, dict(commit), {"position": commit.last_position})
    statement = select(*columns).order_by(commit.commit_id.desc()).limit(1)
    rows = await session.fetch(session.dialect.sql(statement), {})
    return next(iter(records(LogEnd, rows)), None)
