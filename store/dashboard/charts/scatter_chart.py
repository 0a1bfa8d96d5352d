"""The drawing of a scatter plot: places of points, ticks of the axes, and the box."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.comparing.scattering import OUTCOMES
from store.models.exploring import Scatter, ScatterBox, ScatterPoint

WIDTH: Final = 960
HEIGHT: Final = 420
LEFT: Final = 64
RIGHT: Final = 944
TOP: Final = 12
BOTTOM: Final = 384
MOST_COLOURS: Final = 6
OTHERS: Final = "others"
"""The label of the points of rare colours, if there are more than `MOST_COLOURS`."""
SHAPES: Final = ("dot", "cross", "square", "triangle", "plus", "diamond")
"""The shapes of points, one per colour, so that groups differ without their colours."""
_OUTLINES: Final = {
    "dot": "h0",
    "cross": "m-4-4l8 8m0-8l-8 8",
    "square": "m-4-4h8v8h-8z",
    "triangle": "m0-5l5 9h-10z",
    "plus": "m-5 0h10m-5-5v10",
    "diamond": "m0-5l5 5l-5 5l-5-5z",
}
"""The paths of shapes, relative to the place of the point. A dot is a line without length, with round ends."""
_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A linear axis from a lowest value at the place `start` to a highest value at the place `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> LinearScale:
        """Return the scale that shows all values with some room at both ends."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = (high / 2 - low / 2) * 0.06 or abs(low) * 0.1 or 1.0
        return cls(max(low - room, -1.7e308), min(high + room, 1.7e308), start, end)

    def at(self, value: float) -> float:
        """Return the place of a value. Values outside of the axis are at its ends."""
        # Halves, because a difference of large numbers could overflow.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, float]]:
        """Return the places and the values of round numbers on the axis."""
        step = (self.high / 2 - self.low / 2) / (_TICKS / 2)
        if not 1e-300 < step < 1e300:
            return [(self.start, self.low), (self.end, self.high)]
        power = 10.0 ** math.floor(math.log10(step))
        width = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * 0.999)
        first, last = math.ceil(self.low / width), math.floor(self.high / width)
        values = [float(f"{number * width:.12g}") for number in range(first, min(last, first + 20) + 1)]
        return [(self.at(value), value) for value in values]


@dataclass(frozen=True, slots=True)
class PointGroup:
    """The points with one colour."""

    label: str | None
    """None if the points are not coloured."""
    count: int
    series: str
    """The number of the colour, from 1; the outcome if points are coloured by status."""
    shape: str
    """One of `SHAPES`."""
    path: str
    """The outlines of the points."""

    @property
    def legend_path(self) -> str:
        """The outline of one point for the legend, in a square of 12 units."""
        return f"M6 6{_OUTLINES[self.shape]}"


@dataclass(frozen=True, slots=True)
class ScatterChart:
    """A scatter plot. All places are SVG units."""

    x: LinearScale
    y: LinearScale
    groups: list[PointGroup]
    box: tuple[float, float, float, float] | None
    """The left and upper end, the width and the height of the box."""
    places: list[tuple[float, float, str, float, float, str]]
    """The place of each point, its rollout id, its numbers, and its colour or an empty text."""


def scatter_chart(scatter: Scatter) -> ScatterChart:
    """Return the drawing of a scatter plot."""
    x = LinearScale.over([point.x for point in scatter.points], LEFT, RIGHT)
    y = LinearScale.over([point.y for point in scatter.points], BOTTOM, TOP)
    by_label: defaultdict[str | None, list[ScatterPoint]] = defaultdict(list)
    for point in scatter.points:
        by_label[point.colour].append(point)
    most = sorted(by_label, key=lambda label: (-len(by_label[label]), label or ""))
    if len(most) > MOST_COLOURS:
        rare = [point for label in most[MOST_COLOURS - 1 :] for point in by_label.pop(label)]
        by_label[OTHERS] = rare
    labels = sorted(by_label, key=lambda label: (label == OTHERS, len(label or ""), label or ""))
    series: dict[str | None, tuple[str, str]] = {
        label: (str(number), SHAPES[number - 1]) for number, label in enumerate(labels, 1)
    }
    if scatter.colour == "status":
        # An outcome has the same colour and shape in all plots.
        labels = [outcome for outcome in OUTCOMES if outcome in by_label]
        series = {outcome: (outcome, SHAPES[OUTCOMES.index(outcome)]) for outcome in OUTCOMES}
    return ScatterChart(
        x,
        y,
        [
            PointGroup(
                label,
                len(by_label[label]),
                *series[label],
                "".join(
                    f"M{x.at(point.x):g} {y.at(point.y):g}{_OUTLINES[series[label][1]]}" for point in by_label[label]
                ),
            )
            for label in labels
        ],
        None if scatter.box is None else box_place(scatter.box, x, y),
        [
            (x.at(point.x), y.at(point.y), point.rollout_id, point.x, point.y, point.colour or "")
            for point in scatter.points
        ],
    )


def box_place(box: ScatterBox, x: LinearScale, y: LinearScale) -> tuple[float, float, float, float]:
    """Return the left and upper end, the width and the height of a box. A missing bound is an end of the axis."""
    left, right = (
        scale_end if bound is None else x.at(bound) for bound, scale_end in ((box.x_min, LEFT), (box.x_max, RIGHT))
    )
    lower, upper = (
        scale_end if bound is None else y.at(bound) for bound, scale_end in ((box.y_min, BOTTOM), (box.y_max, TOP))
    )
    return left, upper, round(right - left, 1), round(lower - upper, 1)
