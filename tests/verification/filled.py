"""A store with rows of every kind for tests of verification."""

from __future__ import annotations

from collections.abc import Awaitable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import pytest

from store import open_store
from store.db.dialect import Changes, ReadSession, Sql, dialect_for
from store.db.tables.core import events
from store.db.url import parse
from store.domain.events import BodyDropped, Event
from store.domain.working_set import WorkingSet
from store.interface.store import Store
from store.journal.log_rows import log_rows
from store.models import AttemptedRollout, Difference, VerifyReport
from store.runtime.clock import Clock
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.verification import log_scan, rebuild
from store.verification.differences import Differences
from tests.faults import processes
from tests.journal.database_helpers import ask

T = TypeVar("T")


ON_SQLITE = pytest.mark.parametrize("copy_url", ["sqlite"], indirect=True)
"""The comparison is the same code for all databases, and needs a test on Postgres only where its SQL differs."""
ON_POSTGRES = pytest.mark.parametrize("copy_url", ["postgres"], indirect=True)


class Filled:
    """A store with something of everything, and what verify says of it."""

    def __init__(self, url: str, store: Store, first: AttemptedRollout, clock: ManualClock) -> None:
        self.url = url
        self.store = store
        self.first = first
        self.clock = clock

    async def differences(self, seal: Any = None) -> list[Difference]:
        return (await self.report(seal)).differences

    async def report(self, seal: Any = None) -> VerifyReport:
        report = await self.store.log.verify(seal)
        assert report.ok == (report.difference_count == 0) == (not report.differences)
        assert isinstance(self.store, SQLStore)
        await assert_ranges_find_the_same(self.store)
        return report

    async def only(self, check: str) -> Difference:
        """Return the one difference there is."""
        (difference,) = await self.differences()
        assert difference.check == check, difference
        return difference


async def assert_ranges_find_the_same(store: SQLStore) -> None:
    """Check that the ranges of the log have a difference if and only if the whole log has one."""

    async def compare(session: ReadSession) -> None:
        until = await log_scan.bounds(session)
        walked = await _or_none(log_scan.walk(session, until))
        is_sound = walked is not None and not walked.difference_count
        for count in (2, 5):
            ranges = await _or_none(log_scan.ranges(session, until, count))
            walks = [await _or_none(log_scan.walk_range(session, part)) for part in ranges or ()]
            sound = [part for part in walks if part is not None]
            differences = Differences()
            await _or_none(log_scan.check_beside_commits(session, differences))
            bodies = sum(part.bodies for part in sound)
            await _or_none(log_scan.check_unclaimed(session, bodies, differences, until))
            assert is_sound == (ranges is not None and len(sound) == len(ranges) and not differences.count), count
            if is_sound and walked is not None:
                assert (sum(part.commits for part in sound), sum(part.events for part in sound)) == (
                    walked.commits,
                    walked.events,
                )
                assert (sound[-1].head, sound[-1].last_position) == (walked.head, walked.last_position)

    await store.core.read(compare, snapshot=True)


async def _or_none(work: Awaitable[T]) -> T | None:
    """Return the result; None if a value of the wrong type raises an error."""
    try:
        return await work
    except Exception:  # noqa: BLE001 (the value may raise any error)
        return None


async def number_of(filled: Filled, type_: str) -> int:
    """Return the position of the first event of a type."""
    (row,) = await ask(filled.url, f"SELECT min(position) FROM events WHERE type = '{type_}'")
    return int(row[0])


async def record(url: str, clock: Clock | None, fact: BodyDropped) -> int:
    """Append a fact about the store itself, behind the store's back, and return its position."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, clock)
    session = await dialect.writer()
    tail = await session.begin()
    ((version,),) = await session.fetch(
        Sql(f"SELECT 1 + count(*) FROM {dialect.qualified(events)} WHERE stream = 'store'", (), {}), {}
    )
    position = tail.next_position
    event = Event(position, "store", version, 0, tail.recorded_at + 1, "cli", None, fact)
    working_set = WorkingSet(now=tail.now, last_stamp=tail.recorded_at, next_position=position, events=[event])
    changes = Changes({}, {}, {})
    changes.inserts.update(log_rows(working_set, tail, tail.next_commit_id, f"drop {position}", "test"))
    await session.write(changes)
    await session.commit()
    await session.close()
    return position


async def rebuild_until_repair(ready: Connection, url: str, repairs: int) -> None:
    """Rebuild in small transactions, and wait to be killed before the commit of one of them, counted from 1."""
    count = 0
    write = rebuild._SliceRepair._write  # pyright: ignore[reportPrivateUsage]

    async def write_and_wait(self: Any, session: Any, queue_epoch: int) -> Any:
        nonlocal count
        count += 1
        written = await write(self, session, queue_epoch)
        if count == repairs:
            await processes.until_left(ready)
        return written

    rebuild.ROWS_AT_ONCE = 50  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
    rebuild._SliceRepair._write = write_and_wait  # pyright: ignore[reportPrivateUsage]
    async with await open_store(url) as store:
        await store.log.rebuild()


def database_of(url: str) -> str:
    """Return which kind of database a URL names."""
    return parse(url).scheme
