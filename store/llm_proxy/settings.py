"""Settings of a proxy between agents and backends, which are model servers: time limits, retries and sizes."""

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
        Invalid: a number is negative or not finite, or `on_ended` has an unknown value.
    """

    num_retries: int = 2
    """The maximum number of retries of a call after a failed connection, a 5xx, or a 429 with `Retry-After`.

    A call is never retried after a part of the backend's response has been sent to the client.
    """
    connect_seconds: float = 5.0
    """The time limit of one connection attempt."""
    silence_seconds: float = 600.0
    """The maximum time for which a backend may send nothing.

    After this time, the call ends with 504, or its connection is closed if the response has already begun.
    """
    wait_seconds: float = 60.0
    """The maximum time that a call waits for a paused backend or because of a rate limit.

    A call that would have to wait longer ends with 503 for a pause, and with 429 for a rate limit.
    """
    grace_seconds: float = 10.0
    """The time after `stop` in which calls in flight may end. The other calls are then aborted."""
    on_ended: OnEnded = "refuse"
    """The handling of a call whose attempt has ended or does not exist.

    With `refuse`, the proxy answers with 409. With `forward`, the proxy forwards the call and records no span.
    """
    max_recorded_bytes: int = 4 * _MEBIBYTE
    """The maximum size of the prompt in a span, and also the maximum size of the response.

    An attribute of the span names the part that was too long.
    """
    max_request_bytes: int = 64 * _MEBIBYTE
    """The maximum size of a request's body."""
    cache_bytes: int = 0
    """The maximum size of the cache of responses at temperature 0; 0 disables the cache.

    A cached response is sent if a later request is equal.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise Invalid(field.name, f"{value!r} is neither 0 nor a positive number")
        if self.on_ended not in {"refuse", "forward"}:
            raise Invalid("on_ended", f"{self.on_ended!r} is neither 'refuse' nor 'forward'")
