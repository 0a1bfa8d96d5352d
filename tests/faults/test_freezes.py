"""A database that hangs without an error: the hanging time does not count towards timeouts of attempts."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout
from store.sql.store import SQLStore
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_span
from tests.faults import processes
from tests.faults.sessions import Trouble, troubled_store
from tests.postgres import PostgresServer, with_partition

pytestmark = [pytest.mark.slow]

LONG = 10.0
"""The limit of silence in seconds of the long tests, whose freezes are shorter and longer than it."""
LATE = 2.0
"""The seconds after its limit within which a silent attempt is ended."""
ON_TIME = pytest.mark.parametrize(
    "limit,seconds",
    [
        (2.0, 4.0),
        *(pytest.param(LONG, seconds, marks=pytest.mark.torture_only) for seconds in (12.0, 35.0, 90.0)),
        pytest.param(60.0, 12.0, marks=pytest.mark.torture_only),
    ],
)


@dataclass
class Database:
    """A database that a test can freeze."""

    url: str
    freeze: Callable[[float], Any]
    """Function that makes the database hang for a number of seconds and returns afterwards. It blocks its thread."""


_HOLD_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
for line in sys.stdin:
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(float(line))
    connection.execute("ROLLBACK")
    print(flush=True)
"""


@contextlib.contextmanager
def locked_sqlite(path: Path) -> Generator[Database]:
    """Yield a SQLite database that freezes because another process holds its lock."""
    command = [sys.executable, "-c", _HOLD_LOCK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        orders, ends = holder.stdin, holder.stdout
        assert orders is not None
        assert ends is not None

        def freeze(seconds: float) -> None:
            print(seconds, file=orders, flush=True)
            ends.readline()

        yield Database(f"sqlite:///{path}", freeze)
        holder.kill()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        with locked_sqlite(tmp_path / "run.db") as locked:
            yield locked
        return
    with PostgresServer.start() as server:

        def freeze(seconds: float) -> None:
            server.freeze()
            time.sleep(seconds)
            server.thaw()

        yield Database(with_partition(server.url), freeze)


@dataclass
class Fleet:
    """Attempts that send signs of life, and attempts that are silent."""

    store: Store
    limit: float
    live: list[AttemptedRollout] = field(default_factory=list[AttemptedRollout])
    silent: list[AttemptedRollout] = field(default_factory=list[AttemptedRollout])
    failures: int = 0

    async def start(self, live: int, silent: int) -> None:
        rollouts = [await started(self.store, unresponsive_seconds=self.limit) for _ in range(live + silent)]
        self.live, self.silent = rollouts[:live], rollouts[live:]

    async def beat(self, rollout: AttemptedRollout) -> None:
        """Send a sign of life four times within the limit, as a runner does: one after the other."""
        while True:
            try:
                await self.store.update_attempt(
                    rollout.rollout_id, rollout.attempt.attempt_id, last_heartbeat_time=time.time()
                )
            except StoreError:
                self.failures += 1
            await asyncio.sleep(self.limit / 4)

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncGenerator[None]:
        beats = [asyncio.create_task(self.beat(rollout)) for rollout in self.live]
        try:
            yield
        finally:
            for task in beats:
                task.cancel()
            await asyncio.gather(*beats, return_exceptions=True)


async def ended(observer: Store, rollouts: list[AttemptedRollout]) -> int:
    """Return how many of these rollouts have failed. A store that only reads ends no attempts."""
    ids = {rollout.rollout_id for rollout in rollouts}
    return sum(rollout.rollout_id in ids for rollout in await observer.query_rollouts(status_in=["failed"]))


async def seconds_until_ended(observer: Store, rollouts: list[AttemptedRollout], at_most: float) -> float:
    began = time.monotonic()
    while await ended(observer, rollouts) < len(rollouts) and time.monotonic() - began < at_most + 20:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def judge(fleet: Fleet, observer: Store, freeze: Callable[[float], Any], seconds: float) -> None:
    """Freeze the database, and check that only silent attempts are ended, and these on time."""
    limit = fleet.limit
    async with fleet.beating():
        await asyncio.sleep(limit / 2)
        await asyncio.to_thread(freeze, seconds)
        silent_for = await seconds_until_ended(observer, fleet.silent, limit + LATE)
        # All live attempts could have been ended by now.
        await asyncio.sleep(max(0.0, limit + LATE - silent_for))
        given_up = await ended(observer, fleet.live)
    left_for = await seconds_until_ended(observer, fleet.live, limit + LATE)
    print(
        f"\nlimit {limit:g} s, freeze {seconds:g} s: live given up {given_up} of {len(fleet.live)}; silent given up"
        f" {silent_for:.2f} s after it; after their last sign {left_for:.2f} s; failed signs {fleet.failures}"
    )
    assert given_up == 0
    assert silent_for <= limit + LATE
    assert left_for <= limit + LATE


async def stay_open(ready: Connection, url: str) -> None:
    """Open a store and do nothing with it."""
    async with await open_store(url):
        await processes.until_left(ready)


@ON_TIME
async def test_a_freeze_of_the_database_ends_no_live_attempt(database: Database, limit: float, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_store(database.url))
        observer = await stack.enter_async_context(await open_store(database.url, read_only=True))
        fleet = Fleet(store, limit)
        # Other processes receive no signs of life, and judge the attempts too.
        others = [await asyncio.to_thread(processes.Killable, stay_open, database.url) for _ in range(2)]
        for other in others:
            stack.callback(other.kill)
        await fleet.start(live=30, silent=5)
        await judge(fleet, observer, database.freeze, seconds)


@ON_TIME
async def test_a_stalled_disk_ends_no_live_attempt(tmp_path: Path, limit: float, seconds: float) -> None:
    trouble = Trouble()
    url = f"sqlite:///{tmp_path / 'run.db'}"

    def freeze(seconds: float) -> None:
        def stall() -> None:
            trouble.before_commit = lambda: None
            time.sleep(seconds)

        trouble.before_commit = stall
        time.sleep(limit / 4 + seconds)

    async with await troubled_store(url, trouble) as store, await open_store(url, read_only=True) as observer:
        assert isinstance(store, SQLStore)
        fleet = Fleet(store, limit)
        await fleet.start(live=30, silent=5)
        await judge(fleet, observer, freeze, seconds)


async def test_an_open_store_that_only_records_spans_ends_silent_attempts_on_time(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        rollouts = [await started(store, unresponsive_seconds=0.5) for _ in range(3)]
    async with await open_store(durable_url) as store, await open_store(durable_url, read_only=True) as observer:
        for number in range(1, 4):
            await store.add_span(make_span(rollouts[0].attempt, number))
        assert await seconds_until_ended(observer, rollouts, 0.5 + LATE) <= 0.5 + LATE
