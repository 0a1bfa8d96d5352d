"""Log of failures that may repeat many times per second, such as refused calls while a disk is full."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_SECONDS: Final = 60.0
_MAX_KEYS: Final = 1000


class LimitedLog:
    """Writer of log lines without tracebacks, at most one in a minute for each kind of failure.

    The next line of the same kind contains the number of omitted lines. All methods are thread-safe.

    Args:
        logger: receives the lines.
        now: a monotonic clock in seconds.
    """

    def __init__(self, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now = now
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[float, int]] = {}
        """By kind of failure: the time of the last line, and the number of later failures, which have no line."""

    def warning(self, message: str, error: BaseException) -> None:
        """Log a failure as a warning: the message, which is the kind of the failure, and the error."""
        now = self._now()
        with self._lock:
            at, omitted = self._lines.get(message, (float("-inf"), 0))
            if now - at < _SECONDS:
                self._lines[message] = at, omitted + 1
                return
            if len(self._lines) >= _MAX_KEYS:
                self._lines.clear()
            self._lines[message] = now, 0
        suffix = f" (and {omitted} times since the last such line)" if omitted else ""
        self._logger.warning("%s: %s%s", message, error, suffix)
