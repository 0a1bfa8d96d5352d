"""The pages of workers: their state, their activity in the last hour, and their failure rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from store.dashboard.charts.worker_lanes import LANE_WIDTH, lanes_of
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.figure_cache import FigureCache, cache_of
from store.dashboard.views.stuck import Stuck, stuck_active
from store.db.dialect import ReadSession
from store.db.queries import worker_activity
from store.db.queries.filters import FilterCondition, FilterQuery
from store.db.queries.overview import active_rollouts, workers_by_status
from store.db.queries.pages import workers_by_id
from store.db.queries.worker_activity import AttemptRow, BusyPeriod, Window, WorkerSign, WorkerTally
from store.errors import NotFound
from store.models import Worker, WorkerStatus
from store.models.rollouts import ObservedWorker
from store.runtime.clock import MICROSECONDS, system_clock
from store.sql.mapping.rollouts import worker_of_page

pages = Pages()

STALE_SECONDS: Final = 60
"""The page marks a busy worker that has sent heartbeats, but none for longer than this time."""
_MOST_ACTIVE: Final = 1_000
Sort = Literal["last_sign", "last_heartbeat_time", "last_busy_time", "worker_id", "status"]


@dataclass(frozen=True, slots=True)
class _Activity:
    now: int
    window: Window
    signs: list[WorkerSign]
    """The workers of the page, in its order."""
    total: int
    """The number of workers that match."""
    workers: dict[str, Worker]
    stuck: dict[str, Stuck]
    """By worker id, the rollout of the worker that makes no progress."""
    tallies: dict[str, WorkerTally]
    stretches: list[BusyPeriod]
    by_status: dict[str, int]
    """The number of all workers by status."""
    attempts: list[AttemptRow]
    """The newest attempts of one worker, if its page is requested."""
    attempts_by_status: dict[str, int]
    """The number of all attempts of this worker by status."""


@pages.get("/ui/workers")
async def workers(request: PageRequest) -> PageContent:
    """List workers with their activity in the last hour, the most recently active first."""
    status = request.among("status", ("", *get_args(WorkerStatus)), "")
    sort = request.among("sort", get_args(Sort), "last_sign")
    is_descending = request.among("desc", ("0", "1"), "1") == "1"
    conditions = [FilterCondition("status", "in", [status])] if status else []
    if request.one("q"):
        conditions.append(FilterCondition("worker_id", "contains", request.one("q")))
    query = FilterQuery(
        worker_activity.WORKERS,
        tuple(conditions),
        sort_by=sort,
        is_descending=is_descending,
        limit=request.rows,
        offset=request.whole("offset", 0),
    )
    activity = await request.store.core.look(
        partial(_read_activity, query=query, cache=cache_of(request.store.core)), snapshot=True
    )
    lanes = lanes_of(activity.stretches, activity.window)
    values = {
        "workers": [
            _summary(activity.workers[sign.worker_id], activity) | {"lane": lanes.get(sign.worker_id, [])}
            for sign in activity.signs
            if sign.worker_id in activity.workers
        ],
        "total": activity.total,
        "limit": query.limit,
        "offset": query.offset,
        "by_status": activity.by_status,
        "window": activity.window,
    }
    hidden: dict[str, Any] = {
        "sort": sort,
        "is_descending": is_descending,
        "statuses": get_args(WorkerStatus),
        "status": status,
        **_drawing(),
    }
    return PageContent("workers.html", values, "Workers", hidden=hidden)


@pages.get("/ui/workers/{worker_id}")
async def one(request: PageRequest) -> PageContent:
    """Show a worker, its last hour, its newest attempts and its heartbeat statistics."""
    worker_id = request.ids["worker_id"]
    query = FilterQuery(worker_activity.WORKERS, (FilterCondition("worker_id", "in", [worker_id]),))
    activity = await request.store.core.look(
        partial(_read_activity, query=query, cache=cache_of(request.store.core), newest_of=worker_id), snapshot=True
    )
    if worker_id not in activity.workers:
        raise NotFound("worker", worker_id)
    values = {
        **_summary(activity.workers[worker_id], activity),
        "lane": lanes_of(activity.stretches, activity.window).get(worker_id, []),
        "window": activity.window,
        "attempts": activity.attempts,
        "attempts_by_status": activity.attempts_by_status,
    }
    return PageContent("worker.html", values, worker_id, hidden=_drawing())


async def _read_activity(
    session: ReadSession, query: FilterQuery, cache: FigureCache, newest_of: str | None = None
) -> _Activity:
    now = (session.dialect.clock or system_clock)()
    window = worker_activity.window(await cache.read(session, "last activity", worker_activity.last_activity), now)
    attempts, counts = ([], {}) if newest_of is None else await worker_activity.attempts_of(session, newest_of)
    signs, total = await worker_activity.worker_signs(session, query)
    worker_ids = [sign.worker_id for sign in signs]
    active = await active_rollouts(session, _MOST_ACTIVE, worker_ids) if signs else []
    entries = [entry for rollout in active if (entry := stuck_active(rollout, now)) is not None]
    periods = await worker_activity.stretches(session, worker_ids, window)
    return _Activity(
        now,
        window,
        signs,
        total,
        await workers_by_id(session, worker_ids, worker_of_page),
        {entry.worker_id: entry for entry in entries if entry.worker_id},
        await worker_activity.tallies(session, worker_ids, window, periods),
        periods,
        await workers_by_status(session),
        attempts,
        counts,
    )


def _summary(worker: Worker, activity: _Activity) -> dict[str, Any]:
    tally = activity.tallies.get(worker.worker_id, WorkerTally())
    observed = ObservedWorker.of(worker, activity.now / MICROSECONDS)
    signs = {sign.worker_id: sign.last_sign_at for sign in activity.signs}
    at = signs.get(worker.worker_id)
    return {
        "worker": observed,
        "hour": tally,
        "failure_rate": tally.failure_rate,
        "last_sign": None if at is None else at / MICROSECONDS,
        "stuck": activity.stuck.get(worker.worker_id),
    }


def _drawing() -> dict[str, Any]:
    return {"lane_width": LANE_WIDTH, "stale_before": system_clock() / MICROSECONDS - STALE_SECONDS}
