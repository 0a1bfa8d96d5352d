"""Text format of Prometheus for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from store.runtime.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, dict[str, str], float]
"""The suffix of the family's name (`_bucket`, or empty), the labels, and the value."""


@dataclass(slots=True)
class Family:
    """One metric, with its values by labels.

    Args:
        name: the full name.
        help: the description.
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
        cumulative = 0
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            cumulative += count
            self.samples.append(("_bucket", {**labels, "le": bound}, cumulative))
        self.samples.append(("_sum", labels, histogram.total))
        self.samples.append(("_count", labels, cumulative))
        return self

    def lines(self) -> list[str]:
        """Return the lines of the text format."""
        return [
            f"# HELP {self.name} {self.help}",
            f"# TYPE {self.name} {self.kind}",
            *(f"{self.name}{suffix}{_labels(labels)} {_number(value)}" for suffix, labels, value in self.samples),
        ]


def text_of(families: Iterable[Family]) -> bytes:
    """Return metrics in Prometheus's text format."""
    return ("\n".join(line for family in families for line in family.lines()) + "\n").encode()


def _number(value: float) -> str:
    # Shorter forms lose the last digits of large counts.
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
