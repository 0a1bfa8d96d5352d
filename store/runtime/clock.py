"""Clock in the log's unit: integer microseconds since the epoch."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["MICROSECONDS", "Clock", "system_clock", "to_micros", "to_seconds"]

MICROSECONDS = 1_000_000
"""Microseconds per second."""


class Clock(Protocol):
    """A source of the current time. It may stop or go back, because the writer's timestamps never decrease anyway."""

    def __call__(self) -> int:
        """Return microseconds since the epoch."""
        ...


def system_clock() -> int:
    """Return the machine's wall clock."""
    return time.time_ns() // 1_000


def to_seconds(micros: int) -> float:
    """Return a timestamp of the log as the API's float seconds, which keep microseconds distinct until 2106."""
    return micros / MICROSECONDS


def to_micros(seconds: float) -> int:
    """Return float seconds as the nearest stamp; `to_micros(to_seconds(stamp)) == stamp` until 2106."""
    return round(seconds * MICROSECONDS)
