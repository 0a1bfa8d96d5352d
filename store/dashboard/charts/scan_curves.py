"""The charts of a scanner: the share of matches by training step, with one line per mode or version of resources."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from store.comparing.curve_charts import Z95, Chart, Line, Series, line_order
from store.comparing.reward_curves import MOST_LINES
from store.db.queries.curves import Axis
from store.db.queries.scan_figures import ScanCell

MOST_VERSIONED: Final = 3
"""The maximum number of resources with a chart of their versions: those with most results."""


def scan_charts(along: Axis, cells: Sequence[ScanCell]) -> list[tuple[Chart, str | None]]:
    """Return the chart of the share of matches, and for resources with several versions a chart with their lines.

    The second entry of a pair is the id of these resources. All charts have the axis `along`. A chart without a value
    is left out.
    """
    charts: list[tuple[Chart, str | None]]
    charts = [(_chart(along, cells, "rate", "Matches by step", lambda cell: (cell.mode, None)), None)]
    scanned: defaultdict[str, int] = defaultdict(int)
    versions: defaultdict[str, set[int]] = defaultdict(set)
    for cell in cells:
        if cell.resources_id is not None and cell.version is not None and cell.step is not None:
            scanned[cell.resources_id] += cell.scanned
            versions[cell.resources_id].add(cell.version)
    several = [name for name in scanned if len(versions[name]) > 1]
    for number, name in enumerate(sorted(several, key=lambda name: (-scanned[name], name))[:MOST_VERSIONED]):
        last = sorted(versions[name])[-MOST_LINES:]
        of_name = [cell for cell in cells if cell.resources_id == name and cell.version in last]
        title = f"Matches by version of {name}"
        charts.append((_chart(along, of_name, f"rate-{number}", title, lambda cell: (cell.mode, cell.version)), name))
    return [(chart, name) for chart, name in charts if chart.series]


def share_interval(part: int, count: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a share by Wilson's method; None if nothing was counted."""
    if not count:
        return None
    spread = Z95**2 / count
    centre = (part / count + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(part * (count - part) / count**3 + spread / (4 * count)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _chart(
    along: Axis,
    cells: Sequence[ScanCell],
    chart_id: str,
    title: str,
    line_of: Callable[[ScanCell], Line],
) -> Chart:
    sums: defaultdict[Line, defaultdict[int, list[int]]]
    sums = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for cell in cells:
        bucket = -1 if cell.step is None else (cell.step - along.start) // along.width
        if 0 <= bucket < along.count:
            total = sums[line_of(cell)][bucket]
            total[0] += cell.scanned
            total[1] += cell.matches
    filled = {bucket for totals in sums.values() for bucket in totals}
    # The ends of the axis are in all charts, so that these have the same range.
    buckets = sorted(filled | {0, along.count - 1})
    series: list[Series] = []
    for (mode, version), totals in sorted(sums.items(), key=lambda item: line_order(item[0])):
        counts = [totals.get(bucket, (0, 0)) for bucket in buckets]
        intervals = [share_interval(matches, scanned) for scanned, matches in counts]
        scanned = [count for count, _ in counts]
        series.append(
            Series(
                mode,
                scanned,
                [matches / count if count else None for count, matches in counts],
                version=version,
                ended=scanned,
                band_low=[interval[0] if interval else None for interval in intervals],
                band_high=[interval[1] if interval else None for interval in intervals],
                part=[matches for _, matches in counts],
            )
        )
    starts: list[float] = [along.low(bucket) for bucket in buckets]
    return Chart(chart_id, title, "share of scanned attempts", "share", "step", starts, along.width, series)
