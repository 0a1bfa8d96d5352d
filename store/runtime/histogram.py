"""Histogram: counts of values by upper bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by upper bound.

    Only one thread may add values. A reader in another thread may see a new value in `counts` before `total` contains
    the value.

    Args:
        bounds: the upper bounds in ascending order. Values above the last bound are counted too.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """For each bound, the number of values up to this bound and above the bound before.

        The last item is the number of values above all bounds.
        """
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
