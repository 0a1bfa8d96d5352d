"""Counts and durations for Prometheus. Labels are routes and statuses, never ids, so their number stays small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from store.journal.writer import Histogram

REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, dict[str, str], float]
"""The suffix of the family's name (`_bucket`, or empty), the labels, and the value."""


@dataclass(slots=True)
class Family:
    """One metric, with its values by labels.

    Args:
        name: the full name.
        help: its description.
        kind: `gauge`, `counter` for a value that only increases, or `histogram`.
    """

    name: str
    help: str
    kind: str = "gauge"
    samples: list[Sample] = field(default_factory=list[Sample])

    def set(self, value: float, **labels: str) -> Family:
        """Set the value of a combination of labels."""
        self.samples.append(("", labels, value))
        return self

    def observed(self, histogram: Histogram, **labels: str) -> Family:
        """Set the histogram of a combination of labels."""
        below = 0
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            below += count
            self.samples.append(("_bucket", {**labels, "le": bound}, below))
        self.samples.append(("_sum", labels, histogram.total))
        self.samples.append(("_count", labels, below))
        return self

    def lines(self) -> list[str]:
        """Return the lines of the text format."""
        return [
            f"# HELP {self.name} {self.help}",
            f"# TYPE {self.name} {self.kind}",
            *(f"{self.name}{suffix}{_labels(labels)} {_number(value)}" for suffix, labels, value in self.samples),
        ]


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
        taken = self._seconds.get(route)
        if taken is None:
            taken = self._seconds[route] = Histogram(REQUEST_SECONDS)
        taken.add(seconds)

    def families(self) -> list[Family]:
        """Return the counts so far."""
        requests = Family("rollbook_requests_total", "Requests by status; 0 if the client disconnected.", "counter")
        for (method, route, status), count in sorted(self._requests.items()):
            requests.set(count, method=method, route=route, status=str(status))
        seconds = Family(
            "rollbook_request_seconds", "How long requests took, without waiting calls and streams.", "histogram"
        )
        for route, taken in sorted(self._seconds.items()):
            seconds.observed(taken, route=route)
        return [requests, seconds]


def text_of(families: Iterable[Family]) -> bytes:
    """Return metrics in Prometheus's text format."""
    return ("\n".join(line for family in families for line in family.lines()) + "\n").encode()


def _number(value: float) -> str:
    # Shorter forms lose the last digits of large counts.
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
