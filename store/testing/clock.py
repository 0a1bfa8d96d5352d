"""A clock that tests move."""

from __future__ import annotations

from threading import Lock

from store.runtime.clock import MICROSECONDS, to_micros, to_seconds

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that only moves when a test moves it. Its times count from the Unix epoch.

    A call of the object returns the time in integer microseconds. Any thread may read and move the clock. By default,
    the clock starts in June 2025.
    """

    def __init__(self, start: int = 1_750_000_000 * MICROSECONDS) -> None:
        self._now = start
        self._elapsed = 0
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> int:
        """Let a number of seconds pass, and return the new time in microseconds.

        A negative number moves the clock back, and no time passes.
        """
        with self._lock:
            return self._pass_until(self._now + to_micros(seconds))

    def move_to(self, seconds: float) -> int:
        """Let time pass until a time in seconds since the Unix epoch, and return this time in microseconds.

        An earlier time moves the clock back, and no time passes.
        """
        with self._lock:
            return self._pass_until(to_micros(seconds))

    def jump(self, seconds: float) -> int:
        """Move the clock forward or back while no time passes, and return the new time in microseconds."""
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
        """The time in seconds since the Unix epoch, the unit of times in the store's API."""
        return to_seconds(self())
