"""Rate limiter for calls."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Token bucket that lets at most `per_second` calls start per second on average, and at most `burst` calls at once.

    Any further call must reserve a later start, and wait for it. Reserved starts have the order of the reservations.
    The caller must use a bucket under one lock, or in one thread.
    """

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._tokens = float(burst)
        self._at = now()

    def take(self, longest: float) -> tuple[bool, float]:
        """Reserve the next start of a call, unless it is more than `longest` seconds away.

        Returns:
            Whether the start was reserved, and the seconds until the call may start.
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
        """Cancel a reservation that was not used."""
        self._tokens = min(self._burst, self._tokens + 1)
