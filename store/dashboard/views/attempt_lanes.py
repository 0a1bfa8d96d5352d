"""The attempts of a rollout as lanes of a chart with a common time axis.

A lane shows the statuses of one attempt as bands, and its work (calls of models and tools, rewards) as marks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

from store.dashboard.views.span_times import ERROR, Interval, covered, work_of
from store.db.queries.waterfall import SpanRow
from store.runtime.clock import MICROSECONDS, system_clock

WIDTH: Final = 1000.0
"""The width of the axis in SVG units."""
_LEAST: Final = 2.0
_GAP: Final = 1.0
"""The least distance between two marks of one kind."""
_DRAWN: Final = ("other", "retriever", "tool", "llm", "reward", ERROR)
"""The kinds of marks in the order in which they are drawn, so that rewards and errors are never hidden."""
_OPEN: Final = frozenset({"preparing", "running"})


class _Attempt(Protocol):
    @property
    def attempt_id(self) -> str: ...
    @property
    def sequence_id(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def start_time(self) -> float: ...
    @property
    def end_time(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Band:
    """A period in which an attempt had one status. Position and width are in SVG units."""

    x: float
    width: float
    status: str
    seconds: float
    """The length of the period."""
    since: float
    """The start of the period, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A period of work. Position and width are in SVG units."""

    x: float
    width: float
    kind: str
    """A kind of spans, or `ERROR` for spans that failed."""


@dataclass(slots=True)
class Lane:
    """One attempt on the time axis."""

    attempt_id: str
    sequence_id: int
    seconds: float
    """The seconds from the start of the attempt to its end or, before the end, to the moment that the page shows."""
    bands: list[Band] = field(default_factory=list[Band])
    marks: list[Mark] = field(default_factory=list[Mark])
    """The work, in the order in which it is drawn."""

    @property
    def reach(self) -> float:
        """The distance from the first to the last work, in SVG units."""
        start = min((mark.x for mark in self.marks), default=0.0)
        return round(max((mark.x + mark.width for mark in self.marks), default=start) - start, 1)


_Changes = list[tuple[float, str]]
"""The time and the new status of each status change of an attempt."""


def lanes_of(
    attempts: Sequence[_Attempt],
    turns: Iterable[Mapping[str, Any]],
    until: float | None = None,
    spans: Iterable[SpanRow] = (),
) -> list[Lane]:
    """Return a lane for each attempt.

    The times of spans come from their senders. If the spans of an attempt lie wholly outside of the attempt, such as
    those of an imported rollout, then the axis shows the times of spans only, and no statuses.

    Args:
        attempts: the attempts in the order of their numbers.
        turns: the events of the rollout that change the status of an attempt, oldest first.
        until: the moment at which the page shows the rollout, in seconds since the epoch; None for now.
        spans: the spans of the attempts.
    """
    if not attempts:
        return []
    now = system_clock() / MICROSECONDS if until is None else until
    histories = _histories(attempts, turns)
    ends = {attempt.attempt_id: _end(attempt, histories[attempt.attempt_id], now) for attempt in attempts}
    by_attempt: defaultdict[str, list[SpanRow]] = defaultdict(list)
    for span in spans:
        by_attempt[span.attempt_id].append(span)
    work = {attempt_id: work_of(rows) for attempt_id, rows in by_attempt.items()}
    periods = {attempt.attempt_id: (attempt.start_time, ends[attempt.attempt_id]) for attempt in attempts}
    worked = {
        attempt_id: (min(start for start, _ in times), max(end for _, end in times))
        for attempt_id, kinds in work.items()
        if attempt_id in periods and (times := [time for intervals in kinds.values() for time in intervals])
    }
    is_foreign = any(
        end < periods[attempt_id][0] or start > periods[attempt_id][1] for attempt_id, (start, end) in worked.items()
    )
    extents = [*worked.values(), *(() if is_foreign else periods.values())]
    first, last = min(start for start, _ in extents), max(end for _, end in extents)
    scale = WIDTH / max(last - first, 1e-6)
    lanes: list[Lane] = []
    for attempt in attempts:
        history, end = histories[attempt.attempt_id], ends[attempt.attempt_id]
        lane = Lane(attempt.attempt_id, attempt.sequence_id, max(end - attempt.start_time, 0.0))
        lane.bands = [] if is_foreign else _bands(history, attempt, end, first, scale)
        lane.marks = _marks(work.get(attempt.attempt_id, {}), first, scale)
        lanes.append(lane)
    return lanes


def _marks(work: Mapping[str, Sequence[Interval]], first: float, scale: float) -> list[Mark]:
    marks: list[Mark] = []
    for kind in _DRAWN:
        widened = [((start - first) * scale, max((end - first) * scale, (start - first) * scale + _LEAST))
                   for start, end in work.get(kind, ())]  # fmt: skip
        # Marks that touch are drawn as one.
        for start, end in covered([(start - _GAP / 2, end + _GAP / 2) for start, end in widened]):
            x = min(_within(start + _GAP / 2), WIDTH - _LEAST)
            marks.append(Mark(round(x, 1), round(max(_within(end - _GAP / 2) - x, _LEAST), 1), kind))
    return marks


def _histories(attempts: Sequence[_Attempt], turns: Iterable[Mapping[str, Any]]) -> dict[str, _Changes]:
    histories: dict[str, _Changes] = {attempt.attempt_id: [(attempt.start_time, "preparing")] for attempt in attempts}
    for turn in turns:
        changes = histories.get(turn["data"].get("attempt_id", ""))
        if changes is not None and turn["type"] == "attempt.status_changed":
            changes.append((turn["at"], turn["data"]["to"]))
    return histories


def _end(attempt: _Attempt, changes: _Changes, now: float) -> float:
    if attempt.status in _OPEN:
        return max(now, attempt.start_time)
    if attempt.end_time is not None:
        return max(attempt.end_time, attempt.start_time)
    # An attempt that timed out or became unresponsive has no end time. It ended with its last status change.
    return max(changes[-1][0], attempt.start_time)


def _bands(history: _Changes, attempt: _Attempt, end: float, first: float, scale: float) -> list[Band]:
    bands: list[Band] = []
    changes = [*history, (end, "")]
    for (since, status), (until, _) in pairwise(changes):
        x = _within((since - first) * scale)
        width = _within((until - first) * scale) - x
        if width > 0:
            bands.append(Band(round(x, 2), round(width, 2), status, until - since, since))
    closing = attempt.status not in _OPEN
    if closing or not bands:
        # A narrow band at the end makes the final status visible.
        x = min(_within((end - first) * scale), WIDTH - _LEAST)
        bands.append(Band(round(x, 2), _LEAST, attempt.status, 0.0, end))
    return bands


def _within(x: float) -> float:
    return min(max(x, 0.0), WIDTH)
