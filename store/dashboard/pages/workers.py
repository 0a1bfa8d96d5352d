"""The pages of workers: their state, their activity in the last hour, and their failure rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.dialect import ReadSession
from store.db.queries import worker_activity
from store.db.queries.overview import workers_by_status
from store.db.queries.worker_activity import AttemptRow, BusyPeriod, Window, WorkerTally
from store.errors import NotFound
from store.models import Worker, WorkerStatus
from store.models.queries import WorkerQuery
from store.models.rollouts import ObservedWorker
from store.runtime.clock import MICROSECONDS, system_clock

pages = Pages()

LANE_WIDTH: Final = worker_activity.HOUR // worker_activity.CELL
"""The width of one hour in SVG units."""
STALE_SECONDS: Final = 60
"""The page marks a busy worker that has shown no sign of life for longer than this time."""
Sort = Literal["last_heartbeat_time", "last_busy_time", "worker_id", "status"]


@dataclass(frozen=True, slots=True)
class ActivityBar:
    """A period of activity, drawn as a bar."""

    x: float
    """The position of the left end, in SVG units."""
    width: float
    outcome: str
    attempts: int
    start_at: int
    end_at: int
    rollout_id: str | None
    """The id of the rollout, if the bar is a single attempt."""


@dataclass(frozen=True, slots=True)
class _Activity:
    now: int
    window: Window
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
    sort = request.among("sort", get_args(Sort), "last_heartbeat_time")
    is_descending = request.among("desc", ("0", "1"), "1") == "1"
    page = await request.store.find_workers(
        WorkerQuery.of(
            status_in=[status] if status else None,
            worker_id_contains=request.one("q") or None,
            sort_by=sort,
            sort_order="desc" if is_descending else "asc",
            limit=request.rows,
            offset=request.whole("offset", 0),
        )
    )
    activity = await request.store.core.look(
        partial(_read_activity, worker_ids=[worker.worker_id for worker in page.items]), snapshot=True
    )
    lanes = lanes_of(activity.stretches, activity.window)
    values = {
        "workers": [_summary(worker, activity) | {"lane": lanes.get(worker.worker_id, [])} for worker in page.items],
        "total": page.total,
        "limit": page.limit,
        "offset": page.offset,
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
    worker = await request.store.get_worker_by_id(worker_id)
    if worker is None:
        raise NotFound("worker", worker_id)
    activity = await request.store.core.look(
        partial(_read_activity, worker_ids=[worker_id], newest_of=worker_id), snapshot=True
    )
    values = {
        **_summary(worker, activity),
        "lane": lanes_of(activity.stretches, activity.window).get(worker_id, []),
        "window": activity.window,
        "attempts": activity.attempts,
        "attempts_by_status": activity.attempts_by_status,
    }
    return PageContent("worker.html", values, worker_id, hidden=_drawing())


async def _read_activity(session: ReadSession, worker_ids: list[str], newest_of: str | None = None) -> _Activity:
    now = (session.dialect.clock or system_clock)()
    window = await worker_activity.window(session, now)
    attempts, counts = ([], {}) if newest_of is None else await worker_activity.attempts_of(session, newest_of)
    return _Activity(
        now,
        window,
        await worker_activity.tallies(session, worker_ids, window),
        await worker_activity.stretches(session, worker_ids, window),
        await workers_by_status(session),
        attempts,
        counts,
    )


def _summary(worker: Worker, activity: _Activity) -> dict[str, Any]:
    tally = activity.tallies.get(worker.worker_id, WorkerTally())
    observed = ObservedWorker.of(worker, activity.now / MICROSECONDS)
    return {"worker": observed, "hour": tally, "failure_rate": tally.failure_rate}


def _drawing() -> dict[str, Any]:
    return {"lane_width": LANE_WIDTH, "stale_before": system_clock() / MICROSECONDS - STALE_SECONDS}


def lanes_of(stretches: Iterable[BusyPeriod], window: Window) -> dict[str, list[ActivityBar]]:
    """Return the activity bars of each worker, by worker id.

    Periods with the same outcome that are too close together to be distinguished are joined to one bar. Bars of
    failures come last, so that they are drawn over the other bars.
    """
    lanes: dict[str, list[BusyPeriod]] = defaultdict(list)
    last: dict[tuple[str, str], int] = {}
    for period in stretches:
        lane, key = lanes[period.worker_id], (period.worker_id, period.outcome)
        before = lane[last[key]] if key in last else None
        if before is not None and period.start_at - before.end_at < worker_activity.CELL:
            lane[last[key]] = _joined(before, period)
        else:
            last[key] = len(lane)
            lane.append(period)
    return {
        worker_id: [_bar(period, window) for period in sorted(lane, key=lambda period: period.outcome == "failed")]
        for worker_id, lane in lanes.items()
    }


def _joined(before: BusyPeriod, after: BusyPeriod) -> BusyPeriod:
    end, attempts = max(before.end_at, after.end_at), before.attempts + after.attempts
    return BusyPeriod(before.worker_id, before.outcome, before.start_at, end, attempts, before.rollout_id)


def _bar(stretch: BusyPeriod, window: Window) -> ActivityBar:
    scale = LANE_WIDTH / (window.until - window.since)
    start = max(stretch.start_at - window.since, 0) * scale
    # With this minimum width, a short period is still visible.
    width = max((min(stretch.end_at, window.until) - window.since) * scale - start, 0.5)
    x = min(start, LANE_WIDTH - width)
    rollout_id = stretch.rollout_id if stretch.attempts == 1 else None
    return ActivityBar(
        round(x, 2), round(width, 2), stretch.outcome, stretch.attempts, stretch.start_at, stretch.end_at, rollout_id
    )
