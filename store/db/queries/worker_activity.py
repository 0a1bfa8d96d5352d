"""The activity of workers: last signs of life, attempts of one hour for a chart, and the newest attempts of one worker.

The chart has a lane for each worker. A stretch of a lane represents attempts that began close together. An open attempt
has not ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, FromClause, Select, and_, case, func, literal, select

from store.db.columns import Str
from store.db.dialect import ReadSession
from store.db.queries import filters, pages
from store.db.queries.expressions import ONE, ZERO, big, one_of
from store.db.queries.filters import ATTEMPTS, Columns, FilterCondition, FilterField, FilterQuery
from store.db.queries.paging import Listing, read_rows
from store.db.queries.records import columns_of, records
from store.db.tables import core as core_tables
from store.runtime.clock import MICROSECONDS

HOUR: Final = 3_600 * MICROSECONDS
CELL: Final = 10 * MICROSECONDS
"""The length of an interval, in microseconds.

Attempts of a worker that begin in the same interval and have the same outcome are drawn as one stretch of its lane.
"""
MOST_STRETCHES: Final = 10_000
MOST_ATTEMPTS: Final = 100
_OPEN: Final = ("preparing", "running")

Outcome = Literal["succeeded", "failed", "open"]


@dataclass(frozen=True, slots=True)
class Window:
    """The hour that the chart shows. Times are microseconds since the epoch."""

    since: int
    until: int
    is_now: bool
    """Whether the window ends now. Otherwise the window is the hour before the last activity."""


@dataclass(frozen=True, slots=True)
class BusyPeriod:
    """A stretch: attempts of one worker that began close together and have the same outcome."""

    worker_id: str
    outcome: Outcome
    start_at: int
    end_at: int
    attempts: int
    rollout_id: str
    """The id of the rollout of one of these attempts."""


@dataclass(frozen=True, slots=True)
class WorkerTally:
    """The number of a worker's attempts that ended within the window, by outcome."""

    succeeded: int = 0
    failed: int = 0
    """The number of attempts that failed, timed out, or became unresponsive."""

    @property
    def failure_rate(self) -> float | None:
        """The number of failed attempts divided by the number of ended attempts; None if no attempt ended."""
        ended = self.succeeded + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt on a worker's page. Times are microseconds since the epoch."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    status: str
    start_at: int
    end_at: int | None
    rollout_status: str
    last_reward: float | None
    """The last reward of the rollout, from any attempt."""
    reward: float | None
    """The last reward of this attempt."""


@dataclass(frozen=True, slots=True)
class WorkerSign:
    """The last sign of life of a worker: a heartbeat, a request for work, or a call about an attempt."""

    worker_id: str
    last_sign_at: int | None
    """The time in µs since the epoch; None if there was no sign."""


WORKERS: Final = replace(
    filters.WORKERS,
    fields={**filters.WORKERS.fields, "last_sign": FilterField("last_sign_at", "number")},
)
"""Workers with the fields of lists."""


async def worker_signs(session: ReadSession, query: FilterQuery) -> tuple[list[WorkerSign], int]:
    """Return a page of workers with their last signs of life, and the number of all workers that match the query."""
    worker, attempt, signal = core_tables.workers.c, core_tables.attempts.c, core_tables.attempt_signals.c
    is_current = and_(attempt.rollout_id == worker.current_rollout_id, attempt.attempt_id == worker.current_attempt_id)
    source = pages.WORKERS.outerjoin(core_tables.attempts, is_current)
    source = source.outerjoin(core_tables.attempt_signals, pages.signal_of(dict(attempt)))
    times = [pages.WORKER_COLUMNS[f"last_{name}_at"] for name in ("heartbeat", "dequeue", "busy", "idle")]
    # The times at which the store received the signs of the attempt: clients choose the times of heartbeats.
    times += [attempt.start_at, attempt.heartbeat_stamped_at, signal.stamped_at]
    latest = session.dialect.greatest([func.coalesce(time, ZERO) for time in times])
    columns = {**pages.WORKER_COLUMNS, "last_sign_at": func.nullif(latest, ZERO)}

    def read(listed: Columns, from_: FromClause) -> Select[Any]:
        return select(*columns_of(WorkerSign, listed)).select_from(from_)

    listing = Listing(query, columns, source, read, shape="workers by sign")
    rows = records(WorkerSign, await read_rows(session, listing))
    counts = await session.fetch(session.dialect.sql(listing.count(session.dialect)), listing.params(session.dialect))
    return rows, counts[0].total


@dataclass(frozen=True, slots=True)
class LastActivity:
    """The last activity of any attempt."""

    at: int | None
    """The latest end of an attempt, or the time of its last event, in µs since the epoch; None without attempts."""
    open_attempts: int


async def last_activity(session: ReadSession) -> LastActivity:
    """Return the last activity of any attempt."""
    attempt = core_tables.attempts.c
    columns: list[ColumnElement[Any]] = [
        func.max(_ended(attempt)).label("at"),
        func.count(case((one_of(attempt.status, _OPEN), ONE))).label("open_attempts"),
    ]
    (activity,) = records(LastActivity, await session.fetch(session.dialect.sql(select(*columns)), {}))
    return activity


def window(activity: LastActivity, now: int) -> Window:
    """Return the last hour. If no attempt was active in this hour, return the hour before the last activity."""
    last = activity.at
    if last is not None and not activity.open_attempts and last < now - HOUR:
        return Window(last - HOUR, last, is_now=False)
    # If the clock is behind the times of the latest attempts, the window must still contain these attempts.
    until = now if last is None else max(now, last)
    return Window(until - HOUR, until, is_now=True)


async def stretches(session: ReadSession, worker_ids: Sequence[str], within: Window) -> list[BusyPeriod]:
    """Return the newest stretches of workers within a window, at most `MOST_STRETCHES`, sorted by start time."""
    if not worker_ids:
        return []
    attempt = core_tables.attempts.c
    is_open = one_of(attempt.status, _OPEN)
    end = case((is_open, big(within.until)), else_=_ended(attempt))
    in_window = (
        select(
            attempt.worker_id,
            _outcome(attempt).label("outcome"),
            ((attempt.start_at - big(within.since)) // big(CELL)).label("cell"),
            attempt.start_at,
            end.label("end_at"),
            attempt.rollout_id,
        )
        .where(session.dialect.any_of(attempt.worker_id, "workers"), attempt.released_position.is_(None))
        .where(end >= big(within.since))
        .subquery("done")
    )
    attempts = in_window.c
    figures = {
        "start_at": func.min(attempts.start_at),
        "end_at": func.max(attempts.end_at),
        "attempts": func.count(),
        "rollout_id": func.min(attempts.rollout_id),
    }
    newest = (
        select(*columns_of(BusyPeriod, dict(attempts), figures))
        .group_by(attempts.worker_id, attempts.outcome, attempts.cell)
        .order_by(func.min(attempts.start_at).desc())
        .limit(MOST_STRETCHES)
    )
    params = {"workers": session.dialect.list_param(list(worker_ids))}
    return records(BusyPeriod, reversed(await session.fetch(session.dialect.sql(newest), params)))


async def tallies(
    session: ReadSession, worker_ids: Sequence[str], within: Window, periods: Sequence[BusyPeriod]
) -> dict[str, WorkerTally]:
    """Return the number of attempts of each worker that ended within a window, by outcome. The keys are worker ids.

    Workers without such attempts are left out. `periods` are the stretches of these workers within the window.
    """
    if len(periods) < MOST_STRETCHES:
        # No stretch was left out, so their sums spare a second scan of the attempts.
        sums: dict[str, Counter[Outcome]] = {}
        for period in periods:
            if period.outcome != "open":
                sums.setdefault(period.worker_id, Counter())[period.outcome] += period.attempts
        return {worker_id: WorkerTally(total["succeeded"], total["failed"]) for worker_id, total in sums.items()}
    attempt = core_tables.attempts.c
    is_open = one_of(attempt.status, _OPEN)
    columns: list[ColumnElement[Any]] = [
        attempt.worker_id,
        func.count(case((attempt.status == "succeeded", ONE))).label("succeeded"),
        func.count(case((attempt.status != "succeeded", ONE))).label("failed"),
    ]
    statement = (
        select(*columns)
        .where(session.dialect.any_of(attempt.worker_id, "workers"), attempt.released_position.is_(None))
        .where(~is_open, _ended(attempt) >= big(within.since))
        .group_by(attempt.worker_id)
    )
    params = {"workers": session.dialect.list_param(list(worker_ids))}
    rows = await session.fetch(session.dialect.sql(statement), params)
    return {row.worker_id: WorkerTally(row.succeeded, row.failed) for row in rows}


async def attempts_of(session: ReadSession, worker_id: str) -> tuple[list[AttemptRow], dict[str, int]]:
    """Return the newest attempts of a worker, and the number of all attempts of the worker by status."""
    attempt, rollout = core_tables.attempts.c, core_tables.rollouts.c
    listing = Listing(
        FilterQuery(
            ATTEMPTS, (FilterCondition("worker_id", "is", worker_id),), limit=MOST_ATTEMPTS, is_newest_first=True
        ),
        dict(attempt),
        core_tables.attempts.join(core_tables.rollouts, rollout.rollout_id == attempt.rollout_id),
        _attempt_rows,
        within=lambda: attempt.released_position.is_(None),
        shape="attempts of worker",
    )
    counts: list[ColumnElement[Any]] = [attempt.status, func.count().label("total")]
    matches = select(*counts).where(listing.matching(session.dialect))
    by_status = matches.group_by(attempt.status).order_by(attempt.status)
    rows = await read_rows(session, listing)
    totals = await session.fetch(session.dialect.sql(by_status), listing.params(session.dialect))
    return records(AttemptRow, rows), {row.status: row.total for row in totals}


def _attempt_rows(attempt: Columns, source: FromClause) -> Select[Any]:
    rollout = core_tables.rollouts.c
    reward = core_tables.rewards.c
    # The primary dimension of a reward is the first.
    is_of_attempt = and_(
        reward.rollout_id == attempt["rollout_id"], reward.attempt_id == attempt["attempt_id"], reward.ordinal == 0
    )
    last = select(reward.value).where(is_of_attempt).order_by(reward.position.desc()).limit(1).scalar_subquery()
    computed = {"rollout_status": rollout.status, "last_reward": rollout.last_reward, "reward": last}
    return select(*columns_of(AttemptRow, attempt, computed)).select_from(source)


def _ended(attempt: Any) -> ColumnElement[int]:
    # An attempt that timed out or became unresponsive has no end time. The time of the last event that changed this
    # attempt is then used.
    event = core_tables.events.c
    last_change = select(event.at).where(event.position == attempt.last_position).scalar_subquery()
    return func.coalesce(attempt.end_at, last_change)


def _outcome(attempt: Any) -> ColumnElement[str]:
    return case(
        (attempt.status == "succeeded", literal("succeeded", Str)),
        (one_of(attempt.status, _OPEN), literal("open", Str)),
        else_=literal("failed", Str),
    )
