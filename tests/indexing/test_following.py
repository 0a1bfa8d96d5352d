"""Followers of the log that fill indexes: progress, kills, other followers, rebuilds and removals of payload."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import BigInteger, Column, MetaData, Table, Text

from store import open_store
from store.db.dialect import Dialect, ReadSession, Sql, existing_store
from store.db.index_place import IndexSession, indexable
from store.indexing.background import IndexThread
from store.indexing.following import IndexFollower, IndexLag
from store.indexing.index import Index, IndexedEvent
from store.indexing.reading import catch_up, lag_of, with_index
from store.operations import Redaction, redact
from store.sql.database import database_of
from store.sql.store import SQLStore
from tests.torture import Rounds


class Inputs(Index):
    """Counts the events of each rollout, and the characters of their payload, which vanish with the payload."""

    name = "inputs"
    version = 1
    types = ("rollout.enqueued", "rollout.status_changed", "rollout.annotated")
    tables = (
        Table(
            "inputs_rows",
            MetaData(),
            Column("rollout_id", Text, primary_key=True),
            Column("events", BigInteger, nullable=False),
            Column("characters", BigInteger, nullable=False),
        ),
    )

    async def fold(self, session: IndexSession, events: Sequence[IndexedEvent]) -> None:
        counts, characters = Counter[str](), Counter[str]()
        for event in events:
            counts[event.rollout_id] += 1
            characters[event.rollout_id] += len(str(event.body)) if event.body else 0
        await session.write(self.tables[0], [(key, counts[key], characters[key]) for key in counts], "add")


class NewerInputs(Inputs):
    version = 2


def dialect_of(store: object) -> Dialect:
    assert isinstance(store, SQLStore)
    database = database_of(store)
    assert database is not None
    return database.core.dialect


async def rows(store: SQLStore, index: Index) -> dict[str, tuple[int, int]] | None:
    async def read(session: ReadSession, _: IndexLag) -> dict[str, tuple[int, int]]:
        table = session.dialect.qualified(index.tables[0])
        names = ("rollout_id", "events", "characters")
        fetched = await session.fetch(Sql(f"SELECT {', '.join(names)} FROM {table}", (), {}), {})
        return {row[0]: (row[1], row[2]) for row in fetched}

    return await store.core.read(lambda session: with_index(session, index, read))


async def enqueue(store: SQLStore, count: int) -> list[str]:
    return [(await store.enqueue_rollout({"text": f"task {number}"})).rollout_id for number in range(count)]


async def test_index_contains_each_event_once_and_reports_its_lag(store: SQLStore) -> None:
    ids = await enqueue(store, 5)
    assert await rows(store, Inputs()) is None
    lag = await catch_up(dialect_of(store), Inputs())
    assert lag.events_behind == 0
    first = await rows(store, Inputs())
    assert first is not None
    assert set(first) == set(ids)
    await enqueue(store, 3)
    behind = await store.core.read(lambda session: lag_of(session, Inputs()))
    assert behind is not None
    assert behind.events_behind > 0
    await catch_up(dialect_of(store), Inputs())
    again = await rows(store, Inputs())
    assert again is not None
    assert len(again) == 8
    assert {key: again[key] for key in ids} == first


async def test_index_of_another_version_is_made_again(store: SQLStore) -> None:
    await enqueue(store, 3)
    await catch_up(dialect_of(store), Inputs())
    assert await rows(store, NewerInputs()) is None
    before = await rows(store, Inputs())
    await catch_up(dialect_of(store), NewerInputs())
    assert await rows(store, NewerInputs()) == before
    assert await rows(store, Inputs()) is None


async def test_dropped_index_is_made_again_with_equal_rows(store: SQLStore) -> None:
    await enqueue(store, 3)
    await catch_up(dialect_of(store), Inputs())
    before = await rows(store, Inputs())
    async with followed(store, Inputs()) as follower:
        await follower.drop()
    assert await rows(store, Inputs()) is None
    await catch_up(dialect_of(store), Inputs())
    assert await rows(store, Inputs()) == before


async def test_removed_payload_leaves_the_index(store: SQLStore) -> None:
    ids = await enqueue(store, 3)
    await store.annotations.annotate(ids[1], note="a note")
    await catch_up(dialect_of(store), Inputs())
    before = await rows(store, Inputs())
    assert before is not None
    await store.update_rollout(ids[1], status="cancelled")
    await redact(store.url, ids[1], Redaction.of(input=True, reason="requested"))
    async with followed(store, Inputs()) as follower:
        await follower.follow_removals()
        after = await rows(store, Inputs())
        assert after is not None
        assert after[ids[1]][1] < before[ids[1]][1]
        assert {key: after[key] for key in (ids[0], ids[2])} == {key: before[key] for key in (ids[0], ids[2])}
        await follower.catch_up()
        incremental = await rows(store, Inputs())
        await follower.drop()
        await follower.catch_up()
    assert await rows(store, Inputs()) == incremental


@asynccontextmanager
async def followed(store: SQLStore, index: Index) -> AsyncGenerator[IndexFollower]:
    """A follower of a store's log, in the event loop of the test."""
    again = indexable(dialect_of(store)).reopened()
    async with existing_store(again) as store_id:
        follower = IndexFollower(again, store_id, index)
        yield follower
        await follower.close()


async def test_two_followers_fold_no_event_twice(store: SQLStore) -> None:
    await enqueue(store, 200)
    await asyncio.gather(*(catch_up(dialect_of(store), Inputs(), seconds=None) for _ in range(2)))
    contents = await rows(store, Inputs())
    assert contents is not None
    assert len(contents) == 200
    assert {events for events, _ in contents.values()} == {1}


async def test_thread_of_a_server_fills_the_index(store: SQLStore) -> None:
    thread = IndexThread([Inputs()])
    thread.follow("main", dialect_of(store))
    try:
        await enqueue(store, 4)
        async with asyncio.timeout(20):
            while (contents := await rows(store, Inputs())) is None or len(contents) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await asyncio.to_thread(thread.close)


def _follow_until_killed(url: str) -> None:
    async def follow() -> None:
        store = await open_store(url)
        while True:
            await catch_up(dialect_of(store), Inputs(), seconds=None)

    asyncio.run(follow())


async def test_killed_follower_loses_and_doubles_nothing(durable_url: str, rounds: Rounds) -> None:
    context = multiprocessing.get_context("forkserver")
    async with await open_store(durable_url) as store:
        assert isinstance(store, SQLStore)
        for _ in range(rounds(30, few=2)):
            process = context.Process(target=_follow_until_killed, args=(durable_url,))
            process.start()
            until = time.monotonic() + random.uniform(0.6, 1.4)
            while time.monotonic() < until:
                await enqueue(store, 20)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        await catch_up(dialect_of(store), Inputs(), seconds=None)
        contents = await rows(store, Inputs())
        total = len(await store.query_rollouts())
        assert contents is not None
        assert len(contents) == total
        assert {events for events, _ in contents.values()} == {1}
