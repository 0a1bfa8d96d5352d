"""Reward, share of failures and length by training step, as three panels of one drawing with a common x axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from store.dashboard.views.step_figures import StepFigures, VersionStart

_LEFT: Final = 40
_RIGHT: Final = 8
_REWARD: Final = (24.0, 190.0)
"""The upper and the lower end of the panel of rewards, in SVG units."""
_FAILURES: Final = (226.0, 262.0)
_LENGTH: Final = (298.0, 334.0)
HEIGHT: Final = 356
_TICKS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_ENDS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LABEL_SPACE: Final = 56
"""The least distance between two labels of the x axis."""

Place = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    """The place, in SVG units."""
    value: float


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A curve: the path of an SVG element, and its meaning."""

    kind: str
    """`main` and `other` for the rewards that count and the other way to count; `val` for other modes; `length`."""
    label: str
    path: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in SVG units."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class StepColumn:
    """The part of the drawing that belongs to one step."""

    area: Box
    failures: Box | None
    """The bar of the share of failures; None if no rollout failed."""
    dot: tuple[float, float] | None
    """The place of the mean reward; None without rewards."""
    figures: StepFigures


@dataclass(frozen=True, slots=True)
class VersionMarker:
    """The first step of a version of resources."""

    x: float
    label_x: float
    start: VersionStart


@dataclass(frozen=True, slots=True)
class StepChart:
    """The drawing of a given width. All places are SVG units."""

    width: int
    height: int
    left: int
    right: int
    x_ticks: list[Tick]
    reward_ticks: list[Tick]
    most_failed: float
    """The share of failures at the upper end of its panel."""
    most_length: float | None
    """The number of tokens at the upper end of its panel; None if no length is known."""
    failures_at: tuple[float, float]
    length_at: tuple[float, float]
    band: str
    """The path around the 95 % intervals."""
    lines: list[ChartLine]
    columns: list[StepColumn]
    markers: list[VersionMarker]


def step_chart(
    main: Sequence[StepFigures],
    other: Sequence[StepFigures],
    beside: Sequence[tuple[str, Sequence[StepFigures]]],
    versions: Sequence[VersionStart],
    *,
    width: int,
    labels: tuple[str, str],
) -> StepChart:
    """Return the drawing of the figures of steps.

    Args:
        main: the figures by step of the mode that counts, which the panels of failures and length show too.
        other: the same steps with the other way to count failed rollouts.
        beside: the labels and the figures by step of other modes.
        versions: the first steps of versions.
        width: the width in SVG units.
        labels: the labels of `main` and `other`.
    """
    every = [*main, *(one for _, figures in beside for one in figures)]
    firsts, lasts = [one.step or 0 for one in every], [one.last_step or 0 for one in every]
    low, high = min(firsts), max(firsts)
    along = _scale(low, high, _LEFT + 10, width - _RIGHT - 10)
    ends = [(one.mean, one.half_width or 0.0) for one in (*every, *other) if one.mean is not None]
    values = [mean + side * half_width for mean, half_width in ends for side in (-1, 1)]
    least, greatest = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (greatest - least) or 0.5
    upright = _scale(least - room, greatest + room, _REWARD[1], _REWARD[0])
    ticks = _ticks(least - room, greatest + room, 5)
    lengths = [one.length for one in main if one.length is not None]
    most_length = _rounded_up(max(lengths)) if lengths else None
    most_failed = min(1.0, _rounded_up(max((one.failure_rate or 0.0 for one in main), default=0.0) or 0.1))
    reach = (width - _LEFT - _RIGHT) / max(1, (max(lasts) - low) // max(1, lasts[0] - firsts[0] + 1) + 1)

    steps = _ticks(low, high, max(1, (width - _LEFT) // _LABEL_SPACE))
    lines = [
        ChartLine("other", labels[1], _path(other, along, upright, lambda one: one.mean)),
        *(ChartLine("val", label, _path(figures, along, upright, lambda one: one.mean)) for label, figures in beside),
        ChartLine("main", labels[0], _path(main, along, upright, lambda one: one.mean)),
    ]
    if most_length is not None:
        lengthwise = _scale(0.0, most_length, _LENGTH[1], _LENGTH[0])
        lines.append(ChartLine("length", "length", _path(main, along, lengthwise, lambda one: one.length)))
    return StepChart(
        width,
        HEIGHT,
        _LEFT,
        width - _RIGHT,
        [Tick(round(along(value), 1), value) for value in steps if value == int(value)],
        [Tick(round(upright(value), 1), value) for value in ticks],
        most_failed,
        most_length,
        _FAILURES,
        _LENGTH,
        _band(main, along, upright),
        lines,
        list(
            _columns(
                main,
                along,
                upright,
                _scale(0.0, most_failed, _FAILURES[1], _FAILURES[0]),
                reach,
                (_LEFT, width - _RIGHT),
            )
        ),
        [
            VersionMarker(round(x, 1), round(min(max(x, 18.0), width - 18.0), 1), start)
            for start in versions
            if low <= start.step <= high
            for x in (along(start.step),)
        ],
    )


def _scale(low: float, high: float, start: float, end: float) -> Place:
    if high <= low:
        return lambda _: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers within a range, about `most` of them."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in _TICKS if power * factor * most >= span * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _rounded_up(value: float) -> float:
    """Return the next greater round number of a number greater than 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(power * factor for factor in _ENDS if power * factor >= value * 0.999):.12g}")


def _path(
    steps: Sequence[StepFigures], along: Place, upright: Place, value: Callable[[StepFigures], float | None]
) -> str:
    """Return the path through the values of adjacent steps; a step without a value interrupts it."""
    parts: list[str] = []
    is_begun = False
    for one in steps:
        amount = value(one)
        if amount is None:
            is_begun = False
            continue
        parts.append(f"{'L' if is_begun else 'M'}{along(one.step or 0):.1f} {upright(amount):.1f}")
        is_begun = True
    return "".join(parts)


def _band(steps: Sequence[StepFigures], along: Place, upright: Place) -> str:
    parts: list[str] = []
    for one, following in pairwise(steps):
        if one.mean is None or one.half_width is None or following.mean is None or following.half_width is None:
            continue
        left, right = along(one.step or 0), along(following.step or 0)
        parts.append(
            f"M{left:.1f} {upright(one.mean + one.half_width):.1f}"
            f"L{right:.1f} {upright(following.mean + following.half_width):.1f}"
            f"L{right:.1f} {upright(following.mean - following.half_width):.1f}"
            f"L{left:.1f} {upright(one.mean - one.half_width):.1f}Z"
        )
    return "".join(parts)


def _columns(
    steps: Sequence[StepFigures], along: Place, upright: Place, share: Place, reach: float, ends: tuple[float, float]
) -> Iterator[StepColumn]:
    for one in steps:
        x = along(one.step or 0)
        wide = max(1.0, min(reach * 0.6, 24.0))
        top = share(one.failure_rate or 0.0)
        failures = Box(round(x - wide / 2, 1), round(top, 1), round(wide, 1), round(_FAILURES[1] - top, 1))
        dot = None if one.mean is None else (round(x, 1), round(upright(one.mean), 1))
        left, right = max(x - reach / 2, ends[0]), min(x + reach / 2, ends[1])
        area = Box(round(left, 1), _REWARD[0], round(max(right - left, 2.0), 1), _LENGTH[1] - _REWARD[0])
        yield StepColumn(area, failures if one.failed else None, dot, one)
