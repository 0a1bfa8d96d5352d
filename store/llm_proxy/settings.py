"""Settings of a proxy: time limits, retries and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from store.errors import Invalid
from store.llm_proxy.recorder import OnEnded

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Settings of a proxy. Durations are in seconds, and sizes are in bytes.

    Raises:
        Invalid: a value is negative or not a number.
    """

    num_retries: int = 2
    """The number of retries after a failed connection, a 5xx, or a 429 with `Retry-After`.

    A call is never repeated after the backend has begun to respond.
    """
    connect_seconds: float = 5.0
    """The time limit of one connection attempt."""
    silence_seconds: float = 600.0
    """The time without a byte from a backend after which the call ends with 504."""
    wait_seconds: float = 60.0
    """The longest wait for a paused backend or because of a rate limit.

    After this time, the call ends with 503 or 429.
    """
    grace_seconds: float = 10.0
    """The time after `stop` within which calls in flight may still end."""
    on_ended: OnEnded = "refuse"
    """The handling of calls for an attempt that has ended or does not exist: refuse with 409, or forward without a
    span.
    """
    max_recorded_bytes: int = 4 * _MEBIBYTE
    """The maximum size of a prompt, and of a response, in a span. The span states which part was too long."""
    max_request_bytes: int = 64 * _MEBIBYTE
    """The maximum size of a request's body."""
    cache_bytes: int = 0
    """The size of the cache of responses to equal requests at temperature 0; 0 disables the cache."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                continue
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise Invalid(each.name, f"{value!r} is neither 0 nor a positive number")
        if self.on_ended not in {"refuse", "forward"}:
            raise Invalid("on_ended", f"{self.on_ended!r} is neither 'refuse' nor 'forward'")
