"""The current activity of a store: rollouts by status, ended, active and queued rollouts, workers, and the log.

Decisions 114, 121 and 125.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, select

from store.db.dialect import Params, ReadSession
from store.db.queries import pages
from store.db.queries.expressions import big, one_of
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, from_block, in_block
from store.db.tables import core as core_tables
from store.domain.rollout import ACTIVE, TERMINAL
from store.runtime.clock import MICROSECONDS

MINUTE: Final = 60 * MICROSECONDS
RECENT: Final = 300 * MICROSECONDS
"""The length of the period for which a rate is computed. It ends now, so it contains the current minute."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The number of rollouts of one block that ended with one status in one minute."""

    block: int
    minute: int
    """The minute, as a number of minutes since the epoch."""
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class ActiveStart:
    """The start of an active rollout, in µs since the epoch."""

    block: int
    rollout_id: str
    start_at: int
    first_position: int


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
    step: int | None = None


@dataclass(frozen=True, slots=True)
class QueuedRollout:
    """A rollout in the queue."""

    rollout_id: str
    status: str
    since: int
    """The time at which the rollout entered the queue, in µs since the epoch."""
    attempts: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """Totals of all workers."""

    known: int
    """The number of workers."""
    busy: int
    """The number of busy workers."""
    last_asked_at: int | None
    """The time of the last call that asked the queue for work, in µs since the epoch.

    An attempt that a caller started without the queue is no such request.
    """


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
    recent: int
    """The number of rollouts that ended within `RECENT` before now."""
    last_end_at: int | None
    """The end of the rollout that ended last, in µs since the epoch; None if none has ended."""
    active: Sequence[Active]
    """The active rollouts that began first, sorted by the start of their latest attempt."""
    queued: int
    """The number of rollouts in the queue."""
    waiting: Sequence[QueuedRollout]
    """The rollouts in the queue that have waited longest, the longest first."""
    workers: WorkerTotals
    log: LogEnd | None
    """The end of the log; None for an empty log."""


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The figures of an overview that change only with the log."""

    statuses: Mapping[str, int]
    """The number of rollouts by status."""
    ended: Sequence[Ended]
    """The rollouts that ended since the beginning of the period, counted by minute and status."""
    last_end_at: int | None
    last_claim_at: int | None
    """The start of the last attempt that the queue gave, in µs since the epoch."""
    active_ids: Sequence[str]
    """The ids of the active rollouts that began first."""


async def read_overview(session: ReadSession, now: int, figures: LogFigures, *, most_waiting: int) -> Overview:
    """Return the current activity of a store.

    Args:
        session: a connection to the database.
        now: the time of the store's clock, in µs since the epoch.
        figures: the figures at the current end of the log.
        most_waiting: the maximum number of queued rollouts.
    """
    recent = 0
    if figures.last_end_at is not None and figures.last_end_at > now - RECENT:
        minute = (now - RECENT) // MINUTE
        blocks = [part.block for part in figures.ended if part.minute >= minute]
        recent = await _count_ended(session, now - RECENT, min(blocks, default=0))
    return Overview(
        now=now,
        statuses=dict(figures.statuses),
        ended=figures.ended,
        recent=recent,
        last_end_at=figures.last_end_at,
        active=await active_rollouts(session, len(figures.active_ids), rollout_ids=figures.active_ids),
        queued=await pages.queue_depth(session),
        waiting=await waiting_rollouts(session, most_waiting),
        workers=await _workers(session, figures.last_claim_at),
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


async def ended_by_minute(session: ReadSession, block: int | None = None, *, since: int) -> list[Ended]:
    """Return the numbers of rollouts of one block, or of all blocks, that ended in each minute.

    `since` is the start of the first minute.
    """
    rollout = core_tables.rollouts.c
    # The minute is not selected, because it would have other parameters in the SELECT list than in GROUP BY. Postgres
    # would then consider the two expressions different.
    columns: list[ColumnElement[Any]] = [
        block_of(),
        func.min(rollout.end_at).label("first_end"),
        rollout.status,
        func.count().label("total"),
    ]
    # A retried rollout keeps its old end time until it ends again, so the status is checked too.
    statement = (
        select(*columns)
        .where(rollout.end_at >= big(since), one_of(rollout.status, TERMINAL), in_block(block))
        .group_by(block_of(), rollout.end_at // big(MINUTE), rollout.status)
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    return [Ended(row.block, row.first_end // MINUTE, row.status, row.total) for row in rows]


async def _count_ended(session: ReadSession, after: int, block: int) -> int:
    """Return the number of rollouts of a block and of later blocks that ended after a time."""
    rollout = core_tables.rollouts.c
    has_ended = (rollout.end_at > big(after), one_of(rollout.status, TERMINAL))
    statement = select(func.count().label("total")).where(*has_ended, from_block(block))
    rows = await session.fetch(session.dialect.sql(statement), {})
    return rows[0].total


async def last_claim(session: ReadSession) -> int | None:
    """Return the start of the last attempt that the queue gave, in µs since the epoch.

    A caller that claims rollouts without a worker id has no row in the tables of workers. Only the attempts of such a
    caller are recorded.
    """
    attempt = core_tables.attempts.c
    statement = select(func.max(attempt.start_at).label("at")).where(attempt.via == "dequeue")
    rows = await session.fetch(session.dialect.sql(statement), {})
    return rows[0].at


async def active_starts(session: ReadSession, block: int | None = None) -> list[ActiveStart]:
    """Return the starts of the active rollouts of one block, or of all blocks."""
    statement = select(*columns_of(ActiveStart, dict(core_tables.rollouts.c), {"block": block_of()}))
    statement = statement.where(one_of(core_tables.rollouts.c.status, ACTIVE), in_block(block))
    return records(ActiveStart, await session.fetch(session.dialect.sql(statement), {}))


async def active_rollouts(
    session: ReadSession,
    limit: int,
    worker_ids: Sequence[str] | None = None,
    rollout_ids: Sequence[str] | None = None,
) -> list[Active]:
    """Return the active rollouts that began first with their latest attempts, sorted by the start of these attempts.

    With `worker_ids`, only the rollouts on which these workers work are returned; with `rollout_ids`, only these.
    """
    rollout, attempt, worker = core_tables.rollouts.c, core_tables.attempts.c, core_tables.workers.c
    # The few active rollouts are selected first, because SQLite would otherwise begin with all attempts.
    terms, params = [one_of(rollout.status, ACTIVE)], dict[str, Any]()
    if worker_ids is not None:
        terms.append(
            rollout.rollout_id.in_(
                select(worker.current_rollout_id).where(session.dialect.any_of(worker.worker_id, "workers"))
            )
        )
        params["workers"] = session.dialect.list_param(list(worker_ids))
    if rollout_ids is not None:
        terms.append(session.dialect.any_of(rollout.rollout_id, "rollouts"))
        params["rollouts"] = session.dialect.list_param(list(rollout_ids))
    active = (
        select(rollout.rollout_id, rollout.status, rollout.config, rollout.step, rollout.attempt_count)
        .where(*terms)
        .order_by(rollout.start_at, rollout.first_position)
        .limit(big(limit))
        .subquery()
    )
    source = active.join(core_tables.attempts, pages.joins_latest(dict(active.c)))
    source = source.outerjoin(core_tables.attempt_signals, pages.signal_of(dict(attempt)))
    source = source.outerjoin(core_tables.workers, worker.worker_id == attempt.worker_id)
    computed = {
        "started_at": attempt.start_at,
        "last_sign": pages.sign_of_life(),
        "worker_rollout_id": worker.current_rollout_id,
    }
    columns = columns_of(Active, dict(attempt), dict(active.c), computed)
    statement = select(*columns).select_from(source).order_by(attempt.start_at, attempt.first_position)
    return records(Active, await session.fetch(session.dialect.sql(statement), params))


async def workers_by_status(session: ReadSession) -> dict[str, int]:
    """Return the number of workers by status, for statuses that occur, sorted by status."""
    status = core_tables.workers.c.status
    columns: list[ColumnElement[Any]] = [status, func.count().label("total")]
    rows = await session.fetch(session.dialect.sql(select(*columns).group_by(status).order_by(status)), {})
    return {row.status: row.total for row in rows}


async def waiting_rollouts(session: ReadSession, limit: int) -> list[QueuedRollout]:
    """Return the first rollouts of the queue."""
    queue, rollout, event = core_tables.queue.c, core_tables.rollouts.c, core_tables.events.c
    source = core_tables.queue.join(core_tables.rollouts, rollout.rollout_id == queue.rollout_id)
    source = source.join(core_tables.events, event.position == queue.position)
    columns = columns_of(QueuedRollout, dict(rollout), {"since": event.at, "attempts": rollout.attempt_count})
    statement = select(*columns).select_from(source).order_by(queue.position).limit(big(limit))
    return records(QueuedRollout, await session.fetch(session.dialect.sql(statement), {}))


async def _workers(session: ReadSession, last_claim_at: int | None) -> WorkerTotals:
    by_status = await workers_by_status(session)
    statement = select(func.max(core_tables.worker_signals.c.last_dequeue_at).label("at"))
    rows = await session.fetch(session.dialect.sql(statement), {})
    last = max((at for at in (rows[0].at, last_claim_at) if at is not None), default=None)
    return WorkerTotals(sum(by_status.values()), by_status.get("busy", 0), last)


async def _log_end(session: ReadSession) -> LogEnd | None:
    commit = core_tables.commits.c
    columns = columns_of(LogEnd, dict(commit), {"position": commit.last_position})
    statement = select(*columns).order_by(commit.commit_id.desc()).limit(1)
    rows = await session.fetch(session.dialect.sql(statement), {})
    return next(iter(records(LogEnd, rows)), None)
