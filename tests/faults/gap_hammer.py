"""Eight writers that roll back and crash at random, and readers that miss no event: a test of the writers' lock.

    python -m tests.faults.gap_hammer [--without-lock] [--kills N]

Without the lock, writers on Postgres take positions from the same sequences and commit in any order. SQLite allows only
one writer, so the option has no effect there.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from store.db.dialect import Changes, Tail, WriteSession, register
from store.db.drivers.postgres.dialect import Postgres, PostgresWriter
from store.errors import StoreError, Unavailable
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, LoggedEvent
from store.opening import open_store
from tests import databases, postgres
from tests.faults import processes
from tests.faults.sessions import Wrapped, wrapped
from tests.faults.work import Acknowledged, Ledger

PROCESSES = 4
STORES_PER_PROCESS = 2
CALLERS_PER_STORE = 3
ANSWERS_PER_WRITER = 20
"""A writer is killed after this number of answers at the earliest."""
LONGEST_LIFE_SECONDS = 0.3
"""The maximum time from these answers to the kill."""
_POSITIONS_AHEAD = 1000


class PoisonedError(Exception):
    """A mistake in the program, of the kind nobody foresaw."""


class Turbulent(Wrapped):
    """A session that is slow to commit, rolls back, and loses answers, all at random."""

    longest_pause = 0.004
    """The maximum time before a COMMIT, in seconds."""

    async def write(self, changes: Changes) -> None:
        await super().write(changes)
        if (luck := random.random()) < 0.1:
            raise Unavailable("this batch is rolled back")
        if luck < 0.15:
            raise PoisonedError

    async def commit(self) -> None:
        await asyncio.sleep(random.uniform(0, self.longest_pause))
        await super().commit()
        if random.random() < 0.05:
            raise Unavailable("the answer to COMMIT was lost")


class Unlocked(PostgresWriter):
    """A writer that draws positions as any program may that has no lock: in the middle of its transaction."""

    def __init__(self, dialect: Postgres) -> None:
        super().__init__(dialect)
        lock = f" SELECT pg_advisory_xact_lock({dialect.lock_key})"
        assert lock in self._begin
        self._begin = self._begin.replace(lock, "")
        self._ahead = (
            f"SELECT nextval('{dialect.schema}.commit_seq'),"
            f" (SELECT min(nextval('{dialect.schema}.event_seq')) FROM generate_series(1, {_POSITIONS_AHEAD}))"
        )

    async def begin(self) -> Tail:
        tail = await super().begin()
        commit_id, first = await self._live.fetchrow(self._ahead)
        self._predicted = (commit_id, first)
        return replace(tail, next_commit_id=commit_id, next_position=first)

    def _check_drawn(self, positions: int, commit_id: int, first: int, last: int) -> None:
        # The rows carry the numbers that `begin` drew.
        assert positions <= _POSITIONS_AHEAD


class Overlapping(Turbulent):
    """A session with long transactions. Without the lock, they overlap even on a loaded machine."""

    longest_pause = 0.03


class UnlockedPostgres(Postgres):
    """Postgres without the lock."""

    async def writer(self) -> WriteSession:
        return Overlapping(Unlocked(self))


async def write(url: str, ledger_path: Path, name: str, locked: bool) -> None:
    """Enqueue for ever through two stores of one process, noting each answer."""
    ledger = Ledger(ledger_path)
    logging.disable()
    with wrapped(Turbulent):
        if not locked:
            register("postgresql", UnlockedPostgres)
        stores = [await open_store(url) for _ in range(STORES_PER_PROCESS)]
    callers = [(store, f"{name}-{number}") for number, store in enumerate(stores * CALLERS_PER_STORE)]
    # Without the lock two writers may draw the same place in the queue; who loses goes on.
    survives = (PoisonedError,) if locked else (PoisonedError, StoreError)
    await asyncio.gather(*(_enqueue(store, ledger, caller, survives) for store, caller in callers))


async def _enqueue(store: Store, ledger: Ledger, caller: str, survives: tuple[type[Exception], ...]) -> None:
    for turn in count():
        requests = [EnqueueRolloutRequest(input=f"{caller} {turn} {item}") for item in range(random.randint(1, 3))]
        try:
            for rollout in await store.enqueue_many_rollouts(requests):
                ledger.note("enqueue", rollout.rollout_id, rollout.input)
        except survives:
            continue


@dataclass(frozen=True)
class Reading:
    """What one reader saw, beside what the log holds in the end."""

    reader: str
    log: Sequence[int]
    seen: Sequence[int]

    @property
    def missed(self) -> int:
        """Events of the log that the reader never saw."""
        return len(set(self.log) - set(self.seen))

    @property
    def doubled(self) -> int:
        """Events that it saw again."""
        return len(self.seen) - len(set(self.seen))

    def __str__(self) -> str:
        order = "equal" if list(self.seen) == list(self.log) else "not the log's"
        return (
            f"{self.reader}: {len(self.seen):,} seen, {self.missed:,} missed, {self.doubled:,} doubled, order {order}"
        )


@dataclass(frozen=True)
class Result:
    """What the hammer found."""

    readings: list[Reading]
    events: int
    commits: int
    kills: int
    acknowledged: int
    lost: list[str]
    """Acknowledged and not in the database."""

    def __str__(self) -> str:
        writers = f"{PROCESSES * STORES_PER_PROCESS} writers in {PROCESSES} processes, {self.kills} of them killed"
        log = f"{self.events:,} events in {self.commits:,} commits by {writers}"
        return "\n".join(
            [log, f"{self.acknowledged:,} acknowledged calls, {len(self.lost)} lost", *map(str, self.readings)]
        )


async def hammer(url: str, directory: Path, kills: int, *, locked: bool = True) -> Result:
    """Let the writers and two readers loose on a new partition, until so many writers were killed."""
    await databases.prepare(url)
    store, database = await open_store(url, read_only=True), await databases.connect(url)
    by_cursor: list[int] = []
    by_position: list[int] = []
    readers = [asyncio.create_task(_tail(store, by_cursor)), asyncio.create_task(_poll(database, by_position))]
    try:
        ledgers = await _write_and_kill(url, directory, kills, locked, readers)
        log = await _settled_log(url)
        await _until(lambda: by_cursor[-1:] == by_position[-1:] == log[-1:], readers)
        acknowledged = Acknowledged()
        acknowledged.read(ledgers)
        connection = await databases.connect(url)
        commits = (await connection.rows("SELECT count(*) FROM commits"))[0][0]
        lost = await acknowledged.missing(connection)
        await connection.close()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await database.close()
        await store.close()
    readings = [Reading("tail by cursor", log, by_cursor), Reading("poll by position", log, by_position)]
    return Result(readings, len(log), commits, len(ledgers), acknowledged.calls, lost)


async def _write_and_kill(
    url: str, directory: Path, kills: int, locked: bool, readers: list[asyncio.Task[None]]
) -> list[Path]:
    """Kill one writer after the other, each a random time after its first answers, then all; return the ledgers."""
    ledgers: list[Path] = []

    def begin() -> tuple[BaseProcess, Path]:
        ledgers.append(directory / f"hammer{len(ledgers)}")
        return processes.start(write, url, ledgers[-1], ledgers[-1].name, locked), ledgers[-1]

    async def has_written(writer: BaseProcess, ledger: Path) -> None:
        while _answers_in(ledger) < ANSWERS_PER_WRITER:
            assert writer.is_alive(), "a writer ended by itself"
            _check(readers)
            await asyncio.sleep(0.01)

    writers = [begin() for _ in range(PROCESSES)]
    try:
        for _ in range(kills):
            killed = random.randrange(PROCESSES)
            await has_written(*writers[killed])
            await asyncio.sleep(random.uniform(0, LONGEST_LIFE_SECONDS))
            processes.kill(writers[killed][0])
            writers[killed] = begin()
        for writer in writers:
            await has_written(*writer)
    finally:
        for process, _ in writers:
            processes.kill(process)
    return ledgers


def _answers_in(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


async def _tail(store: Store, seen: list[int]) -> None:
    """Follow the log, and let go and resume at a cursor every now and then."""
    after: str | None = None
    while True:
        events = cast("AsyncGenerator[LoggedEvent]", store.log.tail(after=after, follow=True))
        async with aclosing(events):
            async for event in events:
                seen.append(event.position)
                after = event.cursor
                if random.random() < 0.005:
                    break


async def _poll(database: databases.Database, seen: list[int]) -> None:
    """Read on from the last position, as any program may that knows only the table."""
    while True:
        after = seen[-1] if seen else 0
        query = f"SELECT position FROM events WHERE position > {after} ORDER BY position LIMIT 100"
        seen.extend(row[0] for row in await database.rows(query))
        await asyncio.sleep(0.001)


async def _settled_log(url: str) -> list[int]:
    """Return the log's positions once the transactions of the dead have ended."""
    database = await databases.connect(url)
    log: list[tuple[Any, ...]] | None = None
    while (now := await database.rows("SELECT position FROM events ORDER BY position")) != log:
        log = now
        await asyncio.sleep(0.3)
    await database.close()
    return [row[0] for row in log or []]


async def _until(is_so: Callable[[], bool], readers: list[asyncio.Task[None]], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        _check(readers)
        await asyncio.sleep(0.01)


def _check(readers: list[asyncio.Task[None]]) -> None:
    for reader in readers:
        if reader.done():
            reader.result()


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.gap_hammer")
    parser.add_argument("--without-lock", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with postgres.PostgresServer.start() as server, tempfile.TemporaryDirectory() as directory:
        url = postgres.with_partition(server.url)
        result = asyncio.run(hammer(url, Path(directory), options.kills, locked=not options.without_lock))
    print("without the lock:" if options.without_lock else "with the lock:", result, sep="\n")
    return 0 if all(reading.seen == reading.log for reading in result.readings) and not result.lost else 1


if __name__ == "__main__":
    sys.exit(_main())
