"""Metrics of the proxy in Prometheus's format."""

from __future__ import annotations

from collections import Counter
from typing import Final

from store.llm_proxy.routes import Routes
from store.runtime.histogram import Histogram
from store.runtime.metrics_text import Family, text_of
from store.runtime.process_metrics import process

_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class ProxyMetrics:
    """The counts and durations of the calls of one proxy."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram(_SECONDS)

    def ended(self, backend: str | None, status: int | None, seconds: float) -> None:
        """Count a call.

        Args:
            backend: the name of the backend; None if no backend was chosen.
            status: the status of the response; None without a response, for example because the client disconnected.
            seconds: the duration of the call.
        """
        self._calls[backend or "", str(status or 0)] += 1
        self._seconds.add(seconds)

    def text(self, routes: Routes) -> bytes:
        """Return the metrics, with the current state of the backends."""
        calls = Family("rollbook_proxy_calls_total", "Calls by status; 0 if there was no answer.", "counter")
        for (backend, status), count in sorted(self._calls.items()):
            calls.set(count, backend=backend, status=status)
        seconds = Family("rollbook_proxy_call_seconds", "How long calls took, with their streams.", "histogram")
        seconds.observed(self._seconds)
        in_flight = Family("rollbook_proxy_calls_in_flight", "Calls that a backend is answering.")
        paused = Family("rollbook_proxy_backend_paused", "Whether the backend gets no further calls.")
        for backend in routes.health():
            in_flight.set(backend.in_flight, backend=backend.name)
            paused.set(int(backend.is_paused), backend=backend.name)
        waiting = Family("rollbook_proxy_waiting_calls", "Calls that wait for a backend.").set(routes.waiting_calls)
        return text_of([calls, seconds, in_flight, paused, waiting, *process()])
