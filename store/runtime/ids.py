"""Generators of ids in the form of Agent-lightning 0.3: a prefix of two letters, then lowercase hex. Decision 13.

Ids of rollouts increase with time, so that the rows of active rollouts are adjacent in every table and index. An id may
exist already, because ids have random digits. So before a caller inserts an id, it must check that the id does not
exist. If the id exists, the caller must generate another id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Lock

__all__ = [
    "Rising",
    "artifact_id",
    "attempt_id",
    "call_key",
    "checkpoint_id",
    "resources_id",
    "rising",
    "rollout_id",
    "span_id",
    "trace_id",
]

# Of the 48 bits, 36 count ticks of 2²⁴ ns, which wrap after 36 years, and 12 are random.
_TICK_BITS = 24
_RANDOM_BITS = 12
_BITS = 48


class Rising:
    """Generator of 48-bit numbers that increase with time until they wrap, also across several processes."""

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
        self._now = now
        self._last = 0
        self._lock = Lock()

    def draw(self) -> int:
        """Return the next number."""
        random_bits = int.from_bytes(os.urandom(2))
        by_clock = (self._now() >> _TICK_BITS) << _RANDOM_BITS | random_bits & ((1 << _RANDOM_BITS) - 1)
        with self._lock:
            # In a burst of calls, the numbers run ahead of the clock and would lose their random bits. So the size of
            # a step is random too, which makes equal numbers in two processes unlikely.
            self._last = max(self._last + 1 + (random_bits >> _RANDOM_BITS), by_clock)
            return self._last & ((1 << _BITS) - 1)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, because another thread of the parent may have held it during the fork."""
        self._lock = Lock()


rising = Rising()
_rising_keys = Rising()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=rising.renew_lock)
    os.register_at_fork(after_in_child=_rising_keys.renew_lock)


def rollout_id() -> str:
    """Return `ro-` and 12 hex digits. In one process, each id is greater than the id before it."""
    return f"ro-{rising.draw():012x}"


def attempt_id() -> str:
    """Return `at-` and 8 hex digits. Two rollouts may have attempts with the same id."""
    return "at-" + os.urandom(4).hex()


def resources_id() -> str:
    """Return `rs-` and 12 hex digits."""
    return "rs-" + os.urandom(6).hex()


def checkpoint_id() -> str:
    """Return `cp-` and 12 hex digits. Two rollouts may have checkpoints with the same id."""
    return "cp-" + os.urandom(6).hex()


def artifact_id() -> str:
    """Return `ar-` and 12 hex digits. Two rollouts may have artifacts with the same id."""
    return "ar-" + os.urandom(6).hex()


def call_key() -> str:
    """Return an idempotency key: 12 hex digits that increase with time, and 20 random hex digits.

    Keys drawn at about the same time are adjacent in the table `idempotency`, so a batch of calls changes few pages
    of the table. With 80 random bits, no check for an existing key is needed.
    """
    return f"{_rising_keys.draw():012x}{os.urandom(10).hex()}"


def trace_id() -> str:
    """Return 32 hex digits, not all zero, as OpenTelemetry requires."""
    return _nonzero(16)


def span_id() -> str:
    """Return 16 hex digits, not all zero, as OpenTelemetry requires."""
    return _nonzero(8)


def _nonzero(size: int) -> str:
    while not any(random_bytes := os.urandom(size)):
        continue
    return random_bytes.hex()
