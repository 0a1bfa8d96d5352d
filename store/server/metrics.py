"""Counts and durations as Prometheus reads them. Labels are routes and statuses, never ids: their number is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Metrics:
    """What one server has answered."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer; a status of 0 is a client that left."""
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BOUNDS) + 1)
            self._seconds[route] = 0.0
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds

    def text(self, gauges: Iterable[Gauge] = ()) -> bytes:
        """Return all of it, and what else is known at this moment, in Prometheus's text format."""
        lines = ["# HELP rollbook_requests_total Requests answered.", "# TYPE rollbook_requests_total counter"]
        for (method, route, status), count in sorted(self._requests.items()):
            labels = _labels({"method": method, "route": route, "status": str(status)})
            lines.append(f"rollbook_requests_total{labels} {count}")
        lines += [
            "# HELP rollbook_request_seconds How long requests took.",
            "# TYPE rollbook_request_seconds histogram",
        ]
        for route, buckets in sorted(self._buckets.items()):
            lines += self._histogram(route, buckets)
        for gauge in gauges:
            lines += gauge.lines()
        return ("\n".join(lines) + "\n").encode()

    def _histogram(self, route: str, buckets: list[int]) -> Iterable[str]:
        below = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), buckets, strict=True):
            below += count
            yield f"rollbook_request_seconds_bucket{_labels({'route': route, 'le': bound})} {below}"
        yield f"rollbook_request_seconds_sum{_labels({'route': route})} {self._seconds[route]:.6f}"
        yield f"rollbook_request_seconds_count{_labels({'route': route})} {below}"


class Gauge:
    """One measure, read at the moment it is asked for.

    Args:
        name: without the common prefix.
        help_text: what it says.
        kind: `gauge`, or `counter` for what only grows.
    """

    def __init__(self, name: str, help_text: str, kind: str = "gauge") -> None:
        self._name = f"rollbook_{name}"
        self._help = help_text
        self._kind = kind
        self._values: list[tuple[str, float]] = []

    def set(self, value: float, **labels: str) -> Gauge:
        """Give a value to one combination of labels."""
        self._values.append((_labels(labels), value))
        return self

    def lines(self) -> list[str]:
        """Return its part of the text."""
        return [
            f"# HELP {self._name} {self._help}",
            f"# TYPE {self._name} {self._kind}",
            *(f"{self._name}{labels} {value:g}" for labels, value in self._values),
        ]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
