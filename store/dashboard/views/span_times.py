"""The time of an attempt by the kind of its spans, and the time in which no span worked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from store.db.queries.waterfall import SpanRow
from store.model_calls.span_kinds import CONTAINERS, SPAN_KINDS

ERROR: Final = "error"
IDLE: Final = "idle"
Interval = tuple[float, float]
"""The start and the end of a period, in seconds."""


@dataclass(frozen=True, slots=True)
class KindTime:
    """The time of one kind of spans in an attempt.

    Spans of different kinds may overlap, so the seconds of all kinds may add up to more than the attempt took.
    """

    kind: str
    """One of `SPAN_KINDS`, `ERROR` for all spans that failed, or `IDLE` for the time in which no span worked."""
    seconds: float
    """The time in which at least one span of this kind was open."""
    spans: int


def times_of(spans: Sequence[SpanRow]) -> list[KindTime]:
    """Return the time of each kind of spans that occurs in an attempt, and the idle time.

    Spans without a start or without an end add no time. Idle is the time between the first start and the last end in
    which no span worked; see `work_of`.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    intervals: defaultdict[str, list[Interval]] = defaultdict(list)
    for span in spans:
        for kind in (span.span_kind, ERROR) if span.status == "ERROR" else (span.span_kind,):
            counts[kind] += 1
            if span.start is not None and span.end is not None:
                intervals[kind].append((span.start, max(span.end, span.start)))
    times = [
        KindTime(kind, _length(covered(intervals[kind])), counts[kind])
        for kind in (*SPAN_KINDS, ERROR)
        if kind in counts
    ]
    timed = [interval for kind in intervals.values() for interval in kind]
    work = [interval for kind in work_of(spans).values() for interval in kind]
    if not timed or not work:
        return times
    total = max(end for _, end in timed) - min(start for start, _ in timed)
    return [*times, KindTime(IDLE, max(total - _length(covered(work)), 0.0), 0)]


def work_of(spans: Sequence[SpanRow]) -> dict[str, list[Interval]]:
    """Return the periods in which spans worked, by kind, and those of failed spans as `ERROR`.

    Agents and chains do not work: they wait for the calls inside them. So do other spans that contain spans.
    """
    parents = {span.parent_id for span in spans}
    work: defaultdict[str, list[Interval]] = defaultdict(list)
    for span in spans:
        is_container = span.span_kind in CONTAINERS or (span.span_kind == "other" and span.span_id in parents)
        if span.start is None or is_container:
            continue
        end = span.start if span.end is None else max(span.end, span.start)
        work[ERROR if span.status == "ERROR" else span.span_kind].append((span.start, end))
    return dict(work)


def covered(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint intervals, in order."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
