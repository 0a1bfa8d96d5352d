"""Charts of rollouts: curves with means and quantiles, and a histogram of rewards.

A bucket is a range of the horizontal axis of a curve, which is a range of training steps or of time. A bin is a range
of rewards. A cell contains the sums over all rollouts of one mode, bucket and bin.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from store.db.queries.curves import Axis, Cell

MOST_BINS: Final = 32
"""With at most this many distinct rewards, each reward has its own bin. With more, each bin is a range."""
_OUTLYING: Final = 3.0
_ORDER: Final = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart, for the rollouts of one mode. Each list has one value per bucket."""

    mode: str | None
    count: list[int]
    """The number of rollouts in each mean."""
    mean: list[float | None]
    """The mean in each bucket; None for an empty bucket."""
    low: list[float | None] = field(default_factory=list[float | None])
    """The 10th percentile. This list, `median` and `high` are empty in charts that show only means."""
    median: list[float | None] = field(default_factory=list[float | None])
    high: list[float | None] = field(default_factory=list[float | None])
    """The 90th percentile."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a common axis."""

    id: str
    title: str
    told: str
    """A description of the values."""
    unit: str
    by: str
    """The horizontal axis: `step` or `time`."""
    start: list[float]
    """The start of each bucket: the number of a step, or a time in seconds since the epoch."""
    width: float
    """The width of a bucket in steps or seconds."""
    series: list[Series]


@dataclass(frozen=True, slots=True)
class Bin:
    """A bar of the histogram; both bounds are included."""

    least: float
    greatest: float
    label: str
    count: int


def edges_for(sample: Sequence[float]) -> list[float]:
    """Return the starts of the bins: the distinct values if there are few of them, otherwise round numbers.

    The first and the last bin also count the outliers.
    """
    ordered = sorted(sample)
    distinct = sorted(set(ordered))
    if len(distinct) <= MOST_BINS:
        return distinct
    lowest, highest = ordered[0], ordered[-1]
    inner_low, inner_high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    if highest - lowest > _OUTLYING * (inner_high - inner_low) > 0:
        lowest, highest = inner_low, inner_high
    width = _round_width((highest - lowest) / (MOST_BINS * 3 / 4))
    if not 0 < width < math.inf:
        return distinct[:: -(-len(distinct) // MOST_BINS)]
    first, last = math.floor(lowest / width), math.ceil(highest / width)
    return [float(f"{index * width:.12g}") for index in range(first, last + 1)]


def _round_width(width: float) -> float:
    if not 0 < width < math.inf:
        return width
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= width * 0.999)


def histogram(cells: Iterable[Cell], edges: Sequence[float]) -> list[Bin]:
    """Return the bins, from the first bin with a reward to the last."""
    counts: dict[int, int] = defaultdict(int)
    least: dict[int, float] = {}
    greatest: dict[int, float] = {}
    for cell in cells:
        if cell.bin is None or cell.reward_min is None or cell.reward_max is None:
            continue
        counts[cell.bin] += cell.rollouts
        least[cell.bin] = min(least.get(cell.bin, math.inf), cell.reward_min)
        greatest[cell.bin] = max(greatest.get(cell.bin, -math.inf), cell.reward_max)
    if not counts:
        return []
    are_values = all(least[index] == greatest[index] for index in counts)
    indexes = sorted(counts) if are_values else range(min(counts), max(counts) + 1)
    return [_bar(index, counts.get(index, 0), least.get(index), greatest.get(index), edges) for index in indexes]


def _bar(index: int, count: int, least: float | None, greatest: float | None, edges: Sequence[float]) -> Bin:
    if least is not None and least == greatest:
        return Bin(least, least, f"{least:.6g}", count)
    low = edges[index - 1] if index else least
    # The first value of the next bin does not belong to this bin.
    high = math.nextafter(edges[index], -math.inf) if index < len(edges) else greatest
    assert low is not None
    assert high is not None
    end = f"{edges[index]:.6g}" if index < len(edges) else f"{high:.6g}"
    return Bin(low, high, f"{low:.6g} to {end}", count)


Group = list[Cell]
Measure = Callable[[Group], float | None]


def reward_chart(along: Axis, cells: Iterable[Cell], chart_id: str, title: str) -> Chart:
    """Return the chart of the mean rewards, with their medians and their 10th and 90th percentiles."""
    rewarded = [cell for cell in cells if cell.bin is not None]
    starts, groups = _grouped(along, rewarded)
    series = [
        Series(
            mode,
            [sum(cell.rollouts for cell in group) for group in buckets],
            [_mean_reward(group) for group in buckets],
            [quantile(group, 0.1) for group in buckets],
            [quantile(group, 0.5) for group in buckets],
            [quantile(group, 0.9) for group in buckets],
        )
        for mode, buckets in groups
    ]
    return _chart(along, starts, series, chart_id, title, "mean, and the band from p10 to p90", "")


def other_charts(along: Axis, cells: Sequence[Cell]) -> list[Chart]:
    """Return the charts of length, duration and failures, which show only means."""
    starts, groups = _grouped(along, cells)

    def lines(count: Callable[[Cell], int], measure: Measure) -> list[Series]:
        return [
            Series(mode, [sum(map(count, group)) for group in buckets], [measure(group) for group in buckets])
            for mode, buckets in groups
        ]

    def tokens(group: Group) -> float | None:
        return _share(sum(cell.tokens_out for cell in group), sum(cell.rollouts for cell in group))

    def seconds(group: Group) -> float | None:
        return _share(sum(cell.seconds for cell in group), sum(cell.ended for cell in group))

    def failures(group: Group) -> float | None:
        failed = sum(cell.failed for cell in group)
        return _share(failed, failed + sum(cell.succeeded for cell in group))

    shapes: tuple[tuple[str, str, str, str, list[Series]], ...] = (
        ("length", "Length", "tokens out per rollout, mean", "tokens", lines(lambda cell: cell.rollouts, tokens)),
        ("duration", "Duration", "from enqueued to ended, mean", "s", lines(lambda cell: cell.ended, seconds)),
        (
            "failures",
            "Failures",
            "failed, of those that succeeded or failed",
            "share",
            lines(lambda cell: cell.succeeded + cell.failed, failures),
        ),
    )
    return [
        _chart(along, starts, series, key, title, description, unit) for key, title, description, unit, series in shapes
    ]


def quantile(cells: Sequence[Cell], share: float) -> float | None:
    """Return a quantile of the rewards in the cells of one mode and bucket, for example the median for `share` 0.5.

    The rewards of a cell are assumed to be spread evenly between the least and the greatest reward. Therefore the
    result is exact for cells with at most two rewards, or with equal rewards.
    """
    filled = sorted((cell for cell in cells if cell.bin is not None), key=lambda cell: cell.bin or 0)
    rank = share * (sum(cell.rollouts for cell in filled) - 1)
    for cell, following in pairwise([*filled, None]):
        assert cell is not None
        low, high = cell.reward_min, cell.reward_max
        assert low is not None
        assert high is not None
        last = cell.rollouts - 1
        if rank <= last or following is None:
            return low if not last else low + (high - low) * min(rank / last, 1.0)
        if rank < cell.rollouts and following.reward_min is not None:
            return high + (following.reward_min - high) * (rank - last)
        rank -= cell.rollouts
    return None


def _mean_reward(group: Group) -> float | None:
    return _share(sum(cell.reward_sum or 0.0 for cell in group), sum(cell.rollouts for cell in group))


def _share(amount: float, count: float) -> float | None:
    return amount / count if count else None


def _grouped(along: Axis, cells: Iterable[Cell]) -> tuple[list[int], list[tuple[str | None, list[Group]]]]:
    """Return the starts of the buckets that are not empty and, for each mode, the cells in each of these buckets."""
    by_mode: dict[str | None, dict[int, Group]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        by_mode[cell.mode][cell.bucket].append(cell)
    buckets = sorted({bucket for groups in by_mode.values() for bucket in groups})
    modes = sorted(by_mode, key=lambda mode: _ORDER.index(mode) if mode in _ORDER else len(_ORDER))
    return [along.low(bucket) for bucket in buckets], [
        (mode, [by_mode[mode].get(bucket, []) for bucket in buckets]) for mode in modes
    ]


def _chart(
    along: Axis, starts: Sequence[int], series: list[Series], chart_id: str, title: str, description: str, unit: str
) -> Chart:
    scale = 1 if along.by == "step" else 1_000_000
    return Chart(
        chart_id, title, description, unit, along.by, [start / scale for start in starts], along.width / scale, series
    )
