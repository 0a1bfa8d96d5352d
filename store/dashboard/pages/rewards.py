"""The rewards page: rewards, lengths, durations and failures by step or by time, and the distribution of rewards.

A bucket is a range of the horizontal axis of a chart: a range of training steps or of time. A reward may have several
dimensions, which are named values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args

from store.dashboard.charts import curves
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries import scores as score_queries
from store.models import RolloutMode
from store.models.scores import RewardVersion
from store.validation.scores import VersionKey

pages = Pages()

MOST_CHARTS: Final = 6
"""The maximum number of reward dimensions with a chart."""
MANY: Final = 20_000
"""With more rollouts than this number, the page is rendered first, and loads the curves with a second request."""
TABLE_ROWS: Final = 24
"""The number of buckets in the tables below the charts. The JSON version of the page contains all buckets."""


@dataclass(frozen=True, slots=True)
class _Options:
    by: curve_queries.By | None
    names: list[str]
    """The dimensions that get their own charts."""
    modes: list[str]
    version: VersionKey | None
    """The version of the rewards; None for recorded rewards."""
    at_once: bool
    """Whether to compute the curves in this request even if there are more than `MANY` rollouts."""


@dataclass(frozen=True, slots=True)
class _Figures:
    names: list[tuple[str, int]]
    """All dimensions, each with its number of rewards; empty for a version of rewards."""
    versions: list[RewardVersion]
    """The versions of rewards that have scores."""
    along: curve_queries.Axis | None
    charts: list[curves.Chart]
    bins: list[curves.Bin]
    uncounted: int = 0
    """The number of rollouts if the curves are not computed in this request, otherwise 0."""


@pages.get("/ui/rewards")
async def rewards(request: PageRequest) -> PageContent:
    """Show the curves of all rollouts.

    The parameters are `by` (the axis, `step` or `time`), `mode`, `name` (a dimension, which gets its own chart), and
    `reward_version` (such as `helpful@v2`; without it, the recorded rewards are shown). With `whole=1`, the curves are
    computed in this request even if there are more than `MANY` rollouts.
    """
    by = request.among("by", ("", *get_args(curve_queries.By)), "")
    options = _Options(
        "step" if by == "step" else "time" if by == "time" else None,
        [] if request.one("reward_version") else request.several("name")[:MOST_CHARTS],
        [mode for mode in request.several("mode") if mode in get_args(RolloutMode)],
        request.reward_version(),
        request.is_twin or bool(request.one("whole")),
    )

    async def work(session: ReadSession) -> _Figures:
        return await _figures(session, options)

    figures = await request.store.core.look(work, snapshot=True)
    values = {
        "by": None if figures.along is None else figures.along.by,
        "modes": options.modes,
        "names": [{"name": name, "count": count} for name, count in figures.names],
        "chosen": options.names,
        "reward_version": options.version and str(options.version),
        "reward_versions": [f"{version.name}@{version.version}" for version in figures.versions],
        "charts": figures.charts,
        "histogram": figures.bins,
    }
    hidden: dict[str, Any] = {
        "uncounted": figures.uncounted,
        "whole": request.here(whole="1"),
        "bars": _bars(request, figures.bins, options.modes),
        "latest": _latest(figures.charts),
        "all_modes": get_args(RolloutMode),
        "table_rows": TABLE_ROWS,
        "rows": {chart.id: _rows(request, chart) for chart in figures.charts},
        "target": _rollouts(request),
    }
    return PageContent("rewards.html", values, "Rewards", hidden=hidden)


async def _figures(session: ReadSession, options: _Options) -> _Figures:
    version = options.version
    names = [] if version else await curve_queries.reward_names(session)
    versions = await score_queries.versions(session, None)
    along = None
    for by in (options.by,) if options.by else get_args(curve_queries.By):
        along = along or await curve_queries.axis(session, by, options.modes)
    if along is None:
        return _Figures(names, versions, None, [], [])
    rollouts = 0 if options.at_once else await curve_queries.total(session)
    if rollouts > MANY:
        return _Figures(names, versions, along, [], [], rollouts)
    source = curve_queries.CurveSource(None, version, options.modes)
    edges = curves.edges_for(await curve_queries.sample(session, source))
    cells = await curve_queries.cells(session, source, along, edges)
    charts = [curves.reward_chart(along, cells, "reward", f"Reward {version}" if version else "Reward")]
    for index, name in enumerate(options.names):
        source = curve_queries.CurveSource(name, None, options.modes)
        dimension_edges = curves.edges_for(await curve_queries.sample(session, source))
        dimension_cells = await curve_queries.cells(session, source, along, dimension_edges)
        charts.append(curves.reward_chart(along, dimension_cells, f"reward-{index}", f"Reward “{name}”"))
    charts += curves.other_charts(along, cells)
    return _Figures(names, versions, along, charts, curves.histogram(cells, edges))


def _bars(request: PageRequest, bins: list[curves.Bin], modes: list[str]) -> list[dict[str, Any]]:
    most = max((bar.count for bar in bins), default=0)
    return [
        {
            "bin": bar,
            "height": round(100 * bar.count / most, 2) if most else 0,
            "url": _rollouts(request, reward_min=bar.least, reward_max=bar.greatest, mode=modes or None),
        }
        for bar in bins
    ]


def _latest(charts: list[curves.Chart]) -> list[dict[str, Any]]:
    """Return the last mean of each mode, and the start of the bucket of this mean."""
    if not charts:
        return []
    chart = charts[0]
    rows: list[dict[str, Any]] = []
    for line in chart.series:
        filled = [index for index, mean in enumerate(line.mean) if mean is not None]
        if filled:
            last = filled[-1]
            rows.append(
                {"mode": line.mode, "mean": line.mean[last], "count": line.count[last], "start": chart.start[last]}
            )
    return rows


def _rows(request: PageRequest, chart: curves.Chart) -> list[dict[str, Any]]:
    """Return the newest buckets as table rows. A bucket has one row for each mode with rollouts in the bucket."""
    rows: list[dict[str, Any]] = []
    for index in range(len(chart.start) - 1, max(-1, len(chart.start) - 1 - TABLE_ROWS), -1):
        rows += [
            {
                "start": chart.start[index],
                "mode": line.mode,
                "count": line.count[index],
                "values": [column[index] for column in (line.mean, line.low, line.median, line.high) if column],
                "url": _rollouts(request, mode=line.mode, **place(chart, index)),
            }
            for line in chart.series
            if line.mean[index] is not None
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
