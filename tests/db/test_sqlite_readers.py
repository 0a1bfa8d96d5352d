"""Connections that read a SQLite file: none is lost, and none keeps a snapshot without need."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiosqlite
import psutil
import pytest

from store import open_store
from store.db.dialect import Row, Sql
from store.db.drivers.sqlite import reader
from store.db.drivers.sqlite.commits import State
from store.db.drivers.sqlite.reader import Readers, SQLiteReader
from store.errors import Closed, Unavailable
from store.models.queries import RolloutQuery, SpanQuery
from store.sql.json_pages import JSONPages
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


ENDLESS = Sql("WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n", (), {})


@pytest.fixture
def died(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors of which threads died. aiosqlite's thread dies when the loop of its caller is closed."""
    errors = list[str]()
    # pytest's own hook keeps the traceback, and so the caller's task.
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(str(args.exc_value)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType, reportUnknownMemberType]
    return errors


async def _thread_of(connection: SQLiteReader) -> threading.Thread:
    return await connection.do(lambda _: threading.current_thread())


async def _can_lend_all(readers: Readers) -> None:
    async with asyncio.timeout(60):
        taken = [await readers.take() for _ in range(4)]
        for connection in taken:
            assert len(await connection.fetch(NUMBERS, {})) == 10
            readers.give(connection)


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
    thread = await _thread_of(connection)
    await readers.close()
    readers.give(connection)
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_read_that_ends_after_its_loop_leaves_a_pool_that_works(path: Path, died: list[str]) -> None:
    readers, begun, go_on = Readers(path), threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> sqlite3.Connection:
        begun.set()
        assert go_on.wait(60)
        opened.append(connection)
        return connection

    async def left_at_work() -> threading.Thread:
        connection = await readers.take()
        thread = await _thread_of(connection)
        reading = asyncio.ensure_future(connection.do(slowly))
        await asyncio.to_thread(begun.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        readers.give(connection)
        return thread

    async def used_again() -> None:
        await _can_lend_all(readers)
        await readers.close()

    opened: list[sqlite3.Connection] = []
    thread = asyncio.run(left_at_work())
    # Before the thread ends, and afterwards.
    asyncio.run(_can_lend_all(readers))
    go_on.set()
    asyncio.run(used_again())
    thread.join(60)
    assert not thread.is_alive()
    assert died == ["Event loop is closed"]
    _wait_until_closed(opened[0])
    gc.collect()


def _wait_until_closed(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + 60
    with suppress(sqlite3.ProgrammingError):
        while time.monotonic() < deadline:
            connection.execute("SELECT 1")
            time.sleep(0.01)
        pytest.fail("the connection is still open")


def test_a_connection_may_be_left_by_a_loop_that_ends_at_once(path: Path, died: list[str]) -> None:
    go_on = threading.Event()

    async def leave() -> threading.Thread:
        connection = await readers.take()
        thread = await _thread_of(connection)
        reading = asyncio.ensure_future(connection.do(lambda _: go_on.wait(60)))
        await asyncio.sleep(0)
        reading.cancel()
        await readers.close()
        readers.give(connection)
        return thread

    readers = Readers(path)
    thread = asyncio.run(leave())
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert died == ["Event loop is closed"]
    gc.collect()


@pytest.mark.parametrize("way", ["fetch", "snapshot", "stream", "page"])
def test_a_program_that_ends_while_it_reads_interrupts_the_read(path: Path, way: str) -> None:
    readers, threads = Readers(path), list[threading.Thread]()

    async def read(begun: asyncio.Event) -> None:
        async with readers.lease(snapshot=way == "snapshot") as session:
            threads.append(await _thread_of(session))
            begun.set()
            if way == "stream":
                _ = [rows async for rows in session.stream(ENDLESS, {})]
            elif way == "page":
                await session.fetch_then(NUMBERS, {}, lambda _: ENDLESS)
            else:
                await session.fetch(ENDLESS, {})

    async def main() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(read(begun))
        await begun.wait()
        await asyncio.sleep(0.05)
        assert not reading.done()

    async def used_again() -> None:
        await _can_lend_all(readers)
        await readers.close()

    # Each run cancels what still reads, and closes its loop. No thread dies: that would be a warning, so an error.
    for _ in range(5):
        asyncio.run(main())
        assert not threads[-1].is_alive()
    asyncio.run(used_again())


@pytest.mark.parametrize("cancels", [2, 5])
def test_a_read_that_is_cancelled_again_while_it_ends_kills_no_thread(path: Path, cancels: int) -> None:
    """anyio cancels a server's task again and again until the task ends, and the end of a loop cancels it once more."""
    readers, threads, go_on = Readers(path), list[threading.Thread](), threading.Event()

    async def read(begun: asyncio.Event) -> None:
        async with readers.lease(snapshot=False) as session:
            threads.append(await _thread_of(session))
            begun.set()
            # No interrupt ends this call of the connection's thread.
            await session.do(lambda _: go_on.wait(60))

    async def main() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(read(begun))
        await begun.wait()
        for _ in range(cancels):
            reading.cancel()
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.1, go_on.set)

    asyncio.run(main())
    assert not threads[0].is_alive()
    asyncio.run(_can_lend_all(readers))
    asyncio.run(readers.close())


def test_a_loop_that_ends_while_a_snapshot_ends_kills_no_thread(path: Path) -> None:
    readers, threads, go_on = Readers(path), list[threading.Thread](), threading.Event()

    async def slow(begun: asyncio.Event) -> None:
        async with readers.lease(snapshot=True) as session:
            threads.append(await _thread_of(session))
            busy = asyncio.ensure_future(session.do(lambda _: go_on.wait(60)))
            asyncio.get_running_loop().call_later(0.2, go_on.set)
            begun.set()
        await busy

    async def main() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(slow(begun))
        await begun.wait()
        await asyncio.sleep(0.01)
        assert not reading.done()

    asyncio.run(main())
    assert not threads[0].is_alive()
    asyncio.run(_can_lend_all(readers))
    asyncio.run(readers.close())


async def test_connection_that_is_cut_off_closes_its_file_and_refuses_statements(path: Path) -> None:
    readers = Readers(path)
    connections = [await readers.take() for _ in range(3)]
    idle, streaming, busy = connections
    rows = cast("AsyncGenerator[Sequence[Row]]", streaming.stream(NUMBERS, {}, batch=3))
    assert len(await anext(rows)) == 3
    reading = asyncio.create_task(busy.fetch(ENDLESS, {}))
    await asyncio.sleep(0.05)
    await readers.close()
    await asyncio.to_thread(readers.cut_off_if_closed)
    assert str(path) not in {file.path for file in psutil.Process().open_files()}
    calls: list[Awaitable[Any]] = [
        *(reading, anext(rows), idle.fetch(NUMBERS, {}), idle.do(lambda _: None)),
        idle.fetch_then(NUMBERS, {}, lambda _: None),
    ]
    for call in calls:
        with pytest.raises((sqlite3.Error, ValueError)):
            await asyncio.wait_for(call, 60)
    readers.cut_off_if_closed()


@pytest.mark.parametrize("snapshot", [False, True])
async def test_read_of_a_connection_that_is_cut_off_raises_closed(readers: Readers, *, snapshot: bool) -> None:
    async def read() -> None:
        async with readers.lease(snapshot=snapshot) as session:
            await readers.close()
            await asyncio.to_thread(readers.cut_off_if_closed)
            await session.fetch(NUMBERS, {})

    with pytest.raises(Closed):
        await read()


async def test_an_error_of_a_function_is_raised_in_the_caller(readers: Readers) -> None:
    async with readers.lease(snapshot=False) as session:
        with pytest.raises(ZeroDivisionError):
            await session.do(lambda _: 1 // 0)
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await session.fetch_then(NUMBERS, {}, lambda _: Sql("SELECT 1 FROM missing", (), {}))
        assert len(await session.fetch(NUMBERS, {})) == 10


async def test_a_read_that_is_cancelled_and_goes_on_gives_no_busy_connection_back(readers: Readers) -> None:
    async with readers.lease(snapshot=False) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.fetch(ENDLESS, {})
    await _can_lend_all(readers)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_read_destroyed_with_its_loop_leaves_its_place_to_another(
    path: Path, died: list[str], *, snapshot: bool
) -> None:
    readers, threads = Readers(path), list[threading.Thread]()

    async def read(begun: asyncio.Event, go_on: threading.Event) -> None:
        async with readers.lease(snapshot=snapshot) as session:
            threads.append(await _thread_of(session))
            begun.set()
            await session.do(lambda _: go_on.wait(60))

    async def begin(go_on: threading.Event) -> asyncio.Task[None]:
        begun = asyncio.Event()
        reading = asyncio.create_task(read(begun, go_on))
        await asyncio.wait_for(begun.wait(), 60)
        return reading

    async def used_again() -> None:
        await _can_lend_all(readers)
        await readers.close()

    for _ in range(5):
        loop, go_on = asyncio.new_event_loop(), threading.Event()
        reading = loop.run_until_complete(begin(go_on))
        loop.close()
        go_on.set()
        threads[-1].join(60)
        assert not reading.done()
        del reading
        gc.collect()
    assert died == ["Event loop is closed"] * 5
    asyncio.run(used_again())
    gc.collect()


async def test_a_generator_closed_within_its_read_leaves_a_pool_that_works(readers: Readers) -> None:
    async def numbers() -> AsyncGenerator[Sequence[Row]]:
        async with readers.lease(snapshot=True) as session:
            async for rows in session.stream(NUMBERS, {}, batch=3):
                yield rows

    for _ in range(5):
        stream = numbers()
        assert len(await anext(stream)) == 3
        await stream.aclose()
    await _can_lend_all(readers)


async def test_a_connection_left_at_work_is_replaced_for_a_caller_that_waits(readers: Readers) -> None:
    taken = [await readers.take() for _ in range(4)]
    thread = await _thread_of(taken[0])
    waiting = asyncio.create_task(readers.take())
    reading = asyncio.create_task(taken[0].fetch(ENDLESS, {}))
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    readers.give(taken[0])
    replacement = await asyncio.wait_for(waiting, 60)
    assert replacement not in taken
    for connection in [replacement, *taken[1:]]:
        readers.give(connection)
    await _can_lend_all(readers)
    # The thread passes the error of its statement to the loop of this test.
    await asyncio.to_thread(thread.join, 60)


async def test_all_reads_of_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    readers = Readers(tmp_path / "missing.db")
    async with asyncio.timeout(60):
        refused = await asyncio.gather(*(readers.take() for _ in range(9)), return_exceptions=True)
    assert [type(error) for error in refused] == [Unavailable] * 9
    await readers.close()


@pytest.mark.slow
def test_a_process_that_does_not_close_its_store_ends(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from store import open_store

async def main():
    store = await open_store(sys.argv[1])
    await store.start_rollout(1)
    print(len(await store.query_rollouts()))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'run.db'}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "Exception in thread" not in done.stderr


async def test_closed_stream_releases_its_snapshot(readers: Readers, path: Path) -> None:
    connection = await readers.take()
    rows = cast("AsyncGenerator[Sequence[Row]]", connection.stream(NUMBERS, {}, batch=3))
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
    pages = [list(rows) async for rows in connection.stream(NUMBERS, {}, batch=batch)]
    assert [len(rows) for rows in pages] == batches
    assert [row[0] for rows in pages for row in rows] == list(range(10))
    readers.give(connection)


async def test_a_page_and_its_count_take_one_hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hops: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(aiosqlite.Connection, name)

        def call(*args: Any) -> Any:
            # The store's own thread reads as well, when a check for overdue attempts is due.
            if threading.current_thread() is threading.main_thread():
                hops.append(name)
            return method(*args)

        return call

    # All methods that execute a statement, so that none is missed.
    for name in ("execute", "execute_fetchall", "execute_insert", "executemany", "executescript", "cursor", "rollback"):
        monkeypatch.setattr(aiosqlite.Connection, name, counted(name))
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store:
        assert isinstance(store, SQLStore)
        rollout = await store.start_rollout(1)
        await store.add_many_spans([make_span(rollout.attempt, number) for number in range(1, 8)])
        await store.enqueue_rollout(2)
        await store.query_rollouts()  # which sweeps
        pages = JSONPages(store.core)
        queries: list[Callable[[], Awaitable[Any]]] = [
            lambda: pages.write_spans(lambda _: None, SpanQuery.of(rollout_id=rollout.rollout_id)),
            lambda: pages.write_spans(lambda _: None, SpanQuery.of(rollout_id=rollout.rollout_id, limit=3)),
            lambda: pages.write_rollouts(lambda _: None, RolloutQuery.of(limit=1)),
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
