"""Comparison of two traces by path: which spans are missing, more frequent, failing or slower in one trace.

The path of a span consists of its name and the names of its parents. Spans with the same path are compared together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from store.db.queries.waterfall import SpanRow

Change = Literal["only a", "only b", "count", "status", "slower", "faster", "same"]

_RATIO: Final = 1.2
_LEAST_SECONDS: Final = 0.01
_ROOT: Final = -1


@dataclass(slots=True)
class PathCount:
    """The spans of one path in one of the two traces: their number, duration and errors."""

    count: int = 0
    seconds: float = 0.0
    """The total duration of the spans that have a start time and an end time."""
    errors: int = 0
    """The number of spans with the status ERROR."""


@dataclass(slots=True)
class PathRow:
    """One path: the name of a span below the names of its parents."""

    name: str
    depth: int
    """The number of parents in the path."""
    a: PathCount = field(default_factory=PathCount)
    b: PathCount = field(default_factory=PathCount)

    @property
    def change(self) -> Change:
        """The most important difference between the two traces.

        Durations count as equal if they differ by less than 10 ms, or if the longer is at most 1.2 times the shorter.
        """
        if not self.b.count:
            return "only a"
        if not self.a.count:
            return "only b"
        if self.a.count != self.b.count:
            return "count"
        if self.a.errors != self.b.errors:
            return "status"
        if abs(self.b.seconds - self.a.seconds) < _LEAST_SECONDS:
            return "same"
        if self.b.seconds > self.a.seconds * _RATIO:
            return "slower"
        return "faster" if self.a.seconds > self.b.seconds * _RATIO else "same"


def compare_paths(a: Sequence[SpanRow], b: Sequence[SpanRow]) -> list[PathRow]:
    """Return the paths of both traces. Parents come before children. Siblings are sorted by their first spans."""
    tree = _Tree()
    for rows, is_a in ((a, True), (b, False)):
        for row, place in zip(rows, tree.places(rows), strict=True):
            path = tree.paths[place]
            _add(path.a if is_a else path.b, row)
    return list(tree.in_order())


def _add(tally: PathCount, row: SpanRow) -> None:
    tally.count += 1
    tally.errors += row.status == "ERROR"
    if row.start is not None and row.end is not None:
        tally.seconds += max(row.end - row.start, 0.0)


class _Tree:
    """The paths of both traces as a tree of names."""

    def __init__(self) -> None:
        self.paths: list[PathRow] = []
        self._place_by_name: dict[tuple[int, str], int] = {}
        self._below: dict[int, list[int]] = {_ROOT: []}

    def places(self, rows: Sequence[SpanRow]) -> list[int]:
        """Return for each span the index of its path in `paths`. A span whose parent is missing counts as a root."""
        by_id = {row.span_id: index for index, row in enumerate(rows)}
        places: list[int | None] = [None] * len(rows)
        for index in range(len(rows)):
            # The loop goes from the span to its parents, up to the first span with a known path, and then back down.
            # Recursion would fail on deep or circular traces.
            above: list[int] = []
            visited: set[int] = set()
            current: int | None = index
            while current is not None and places[current] is None and current not in visited:
                visited.add(current)
                above.append(current)
                parent = rows[current].parent_id
                current = None if parent is None else by_id.get(parent)
            place = _ROOT if current is None else places[current]
            for row_index in reversed(above):
                place = places[row_index] = self._place(_ROOT if place is None else place, rows[row_index].name)
        return [place for place in places if place is not None]

    def _place(self, parent: int, name: str) -> int:
        place = self._place_by_name.get((parent, name))
        if place is None:
            place = self._place_by_name[parent, name] = len(self.paths)
            self.paths.append(PathRow(name, 0 if parent == _ROOT else self.paths[parent].depth + 1))
            self._below[parent].append(place)
            self._below[place] = []
        return place

    def in_order(self) -> Iterable[PathRow]:
        """Yield the paths, parents before children."""
        waiting = self._below[_ROOT][::-1]
        while waiting:
            place = waiting.pop()
            yield self.paths[place]
            waiting += self._below[place][::-1]
