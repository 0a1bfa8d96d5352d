"""Alternating measurements: variations in the speed of a machine affect both sides of a ratio equally."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.protocol import Side
from tests.benchmarks.workload import percentiles

Measured = dict[str, list[dict[str, Any]]]
"""What each side measured in each round."""

NewURL = Callable[[], str]

CALLERS = (1, 8, 32, 128)
WARM_SECONDS = 0.15
TRACE_SPANS = 100
TRACE_CALLERS = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """How long to measure."""

    rounds: int
    seconds: float
    """Of one side in one round."""
    traces: int
    wakes: int
    open_seconds: float
    crowd_seconds: float
    events: int


def alternate(rounds: int, sides: dict[str, Callable[[], dict[str, Any]]]) -> Measured:
    """Measure every side in each round, the order turned round from one to the next."""
    measured: Measured = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides)
        for name in names if number % 2 else reversed(names):
            measured[name].append(sides[name]())
    return measured


def ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], of: str = "per_second") -> float:
    """Return the median over the rounds of our figure divided by theirs of the same round."""
    return statistics.median(a[of] / b[of] for a, b in zip(ours, theirs, strict=True))


def median(measured: list[dict[str, Any]], of: str = "per_second") -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(one[of] for one in measured)


def lifecycles(side: Side, callers: int, seconds: float, **opened: Any) -> dict[str, Any]:
    """Run lifecycles on a fresh store, after a moment of warming up."""
    side.ask("open", **opened)
    side.ask("lifecycles", callers=callers, seconds=WARM_SECONDS)
    return side.ask("lifecycles", callers=callers, seconds=seconds)


def saturate(
    callers: int,
    scale: Scale,
    rollbook: Side,
    new_url: NewURL,
    peer: Side | None,
    limits: dict[str, Callable[[], dict[str, Any]]],
) -> Measured:
    """Run lifecycles on the store, on the peer if there is one, and what the bare driver does instead."""
    sides = {"rollbook": lambda: lifecycles(rollbook, callers, scale.seconds, url=new_url())}
    if peer is not None:
        sides["peer"] = lambda: lifecycles(peer, callers, scale.seconds)
    return alternate(scale.rounds, {**sides, **limits})


def in_words(measured: Measured) -> str:
    """Return in words what `saturate` measured."""
    ours = measured["rollbook"]
    words = (
        f"{median(ours):,.0f}/s, {median(ours, 'cpu_ms'):.2f} ms CPU each,"
        f" {median(ours, 'commits_per_second'):,.0f} commits/s (bare driver {median(measured['commits']):,.0f})"
    )
    if "peer" in measured:
        theirs = measured["peer"]
        words += f"; peer {median(theirs):,.0f}/s, {median(theirs, 'cpu_ms'):.2f} ms CPU"
    if "rows" in measured:
        words += f"; the same rows by bare executemany {median(measured['rows']):,.0f}/s"
    return words


def record_lifecycles(rollbook: Side, path: Path, url: str, callers: int, seconds: float) -> int:
    """Save the rows that lifecycles write, transaction by transaction; return the number of lifecycles."""
    rollbook.ask("open", url=url, observed=True)
    rollbook.ask("lifecycles", callers=callers, seconds=WARM_SECONDS)
    before = rollbook.ask("transactions")
    count: int = rollbook.ask("lifecycles", callers=callers, seconds=seconds)["count"]
    rollbook.ask("keep_rows", path=str(path), after=before)
    return count


def traces(side: Side, count: int, **opened: Any) -> dict[str, Any]:
    """Record spans in calls of 100, by eight callers, on a fresh store."""
    side.ask("open", **opened)
    size = side.ask("prepare_traces", traces=count, spans=TRACE_SPANS)
    return {**side.ask("record_traces", callers=TRACE_CALLERS), "json_bytes": size}


def record_trace_rows(rollbook: Side, path: Path, url: str, count: int) -> None:
    """Save the rows that recording so many traces writes, transaction by transaction."""
    rollbook.ask("open", url=url, observed=True)
    rollbook.ask("prepare_traces", traces=count, spans=TRACE_SPANS)
    before = rollbook.ask("transactions")
    rollbook.ask("record_traces", callers=TRACE_CALLERS)
    rollbook.ask("keep_rows", path=str(path), after=before)


def wakes_inside(rollbook: Side, url: str, count: int) -> dict[str, dict[str, float]]:
    """Wake waiters in the process and loop that ends the rollouts; milliseconds since the commit and the call."""
    rollbook.ask("open", url=url, observed=True)
    rollbook.ask("wake", count=5)
    instants = rollbook.ask("wake", count=count)
    return _latencies(instants, instants["woken"])


def wakes_outside(rollbook: Side, other: Side, url: str, count: int) -> dict[str, dict[str, float]]:
    """As `wakes_inside`, the waiter in another process. Both read the same clock of the machine."""
    rollbook.ask("open", url=url, observed=True)
    other.ask("open", url=url)
    for number in (5, count):
        claimed = rollbook.ask("claim", count=number)
        other.tell("await_ends", rollout_ids=[rollout_id for rollout_id, _ in claimed])
        instants, woken = rollbook.ask("end_in_turn", claimed=claimed), other.answer()
        latencies = _latencies(instants, woken)
    return latencies


def _latencies(instants: dict[str, list[float]], woken: list[float]) -> dict[str, dict[str, float]]:
    return {
        since: percentiles([late - early for early, late in zip(instants[since], woken, strict=True)])
        for since in ("committed", "called")
    }
