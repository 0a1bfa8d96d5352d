"""The metrics page: the numbers that a trainer logged, one curve per name, by training step. Decision 116."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from store.comparing import curve_charts as curves
from store.comparing.reward_curves import markers_of
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.dialect import ReadSession
from store.db.queries import curves as curve_queries
from store.db.queries import trainer_metrics as metric_queries
from store.db.queries.annotations import last_notes
from store.db.queries.curves import Axis
from store.models.trainer_metrics import Metric, MetricsQuery

pages = Pages()

MOST_CHARTS: Final = 24
MOST_VALUES: Final = 50_000
"""With more values, those of the latest steps are shown."""
MOST_NOTES: Final = 12
TABLE_ROWS: Final = 60
"""The number of buckets in the tables below the curves, the newest ones."""


@pages.get("/ui/metrics")
async def metrics(request: PageRequest) -> PageContent:
    """Show the metrics by step. The axis includes the steps of all rollouts, as on the page of rewards.

    The parameter `name`, which may be repeated, selects metrics. Without it, the first `MOST_CHARTS` are shown.
    """

    async def read(session: ReadSession) -> dict[str, Any]:
        logged = await metric_queries.metrics(session, MetricsQuery(limit=MOST_VALUES), None)
        by_name = {name: list(of_name) for name, of_name in groupby(logged, attrgetter("name"))}
        values: dict[str, Any] = {"names": list(by_name), "charts": [], "markers": [], "last": []}
        if not logged:
            return values
        chosen = [name for name in request.several("name") if name in by_name] or list(by_name)
        along = _axis(logged, await curve_queries.axis(session, "step", (), None))
        uses = await curve_queries.version_uses(session)
        return values | {
            "charts": [_chart(along, number, by_name[name]) for number, name in enumerate(chosen[:MOST_CHARTS])],
            "markers": markers_of(along, uses, await last_notes(session, MOST_NOTES)),
            "last": [by_name[name][-1].model_dump() for name in by_name],
        }

    values = await request.store.core.look(read, snapshot=True)
    return PageContent(
        "metrics.html",
        values,
        "Metrics",
        hidden={"target": request.url("rollouts"), "whole": request.here(), "table_rows": TABLE_ROWS},
    )


def _axis(logged: list[Metric], of_rewards: Axis | None) -> Axis:
    steps = [metric.step for metric in logged]
    if of_rewards is not None:
        steps += [of_rewards.start, of_rewards.low(of_rewards.count) - 1]
    first, last = min(steps), max(steps)
    width = -(-(last - first + 1) // curve_queries.MOST_BUCKETS)
    return Axis("step", first, width, -(-(last - first + 1) // width))


def _chart(along: Axis, number: int, logged: list[Metric]) -> curves.Chart:
    """Return the curve of one metric: the means by bucket. A bucket without a finite number is a gap.

    Buckets without a value are left out, except the ends of the axis, so that all curves have the same range.
    """
    values: defaultdict[int, list[float]] = defaultdict(list)
    present = Counter((metric.step - along.start) // along.width for metric in logged)
    for metric in logged:
        if metric.value is not None:
            values[(metric.step - along.start) // along.width].append(metric.value)
    buckets = sorted({*present, 0, along.count - 1})
    parts = [values[bucket] for bucket in buckets]
    mean: curves.Numbers = [sum(one / len(part) for one in part) if part else None for part in parts]
    marks = sum(metric.mark is not None for metric in logged)
    resolution = f"means of {along.width} steps" if along.width > 1 else ""
    gaps = f"{marks:,} not finite" if marks else ""
    line = curves.Series(logged[0].name, [], mean, ended=[present[bucket] for bucket in buckets])
    return curves.Chart(
        f"metric-{number}",
        logged[0].name,
        ", ".join(part for part in (resolution, gaps) if part),
        "",
        "step",
        [along.low(bucket) for bucket in buckets],
        along.width,
        [line],
    )
