"""The store on Postgres, fsync on, against Agent-lightning in memory, COPY, and itself without group commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.protocol import Side
from tests.benchmarks.report import Report
from tests.benchmarks.rounds import (
    Scale,
    alternate,
    lifecycles,
    median,
    ratio,
    record_rows,
    traces,
    wakes_inside,
    wakes_outside,
)

pytestmark = pytest.mark.benchmark

NewURL = Callable[[], str]


@pytest.fixture(scope="module", autouse=True)
def server(limit: Side, report: Report, postgres_url: NewURL) -> None:
    report.fact("Postgres", limit.ask("postgres_version", url=postgres_url()))


@pytest.fixture(scope="module")
def ungrouped(start_rollbook: Callable[[], Side]) -> Iterator[Side]:
    """A process whose store gives every call a transaction of its own."""
    with start_rollbook() as side:
        side.ask("limit_batches", calls=1)
        yield side


@pytest.mark.parametrize("callers", [1, 8, 32, 128])
def test_lifecycles(
    callers: int,
    rollbook: Side,
    ungrouped: Side,
    limit: Side,
    peer_store: Side | None,
    report: Report,
    scale: Scale,
    postgres_url: NewURL,
) -> None:
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "rollbook": lambda: lifecycles(rollbook, callers, scale.seconds, url=postgres_url())
    }
    if peer_store is not None:
        sides["peer"] = lambda: lifecycles(peer_store, callers, scale.seconds)
    if callers == 32:
        sides["ungrouped"] = lambda: lifecycles(ungrouped, callers, scale.seconds, url=postgres_url())
    sides["commits"] = lambda: {
        "per_second": limit.ask("postgres_commits", url=postgres_url(), seconds=scale.seconds / 4)
    }
    measured = alternate(scale.rounds, sides)
    report.raw(f"postgres.lifecycles.{callers}", measured)
    ours = measured["rollbook"]
    detail = (
        f"{median(ours):,.0f}/s, {median(ours, 'cpu_ms'):.2f} ms CPU each,"
        f" {median(ours, 'commits_per_second'):,.0f} commits/s (bare asyncpg {median(measured['commits']):,.0f})"
    )
    if peer_store is not None:
        theirs = measured["peer"]
        detail = f"{detail}; peer {median(theirs):,.0f}/s, {median(theirs, 'cpu_ms'):.2f} ms CPU"
        times = ratio(ours, theirs)
        if callers in {32, 128}:
            report.figure(f"postgres.lifecycle.{callers}", times, detail)
        else:
            report.fact(f"Postgres, {callers} callers, lifecycle ÷ peer", f"{times:.2f}; {detail}")
    else:
        report.fact(f"Postgres, {callers} callers, lifecycles", detail)
    if callers == 32:
        alone = measured["ungrouped"]
        report.figure("postgres.grouping", ratio(ours, alone), f"ungrouped {median(alone):,.0f}/s")


def test_spans_in_calls_of_100(
    rollbook: Side, limit: Side, report: Report, scale: Scale, directory: Path, postgres_url: NewURL
) -> None:
    rows = directory / "postgres-rows"
    record_rows(rollbook, rows, postgres_url(), scale.traces)
    measured = alternate(
        scale.rounds,
        {
            "rollbook": lambda: traces(rollbook, scale.traces, url=postgres_url()),
            "limit": lambda: limit.ask("postgres_rows", url=postgres_url(), rows=str(rows), spans=scale.traces * 100),
        },
    )
    report.raw("postgres.spans", measured)
    ours, copied = measured["rollbook"], measured["limit"]
    detail = f"{median(ours):,.0f}/s, {median(ours, 'cpu_us'):.0f} µs CPU; COPY {median(copied):,.0f}/s"
    report.figure("postgres.spans", ratio(ours, copied), detail)
    rows.unlink()


def test_wake_ups(
    rollbook: Side, start_rollbook: Callable[[], Side], report: Report, scale: Scale, postgres_url: NewURL
) -> None:
    inside = wakes_inside(rollbook, postgres_url(), scale.wakes)
    detail = f"p50 {inside['committed']['p50']:.2f} ms; since the call p99 {inside['called']['p99']:.2f} ms"
    report.figure("postgres.wake.inside", inside["committed"]["p99"], detail)
    with start_rollbook() as other:
        outside = wakes_outside(rollbook, other, postgres_url(), scale.wakes)["committed"]
    report.figure(
        "postgres.wake.outside", outside["p99"], f"p50 {outside['p50']:.2f} ms, worst {outside['max']:.1f} ms"
    )
