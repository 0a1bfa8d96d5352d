"""Processes, files and servers that the benchmarks share. Each benchmark opens its stores in them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests import postgres
from tests.benchmarks import peer
from tests.benchmarks.protocol import ROOT, Side
from tests.benchmarks.report import Report
from tests.benchmarks.rounds import Scale

IS_QUICK = bool(os.environ.get("ROLLBOOK_BENCH_QUICK"))


_QUICK = Scale(3, 0.3, 40, 50, 2, 3, 20_000)
_FULL = Scale(5, 0.8, 150, 200, 8, 8, 1_000_000)
_SCALE = _QUICK if IS_QUICK else _FULL


@pytest.fixture(scope="session")
def scale() -> Scale:
    """How long to measure: a full run takes minutes, one with ROLLBOOK_BENCH_QUICK=1 about one.

    ROLLBOOK_BENCH_EVENTS sets the length of the log that is verified and rebuilt.
    """
    events = os.environ.get("ROLLBOOK_BENCH_EVENTS")
    return replace(_SCALE, events=int(events)) if events else _SCALE


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    """The figures; printed at the end, however it ends."""
    print()
    report = Report()
    report.fact("load average before", load())
    try:
        yield report
    finally:
        report.fact("load average after", load())
        report.finish()


def load() -> str:
    """Return how busy the machine is."""
    # Next to figures of a machine that had other things to do, nothing means anything but the CPU time.
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


def stored_before(new_url: str) -> str | None:
    """Return the URL of a store of an earlier run in the same kind of database; None if there is none.

    ROLLBOOK_BENCH_STORE has the URLs of such stores, separated by spaces.
    """
    scheme = new_url.partition(":")[0]
    return next((url for url in os.environ.get("ROLLBOOK_BENCH_STORE", "").split() if url.startswith(scheme)), None)


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """A directory on the checkout's own disk, since /tmp may be memory."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / ".cache"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def sqlite_url(directory: Path) -> Callable[[], str]:
    """A function that returns the URL of a file that does not exist yet."""
    numbers = count(1)
    return lambda: f"sqlite:///{directory / f'{next(numbers)}.db'}"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[Callable[[], str]]:
    """A function that returns the URL of a partition that does not exist yet, on a server whose commits are durable."""
    if postgres.EXTERNAL_URL:
        url = postgres.EXTERNAL_URL
        yield lambda: postgres.with_partition(url)
        return
    with postgres.PostgresServer.start(fsync="on") as server:
        yield lambda: postgres.with_partition(server.url)


@pytest.fixture(scope="session")
def start_rollbook() -> Callable[[], Side]:
    """A function that starts another process for the store under measurement."""
    return lambda: Side(Path(sys.executable), "rollbook_side")


@pytest.fixture(scope="session")
def rollbook(start_rollbook: Callable[[], Side]) -> Iterator[Side]:
    with start_rollbook() as side:
        yield side


@pytest.fixture(scope="session")
def limit() -> Iterator[Side]:
    with Side(Path(sys.executable), "limit_side") as side:
        yield side


@pytest.fixture(scope="session")
def peer_store(report: Report) -> Iterator[Side | None]:
    """The peer; None, and said so, where it cannot be installed."""
    try:
        python = peer.python()
    except peer.PeerMissing as missing:
        report.fact("peer", f"none, only our own figures follow: {missing}")
        yield None
        return
    with Side(python, "peer_side") as side:
        report.fact("peer", f"Agent-lightning {side.ask('hello')}, InMemoryLightningStore, in a process of its own")
        yield side
