"""The connections that read a SQLite file: none is lost, none holds a snapshot for nobody, and each is asked once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from store import open_store
from store.db.dialect import Row, Sql
from store.db.drivers.sqlite import reader
from store.db.drivers.sqlite.reader import Readers, Reading, SQLiteReader, State
from store.models.queries import RolloutQuery, SpanQuery
from store.sql.store import SQLStore
from store.testing.samples import make_span

NUMBERS = Sql("SELECT n FROM numbers ORDER BY n", (), {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of ten numbers, in WAL mode."""
    path = tmp_path / "numbers.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
    connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(10)])
    connection.commit()
    connection.close()
    return path


@pytest.fixture
async def readers(path: Path) -> AsyncIterator[Readers]:
    readers = Readers(path)
    yield readers
    await readers.close()


def _thread_of(connection: Reading) -> threading.Thread:
    return connection._thread  # pyright: ignore[reportPrivateUsage]


async def test_a_read_that_is_cancelled_while_its_connection_opens_leaves_it_to_the_next(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on, opened = threading.Event(), threading.Event(), list[sqlite3.Connection]()
    connect = reader._connected  # pyright: ignore[reportPrivateUsage]

    def connect_slowly(path: Path) -> sqlite3.Connection:
        opening.set()
        assert go_on.wait(60)
        opened.append(connect(path))
        return opened[-1]

    monkeypatch.setattr(reader, "_connected", connect_slowly)
    cancelled = asyncio.create_task(readers.take())
    await asyncio.to_thread(opening.wait, 60)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    go_on.set()
    taken = [await readers.take() for _ in range(4)]
    assert len(opened) == 4
    # There are four in all; so the fifth has to wait until one is given back.
    waiting = asyncio.create_task(readers.take())
    await asyncio.sleep(0)
    readers.give(taken[0])
    assert await waiting is taken[0]
    for connection in taken:
        readers.give(connection)


async def test_a_connection_given_back_after_the_end_is_closed(readers: Readers) -> None:
    connection = await readers.take()
    await readers.close()
    readers.give(connection)
    thread = _thread_of(connection)
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_read_that_ends_after_its_loop_leaves_a_connection_that_works(path: Path) -> None:
    readers, begun, go_on = Readers(path), threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(60)

    async def left_at_work() -> Reading:
        connection = await readers.take()
        reading = asyncio.ensure_future(connection.do(slowly))
        await asyncio.to_thread(begun.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        readers.give(connection)
        return connection

    async def used_again(connection: Reading) -> None:
        assert await readers.take() is connection
        async with asyncio.timeout(60):
            assert len(await SQLiteReader(connection).fetch(NUMBERS, {})) == 10
        await readers.close()
        readers.give(connection)

    connection = asyncio.run(left_at_work())
    go_on.set()
    asyncio.run(used_again(connection))
    _thread_of(connection).join(60)
    assert not _thread_of(connection).is_alive()


def test_a_connection_may_be_left_by_a_loop_that_ends_at_once(path: Path) -> None:
    go_on = threading.Event()

    async def leave() -> Reading:
        connection = await readers.take()
        reading = asyncio.ensure_future(connection.do(lambda _: go_on.wait(60)))
        await asyncio.sleep(0)
        reading.cancel()
        await readers.close()
        readers.give(connection)
        return connection

    readers = Readers(path)
    connection = asyncio.run(leave())
    go_on.set()
    _thread_of(connection).join(60)
    assert not _thread_of(connection).is_alive()


async def test_whoever_takes_no_more_of_a_long_answer_holds_no_snapshot(readers: Readers, path: Path) -> None:
    connection = await readers.take()
    rows = cast("AsyncGenerator[Sequence[Row]]", SQLiteReader(connection).stream(NUMBERS, {}, batch=3))
    assert [row[0] for row in await anext(rows)] == [0, 1, 2]
    await rows.aclose()
    writing = sqlite3.connect(path, isolation_level=None)
    writing.execute("INSERT INTO numbers VALUES (99)")
    # It can only begin anew when nobody reads what was before.
    assert writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    writing.close()
    readers.give(connection)


@pytest.mark.parametrize("batch,batches", [(3, [3, 3, 3, 1]), (5, [5, 5]), (10, [10]), (11, [10])])
async def test_a_long_answer_comes_in_batches_and_whole(readers: Readers, batch: int, batches: list[int]) -> None:
    connection = await readers.take()
    found = [list(rows) async for rows in SQLiteReader(connection).stream(NUMBERS, {}, batch=batch)]
    assert [len(rows) for rows in found] == batches
    assert [row[0] for rows in found for row in rows] == list(range(10))
    readers.give(connection)


async def test_a_page_and_its_count_take_one_hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hops: list[object] = []
    do: Callable[..., Awaitable[Any]] = Reading.do

    async def counted(self: Reading, work: Callable[[sqlite3.Connection], Any]) -> Any:
        hops.append(work)
        return await do(self, work)

    monkeypatch.setattr(Reading, "do", counted)
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store:
        assert isinstance(store, SQLStore)
        rollout = await store.start_rollout(1)
        await store.add_many_spans([make_span(rollout.attempt, number) for number in range(1, 8)])
        await store.enqueue_rollout(2)
        await store.query_rollouts()  # which sweeps
        queries: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.json_pages.write_spans(lambda _: None, SpanQuery.of(rollout_id=rollout.rollout_id)),
            lambda: store.json_pages.write_spans(lambda _: None, SpanQuery.of(rollout_id=rollout.rollout_id, limit=3)),
            lambda: store.json_pages.write_rollouts(lambda _: None, RolloutQuery.of(limit=1)),
            lambda: store.query_rollouts(limit=1, sort_by="status"),
            lambda: store.query_spans(rollout.rollout_id),
        ]
        for query in queries:
            hops.clear()
            await query()
            assert len(hops) == 1


async def test_any_commit_of_anybody_is_another_state(path: Path) -> None:
    states = State(path)
    before = states.version()
    assert before is not None
    assert states.version() == before
    writing = sqlite3.connect(path, isolation_level=None)
    seen = {before}
    for number in range(100, 105):
        writing.execute("INSERT INTO numbers VALUES (?)", [number])
        assert states.version() not in seen
        seen.add(states.version() or 0)
    writing.close()
    assert State(path).number != states.number
    states.close()
    assert states.version() is None
