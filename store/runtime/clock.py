"""What time it is, in the log's unit: integer microseconds since the epoch."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["MICROSECONDS", "Clock", "system_clock", "to_micros", "to_seconds"]

MICROSECONDS = 1_000_000
"""How many make a second."""


class Clock(Protocol):
    """Anything that tells the time; it may stand still or jump back, since the writer never stamps backwards."""

    def __call__(self) -> int:
        """Return microseconds since the epoch."""
        ...


def system_clock() -> int:
    """Return the machine's wall clock."""
    return time.time_ns() // 1_000


def to_seconds(micros: int) -> float:
    """Return a stamp of the log as the API gives it: float seconds, which tell microseconds apart until 2106."""
    return micros / MICROSECONDS


def to_micros(seconds: float) -> int:
    """Return float seconds as the nearest stamp; `to_micros(to_seconds(stamp)) == stamp` until 2106."""
    return round(seconds * MICROSECONDS)
