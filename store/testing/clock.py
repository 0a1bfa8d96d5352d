"""A clock for tests."""

from __future__ import annotations

from threading import Lock

from store.runtime.clock import MICROSECONDS, to_micros, to_seconds

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that only moves when a test moves it. Calling it returns the time in integer microseconds.

    Any thread may read and move it. It starts in June 2025.
    """

    def __init__(self, start: int = 1_750_000_000 * MICROSECONDS) -> None:
        self._now = start
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> int:
        """Move the clock by a number of seconds, back if negative, and return the new time in microseconds."""
        with self._lock:
            self._now += to_micros(seconds)
            return self._now

    def move_to(self, seconds: float) -> int:
        """Set the clock to a time of the API, in seconds since the epoch, and return it in microseconds."""
        with self._lock:
            self._now = to_micros(seconds)
            return self._now

    @property
    def seconds(self) -> float:
        """The time in the unit of the API: seconds since the epoch."""
        return to_seconds(self())
