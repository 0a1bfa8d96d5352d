"""Retries of failed calls: the failures that are retried, the time limits, and the pauses between attempts."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from store.errors import Invalid, StoreError, TimedOut, Unavailable

RETRIED_STATUSES: Final = frozenset({502, 503, 504})
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Time limits of the attempts of a call."""

    retry_seconds: float = 30.0
    """The maximum time between the start of the first attempt and the start of a later attempt.

    For a long poll, this time begins at the first failure.
    """
    timeout_seconds: float = 15.0
    """The timeout of one attempt."""
    connect_seconds: float = 5.0
    """The timeout of connecting."""

    def __post_init__(self) -> None:
        for name in ("retry_seconds", "timeout_seconds", "connect_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise Invalid(name, f"{value!r} is not a number of seconds; give a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class RetryableFailure:
    """A failed attempt that may be repeated."""

    reason: str
    retry_after: float = 0.0
    """The shortest pause that the server accepts, in seconds."""
    error: StoreError | None = None
    """The error in the server's response; None for any other failure."""
    is_timeout: bool = False


class Attempts:
    """The attempts of one call."""

    def __init__(self, retries: Retries, operation: str, base: str, *, waits: bool) -> None:
        self._retries = retries
        self._operation = operation
        self._base = base
        self._since: float | None = None if waits else time.monotonic()
        self._began = time.monotonic()
        self._attempts = 0

    @property
    def timeout(self) -> float:
        """The timeout of the next attempt, in seconds."""
        if not self._attempts:
            return self._retries.timeout_seconds
        return min(self._retries.timeout_seconds, max(self._remaining_seconds, 0.1))

    @property
    def _remaining_seconds(self) -> float:
        if self._since is None:
            return self._retries.retry_seconds
        return self._since + self._retries.retry_seconds - time.monotonic()

    def pause_after(self, failure: RetryableFailure) -> float:
        """Return the pause before the next attempt, in seconds.

        Raises:
            StoreError: there is no time for another attempt. The error is the error that the server returned. If the
                server returned none, it is `TimedOut` or `Unavailable`.
        """
        if self._since is None:
            self._since = time.monotonic()
        # Exponential backoff with full jitter, so that clients of a restarted server do not retry at the same time.
        span = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._attempts)
        self._attempts += 1
        pause = max(random.uniform(0, span), failure.retry_after)
        if pause >= self._remaining_seconds:
            raise self._final_error(failure)
        return pause

    def _final_error(self, failure: RetryableFailure) -> StoreError:
        times = "once" if self._attempts == 1 else f"{self._attempts} times"
        seconds = time.monotonic() - self._began
        if failure.error is not None:
            failure.error.add_note(f"{self._operation} was sent to {self._base} {times} in {seconds:.1f} s")
            return failure.error
        if failure.is_timeout:
            return TimedOut(f"{self._operation}, sent to {self._base} {times},", round(seconds, 1))
        return Unavailable(f"{self._operation} was tried {times} in {seconds:.1f} s, and {self._base} {failure.reason}")


def retry_after(header: str | None) -> float:
    """Return the pause of a `Retry-After` header in seconds; 0 for a missing or invalid header."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max((then - datetime.now(UTC)).total_seconds(), 0.0) if then.tzinfo else 0.0
