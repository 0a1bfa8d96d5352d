"""The store on SQLite with WAL and synchronous=FULL, compared with Agent-lightning in memory and with bare sqlite3."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.protocol import Side
from tests.benchmarks.report import Report
from tests.benchmarks.rounds import (
    CALLERS,
    NewURL,
    Scale,
    alternate,
    in_words,
    median,
    ratio,
    record_lifecycles,
    record_trace_rows,
    saturate,
    traces,
    wakes_inside,
    wakes_outside,
)
from tests.benchmarks.workload import (
    CALLS_PER_LIFECYCLE,
    INPUT,
    SPANS_PER_LIFECYCLE,
    json_bytes,
    percentiles,
    span_fields,
)

pytestmark = pytest.mark.benchmark

SATURATED = 32


@pytest.fixture(scope="module", autouse=True)
def disk(limit: Side, report: Report, directory: Path) -> Iterator[None]:
    """What the disk gives before and after: figures of durable commits mean nothing without it."""
    _print_fsync(limit, report, directory, "fsync of 4 KiB, before")
    yield
    _print_fsync(limit, report, directory, "fsync of 4 KiB, after")


def _print_fsync(limit: Side, report: Report, directory: Path, name: str) -> None:
    taken = limit.ask("fsync", directory=str(directory), writes=500)
    report.fact(name, f"p50 {taken['p50']:.2f} ms, p99 {taken['p99']:.2f} ms")


def test_lifecycles(
    rollbook: Side,
    limit: Side,
    peer_store: Side | None,
    report: Report,
    scale: Scale,
    directory: Path,
    sqlite_url: NewURL,
) -> None:
    def commits() -> dict[str, Any]:
        return limit.ask("sqlite_commits", path=_path(sqlite_url()), seconds=scale.seconds / 4)

    recorded = directory / "sqlite-lifecycles"
    grouping: dict[int, float] = {}
    for callers in CALLERS:
        count = record_lifecycles(rollbook, recorded, sqlite_url(), callers, scale.seconds)

        def rows(count: int = count) -> dict[str, Any]:
            return limit.ask("sqlite_rows", path=_path(sqlite_url()), rows=str(recorded), units=count)

        limits = {"rows": rows, "commits": commits}
        measured = saturate(callers, scale, rollbook, sqlite_url, peer_store, limits)
        report.raw(f"sqlite.lifecycles.{callers}", measured)
        ours = measured["rollbook"]
        if "peer" in measured:
            report.figure(f"sqlite.lifecycle.{callers}", ratio(ours, measured["peer"]), in_words(measured))
        else:
            report.fact(f"SQLite, {callers} callers, lifecycles", in_words(measured))
        grouping[callers] = median(ours, "calls_per_commit") / callers
        if callers == SATURATED:
            dequeue = statistics.median(one["latency"]["dequeue"]["p99"] for one in ours)
            report.fact(f"SQLite, {callers} callers, saturated", f"dequeue p99 {dequeue:.1f} ms")
    text = ", ".join(f"{share:.2f} at {callers}" for callers, share in grouping.items())
    report.figure("sqlite.grouping", min(grouping.values()), text)


def test_spans_in_calls_of_100(
    rollbook: Side,
    limit: Side,
    peer_store: Side | None,
    report: Report,
    scale: Scale,
    directory: Path,
    sqlite_url: NewURL,
) -> None:
    rows = directory / "sqlite-rows"
    record_trace_rows(rollbook, rows, sqlite_url(), scale.traces)
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "rollbook": lambda: traces(rollbook, scale.traces, url=sqlite_url()),
        "limit": lambda: limit.ask("sqlite_rows", path=_path(sqlite_url()), rows=str(rows), units=scale.traces * 100),
    }
    if peer_store is not None:
        sides["peer"] = lambda: traces(peer_store, scale.traces)
    measured = alternate(scale.rounds, sides)
    report.raw("sqlite.spans", measured)
    detail = _spans_detail(measured, "executemany")
    report.figure("sqlite.spans", ratio(measured["rollbook"], measured["limit"]), detail)
    rows.unlink()


def _spans_detail(measured: dict[str, list[dict[str, Any]]], limit: str) -> str:
    names = {"rollbook": "", "limit": f"{limit} ", "peer": "peer "}
    return "; ".join(
        f"{names[name]}{median(taken):,.0f}/s, {median(taken, 'cpu_us'):.0f} µs CPU" for name, taken in measured.items()
    )


def test_disk(rollbook: Side, limit: Side, report: Report, scale: Scale, sqlite_url: NewURL) -> None:
    url = sqlite_url()
    payload = traces(rollbook, scale.traces, url=url)["json_bytes"]
    rollbook.ask("close")
    size, bodies, events = limit.ask("sqlite_payload", path=_path(url))
    report.figure("sqlite.disk", size / payload, f"{(size - bodies) / events:.0f} bytes per event beyond its payload")
    url = sqlite_url()
    rollbook.ask("open", url=url)
    done = rollbook.ask("lifecycles", callers=32, seconds=2 * scale.seconds)["count"]
    rollbook.ask("close")
    size, bodies, events = limit.ask("sqlite_payload", path=_path(url))
    fields = [span_fields("ro-012345678901", "at-01234567", number, number) for number in range(SPANS_PER_LIFECYCLE)]
    payload = done * json_bytes([INPUT, *fields])
    beyond = f"{(size - bodies) / events:.0f} bytes per event beyond its payload"
    report.fact("SQLite, disk ÷ JSON, lifecycles", f"{size / payload:.2f}, {beyond}")


def test_open_loop(rollbook: Side, peer_store: Side | None, report: Report, scale: Scale, sqlite_url: NewURL) -> None:
    rollbook.ask("open", url=sqlite_url())
    rollbook.ask("open_loop", rate=200, seconds=0.5)
    ours = rollbook.ask("open_loop", rate=200, seconds=scale.open_seconds)
    detail = f"{ours['per_second']:.0f} lifecycles/s, {ours['calls_per_commit']:.1f} calls per COMMIT"
    theirs: dict[str, Any] = {}
    if peer_store is not None:
        peer_store.ask("open")
        theirs = peer_store.ask("open_loop", rate=200, seconds=scale.open_seconds / 2)["latency"]
    for call, share in (("dequeue", "p50"), ("dequeue", "p99"), ("add_span", "p99")):
        beside = f"; peer {theirs[call][share]:.2f} ms" if theirs else ""
        report.figure(f"sqlite.open.{call}.{share}", ours["latency"][call][share], detail + beside)
    report.raw("sqlite.open", {"rollbook": ours["latency"], "peer": theirs})


def test_wake_ups(
    rollbook: Side,
    start_rollbook: Callable[[], Side],
    peer_store: Side | None,
    report: Report,
    scale: Scale,
    sqlite_url: NewURL,
) -> None:
    inside = wakes_inside(rollbook, sqlite_url(), scale.wakes)
    beside = ""
    if peer_store is not None:
        peer_store.ask("open")
        called, woken = peer_store.ask("wake", count=scale.wakes)
        theirs = percentiles([late - early for early, late in zip(called, woken, strict=True)])
        beside = f"; since the call p99 {inside['called']['p99']:.2f} ms, peer {theirs['p99']:.2f} ms"
    report.figure("sqlite.wake.inside", inside["committed"]["p99"], f"p50 {inside['committed']['p50']:.2f} ms{beside}")
    with start_rollbook() as other:
        outside = wakes_outside(rollbook, other, sqlite_url(), scale.wakes)["committed"]
    report.figure("sqlite.wake.outside", outside["p99"], f"p50 {outside['p50']:.2f} ms, worst {outside['max']:.1f} ms")


def test_two_saturating_and_four_light_processes(
    start_rollbook: Callable[[], Side], report: Report, scale: Scale, sqlite_url: NewURL
) -> None:
    url = sqlite_url()
    with ExitStack() as stack:
        sides = [stack.enter_context(start_rollbook()) for _ in range(6)]
        for side in sides:
            side.ask("open", url=url)
        for side in sides[:2]:
            side.tell("lifecycles", callers=32, seconds=scale.crowd_seconds)
        for side in sides[2:]:
            side.tell("open_loop", rate=4, seconds=scale.crowd_seconds - 1)
        heavy, light = [side.answer() for side in sides[:2]], [side.answer() for side in sides[2:]]
    calls = percentiles([second for one in light for second in one["seconds"]])
    rates = " and ".join(f"{one['per_second']:.0f}" for one in heavy)
    text = (
        f"a call of a light one p50 {calls['p50']:.1f} ms, p99 {calls['p99']:.1f} ms, worst {calls['max']:.0f} ms;"
        f" the saturating ones {rates} lifecycles/s"
    )
    report.fact("SQLite, two saturating and four light processes on one file", text)
    report.raw("sqlite.crowd", {"heavy": heavy, "light": calls})


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


assert CALLS_PER_LIFECYCLE == 11  # what the targets were set for
