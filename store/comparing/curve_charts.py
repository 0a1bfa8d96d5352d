"""Charts of rollouts: curves with means, bands and quantiles, and a histogram of rewards.

A bucket is a range of the horizontal axis of a curve, which is a range of training steps or of time. A bin is a range
of rewards. A cell contains the sums over all rollouts of one line, bucket and bin. A line belongs to a mode, or to a
mode and a version of resources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from store.db.queries.curves import Axis, Cell
from store.models.missing_rewards import MissingReward, RewardShare

MOST_VALUES: Final = 12
"""With at most this many distinct rewards, each reward has its own bin. With more, each bin is a range."""
MOST_BINS: Final = 32
Z95: Final = 1.959963984540054
"""The number of standard errors on each side of a mean in a band of 95 %."""
_OUTLYING: Final = 3.0
_ORDER: Final = ("train", "val", "test")

Numbers = list[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. Each list has one value per bucket; None stands for an unknown value."""

    mode: str | None
    count: list[int]
    """The number of rollouts in each `mean`; in charts of tokens and costs, the number of model calls."""
    mean: Numbers
    """The mean in each bucket; None for an empty bucket. A mean of rewards is of the recorded rewards.

    In charts of tokens and costs, it is the sum.
    """
    low: Numbers = field(default_factory=list[float | None])
    """The 10th percentile. This list, `median` and `high` are empty in charts that show only means."""
    median: Numbers = field(default_factory=list[float | None])
    high: Numbers = field(default_factory=list[float | None])
    """The 90th percentile."""
    version: int | None = None
    """The version of resources; None if the lines of the chart are not separated by version."""
    ended: list[int] = field(default_factory=list[int])
    """The number of rollouts that have ended."""
    rewarded: list[int] = field(default_factory=list[int])
    """The number of ended rollouts with a reward. This list and the following are empty in other charts."""
    counted: list[int] = field(default_factory=list[int])
    """The number of rollouts in each `mean_counted`."""
    mean_counted: Numbers = field(default_factory=list[float | None])
    """The mean of the rewards of ended rollouts, in which those without a reward count as the request says."""
    band_low: Numbers = field(default_factory=list[float | None])
    """The lower end of the 95 % interval of `mean_counted`; None for fewer than two rollouts."""
    band_high: Numbers = field(default_factory=list[float | None])
    part: list[int] = field(default_factory=list[int])
    """In a chart of shares, the number of rollouts of which `mean` is the share; empty in most other charts.

    In the chart of costs, it is the number of calls with a known cost.
    """


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
    noun: str = "rollouts"
    """The noun for the numbers in `count`: `rollouts`, or `calls` in charts of tokens and costs."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A point of the axis at which something changed: a version of resources was first used, or a note was written."""

    at: float
    """The number of a step, or a time in seconds since the epoch."""
    label: str
    title: str
    resources_id: str | None = None
    version: int | None = None
    rollout_id: str | None = None
    """The rollout of a note."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A bar of the histogram; both bounds are included."""

    least: float
    greatest: float
    label: str
    count: int
    low: float
    """The lower edge."""
    high: float
    """The upper edge, which does not belong to the bin. It is equal to `low` if the bin is one value."""


def edges_for(sample: Sequence[float]) -> list[float]:
    """Return the edges of the bins: the distinct values if there are few of them, otherwise round numbers.

    The first and the last bin also count the outliers.
    """
    ordered = sorted(sample)
    distinct = sorted(set(ordered))
    if len(distinct) <= MOST_VALUES:
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
    if len(edges) <= MOST_VALUES and all(least[index] == greatest[index] for index in counts):
        return [
            Bin(least[index], least[index], f"{least[index]:.6g}", counts[index], least[index], least[index])
            for index in sorted(counts)
        ]
    indexes = range(min(counts), max(counts) + 1)
    return [_bar(index, counts.get(index, 0), least.get(index), greatest.get(index), edges) for index in indexes]


def _bar(index: int, count: int, least: float | None, greatest: float | None, edges: Sequence[float]) -> Bin:
    """Return the bar of a range. The first and the last bin may have no edge on one side, and end with their values."""
    width = edges[1] - edges[0] if len(edges) > 1 else 1.0
    low = edges[index - 1] if index else min(least if least is not None else edges[0], edges[0] - width)
    # The upper edge does not belong to the bin, so the last bin ends above its greatest value.
    end = max(edges[-1] + width, math.nextafter(greatest, math.inf) if greatest is not None else -math.inf)
    high = edges[index] if index < len(edges) else end
    return Bin(low, math.nextafter(high, -math.inf), f"{low:.6g} to {high:.6g}", count, low, high)


Group = list[Cell]
Measure = Callable[[Group], float | None]
Line = tuple[str | None, int | None]


def reward_chart(
    along: Axis, cells: Sequence[Cell], missing: MissingReward, chart_id: str, title: str, centre: float = 0.0
) -> Chart:
    """Return the chart of the mean rewards, with their bands, medians and 10th and 90th percentiles.

    Args:
        along: the axis.
        cells: the cells of the rewards.
        missing: how ended rollouts without a reward count in `mean_counted`.
        chart_id: the id of the chart on its page.
        title: the title of the chart.
        centre: the centre of the source of the cells.
    """
    starts, groups = _grouped(along, cells)
    series: list[Series] = []
    for (mode, version), buckets in groups:
        rewarded = [[cell for cell in group if cell.bin is not None] for group in buckets]
        means = [counted_mean(group, missing, centre) for group in buckets]
        series.append(
            Series(
                mode,
                [sum(cell.rollouts for cell in group) for group in rewarded],
                [_mean_reward(group) for group in rewarded],
                [quantile(group, 0.1) for group in rewarded],
                [quantile(group, 0.5) for group in rewarded],
                [quantile(group, 0.9) for group in rewarded],
                version,
                ended=[mean.share.ended for mean in means],
                rewarded=[mean.share.rewarded for mean in means],
                counted=[mean.counted for mean in means],
                mean_counted=[mean.mean for mean in means],
                band_low=[mean.interval[0] if mean.interval else None for mean in means],
                band_high=[mean.interval[1] if mean.interval else None for mean in means],
            )
        )
    return _chart(along, starts, series, chart_id, title, f"mean, {missing.label}, with its 95 % interval", "")


@dataclass(frozen=True, slots=True)
class CountedMean:
    """A mean of rewards in which ended rollouts without a reward may count."""

    share: RewardShare
    counted: int
    """The number of rollouts in the mean."""
    mean: float | None
    deviation: float | None
    """The standard deviation of the sample; None for fewer than two rollouts."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, from the normal distribution; None for fewer than two rollouts."""
        if self.mean is None or self.deviation is None:
            return None
        half = Z95 * self.deviation / math.sqrt(self.counted)
        return self.mean - half, self.mean + half


def counted_mean(group: Iterable[Cell], missing: MissingReward, centre: float = 0.0) -> CountedMean:
    """Return the mean of the rewards in some cells. `centre` is the centre of the source of the cells."""
    rewarded = ended = substituted = 0
    total = squares = 0.0
    for cell in group:
        ended += cell.ended
        if not cell.is_ended:
            continue
        if cell.bin is not None:
            rewarded += cell.rollouts
            total += cell.reward_sum or 0.0
            squares += cell.reward_squares or 0.0
        elif missing.substituted != "out":
            substituted += cell.failed if missing.substituted == "failed" else cell.rollouts
    count = rewarded + substituted
    share = RewardShare(rewarded, ended)
    if not count:
        return CountedMean(share, 0, None, None)
    mean = (total + substituted * missing.value) / count
    squares += substituted * (missing.value - centre) ** 2
    deviation = None
    if count > 1:
        variance = (squares - count * (mean - centre) ** 2) / (count - 1) if abs(mean) < 1e140 else math.inf
        deviation = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else None
    return CountedMean(share, count, mean, deviation)


def other_charts(along: Axis, cells: Sequence[Cell]) -> list[Chart]:
    """Return the charts of length, duration and failures, which show only means. A chart without a value is left out.

    The means are of rollouts that ended. Length is of those with known usage.
    """
    starts, groups = _grouped(along, cells)

    def lines(count: Callable[[Cell], int], measure: Measure) -> list[Series]:
        return [
            Series(
                mode,
                [sum(map(count, group)) for group in buckets],
                [measure(group) for group in buckets],
                version=version,
                ended=[sum(cell.ended for cell in group) for group in buckets],
            )
            for (mode, version), buckets in groups
        ]

    def measured(cell: Cell) -> int:
        return cell.measured if cell.is_ended else 0

    def tokens(group: Group) -> float | None:
        return _share(sum(cell.tokens_out for cell in group if cell.is_ended), sum(map(measured, group)))

    def seconds(group: Group) -> float | None:
        ended = [cell for cell in group if cell.is_ended]
        return _share(sum(cell.seconds for cell in ended), sum(cell.rollouts for cell in ended))

    def failures(group: Group) -> float | None:
        failed = sum(cell.failed for cell in group)
        return _share(failed, failed + sum(cell.succeeded for cell in group))

    shapes: tuple[tuple[str, str, str, str, list[Series]], ...] = (
        ("length", "Length", "tokens out, mean of ended with usage", "tokens", lines(measured, tokens)),
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
        _chart(along, starts, series, key, title, description, unit)
        for key, title, description, unit, series in shapes
        if any(value is not None for line in series for value in line.mean)
    ]


def line_order(line: Line) -> tuple[int, int]:
    """Return the place of a line in the legend: by mode, then by version."""
    mode, version = line
    return _ORDER.index(mode) if mode in _ORDER else len(_ORDER), version or 0


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


def _grouped(along: Axis, cells: Iterable[Cell]) -> tuple[list[int], list[tuple[Line, list[Group]]]]:
    """Return the starts of the buckets that are not empty and, for each line, the cells in each of these buckets."""
    by_line: dict[Line, dict[int, Group]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        by_line[cell.mode, cell.version][cell.bucket].append(cell)
    buckets = sorted({bucket for groups in by_line.values() for bucket in groups})

    return [along.low(bucket) for bucket in buckets], [
        (line, [by_line[line].get(bucket, []) for bucket in buckets]) for line in sorted(by_line, key=line_order)
    ]


def _chart(
    along: Axis, starts: Sequence[int], series: list[Series], chart_id: str, title: str, description: str, unit: str
) -> Chart:
    scale = 1 if along.by == "step" else 1_000_000
    return Chart(
        chart_id, title, description, unit, along.by, [start / scale for start in starts], along.width / scale, series
    )
