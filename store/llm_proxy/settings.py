"""What a proxy is told about time, tries and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from store.errors import Invalid
from store.llm_proxy.recorder import OnEnded

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """How a proxy treats calls; durations in seconds, sizes in bytes.

    Raises:
        Invalid: a number is negative or none.
    """

    num_retries: int = 2
    """How often a call is sent again after a failed connection, a 5xx, or a 429 that says when to come back; never
    once the backend has begun to answer."""
    connect_seconds: float = 5.0
    """How long one connection may take."""
    silence_seconds: float = 600.0
    """How long a backend may send nothing at all before the call ends with 504."""
    wait_seconds: float = 60.0
    """How long a call waits for a paused backend, or for its place under a rate, before it ends with 503 or 429."""
    grace_seconds: float = 10.0
    """How long calls in flight may go on after `stop`."""
    on_ended: OnEnded = "refuse"
    """What happens to calls for an attempt that has ended or does not exist: 409, or an answer without a record."""
    max_recorded_bytes: int = 4 * _MEBIBYTE
    """The most of one prompt, and of one answer, that goes into a span; what is cut off is named in it."""
    max_request_bytes: int = 64 * _MEBIBYTE
    """The longest body a client may send."""
    cache_bytes: int = 0
    """How many bytes of answers are kept for equal requests at temperature 0; 0 keeps none."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                continue
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise Invalid(each.name, f"{value!r} is neither 0 nor a positive number")
        if self.on_ended not in {"refuse", "forward"}:
            raise Invalid("on_ended", f"{self.on_ended!r} is neither 'refuse' nor 'forward'")
