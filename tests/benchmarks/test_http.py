"""The server compared with Agent-lightning's and with the bare framework: the same client and the same requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import http_servers
from tests.benchmarks.conftest import load
from tests.benchmarks.http_servers import Server
from tests.benchmarks.protocol import Side
from tests.benchmarks.report import TIMES, Report, Target, at_most
from tests.benchmarks.rounds import Measured, NewURL, alternate, median, ratio
from tests.benchmarks.workload import CALLS_PER_LIFECYCLE
from tests.interop.peer import environment
from tests.peer_environment import PeerMissing

pytestmark = pytest.mark.benchmark

CONNECTIONS = (1, 8, 32, 128)
BUSY = 32
FEW = 8
SPANS_OF_A_TRACE = 100
ROLLOUTS = 10_000
FOLLOWERS = 100
EVENT_BYTES = 5 * 2**20

TARGETS = {
    "lifecycle.1": Target("lifecycles ÷ peer's server, 1 connection", TIMES, 1.3, 2),
    "lifecycle.8": Target("lifecycles ÷ peer's server, 8 connections", TIMES, 3, 5),
    "lifecycle.32": Target("lifecycles ÷ peer's server, 32 connections", TIMES, 5, 10),
    "postgres.32": Target("lifecycles ÷ peer's server, 32 connections, Postgres", TIMES, 3, 8),
    "cpu.32": at_most("server CPU of a lifecycle, 32 connections", "ms", 2.5, 1.2),
    "p99.32": at_most("lifecycle p99, 32 connections", "ms", 150, 50),
    "spans": Target("POST /spans ÷ an echo of FastAPI, 32 connections", TIMES, 0.5, 0.75),
    "otlp": Target("OTLP spans in requests of 100 ÷ peer's server, 8 connections", TIMES, 1.3, 3),
    "read.spans": Target("reads of 100 spans ÷ peer's server, 8 connections", TIMES, 3, 10),
    "followers.p50": at_most(
        "p50 of a get beside 100 followers of a 5 MiB event \N{DIVISION SIGN} beside none", TIMES, 20, 5
    ),
    "followers.p99": at_most(
        "p99 of a get beside 100 followers of a 5 MiB event \N{DIVISION SIGN} beside none", TIMES, 100, 30
    ),
    "read.rollouts": Target("reads of 100 of 10,000 rollouts ÷ peer's server, 8 connections", TIMES, 3, 10),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How long to measure."""

    rounds: int
    seconds: float
    """Of one side in one round of lifecycles."""
    spans: int
    traces: int
    reads: int


_QUICK = Scale(2, 0.4, 600, 20, 60)
_FULL = Scale(5, 1.0, 3000, 100, 300)
_WARM_SECONDS = 0.3
# The peer is given less of what it is slow at, so that the sides take about as long.
_PEER_SHARE = 4

Sides = dict[str, Server]


@pytest.fixture(scope="module")
def scale() -> Scale:
    """How long to measure: a full run takes minutes, one with ROLLBOOK_BENCH_QUICK=1 about one."""
    return _QUICK if os.environ.get("ROLLBOOK_BENCH_QUICK") else _FULL


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """The figures; printed at the end, however it ends."""
    print()
    report = Report(TARGETS, "bench-http")
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


@pytest.fixture(scope="module")
def peer_python(report: Report) -> Path | None:
    """The interpreter of the peer's environment; None, and said so, where it cannot be installed."""
    try:
        python = environment().python()
    except PeerMissing as missing:
        report.fact("peer", f"none, only our own figures follow: {missing}")
        return None
    report.fact("peer", "Agent-lightning 0.3.0, `agl store`, in memory, with what was current at its release")
    return python


@pytest.fixture(scope="module")
def client() -> Iterator[Side]:
    with Side(http_servers.PYTHON, "http_side") as side:
        yield side


@pytest.fixture
def start(sqlite_url: NewURL, peer_python: Path | None) -> Iterator[Callable[..., Sides]]:
    """A function that starts the servers, ours on a fresh file and whatever else is asked for, until the test ends."""
    with ExitStack() as running:

        def started(**others: str) -> Sides:
            sides = {"rollbook": running.enter_context(http_servers.rollbook(sqlite_url()))}
            for name, database in others.items():
                sides[name] = running.enter_context(http_servers.rollbook(database))
            if peer_python is not None:
                sides["peer"] = running.enter_context(http_servers.upstream(peer_python))
            return sides

        yield started


def test_lifecycles(
    start: Callable[..., Sides], client: Side, report: Report, scale: Scale, postgres_url: NewURL
) -> None:
    servers = start(postgres=postgres_url())
    for connections in CONNECTIONS:
        names = [name for name in servers if name != "postgres" or connections == BUSY]
        # With many connections each takes seconds for one on the peer's side.
        rounds = scale.rounds if connections <= BUSY else 2
        sides = {name: _lifecycles(client, servers[name], connections, scale.seconds) for name in names}
        measured = alternate(rounds, sides)
        report.raw(f"lifecycles.{connections}", measured)
        for name, taken in measured.items():
            report.fact(f"{_NAMES[name]}, {connections} connection{'s' * (connections > 1)}", _in_words(taken))
        _note_lifecycles(report, connections, measured)


_NAMES = {"rollbook": "SQLite, synchronous=FULL", "postgres": "Postgres", "peer": "peer"}


def _note_lifecycles(report: Report, connections: int, measured: Measured) -> None:
    ours, peer = measured["rollbook"], measured.get("peer")
    if peer is not None and f"lifecycle.{connections}" in TARGETS:
        detail = f"{median(ours):,.0f}/s, peer {median(peer):,.0f}/s"
        report.figure(f"lifecycle.{connections}", ratio(ours, peer), detail)
    if connections != BUSY:
        return
    beside = f"peer {median(peer, 'cpu_ms'):.1f} ms" if peer else ""
    report.figure("cpu.32", median(ours, "cpu_ms"), beside)
    beside = f"peer {_latency(peer, 'p99'):,.0f} ms" if peer else ""
    report.figure("p99.32", _latency(ours, "p99"), beside)
    if peer is not None:
        detail = f"{median(measured['postgres']):,.0f}/s, peer {median(peer):,.0f}/s"
        report.figure("postgres.32", ratio(measured["postgres"], peer), detail)


def _lifecycles(client: Side, server: Server, connections: int, seconds: float) -> Callable[[], dict[str, Any]]:
    def measure() -> dict[str, Any]:
        client.ask("lifecycles", **server.where, connections=connections, seconds=_WARM_SECONDS)
        return client.ask("lifecycles", **server.where, connections=connections, seconds=seconds)

    return measure


def _in_words(rounds: list[dict[str, Any]]) -> str:
    return (
        f"{median(rounds):,.0f} lifecycles/s, {median(rounds, 'requests_per_second'):,.0f} requests/s;"
        f" p50 {_latency(rounds, 'p50'):.1f} ms, p99 {_latency(rounds, 'p99'):.1f} ms;"
        f" server CPU {median(rounds, 'cpu_ms'):.2f} ms a lifecycle,"
        f" {median(rounds, 'cpu_ms_per_request'):.2f} ms a request"
    )


def _latency(rounds: list[dict[str, Any]], share: str) -> float:
    return median([one["latency"] for one in rounds], share)


def test_spans(start: Callable[..., Sides], client: Side, report: Report, scale: Scale) -> None:
    with http_servers.echo() as echo:
        servers = {**start(), "echo": echo}

        def post(name: str) -> Callable[[], dict[str, Any]]:
            count = scale.spans // _PEER_SHARE if name == "peer" else scale.spans
            where = servers[name].where
            return lambda: client.ask("spans", **where, connections=BUSY, count=count, claims=name != "echo")

        measured = _warm_and_alternate(scale.rounds, {name: post(name) for name in servers})
    report.raw("spans", measured)
    report.figure("spans", ratio(measured["rollbook"], measured["echo"]), _rates(measured))


def test_otlp(start: Callable[..., Sides], client: Side, report: Report, scale: Scale) -> None:
    def export(server: Server) -> Callable[[], dict[str, Any]]:
        def measure() -> dict[str, Any]:
            client.ask("prepare_traces", url=server.url, traces=scale.traces, spans=SPANS_OF_A_TRACE)
            return client.ask("export", **server.where, connections=FEW, spans=SPANS_OF_A_TRACE)

        return measure

    measured = _warm_and_alternate(scale.rounds, {name: export(server) for name, server in start().items()})
    _note(report, "otlp", measured)


def test_reads(start: Callable[..., Sides], client: Side, report: Report, scale: Scale) -> None:
    servers = start()
    filled = {
        name: client.ask("fill", url=server.url, rollouts=ROLLOUTS, spans=SPANS_OF_A_TRACE)
        for name, server in servers.items()
    }

    def spans(name: str, *, again: bool) -> Callable[[], dict[str, Any]]:
        where = {**servers[name].where, "rollout_id": filled[name], "again": again}
        return lambda: client.ask("read_spans", **where, connections=FEW, count=scale.reads)

    def rollouts(name: str, *, again: bool) -> Callable[[], dict[str, Any]]:
        where = {**servers[name].where, "again": again}
        return lambda: client.ask("read_rollouts", **where, connections=FEW, count=scale.reads)

    for key, read in (("read.spans", spans), ("read.rollouts", rollouts)):
        _note(report, key, _warm_and_alternate(scale.rounds, {name: read(name, again=False) for name in servers}))
        repeated = _warm_and_alternate(scale.rounds, {name: read(name, again=True) for name in servers})
        report.fact(f"{TARGETS[key].title}, the same page each time", f"{_times(repeated)}; {_rates(repeated)}")


def test_gets_beside_followers(start: Callable[..., Sides], client: Side, report: Report, scale: Scale) -> None:
    server = start()["rollbook"]
    client.ask("enqueue_large", url=server.url, size=EVENT_BYTES)

    def gets(followers: int) -> Callable[[], dict[str, Any]]:
        def measure() -> dict[str, Any]:
            if not followers:
                return client.ask("gets", url=server.url, seconds=scale.seconds)
            with Side(http_servers.PYTHON, "followers_side") as side:
                side.tell("follow", url=server.url, count=followers, size=EVENT_BYTES)
                measured = client.ask("gets", url=server.url, seconds=scale.seconds)
                assert side.answer() >= followers * EVENT_BYTES
            return measured

        return measure

    measured = _warm_and_alternate(scale.rounds, {"none": gets(0), "followers": gets(FOLLOWERS)})
    report.raw("followers", measured)
    for share in ("p50", "p99"):
        beside, alone = median(measured["followers"], share), median(measured["none"], share)
        detail = f"{beside:.2f} ms, alone {alone:.2f} ms"
        report.figure(f"followers.{share}", ratio(measured["followers"], measured["none"], share), detail)


def _warm_and_alternate(rounds: int, sides: dict[str, Callable[[], dict[str, Any]]]) -> Measured:
    """As `alternate`, without the first round: a server's first answers are made by code not yet specialised."""
    return {name: measured[1:] for name, measured in alternate(rounds + 1, sides).items()}


def _times(measured: Measured) -> str:
    times = ratio(measured["rollbook"], measured["peer"])
    return f"{times:.3g} {TIMES}"


def _note(report: Report, key: str, measured: Measured) -> None:
    report.raw(key, measured)
    if "peer" in measured:
        report.figure(key, ratio(measured["rollbook"], measured["peer"]), _rates(measured))
    else:
        report.fact(TARGETS[key].title, _rates(measured))


def _rates(measured: Measured) -> str:
    names = {"rollbook": "", "peer": "peer ", "echo": "echo "}
    return "; ".join(
        f"{names[name]}{median(rounds):,.0f}/s, {median(rounds, 'cpu_us'):,.0f} µs CPU"
        for name, rounds in measured.items()
    )


assert CALLS_PER_LIFECYCLE == 11  # what the targets were set for
