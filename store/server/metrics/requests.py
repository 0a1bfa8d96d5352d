"""Counts and durations for Prometheus. Labels are routes and statuses, never ids, so their number stays small."""

from __future__ import annotations

from typing import Final

from store.runtime.histogram import Histogram
from store.runtime.metrics_text import Family

REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counts and durations of one server's responses."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, Histogram] = {}

    def request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a response.

        Args:
            method: the method of the request.
            route: the path template of the route.
            status: the status of the response; 0 if the client disconnected.
            seconds: the duration; None for a waiting call or a stream, whose duration depends on its client.
        """
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if seconds is None:
            return
        histogram = self._seconds.get(route)
        if histogram is None:
            histogram = self._seconds[route] = Histogram(REQUEST_SECONDS)
        histogram.add(seconds)

    def families(self) -> list[Family]:
        """Return the counts so far."""
        requests = Family("rollbook_requests_total", "Requests by status; 0 if the client disconnected.", "counter")
        for (method, route, status), count in sorted(self._requests.items()):
            requests.set(count, method=method, route=route, status=str(status))
        seconds = Family(
            "rollbook_request_seconds", "How long requests took, without waiting calls and streams.", "histogram"
        )
        for route, histogram in sorted(self._seconds.items()):
            seconds.observed(histogram, route=route)
        return [requests, seconds]
