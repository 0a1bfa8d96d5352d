"""The attempts of a rollout as lanes of a chart with a common time axis.

A lane shows the statuses of one attempt as bands, and its signs of life (spans and the last heartbeat) as ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

from store.runtime.clock import MICROSECONDS, system_clock

WIDTH: Final = 1000.0
"""The width of the axis in SVG units."""
_LEAST: Final = 2.0
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
    @property
    def last_heartbeat_time(self) -> float | None: ...


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


@dataclass(slots=True)
class Lane:
    """One attempt on the time axis."""

    attempt_id: str
    sequence_id: int
    seconds: float
    """The seconds from the start of the attempt to its end or, before the end, to the moment that the page shows."""
    bands: list[Band] = field(default_factory=list[Band])
    ticks: list[float] = field(default_factory=list[float])
    """The positions of the signs of life, in SVG units."""


@dataclass(slots=True)
class _History:
    changes: list[tuple[float, str]]
    """The time and the new status of each status change."""
    signs: list[float]
    """The times of the signs of life."""


def lanes_of(
    attempts: Sequence[_Attempt], turns: Iterable[Mapping[str, Any]], until: float | None = None
) -> list[Lane]:
    """Return a lane for each attempt.

    Args:
        attempts: the attempts in the order of their numbers.
        turns: the events of the rollout that record a span or change the status of an attempt, oldest first.
        until: the moment at which the page shows the rollout, in seconds since the epoch; None for now.
    """
    if not attempts:
        return []
    now = system_clock() / MICROSECONDS if until is None else until
    histories = _histories(attempts, turns)
    ends = {attempt.attempt_id: _end(attempt, histories[attempt.attempt_id], now) for attempt in attempts}
    first, last = min(attempt.start_time for attempt in attempts), max(ends.values())
    scale = WIDTH / max(last - first, 1e-6)
    lanes: list[Lane] = []
    for attempt in attempts:
        history, end = histories[attempt.attempt_id], ends[attempt.attempt_id]
        lane = Lane(attempt.attempt_id, attempt.sequence_id, max(end - attempt.start_time, 0.0))
        lane.bands = _bands(history, attempt, end, first, scale)
        lane.ticks = sorted({round(_within((sign - first) * scale), 1) for sign in history.signs})
        lanes.append(lane)
    return lanes


def _histories(attempts: Sequence[_Attempt], turns: Iterable[Mapping[str, Any]]) -> dict[str, _History]:
    histories = {attempt.attempt_id: _History([(attempt.start_time, "preparing")], []) for attempt in attempts}
    for turn in turns:
        history = histories.get(turn["data"].get("attempt_id", ""))
        if history is None:
            continue
        if turn["type"] == "attempt.status_changed":
            history.changes.append((turn["at"], turn["data"]["to"]))
        elif turn["type"] == "span.recorded":
            history.signs.append(turn["at"])
    for attempt in attempts:
        if attempt.last_heartbeat_time is not None:
            histories[attempt.attempt_id].signs.append(attempt.last_heartbeat_time)
    return histories


def _end(attempt: _Attempt, history: _History, now: float) -> float:
    if attempt.status in _OPEN:
        return max(now, attempt.start_time)
    if attempt.end_time is not None:
        return max(attempt.end_time, attempt.start_time)
    # An attempt that timed out or became unresponsive has no end time. It ended with its last status change.
    return max(history.changes[-1][0], attempt.start_time)


def _bands(history: _History, attempt: _Attempt, end: float, first: float, scale: float) -> list[Band]:
    bands: list[Band] = []
    changes = [*history.changes, (end, "")]
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
