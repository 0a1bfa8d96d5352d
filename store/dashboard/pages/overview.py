"""The overview page: current activity, stuck rollouts and the latest failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, get_args

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import failed_attempts as failing
from store.dashboard.views.stuck import Stuck, stuck
from store.db.dialect import ReadSession
from store.db.queries import operation_runs
from store.db.queries.failures import FailedAttempt, failed_attempts
from store.db.queries.operation_runs import OperationRun
from store.db.queries.overview import Overview, read_overview
from store.models import RolloutStatus
from store.runtime.clock import MICROSECONDS

pages = Pages()

MINUTES: Final = 60
_RECENT: Final = 5
_MOST_ACTIVE: Final = 500
_SHOWN: Final = 8
_BAR_HEIGHT: Final = 80
_OUTCOMES: Final = ("succeeded", "failed", "cancelled")


@pages.get("/ui/")
async def overview(request: PageRequest) -> PageContent:
    """Show the current state of the store."""
    activity, failed, runs = await request.store.core.look(_look, snapshot=True)
    stuck_rollouts = list(stuck(activity))
    minutes = _minutes(activity)
    values: dict[str, Any] = {
        "now": activity.now,
        "statuses": {name: activity.statuses.get(name, 0) for name in get_args(RolloutStatus)},
        "total": sum(activity.statuses.values()),
        "ended": minutes,
        "throughput": _throughput(minutes),
        "running": activity.active[:_SHOWN],
        "queue": {"waiting": activity.queued, "oldest": activity.waiting[0] if activity.waiting else None},
        "stuck": stuck_rollouts[:_SHOWN],
        "stuck_in_all": len(stuck_rollouts),
        "stuck_is_whole": _is_whole(activity, stuck_rollouts),
        "failures": [failing.read(attempt) for attempt in failed],
        "workers": activity.workers,
        "log": activity.log,
        "size_bytes": await request.store.core.size_bytes(),
        "verified": {
            "whole": _verified(runs, "verify", activity.now),
            "sample": _verified(runs, "verify_sample", activity.now),
        },
    }
    peak = max(map(_sum, minutes))
    hidden = {"bars": _bars(minutes, peak), "bar_height": _BAR_HEIGHT, "peak": peak, "second": MICROSECONDS}
    return PageContent("overview.html", values, "Overview", hidden=hidden)


async def _look(session: ReadSession) -> tuple[Overview, list[FailedAttempt], dict[str, OperationRun]]:
    activity = await read_overview(session, minutes=MINUTES, most_active=_MOST_ACTIVE, most_waiting=_SHOWN)
    failed = await failed_attempts(session, limit=_SHOWN)
    return activity, failed, await operation_runs.all_runs(session)


def _verified(runs: Mapping[str, OperationRun], operation: str, now: int) -> dict[str, Any] | None:
    """Return the last verification of a kind; None if there was none.

    `at`, `commit_id` and `differences` are None if no verification of this kind has ended normally. `error` is the
    error of the last verification if it failed, otherwise None.
    """
    run = runs.get(operation)
    if run is None:
        return None
    return {
        "at": run.ended_at,
        "commit_id": run.commit_id,
        "differences": run.differences,
        "state": run.state(now),
        "error": run.error,
    }


def _is_whole(activity: Overview, stuck_rollouts: Sequence[Stuck]) -> bool:
    """Return whether `stuck_rollouts` contains all stuck rollouts.

    Only the first rollouts of the queue were checked. If the last of them is stuck, there may be more stuck rollouts.
    """
    last_checked = (
        activity.waiting[-1].rollout_id if activity.queued > len(activity.waiting) and activity.waiting else None
    )
    return len(activity.active) < _MOST_ACTIVE and all(rollout.rollout_id != last_checked for rollout in stuck_rollouts)


def _minutes(activity: Overview) -> list[dict[str, int]]:
    """Return the minutes of the last hour: the start of each minute in µs, and how many rollouts ended, by status."""
    counted: dict[int, Counter[str]] = {}
    for ended in activity.ended:
        counted.setdefault(ended.minute, Counter())[ended.status] += ended.count
    last = activity.now // (60 * MICROSECONDS)
    return [
        {"at": minute * 60 * MICROSECONDS, **{name: counted.get(minute, Counter())[name] for name in _OUTCOMES}}
        for minute in range(last - MINUTES + 1, last + 1)
    ]


def _bars(minutes: list[dict[str, int]], peak: int) -> list[dict[str, Any]]:
    """Return a stacked bar for each minute. A bar has one part per outcome, and a tooltip."""
    return [
        {
            "x": 10 * index,
            "label": f"{_clock(minute['at'])}: " + ", ".join(f"{minute[name]:,} {name}" for name in _OUTCOMES),
            "parts": list(_parts(minute, peak)),
        }
        for index, minute in enumerate(minutes)
    ]


def _parts(minute: dict[str, int], peak: int) -> Iterator[dict[str, Any]]:
    top = float(_BAR_HEIGHT)
    for name in _OUTCOMES:
        if minute[name]:
            # With this minimum height, one rollout among a thousand is still visible.
            height = max(1.0, (_BAR_HEIGHT - 2) * minute[name] / peak)
            top -= height
            yield {"name": name, "y": round(top, 2), "height": round(height, 2)}


def _clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at / MICROSECONDS, UTC):%H:%M} UTC"


def _sum(minute: dict[str, int]) -> int:
    return sum(minute[name] for name in _OUTCOMES)


def _throughput(minutes: list[dict[str, int]]) -> dict[str, float | None]:
    """Return the throughput of the last hour.

    The rate is the mean of the `_RECENT` minutes before the current minute.
    """
    ended = sum(map(_sum, minutes))
    recent = minutes[-1 - _RECENT : -1]
    return {
        "per_minute": sum(map(_sum, recent)) / len(recent),
        "last_hour": ended,
        "succeeded_share": sum(minute["succeeded"] for minute in minutes) / ended if ended else None,
    }
