"""SQLite's write-ahead log is copied into the file beside the writer, and restarts."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Store, open_store
from store.db.drivers.sqlite import checkpoint
from store.db.drivers.sqlite.checkpoint import Checkpointer
from store.models import EnqueueRolloutRequest

PAGE = 4096
FRAMES = 50
LIMIT = 32 + FRAMES * (PAGE + 24)
FRAMES_OF_STORE = 200


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(path)
    connection.execute("CREATE TABLE rows (content)")
    yield connection
    connection.close()


@pytest.fixture
def checkpointer(path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkpointer]:
    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    monkeypatch.setattr(checkpoint, "_RETRY_SECONDS", (0.0, 0.0))
    thread = Checkpointer(writer, lambda: connect(path))
    yield thread
    thread.close()


def write(writer: sqlite3.Connection, rows: int) -> None:
    writer.executemany("INSERT INTO rows VALUES (?)", [(bytes(PAGE),)] * rows)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def rest(checkpointer: Checkpointer, path: Path) -> None:
    """Do what the writer does between two batches."""
    if (log_bytes := size(log_of(path))) > checkpointer.limit:
        checkpointer.advance(log_bytes)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_small_log_is_left_alone_and_costs_no_thread(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    write(writer, FRAMES // 4)
    rest(checkpointer, path)
    assert "store checkpoints" not in threads()
    assert writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] >= FRAMES // 4


def test_the_thread_copies_while_the_writer_is_in_a_transaction(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    before = size(path)
    write(writer, FRAMES)
    writer.execute("BEGIN IMMEDIATE")
    write(writer, 1)
    rest(checkpointer, path)
    deadline = threading.Event()
    while size(path) < before + FRAMES * PAGE:
        assert not deadline.wait(0.001)
    writer.execute("COMMIT")


def test_the_log_restarts_and_is_cut_to_its_limit(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    longest = 0
    for _ in range(200):
        write(writer, 2)
        rest(checkpointer, path)
        longest = max(longest, size(log_of(path)))
    assert size(path) > 5 * LIMIT, "nothing was copied"
    assert longest <= 2 * LIMIT


def test_a_writer_that_is_faster_than_the_thread_waits_for_it(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    write(writer, 2 * FRAMES)
    rest(checkpointer, path)
    write(writer, 1)
    assert size(log_of(path)) == LIMIT


@pytest.mark.slow
def test_a_reader_that_stays_delays_the_restart_and_breaks_nothing(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    reader = connect(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    for _ in range(6):
        write(writer, 2 * FRAMES)
        rest(checkpointer, path)
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    assert size(log_of(path)) > 6 * LIMIT, "the reader did not keep the log"
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (12 * FRAMES,)
    reader.close()
    write(writer, FRAMES)
    rest(checkpointer, path)
    write(writer, 1)
    assert size(log_of(path)) == LIMIT


def test_the_log_restarts_a_moment_after_the_reader_that_delayed_it_has_left(
    path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    checkpointer = Checkpointer(writer, lambda: connect(path))
    reader = connect(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    write(writer, FRAMES * 3 // 5)
    assert size(log_of(path)) > 1.5 * LIMIT
    rest(checkpointer, path)
    reader.close()
    # The number of commits is small, so the log stays too short for a COMMIT to copy it.
    for _ in range(30):
        if size(log_of(path)) <= LIMIT:
            break
        time.sleep(0.05)
        write(writer, 1)
        rest(checkpointer, path)
    else:
        pytest.fail("the log did not restart")
    checkpointer.close()


def test_a_thread_that_cannot_open_the_file_leaves_all_of_it_to_the_writer(
    path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    checkpointer = Checkpointer(writer, refuse)
    write(writer, 2 * FRAMES)
    rest(checkpointer, path)
    checkpointer.close()
    _, frames, done = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert frames == done
    assert "could not be copied" in caplog.text


@pytest.mark.slow
async def test_the_log_of_a_store_stays_short_while_others_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES_OF_STORE)
    limit = 32 + FRAMES_OF_STORE * (PAGE + 24)
    longest = 0
    async with await open_store(f"sqlite:///{path}") as store:
        is_over = asyncio.Event()
        readers = [asyncio.create_task(_read(store, is_over)) for _ in range(4)]
        for _ in range(150):
            requests = [EnqueueRolloutRequest(input="x" * 500) for _ in range(20)]
            await asyncio.gather(*(store.enqueue_many_rollouts(requests) for _ in range(2)))
            longest = max(longest, size(log_of(path)))
        is_over.set()
        assert all([await reader > 10 for reader in readers]), "the readers were kept out"
        assert size(path) > 5 * limit, "nothing was copied"
        # On a loaded machine, a reader can hold an old state for longer, so that more commits are appended. Without
        # restarts, the log would become more than 30 times as long as the limit.
        assert longest <= 10 * limit
        assert (await store.log.verify()).ok
    assert size(log_of(path)) == 0
    checked = sqlite3.connect(path)
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()


async def _read(store: Store, is_over: asyncio.Event) -> int:
    """Read until it is over, and return how often."""
    reads = 0
    while not is_over.is_set():
        await store.query_rollouts(limit=100, sort_by="rollout_id")
        reads += 1
        # Without a pause, four readers can together hold old states for longer than the writer waits for them.
        await asyncio.sleep(0.01)
    return reads
