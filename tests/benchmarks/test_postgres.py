"""The store on Postgres with fsync, compared with Agent-lightning in memory, COPY, and itself without group commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.protocol import Side
from tests.benchmarks.report import TARGETS, Report
from tests.benchmarks.rounds import (
    CALLERS,
    NewURL,
    Scale,
    alternate,
    in_words,
    lifecycles,
    median,
    ratio,
    record_trace_rows,
    saturate,
    traces,
    wakes_inside,
    wakes_outside,
)

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module", autouse=True)
def server(limit: Side, report: Report, postgres_url: NewURL) -> None:
    report.fact("Postgres", limit.ask("postgres_version", url=postgres_url()))


def test_lifecycles(
    rollbook: Side, limit: Side, peer_store: Side | None, report: Report, scale: Scale, postgres_url: NewURL
) -> None:
    def commits() -> dict[str, Any]:
        return limit.ask("postgres_commits", url=postgres_url(), seconds=scale.seconds / 4)

    for callers in CALLERS:
        measured = saturate(callers, scale, rollbook, postgres_url, peer_store, {"commits": commits})
        report.raw(f"postgres.lifecycles.{callers}", measured)
        words, key = in_words(measured), f"postgres.lifecycle.{callers}"
        if "peer" not in measured:
            report.fact(f"Postgres, {callers} callers, lifecycles", words)
            continue
        times = ratio(measured["rollbook"], measured["peer"])
        if key in TARGETS:
            report.figure(key, times, words)
        else:
            report.fact(f"Postgres, {callers} callers, lifecycle ÷ peer", f"{times:.2f}; {words}")


def test_group_commit(
    rollbook: Side, start_rollbook: Callable[[], Side], report: Report, scale: Scale, postgres_url: NewURL
) -> None:
    with start_rollbook() as ungrouped:
        ungrouped.ask("limit_batches", calls=1)
        measured = alternate(
            max(3, scale.rounds // 2),
            {
                "rollbook": lambda: lifecycles(rollbook, 32, scale.seconds, url=postgres_url()),
                "ungrouped": lambda: lifecycles(ungrouped, 32, scale.seconds, url=postgres_url()),
            },
        )
    report.raw("postgres.grouping", measured)
    ours, alone = measured["rollbook"], measured["ungrouped"]
    report.figure("postgres.grouping", ratio(ours, alone), f"{median(ours):,.0f}/s, ungrouped {median(alone):,.0f}/s")


def test_spans_in_calls_of_100(
    rollbook: Side, limit: Side, report: Report, scale: Scale, directory: Path, postgres_url: NewURL
) -> None:
    rows = directory / "postgres-rows"
    record_trace_rows(rollbook, rows, postgres_url(), scale.traces)
    measured = alternate(
        scale.rounds,
        {
            "rollbook": lambda: traces(rollbook, scale.traces, url=postgres_url()),
            "limit": lambda: limit.ask("postgres_rows", url=postgres_url(), rows=str(rows), units=scale.traces * 100),
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
