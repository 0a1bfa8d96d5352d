"""Metrics of the attempts that the runners of this process execute."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from store.runtime.histogram import Histogram
from store.runtime.metrics_text import Family, text_of
from store.runtime.process_metrics import process

_SECONDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


class RunnerMetrics:
    """The counts and durations of attempts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._ended: Counter[str] = Counter()
        self._seconds = Histogram(_SECONDS)

    def began(self) -> None:
        """Count an attempt that begins."""
        with self._lock:
            self._active += 1

    def ended(self, status: str, seconds: float) -> None:
        """Count an attempt that has ended. `status` is `interrupted` for an attempt without a final status."""
        with self._lock:
            self._active -= 1
            self._ended[status] += 1
            self._seconds.add(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's format."""
        with self._lock:
            active = Family("rollbook_runner_active_attempts", "Attempts that are being executed.").set(self._active)
            ended = Family("rollbook_runner_attempts_total", "Attempts that have ended, by status.", "counter")
            for status, count in sorted(self._ended.items()):
                ended.set(count, status=status)
            seconds = Family("rollbook_runner_attempt_seconds", "How long attempts took.", "histogram")
            seconds.observed(self._seconds)
        return text_of([active, ended, seconds, *process()])


metrics: Final = RunnerMetrics()
"""The metrics of this process."""
