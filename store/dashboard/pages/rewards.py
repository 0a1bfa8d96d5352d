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
from store.db.reports import curves as counted
from store.models import RolloutMode

pages = Pages()

MOST_CHARTS: Final = 6
"""The maximum number of reward dimensions with a chart."""
MANY: Final = 20_000
"""With more rollouts than this, the page is rendered without the curves, and loads them with a second request."""
TABLE_ROWS: Final = 24
"""The number of buckets in the tables below the charts. The JSON version of the page contains all buckets."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    by: counted.By | None
    names: list[str]
    modes: list[str]
    at_once: bool
    """Whether to compute the curves in this request even if there are more than `MANY` rollouts."""


@dataclass(frozen=True, slots=True)
class _Found:
    names: list[tuple[str, int]]
    along: counted.Axis | None
    charts: list[curves.Chart]
    bins: list[curves.Bin]
    uncounted: int = 0
    """The number of rollouts if the curves are not computed in this request, otherwise 0."""


@pages.get("/ui/rewards")
async def rewards(request: PageRequest) -> PageContent:
    """Show the curves of all rollouts.

    The parameters are `by` (the axis, `step` or `time`), `mode`, and `name` (a dimension, which gets its own chart).
    With `whole=1`, the curves are computed in this request even if there are more than `MANY` rollouts.
    """
    by = request.among("by", ("", *get_args(counted.By)), "")
    wanted = _Wanted(
        "step" if by == "step" else "time" if by == "time" else None,
        request.several("name")[:MOST_CHARTS],
        [mode for mode in request.several("mode") if mode in get_args(RolloutMode)],
        request.is_twin or bool(request.one("whole")),
    )

    async def work(session: ReadSession) -> _Found:
        return await _found(session, wanted)

    found = await request.store.core.look(work, snapshot=True)
    values = {
        "by": None if found.along is None else found.along.by,
        "modes": wanted.modes,
        "names": [{"name": name, "count": count} for name, count in found.names],
        "chosen": wanted.names,
        "charts": found.charts,
        "histogram": found.bins,
    }
    hidden: dict[str, Any] = {
        "uncounted": found.uncounted,
        "whole": request.here(whole="1"),
        "bars": _bars(request, found.bins, wanted.modes),
        "latest": _latest(found.charts),
        "all_modes": get_args(RolloutMode),
        "table_rows": TABLE_ROWS,
        "rows": {chart.id: _rows(request, chart) for chart in found.charts},
        "target": request.url("rollouts"),
    }
    return PageContent("rewards.html", values, "Rewards", hidden=hidden)


async def _found(session: ReadSession, wanted: _Wanted) -> _Found:
    names = await counted.reward_names(session)
    along = None
    for by in (wanted.by,) if wanted.by else get_args(counted.By):
        along = along or await counted.axis(session, by, wanted.modes)
    if along is None:
        return _Found(names, None, [], [])
    rollouts = 0 if wanted.at_once else await counted.total(session)
    if rollouts > MANY:
        return _Found(names, along, [], [], rollouts)
    source = counted.CurveSource(None, wanted.modes)
    edges = curves.edges_for(await counted.sample(session, source))
    cells = await counted.cells(session, source, along, edges)
    charts = [curves.reward_chart(along, cells, "reward", "Reward")]
    for index, name in enumerate(wanted.names):
        source = counted.CurveSource(name, wanted.modes)
        own = curves.edges_for(await counted.sample(session, source))
        given = await counted.cells(session, source, along, own)
        charts.append(curves.reward_chart(along, given, f"reward-{index}", f"Reward “{name}”"))
    charts += curves.other_charts(along, cells)
    return _Found(names, along, charts, curves.histogram(cells, edges))


def _bars(request: PageRequest, bins: list[curves.Bin], modes: list[str]) -> list[dict[str, Any]]:
    most = max((each.count for each in bins), default=0)
    return [
        {
            "bin": each,
            "height": round(100 * each.count / most, 2) if most else 0,
            "url": request.url("rollouts", reward_min=each.least, reward_max=each.greatest, mode=modes or None),
        }
        for each in bins
    ]


def _latest(charts: list[curves.Chart]) -> list[dict[str, Any]]:
    """Return the last mean of each mode, and the start of its bucket."""
    if not charts:
        return []
    chart = charts[0]
    found: list[dict[str, Any]] = []
    for line in chart.series:
        filled = [index for index, mean in enumerate(line.mean) if mean is not None]
        if filled:
            last = filled[-1]
            found.append(
                {"mode": line.mode, "mean": line.mean[last], "count": line.count[last], "start": chart.start[last]}
            )
    return found


def _rows(request: PageRequest, chart: curves.Chart) -> list[dict[str, Any]]:
    """Return the newest buckets as table rows. A bucket has one row for each mode with rollouts in the bucket."""
    found: list[dict[str, Any]] = []
    for index in range(len(chart.start) - 1, max(-1, len(chart.start) - 1 - TABLE_ROWS), -1):
        found += [
            {
                "start": chart.start[index],
                "mode": line.mode,
                "count": line.count[index],
                "values": [each[index] for each in (line.mean, line.low, line.median, line.high) if each],
                "url": request.url("rollouts", mode=line.mode, **place(chart, index)),
            }
            for line in chart.series
            if line.mean[index] is not None
        ]
    return found


def place(chart: curves.Chart, index: int) -> dict[str, float]:
    """Return the query parameters with which the list of rollouts shows only the rollouts of one bucket."""
    start = chart.start[index]
    if chart.by == "time":
        return {"ended_min": start, "ended_max": start + chart.width}
    if chart.width == 1:
        return {"step": int(start)}
    return {"step_min": int(start), "step_max": int(start + chart.width - 1)}
