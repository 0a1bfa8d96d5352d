"""How many calls may start over time."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Lets `per_second` calls start over time and `burst` at once; who comes too early is told how long to wait.

    Places are given away in the order in which they are asked for. Safe under one lock, or in one thread.
    """

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._tokens = float(burst)
        self._at = now()

    def take(self, longest: float) -> tuple[bool, float]:
        """Take the next place, unless it is further away than `longest` seconds.

        Returns:
            Whether the place was taken, and how far away it is, in seconds.
        """
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        wait = max(0.0, (1 - self._tokens) / self._per_second)
        if wait > longest:
            return False, wait
        self._tokens -= 1
        return True, wait

    def give_back(self) -> None:
        """Return a place that was not used."""
        self._tokens = min(self._burst, self._tokens + 1)
