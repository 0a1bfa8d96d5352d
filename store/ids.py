"""Fresh ids, in the form of Agent-lightning 0.3: a prefix of two letters, then uniformly random lowercase hex.

An id may still be taken (48 random bits collide among ten million with a probability of 16 %), so whoever writes one
looks it up first and draws again.
"""

from __future__ import annotations

import os

__all__ = ["attempt_id", "resources_id", "rollout_id", "span_id", "trace_id"]


def rollout_id() -> str:
    """Return `ro-` and 12 hex digits."""
    return "ro-" + os.urandom(6).hex()


def attempt_id() -> str:
    """Return `at-` and 8 hex digits, enough for the few attempts of one rollout."""
    return "at-" + os.urandom(4).hex()


def resources_id() -> str:
    """Return `rs-` and 12 hex digits."""
    return "rs-" + os.urandom(6).hex()


def trace_id() -> str:
    """Return 32 hex digits, not all zero: OpenTelemetry's form."""
    return _nonzero(16)


def span_id() -> str:
    """Return 16 hex digits, not all zero: OpenTelemetry's form."""
    return _nonzero(8)


def _nonzero(size: int) -> str:
    while not any(drawn := os.urandom(size)):
        continue
    return drawn.hex()
