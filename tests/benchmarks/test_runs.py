"""Runs: cost of appending compared with the bare driver, delay for viewers, and cost of a long history."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import http_servers
from tests.benchmarks.conftest import load
from tests.benchmarks.protocol import Side
from tests.benchmarks.report import Report, Target, at_most
from tests.benchmarks.rounds import NewURL, alternate, median, ratio

pytestmark = pytest.mark.benchmark

VIEWERS = 20
RATE = 1_000
RERUNS = 10
CALLERS = 4

_DATABASES = {"sqlite": "SQLite", "postgres": "Postgres"}
_LIMITS = {"sqlite": ("sqlite_rows", "executemany"), "postgres": ("postgres_rows", "COPY")}

TARGETS = {
    f"{database}.{name}": target
    for database, title in _DATABASES.items()
    for name, target in {
        "append": Target(f"{title}: run events in calls of 100", "k events/s", 10, 20),
        "viewers": at_most(f"{title}: call to each of {VIEWERS} viewers, {RATE:,} events/s, p99", "ms", 50, 20),
        "page": at_most(f"{title}: first page of the head view, 100,000 events, {RERUNS} re-runs", "ms", 50, 15),
        "fork": at_most(f"{title}: a fork of a run of 400 events", "ms", 20, 10),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to measure."""

    rounds: int
    calls: int
    seconds: float
    events: int
    times: int


_QUICK = Scale(2, 100, 3, 20_000, 10)
_FULL = Scale(3, 400, 10, 100_000, 30)


@pytest.fixture(scope="module")
def scale() -> Scale:
    """How much to measure: a full run takes minutes, one with ROLLBOOK_BENCH_QUICK=1 about one."""
    return _QUICK if os.environ.get("ROLLBOOK_BENCH_QUICK") else _FULL


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """The figures; printed at the end, however it ends."""
    print()
    report = Report(TARGETS, "bench-runs")
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


@pytest.fixture(scope="module")
def runs() -> Iterator[Side]:
    with Side(Path(sys.executable), "runs_side") as side:
        yield side


@pytest.fixture(scope="module")
def viewers() -> Iterator[Side]:
    with Side(Path(sys.executable), "runs_side") as side:
        yield side


@pytest.fixture(scope="module", params=list(_DATABASES))
def database(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new_url(database: str, sqlite_url: NewURL, request: pytest.FixtureRequest) -> NewURL:
    return sqlite_url if database == "sqlite" else request.getfixturevalue("postgres_url")


def test_appending(
    runs: Side, limit: Side, report: Report, scale: Scale, directory: Path, database: str, new_url: NewURL
) -> None:
    rows = directory / f"{database}-run-rows"
    runs.ask("open", url=new_url(), observed=True)
    runs.ask("append", callers=CALLERS, calls=CALLERS)
    before = runs.ask("transactions")
    runs.ask("append", callers=CALLERS, calls=scale.calls)
    runs.ask("keep_rows", path=str(rows), after=before)
    command, name = _LIMITS[database]

    def bare() -> dict[str, Any]:
        url = new_url()
        place = {"path": url.removeprefix("sqlite:///")} if database == "sqlite" else {"url": url}
        return limit.ask(command, **place, rows=str(rows), units=scale.calls * 100)

    sides: dict[str, Callable[[], dict[str, Any]]] = {"limit": bare}
    for callers in (1, CALLERS):
        sides[str(callers)] = lambda callers=callers: _appended(runs, new_url(), callers, scale.calls)
    measured = alternate(scale.rounds, sides)
    report.raw(f"{database}.append", measured)
    many, alone, bare_rows = measured[str(CALLERS)], measured["1"], measured["limit"]
    report.figure(
        f"{database}.append",
        median(many) / 1000,
        f"{CALLERS} callers, {median(many, 'cpu_us'):.0f} µs CPU each; one caller {median(alone) / 1000:.1f} k/s;"
        f" {ratio(many, bare_rows):.2f} of what {name} takes for the same rows",
    )
    rows.unlink()


def _appended(runs: Side, url: str, callers: int, calls: int) -> dict[str, Any]:
    runs.ask("open", url=url)
    runs.ask("append", callers=callers, calls=callers)
    return runs.ask("append", callers=callers, calls=calls)


def test_a_long_history(runs: Side, limit: Side, report: Report, scale: Scale, database: str, new_url: NewURL) -> None:
    url = new_url()
    runs.ask("open", url=url)
    forks = runs.ask("short_forks", times=scale.times)
    report.figure(f"{database}.fork", forks["p50"], f"p99 {forks['p99']:.1f} ms")
    run = runs.ask("long_run", events=scale.events, reruns=RERUNS)
    if database == "postgres":
        limit.ask("postgres_analyze", url=url)
    page = runs.ask("first_pages", rollout_id=run["rollout_id"], times=scale.times)
    detail = f"{scale.events:,} events, 500 on the page, with bodies; p99 {page['p99']:.1f} ms"
    report.figure(f"{database}.page", page["p50"], detail)
    title = f"{_DATABASES[database]}, a fork of a run of {scale.events // 2:,} to {scale.events:,} events"
    report.fact(title, f"p50 {run['forks']['p50']:.0f} ms")
    runs.ask("close")


def test_viewers(runs: Side, viewers: Side, report: Report, scale: Scale, database: str, new_url: NewURL) -> None:
    with http_servers.rollbook(new_url()) as server:
        run = runs.ask("begin", url=server.url)
        for seconds in (1.0, scale.seconds):
            viewers.tell("watch", url=server.url, run=run, viewers=VIEWERS, events=int(RATE * seconds))
            runs.ask("say_at", url=server.url, run=run, rate=RATE, seconds=seconds)
            seen = viewers.answer()
            run = runs.ask("begin", url=server.url)
        report.figure(f"{database}.viewers", seen["p99"], f"p50 {seen['p50']:.1f} ms, since the call was made")
