"""Counting how large or how long things were, in a fixed number of integers."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by upper bound.

    Written by one thread; who reads in another may see a value that is counted and not yet summed.

    Args:
        bounds: rising; what is beyond the last is counted too.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of values up to each bound, and, last, of those beyond."""
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
