"""The overview page: the health of the training, rewards by step, stuck rollouts by cause and failures by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, get_args

from store.comparing.reading import version_changes
from store.dashboard.charts.scan_panel import ScanPanel, scan_panel
from store.dashboard.charts.sparkline import sparkline
from store.dashboard.charts.step_chart import StepChart, step_chart
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import compared
from store.dashboard.views import failed_attempts as failing
from store.dashboard.views.costs import cost_of, prices_of
from store.dashboard.views.figure_cache import FigureCache, cache_of
from store.dashboard.views.health import health
from store.dashboard.views.step_figures import bucket_width, by_step, modes_of, version_starts
from store.dashboard.views.stuck import Stuck, StuckCause, causes, stuck
from store.db.dialect import ReadSession
from store.db.queries import operation_runs
from store.db.queries.operation_runs import OperationRun
from store.db.queries.overview import (
    MINUTE,
    RECENT,
    LogFigures,
    Overview,
    active_starts,
    ended_by_minute,
    last_claim,
    read_overview,
    waiting_rollouts,
)
from store.db.queries.step_totals import StepTotals, step_totals, totals_of_blocks, version_steps_of
from store.domain.rollout import TERMINAL
from store.models import RolloutStatus
from store.models.comparisons import VersionChange
from store.models.missing_rewards import MissingReward
from store.models.queries import UsageQuery
from store.runtime.clock import MICROSECONDS, system_clock

pages = Pages()

MINUTES: Final = 60
_MOST_ACTIVE: Final = 500
_MOST_STUCK: Final = 1_000
"""The maximum number of queued rollouts that are examined if the queue is stuck."""
_MOST_FAILURES: Final = 2_000
"""At most this many failed attempts are grouped, the newest ones."""
_MOST_IDS: Final = failing.MOST_IDS
_SHOWN: Final = 8
_KINDS: Final = 6
_CHANGES: Final = 4
"""The maximum number of versions whose effects are shown."""
_BAR_HEIGHT: Final = 24
_OUTCOMES: Final = ("succeeded", "failed", "cancelled")
_WIDTHS: Final = (960, 340)
"""The widths of the drawing of rewards: on wide and on narrow screens."""


@dataclass(frozen=True, slots=True)
class _State:
    activity: Overview
    totals: list[StepTotals]
    failures: list[failing.AttemptFailure]
    kinds: list[failing.Kind]
    """The kinds of these failures."""
    changes: list[VersionChange]
    """The effects of the latest versions of resources, the latest first."""
    charts: list[StepChart]
    runs: dict[str, OperationRun]
    scans: ScanPanel | None
    """None if no scanner has recent results."""


@pages.get("/ui/")
async def overview(request: PageRequest) -> PageContent:
    """Show the current state of the store.

    The parameter `unrewarded` says how ended rollouts without a reward count in means, such as `out` or `failed:0`.
    The parameter `target` is the last step of the training.
    """
    missing = request.missing_reward()
    target = request.maybe_whole("target")
    core = request.store.core
    state = await core.look(partial(_look, cache=cache_of(core), missing=missing), snapshot=True)
    activity = state.activity
    stuck_rollouts = list(stuck(activity))
    minutes = _minutes(activity)
    last_hour = sum(map(_sum, minutes))
    condition = health(activity, state.totals, missing, target)
    failure_rows = failing.rows(state.kinds)
    values: dict[str, Any] = {
        "now": activity.now,
        "statuses": {name: activity.statuses.get(name, 0) for name in get_args(RolloutStatus)},
        "total": sum(activity.statuses.values()),
        "ended": minutes,
        "throughput": {
            "per_minute": condition.pace.per_minute,
            "last_hour": last_hour,
            "succeeded_share": sum(minute["succeeded"] for minute in minutes) / last_hour if last_hour else None,
            "recent": activity.recent,
        },
        "running": activity.active[:_SHOWN],
        "queue": {"waiting": activity.queued, "oldest": activity.waiting[0] if activity.waiting else None},
        "stuck": stuck_rollouts[:_SHOWN],
        "stuck_in_all": len(stuck_rollouts),
        "stuck_is_whole": _is_whole(activity, stuck_rollouts),
        "failures": state.failures[:_SHOWN],
        "workers": activity.workers,
        "log": activity.log,
        "size_bytes": await request.store.core.size_bytes(),
        "verified": {
            "whole": _verified(state.runs, "verify", activity.now),
            "sample": _verified(state.runs, "verify_sample", activity.now),
        },
        "health": condition,
        "unrewarded": str(missing),
        "stuck_causes": causes(stuck_rollouts, activity),
        "failure_kinds": failure_rows[:_KINDS],
        "failures_counted": len(state.failures),
        "steps": by_step(state.totals, condition.mode, missing, width=bucket_width(state.totals)),
        "versions": list(version_starts(state.totals)),
        "changes": state.changes,
        "scanners": state.scans,
    }
    peak = max(map(_sum, minutes))
    steps = [part.step for part in state.totals if part.step is not None]
    ended = sum(activity.statuses.get(name, 0) for name in TERMINAL)
    hidden = {
        "bars": _bars(minutes, peak),
        "bar_height": _BAR_HEIGHT,
        "peak": peak,
        "second": MICROSECONDS,
        "recent_since": (activity.now - RECENT) / MICROSECONDS,
        "outcomes": _OUTCOMES,
        "missing": missing,
        "draw": compared,
        "choices": list(dict.fromkeys((MissingReward(), MissingReward("out"), missing))),
        "charts": state.charts,
        "cause_links": {cause.cause: _cause_link(request, cause) for cause in values["stuck_causes"]},
        "curves": [sparkline(row.steps, min(steps), max(steps)) if steps else "" for row in failure_rows[:_KINDS]],
        "more_kinds": max(0, len(failure_rows) - _KINDS) + sum(kind.left_out for kind in state.kinds),
        "all_ended": ended,
        "tokens_out": sum(part.tokens_out or 0.0 for part in state.totals),
        "with_usage": sum(part.with_usage for part in state.totals),
        "most_failures": _MOST_FAILURES,
        "cost": await cost_of(request, UsageQuery()),
        "currency": prices_of(request).currency,
    }
    return PageContent("overview.html", values, "Overview", hidden=hidden)


async def _look(session: ReadSession, cache: FigureCache, missing: MissingReward) -> _State:
    now = (session.dialect.clock or system_clock)()
    totals = totals_of_blocks(await cache.rows(session, "step totals", step_totals))
    since = now // MINUTE - MINUTES + 1
    ended = await cache.rows(session, "ended", partial(ended_by_minute, since=since * MINUTE))
    active = sorted(await cache.rows(session, "active", active_starts), key=attrgetter("start_at", "first_position"))
    figures = LogFigures(
        statuses=sum((Counter(part.statuses) for part in totals), Counter[str]()),
        # Blocks that did not change were read at an earlier visit, also with older minutes.
        ended=[part for part in ended if part.minute >= since],
        last_end_at=max((part.last_end_at for part in totals if part.last_end_at is not None), default=None),
        last_claim_at=await cache.read(session, "last claim", last_claim),
        active_ids=[rollout.rollout_id for rollout in active[:_MOST_ACTIVE]],
    )
    activity = await read_overview(session, now, figures, most_waiting=_SHOWN)
    if activity.queued > len(activity.waiting) and any(entry.cause == "unclaimed" for entry in stuck(activity)):
        activity = replace(activity, waiting=await waiting_rollouts(session, _MOST_STUCK))
    attempts, _ = await failing.newest_failures(session, cache)
    newest = attempts[:_MOST_FAILURES]

    async def kinds(_: ReadSession) -> list[failing.Kind]:
        return failing.kinds(newest, _KINDS)

    failures = newest, await cache.read(session, "failure kinds", kinds)
    mode = next(iter(modes_of(part for part in totals if part.step is not None)), None)
    used = version_steps_of(totals, mode)
    effects = partial(version_changes, missing=missing, mode=mode, limit=_CHANGES, used=used)
    changes = await cache.read(session, ("changes", missing, mode), effects)

    async def draw(_: ReadSession) -> list[StepChart]:
        return _charts(totals, mode, missing)

    charts = await cache.read(session, ("charts", missing, mode), draw)
    runs = await operation_runs.all_runs(session)
    return _State(activity, totals, *failures, changes, charts, runs, await scan_panel(session, cache, totals, now))


def _charts(totals: Sequence[StepTotals], mode: str | None, missing: MissingReward) -> list[StepChart]:
    if all(part.step is None for part in totals):
        return []
    width = bucket_width(totals)
    other = MissingReward() if missing.substituted == "out" else MissingReward("out")
    name = mode or "no mode"
    beside = [
        (one or "no mode", by_step(totals, one, missing, width=width))
        for one in modes_of(part for part in totals if part.step is not None)
        if one != mode
    ]
    main, second = (by_step(totals, mode, choice, width=width) for choice in (missing, other))
    labels = (f"{name}, {missing.label}", f"{name}, {other.label}")
    versions = list(version_starts(totals))
    return [step_chart(main, second, beside, versions, width=size, labels=labels) for size in _WIDTHS]


def _cause_link(request: PageRequest, cause: StuckCause) -> str:
    """Return the path of a list of the rollouts of a cause; if there are many, of all rollouts with their statuses."""
    if len(cause.rollout_ids) <= _MOST_IDS:
        return request.url("rollouts", id=cause.rollout_ids)
    return request.url("rollouts", status=list(cause.statuses))


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
    """Return the start of each minute of the last hour in µs, and how many rollouts ended in this minute, by status."""
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
