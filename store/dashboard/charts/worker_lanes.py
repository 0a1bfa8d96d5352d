"""The activity of workers in one hour as bars. Bars of different outcomes are stacked, so that none covers another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from store.db.queries.worker_activity import CELL, HOUR, BusyPeriod, Outcome, Window
from store.runtime.clock import MICROSECONDS

LANE_WIDTH: Final = HOUR // CELL
"""The width of one hour in SVG units."""
LANE_HEIGHT: Final = 20.0
_SLOT: Final = 60 * MICROSECONDS
"""The length of an interval in which the shares of outcomes are added up, in microseconds."""
_STACK: Final[tuple[Outcome, ...]] = ("succeeded", "open", "failed")
"""The outcomes from the bottom of a lane to its top."""
_LEAST_WIDTH: Final = 0.5
_LEAST_HEIGHT: Final = 1.5


@dataclass(frozen=True, slots=True)
class ActivityBar:
    """The attempts of one outcome in a part of the hour, drawn as a bar."""

    x: float
    """The position of the left end, in SVG units."""
    width: float
    outcome: str
    attempts: int
    """The number of these attempts."""
    start_at: int
    end_at: int
    rollout_id: str | None
    """The id of the rollout, if the bar is a single attempt."""
    y: float = 0.0
    """The position of the upper end, in SVG units."""
    height: float = LANE_HEIGHT
    """The share of the outcome, in SVG units."""


@dataclass(slots=True)
class _Stack:
    """A part of a lane whose attempts are the same throughout."""

    start_at: int
    end_at: int
    members: tuple[int, ...]
    """The indexes of the periods that this part belongs to."""
    weights: dict[Outcome, float]


def lanes_of(periods: Iterable[BusyPeriod], window: Window) -> dict[str, list[ActivityBar]]:
    """Return the activity bars of each worker, by worker id.

    An attempt is spread over the minutes in which it ran. The heights of the bars of a minute are the shares of the
    outcomes among the attempts of the minute.
    """
    by_worker: dict[str, list[BusyPeriod]] = defaultdict(list)
    for period in periods:
        by_worker[period.worker_id].append(period)
    return {
        worker_id: [bar for stack in _stacks(lane, window) for bar in _bars(stack, lane, window)]
        for worker_id, lane in by_worker.items()
    }


def _stacks(lane: Sequence[BusyPeriod], window: Window) -> Iterator[_Stack]:
    """Yield the stacks of a lane from left to right."""
    slots: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for index, period in enumerate(lane):
        start, end = max(period.start_at, window.since), min(max(period.end_at, period.start_at), window.until)
        for slot in range(
            (start - window.since) // _SLOT, max(end - window.since - 1, start - window.since) // _SLOT + 1
        ):
            low = window.since + slot * _SLOT
            slots[slot].append((index, max(start, low), max(min(end, low + _SLOT), max(start, low))))
    before: _Stack | None = None
    for _, parts in sorted(slots.items()):
        stack = _stack(parts, lane)
        if before is not None and before.members == stack.members and before.end_at == stack.start_at:
            before.end_at = stack.end_at
            continue
        if before is not None:
            yield before
        before = stack
    if before is not None:
        yield before


def _stack(parts: Sequence[tuple[int, int, int]], lane: Sequence[BusyPeriod]) -> _Stack:
    weights: dict[Outcome, float] = defaultdict(float)
    for index, start, end in parts:
        period = lane[index]
        length = period.end_at - period.start_at
        weights[period.outcome] += period.attempts * ((end - start) / length if length > 0 else 1.0)
    start, end = min(start for _, start, _ in parts), max(end for _, _, end in parts)
    return _Stack(start, end, tuple(index for index, _, _ in parts), weights)


def _bars(stack: _Stack, lane: Sequence[BusyPeriod], window: Window) -> Iterator[ActivityBar]:
    scale = LANE_WIDTH / (window.until - window.since)
    # With this minimum width, a short period is still visible.
    width = max((stack.end_at - stack.start_at) * scale, _LEAST_WIDTH)
    x = min((stack.start_at - window.since) * scale, LANE_WIDTH - width)
    outcomes: list[Outcome] = [outcome for outcome in _STACK if outcome in stack.weights]
    total = sum(stack.weights.values())
    shares = [stack.weights[outcome] / total if total else 1 / len(outcomes) for outcome in outcomes]
    # Every outcome is visible, and the bars together fill the lane.
    visible = [max(_LEAST_HEIGHT / LANE_HEIGHT, share) for share in shares]
    heights = [LANE_HEIGHT * share / sum(visible) for share in visible]
    top = LANE_HEIGHT
    for outcome, height in zip(outcomes, heights, strict=True):
        top -= height
        members = [lane[index] for index in stack.members if lane[index].outcome == outcome]
        attempts = sum(period.attempts for period in members)
        yield ActivityBar(
            round(x, 2),
            round(width, 2),
            outcome,
            attempts,
            min(period.start_at for period in members) if attempts == 1 else stack.start_at,
            max(period.end_at for period in members) if attempts == 1 else stack.end_at,
            members[0].rollout_id if attempts == 1 else None,
            round(max(top, 0.0), 2),
            round(height, 2),
        )
