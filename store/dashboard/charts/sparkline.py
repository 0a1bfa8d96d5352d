"""Small curves without axes, which show where along the training steps something happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WIDTH: Final = 120
HEIGHT: Final = 24
_MOST_POINTS: Final = 60


def sparkline(counts: Mapping[int, int], first: int, last: int) -> str:
    """Return the SVG path of a curve of counts by step, `WIDTH` by `HEIGHT` units, from the step `first` to `last`.

    A step without a count is drawn as 0. Several adjacent steps share a point if there are many.
    """
    steps = last - first + 1
    width = max(1, -(-steps // _MOST_POINTS))
    sums = [0] * -(-steps // width)
    for step, count in counts.items():
        if first <= step <= last:
            sums[(step - first) // width] += count
    most = max(sums, default=0) or 1
    along = (WIDTH - 2) / max(1, len(sums) - 1)
    return "".join(
        f"{'L' if number else 'M'}{1 + number * along:.1f} {HEIGHT - 1 - count / most * (HEIGHT - 3):.1f}"
        for number, count in enumerate(sums)
    )
