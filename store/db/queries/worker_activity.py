"""The activity of workers: attempts of one hour for a chart, counts by outcome, and the newest attempts of one worker.

A worker is a process that executes rollouts, which are tasks for an agent. An attempt is one execution of a rollout.
The chart has a lane for each worker. A stretch of a lane represents attempts that began close together. An open attempt
has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Integer, case, func, literal, literal_column, select

from store.db.columns import Str
from store.db.dialect import ReadSession
from store.db.reports.conditions import big, one_of
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


async def window(session: ReadSession, now: int) -> Window:
    """Return the last hour. If no attempt was active in this hour, return the hour before the last activity."""
    attempt = core_tables.attempts.c
    counted: Sequence[ColumnElement[Any]] = (
        func.max(_ended(attempt)),
        func.count(case((one_of(attempt.status, _OPEN), _one()))),
    )
    last, still_open = (await session.fetch(session.dialect.sql(select(*counted)), {}))[0]
    if last is not None and not still_open and last < now - HOUR:
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
    done = (
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
    each = done.c
    counted: Sequence[ColumnElement[Any]] = (
        each.worker_id,
        each.outcome,
        func.min(each.start_at).label("since"),
        func.max(each.end_at),
        func.count(),
        func.min(each.rollout_id),
    )
    statement = select(*counted).group_by(each.worker_id, each.outcome, each.cell)
    newest = statement.order_by(func.min(each.start_at).desc()).limit(MOST_STRETCHES)
    params = {"workers": session.dialect.list_param(list(worker_ids))}
    rows = await session.fetch(session.dialect.sql(newest), params)
    return [BusyPeriod(*row) for row in reversed(rows)]


async def tallies(session: ReadSession, worker_ids: Sequence[str], within: Window) -> dict[str, WorkerTally]:
    """Return by worker id how many attempts ended within a window, by outcome.

    Workers without such attempts are left out.
    """
    if not worker_ids:
        return {}
    attempt = core_tables.attempts.c
    is_open = one_of(attempt.status, _OPEN)
    counted: Sequence[ColumnElement[Any]] = (
        attempt.worker_id,
        func.count(case((attempt.status == "succeeded", _one()))),
        func.count(case((attempt.status != "succeeded", _one()))),
    )
    statement = (
        select(*counted)
        .where(session.dialect.any_of(attempt.worker_id, "workers"), attempt.released_position.is_(None))
        .where(~is_open, _ended(attempt) >= big(within.since))
        .group_by(attempt.worker_id)
    )
    params = {"workers": session.dialect.list_param(list(worker_ids))}
    rows = await session.fetch(session.dialect.sql(statement), params)
    return {worker_id: WorkerTally(succeeded, failed) for worker_id, succeeded, failed in rows}


async def by_status(session: ReadSession) -> dict[str, int]:
    """Return the number of workers by status."""
    status = core_tables.workers.c.status
    counted: Sequence[ColumnElement[Any]] = (status, func.count())
    rows = await session.fetch(session.dialect.sql(select(*counted).group_by(status).order_by(status)), {})
    return {row[0]: row[1] for row in rows}


async def attempts_of(session: ReadSession, worker_id: str) -> tuple[list[AttemptRow], dict[str, int]]:
    """Return the newest attempts of a worker, and the number of all its attempts by status."""
    attempt, rollout = core_tables.attempts.c, core_tables.rollouts.c
    is_own = attempt.worker_id == literal(worker_id, Str)
    shown: Sequence[ColumnElement[Any]] = (
        attempt.rollout_id,
        attempt.attempt_id,
        attempt.sequence_id,
        attempt.status,
        attempt.start_at,
        attempt.end_at,
        rollout.status,
        rollout.last_reward,
    )
    statement = (
        select(*shown)
        .select_from(core_tables.attempts.join(core_tables.rollouts, rollout.rollout_id == attempt.rollout_id))
        .where(is_own, attempt.released_position.is_(None))
        .order_by(attempt.first_position.desc())
        .limit(MOST_ATTEMPTS)
    )
    counted: Sequence[ColumnElement[Any]] = (attempt.status, func.count())
    totals = select(*counted).where(is_own, attempt.released_position.is_(None)).group_by(attempt.status)
    rows = await session.fetch(session.dialect.sql(statement), {})
    counts = await session.fetch(session.dialect.sql(totals.order_by(attempt.status)), {})
    return [AttemptRow(*row) for row in rows], {row[0]: row[1] for row in counts}


def _one() -> ColumnElement[int]:
    return literal_column("1", Integer)


def _ended(attempt: Any) -> ColumnElement[int]:
    # An attempt that timed out or became unresponsive has no end time. The time of the last event that changed this
    # attempt is then used.
    event = core_tables.events.c
    given_up = select(event.at).where(event.position == attempt.last_position).scalar_subquery()
    return func.coalesce(attempt.end_at, given_up)


def _outcome(attempt: Any) -> ColumnElement[str]:
    return case(
        (attempt.status == "succeeded", literal("succeeded", Str)),
        (one_of(attempt.status, _OPEN), literal("open", Str)),
        else_=literal("failed", Str),
    )
