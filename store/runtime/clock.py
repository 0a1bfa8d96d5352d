"""Clock in the time unit of the log: integer microseconds since the Unix epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["MICROSECONDS", "Clock", "elapsed_of", "system_clock", "to_micros", "to_seconds"]

MICROSECONDS = 1_000_000
"""Microseconds per second."""


class Clock(Protocol):
    """A source of the current time.

    A clock may stop or go back. Timestamps in the log increase anyway: every timestamp is greater than the timestamp
    before.
    """

    def __call__(self) -> int:
        """Return the current time in microseconds since the Unix epoch."""
        ...


def system_clock() -> int:
    """Return the time of the machine's wall clock."""
    return time.time_ns() // 1_000


def elapsed_of(clock: Clock | None) -> Callable[[], int]:
    """Return a function for the elapsed time in nanoseconds. Changes of the wall clock do not affect this time.

    Args:
        clock: a clock. If it has a method `elapsed`, this method returns the elapsed time in microseconds. Otherwise
            the time of the clock is used as the elapsed time. If it is None, the system's monotonic clock is used.
    """
    if clock is None:
        return time.monotonic_ns
    elapsed: Clock = getattr(clock, "elapsed", clock)
    return lambda: elapsed() * 1_000


def to_seconds(micros: int) -> float:
    """Return a timestamp of the log in float seconds, which are the unit of the API.

    The floats of different microseconds are different until the year 2106.
    """
    return micros / MICROSECONDS


def to_micros(seconds: float) -> int:
    """Return float seconds as integer microseconds, rounded to the nearest integer.

    Until the year 2106, `to_micros(to_seconds(stamp)) == stamp`.
    """
    return round(seconds * MICROSECONDS)
