"""A clock that tests move."""

from __future__ import annotations

from threading import Lock

from store.runtime.clock import MICROSECONDS, to_micros, to_seconds

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that moves only when a test moves it. Its times are microseconds since the Unix epoch.

    A call of the object returns the time as an integer. Any thread may read and move the clock. By default, the clock
    starts in June 2025.
    """

    def __init__(self, start: int = 1_750_000_000 * MICROSECONDS) -> None:
        self._now = start
        self._elapsed = 0
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> int:
        """Advance the clock by a number of seconds. Return the new time in microseconds.

        A negative number moves the clock back, and `elapsed` stays the same.
        """
        with self._lock:
            return self._pass_until(self._now + to_micros(seconds))

    def move_to(self, seconds: float) -> int:
        """Advance the clock to a time in seconds since the Unix epoch. Return the same time in microseconds.

        An earlier time moves the clock back, and `elapsed` stays the same.
        """
        with self._lock:
            return self._pass_until(to_micros(seconds))

    def jump(self, seconds: float) -> int:
        """Move the clock forward or back without changing `elapsed`. Return the new time in microseconds."""
        with self._lock:
            self._now += to_micros(seconds)
            return self._now

    def elapsed(self) -> int:
        """Return the time that has passed since the creation of the clock, in microseconds."""
        with self._lock:
            return self._elapsed

    def _pass_until(self, now: int) -> int:
        self._elapsed += max(0, now - self._now)
        self._now = now
        return now

    @property
    def seconds(self) -> float:
        """The time in seconds since the Unix epoch. The store's API uses this unit."""
        return to_seconds(self())
