"""A measurement of how several processes on one SQLite file take turns at writing.

    python -m tests.faults.turn_taking [--seconds N] [--rounds N]

Two processes write continuously, and four others write one row every few milliseconds. For each way to wait for the
lock, the output contains the number of commits of the two and the time of one call of the four. With several rounds,
the ways alternate, and the output contains the medians.
"""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from store.db.dialect import Tail, WriteSession, register
from store.db.drivers.sqlite.dialect import SQLite
from store.db.drivers.sqlite.writer import SQLiteWriter
from store.errors import StoreError
from store.opening import open_store
from store.runtime.clock import system_clock
from tests import databases
from tests.faults import processes

BUSY = 2
LIGHT = 4
BUSY_CALLERS = 16
LIGHT_PAUSE_SECONDS = 0.01

Begin = Callable[["Turns"], Awaitable[Tail]]


class Turns(SQLiteWriter):
    """A writer that waits for the lock in a given way."""

    way: Begin
    lock_file: int

    @property
    def connection(self) -> sqlite3.Connection:
        """The writing connection."""
        return self._connection

    async def begin(self) -> Tail:
        return await type(self).way(self)

    def tail(self) -> Tail:
        """Where the log ends, in the transaction just begun."""
        return self._read_tail()

    async def commit(self) -> None:
        await super().commit()
        self._give_way()

    async def rollback(self) -> None:
        await super().rollback()
        self._give_way()

    def _give_way(self) -> None:
        if hasattr(self, "lock_file"):
            fcntl.flock(self.lock_file, fcntl.LOCK_UN)


async def as_it_is(turns: Turns) -> Tail:
    """Wait as the store does."""
    return await SQLiteWriter.begin(turns)


def jittered(shortest: float, longest: float) -> Begin:
    """Try again after a random pause between two, in seconds."""

    async def begin(turns: Turns) -> Tail:
        while True:
            with contextlib.suppress(sqlite3.OperationalError):
                turns.connection.execute("BEGIN IMMEDIATE")
                return turns.tail()
            await asyncio.sleep(random.uniform(shortest, longest))

    return begin


async def busy_handler(turns: Turns) -> Tail:
    """Let SQLite wait with pauses of its own, which grow to 100 ms."""
    if not turns.connection.execute("PRAGMA busy_timeout").fetchone()[0]:
        turns.connection.execute("PRAGMA busy_timeout = 30000")
    turns.connection.execute("BEGIN IMMEDIATE")
    return turns.tail()


def turnstile(shortest: float, longest: float) -> Begin:
    """Stand in the kernel's line only for being the one who asks SQLite, after pauses between two, in seconds."""
    ask = jittered(shortest, longest)

    async def begin(turns: Turns) -> Tail:
        await _take_turn(turns)
        try:
            return await ask(turns)
        finally:
            fcntl.flock(turns.lock_file, fcntl.LOCK_UN)

    return begin


async def flock_first(turns: Turns) -> Tail:
    """Stand in the kernel's line for a lock file, and keep it until the commit."""
    await _take_turn(turns)
    return await SQLiteWriter.begin(turns)


async def _take_turn(turns: Turns) -> None:
    if not hasattr(turns, "lock_file"):
        path = turns.connection.execute("PRAGMA database_list").fetchone()[2]
        turns.lock_file = os.open(f"{path}.turn", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(turns.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        await asyncio.to_thread(fcntl.flock, turns.lock_file, fcntl.LOCK_EX)


WAYS: dict[str, Begin] = {
    "the store's": as_it_is,
    "busy_timeout": busy_handler,
    "flock": flock_first,
    "turnstile, 0.05 to 0.1 ms": turnstile(0.00005, 0.0001),
    "turnstile, 0.2 to 1 ms": turnstile(0.0002, 0.001),
    "0.2 to 1 ms": jittered(0.0002, 0.001),
    "0.05 to 0.3 ms": jittered(0.00005, 0.0003),
    "0.5 to 3 ms": jittered(0.0005, 0.003),
}


@dataclass(frozen=True)
class Measured:
    """What six processes did in one run."""

    commits_per_second: float
    """Of the busy ones together."""
    shares: Sequence[int]
    """Commits of each busy process."""
    light_seconds: Sequence[float]
    """Each call of the light processes."""
    errors: Sequence[str]

    def light(self, share: float) -> float:
        """Return the time in milliseconds within which this share of the light calls was answered."""
        ordered = sorted(self.light_seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def write(url: str, report: Path, seconds: float, way: str, is_busy: bool) -> None:
    """Write for a while, much or little, and report."""

    class WithWay(SQLite):
        async def writer(self) -> WriteSession:
            return Turns(self, self.path, "FULL", self.clock or system_clock)

    Turns.way = staticmethod(WAYS[way])
    register("sqlite", WithWay)
    store = await open_store(url, scan_debounce_seconds=3600)
    taken: list[float] = []
    errors: list[str] = []
    calls = 0
    deadline = time.monotonic() + seconds

    async def call() -> None:
        nonlocal calls
        # Each makes a call at least, however late it begins.
        while True:
            begun = time.monotonic()
            try:
                await store.enqueue_rollout("task")
            except StoreError as error:
                errors.append(str(error))
            calls += 1
            if not is_busy:
                taken.append(time.monotonic() - begun)
                await asyncio.sleep(LIGHT_PAUSE_SECONDS * random.uniform(0.5, 1.5))
            if time.monotonic() >= deadline:
                return

    await asyncio.gather(*(call() for _ in range(BUSY_CALLERS if is_busy else 1)))
    await store.close()
    await asyncio.to_thread(report.write_bytes, orjson.dumps({"calls": calls, "taken": taken, "errors": errors}))


def measure(url: str, directory: Path, seconds: float, way: str) -> Measured:
    """Run the six processes on a file for a while."""
    reports = [directory / f"report{number}" for number in range(BUSY + LIGHT)]
    arguments = [(url, report, seconds, way, number < BUSY) for number, report in enumerate(reports)]
    with processes.running(write, *arguments) as writers:
        codes = processes.leave(writers, seconds + 60)
    assert codes == [0] * len(codes), codes
    said = [orjson.loads(report.read_bytes()) for report in reports]
    shares = [one["calls"] for one in said[:BUSY]]
    return Measured(
        sum(shares) / seconds,
        shares,
        [seconds for one in said[BUSY:] for seconds in one["taken"]],
        [error for one in said for error in one["errors"]],
    )


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.turn_taking")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    options = parser.parse_args()
    runs: dict[str, list[Measured]] = {way: [] for way in options.ways}
    for _ in range(options.rounds):
        for way, measured in runs.items():
            with tempfile.TemporaryDirectory() as directory:
                url = f"sqlite:///{directory}/run.db"
                asyncio.run(databases.prepare(url))
                measured.append(measure(url, Path(directory), options.seconds, way))
    print("| waiting for the lock | busy calls/s | smaller share | light p50 ms | p99 ms | worst ms | errors |")
    print("|---|---|---|---|---|---|---|")
    for way, measured in runs.items():
        columns = (
            f"{_median(one.commits_per_second for one in measured):,.0f}",
            f"{_median(min(one.shares) / sum(one.shares) for one in measured):.0%}",
            f"{_median(one.light(0.5) for one in measured):.1f}",
            f"{_median(one.light(0.99) for one in measured):.1f}",
            f"{_median(one.light(1) for one in measured):.1f}",
            f"{sum(len(one.errors) for one in measured)}",
        )
        print(f"| {way} | {' | '.join(columns)} |")
    return 0


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(_main())
