"""The rewards page: rewards, lengths, durations and failures by step or by time, and the distribution of rewards.

A bucket is a range of the horizontal axis of a chart: a range of training steps or of time. A reward may have several
dimensions, which are named values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args

from store.comparing import curve_charts as curves
from store.comparing.reward_curves import CurveOptions, RewardCurves, axis, reward_curves
from store.comparing.usage_curves import usage_charts
from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.saved_views import views_of
from store.dashboard.request import PageRequest
from store.dashboard.views.costs import prices_of
from store.dashboard.views.figure_cache import cache_of
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries import scores as score_queries
from store.db.queries.pages import LONGEST_ID
from store.db.queries.usage import usage_along
from store.indexing.following import IndexLag
from store.models import RolloutMode
from store.models.scores import RewardVersion
from store.models.usage import UsageSum
from store.sql.usage import read_usage
from store.validation.json_limits import check_text

pages = Pages()

MOST_CHARTS: Final = 6
"""The maximum number of reward dimensions with a chart."""
MANY: Final = 20_000
"""With more rollouts than this number, the page is rendered first, and loads the curves with a second request."""
TABLE_ROWS: Final = 60
"""The number of buckets in the tables below the charts, unless `table` names the chart."""
SMOOTHINGS: Final = ("", "3", "5", "9", "21")
CHOICES: Final = ("failed:0", "out", "ended:0")
"""The choices of the form for ended rollouts without a reward."""


@dataclass(frozen=True, slots=True)
class _Figures:
    names: list[tuple[str, int]]
    """All dimensions, each with its number of rewards; empty for a version of rewards."""
    versions: list[RewardVersion]
    """The versions of rewards that have scores."""
    curves: RewardCurves
    uncounted: int = 0
    """The number of rollouts if the curves are not computed in this request, otherwise 0."""


@pages.get("/ui/rewards")
async def rewards(request: PageRequest) -> PageContent:
    """Show the curves of all rollouts.

    The parameters are `by` (the axis, `step` or `time`), `mode`, `name` (a dimension, which gets its own chart),
    `reward_version` (such as `helpful@v2`; without it, the recorded rewards are shown), `unrewarded` (how ended
    rollouts without a reward count), `resources` (an id of resources, whose versions become lines), and, for the HTML
    page, `smooth` (a number of buckets), `scale` (`log` for lengths and durations) and `table` (the chart whose table
    shows all buckets). With `whole=1`, the curves are computed in this request even if there are more than `MANY`
    rollouts.
    """
    by = request.among("by", ("", *get_args(curve_queries.By)), "")
    options = CurveOptions(
        "step" if by == "step" else "time" if by == "time" else None,
        tuple(mode for mode in request.several("mode") if mode in get_args(RolloutMode)),
        () if request.one("reward_version") else tuple(request.several("name")[:MOST_CHARTS]),
        request.reward_version(),
        request.missing_reward(),
        check_text(request.one("resources"), "resources", LONGEST_ID) or None,
    )
    smooth, scale = request.among("smooth", SMOOTHINGS, ""), request.among("scale", ("", "log"), "")
    at_once = request.is_twin or bool(request.one("whole"))

    cache = cache_of(request.store.core)

    async def work(session: ReadSession) -> _Figures:
        return await cache.read(session, (options, at_once), partial(_figures, options=options, at_once=at_once))

    figures = await request.store.core.look(work, snapshot=True)
    along, charts = figures.curves.along, figures.curves.charts
    usage_curves, events_behind = list[curves.Chart](), 0
    # Pages in files have no usage, because they must not depend on the state of an index.
    if along is not None and charts and "prices" in request.extra:

        async def read(session: ReadSession, lag: IndexLag) -> tuple[list[UsageSum], int]:
            work = partial(usage_along, along=along, modes=options.modes, resources_id=options.resources_id)
            # While the index is behind the log, its sums change without a commit.
            if lag.events_behind:
                return await work(session), lag.events_behind
            return await cache.read(session, ("usage", along, options), work), 0

        sums, events_behind = await read_usage(request.store.core, read, follows=request.is_twin) or ([], 0)
        usage_curves = usage_charts(along, charts[0], sums, prices_of(request))
    values = {
        "by": None if along is None else along.by,
        "modes": options.modes,
        "names": [{"name": name, "count": count} for name, count in figures.names],
        "chosen": options.names,
        "reward_version": options.reward_version and str(options.reward_version),
        "reward_versions": [f"{version.name}@{version.version}" for version in figures.versions],
        "charts": charts,
        "histogram": figures.curves.bins,
        "unrewarded": str(options.missing),
        "markers": figures.curves.markers,
        "resources_id": options.resources_id,
        "resource_versions": figures.curves.uses,
        "usage_charts": usage_curves,
        "events_behind": events_behind,
    }
    hidden: dict[str, Any] = {
        "saved": await views_of(request, "rewards"),
        "uncounted": figures.uncounted,
        "whole": request.here(whole="1"),
        "missing": options.missing,
        "choices": dict.fromkeys([*CHOICES, str(options.missing)]),
        "smooth": smooth,
        "smoothings": SMOOTHINGS,
        "scale": scale,
        "bars": _bars(request, figures.curves.bins, options.modes),
        "table_rows": TABLE_ROWS,
        "label_every": -(-len(figures.curves.bins) // 8) or 1,
        "ticks": [_top(figures.curves.bins), 0],
        "latest": _latest(charts),
        "all_modes": get_args(RolloutMode),
        "resources_ids": list(dict.fromkeys(use.resources_id for use in figures.curves.uses)),
        "rows": {chart.id: _rows(request, chart) for chart in charts + usage_curves},
        "target": _rollouts(request),
    }
    return PageContent("rewards.html", values, "Rewards", hidden=hidden)


async def _figures(session: ReadSession, options: CurveOptions, *, at_once: bool) -> _Figures:
    names = [] if options.reward_version else await curve_queries.reward_names(session)
    versions = await score_queries.versions(session, None)
    along = await axis(session, options)
    if along is None:
        return _Figures(names, versions, RewardCurves(None))
    rollouts = 0 if at_once else await curve_queries.total(session)
    if rollouts > MANY:
        return _Figures(names, versions, RewardCurves(along), rollouts)
    return _Figures(names, versions, await reward_curves(session, options, along))


def _bars(request: PageRequest, bins: list[curves.Bin], modes: Sequence[str]) -> list[dict[str, Any]]:
    top = _top(bins)
    return [
        {
            "bin": bar,
            "height": round(100 * bar.count / top, 2),
            "url": _rollouts(
                request,
                reward_min=bar.low,
                reward_max=bar.high if bar.high == bar.low else None,
                reward_below=bar.high if bar.high > bar.low else None,
                mode=list(modes) or None,
            ),
        }
        for bar in bins
    ]


def _top(bins: list[curves.Bin]) -> int:
    """Return the round number at the top of the vertical axis of the histogram."""
    most = max((bar.count for bar in bins), default=1)
    power = 10 ** (len(str(most)) - 1)
    return next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= most)


def _latest(charts: list[curves.Chart]) -> list[dict[str, Any]]:
    """Return the last mean of each line, with its counts and the start of its bucket."""
    rows: list[dict[str, Any]] = []
    for line in charts[0].series if charts else ():
        last = next((index for index in reversed(range(len(line.counted))) if line.counted[index]), None)
        if last is not None:
            rows.append(
                {
                    "mode": line.mode,
                    "version": line.version,
                    "mean": line.mean_counted[last],
                    "rewarded": line.rewarded[last],
                    "ended": line.ended[last],
                    "start": charts[0].start[last],
                }
            )
    return rows


def _rows(request: PageRequest, chart: curves.Chart) -> list[dict[str, Any]]:
    """Return the buckets as table rows, newest first. A bucket has one row for each line with values in the bucket."""
    count = len(chart.start)
    last = count if request.one("table") == chart.id else min(count, TABLE_ROWS)
    rows: list[dict[str, Any]] = []
    for index in range(count - 1, count - 1 - last, -1):
        rows += [
            {
                "start": chart.start[index],
                "line": line,
                "index": index,
                "url": _rollouts(
                    request,
                    mode=line.mode,
                    resources=request.one("resources") or None,
                    version=line.version,
                    **place(chart, index),
                ),
            }
            for line in chart.series
            if line.mean[index] is not None
            or (line.counted and line.counted[index])
            or (chart.noun == "calls" and line.ended[index])
        ]
    return rows


def _rollouts(request: PageRequest, **params: Any) -> str:
    """Return the path of the list of rollouts with the rewards that this page shows."""
    return request.url("rollouts", reward_version=request.one("reward_version") or None, **params)


def place(chart: curves.Chart, index: int) -> dict[str, float]:
    """Return the query parameters with which the list of rollouts shows only the rollouts of one bucket."""
    start = chart.start[index]
    if chart.by == "time":
        return {"ended_min": start, "ended_max": start + chart.width}
    if chart.width == 1:
        return {"step": int(start)}
    return {"step_min": int(start), "step_max": int(start + chart.width - 1)}
