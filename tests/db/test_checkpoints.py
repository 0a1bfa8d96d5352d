"""SQLite's write-ahead log is copied into the file beside the writer, and begins anew."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import open_store
from store.db.drivers.sqlite import checkpoint
from store.db.drivers.sqlite.checkpoint import Checkpointer
from store.models import EnqueueRolloutRequest

PAGE = 4096
FRAMES = 50


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
def checkpointer(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkpointer]:
    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    made = Checkpointer(lambda: connect(path))
    yield made
    made.close()


def write(writer: sqlite3.Connection, rows: int) -> None:
    writer.executemany("INSERT INTO rows VALUES (?)", [(bytes(PAGE),)] * rows)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def copied(checkpointer: Checkpointer) -> None:
    """Wait until the thread has done its part."""
    deadline = threading.Event()
    while not checkpointer.is_copied:
        assert not deadline.wait(0.001)


def test_a_small_log_is_left_alone_and_costs_no_thread(checkpointer: Checkpointer, writer: sqlite3.Connection) -> None:
    write(writer, FRAMES - 1)
    checkpointer.committed(FRAMES - 1)
    assert "store checkpoints" not in threads()
    checkpointer.finish(writer)
    assert writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] >= FRAMES - 1


def test_the_thread_copies_while_the_writer_is_in_a_transaction(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    before = path.stat().st_size
    write(writer, FRAMES)
    writer.execute("BEGIN IMMEDIATE")
    write(writer, 1)
    checkpointer.committed(FRAMES)
    copied(checkpointer)
    assert path.stat().st_size >= before + FRAMES * PAGE
    writer.execute("COMMIT")


def test_after_the_writer_copied_the_rest_the_log_begins_anew(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    log = path.with_name("run.db-wal")
    write(writer, FRAMES)
    longest = log.stat().st_size
    for _ in range(20):
        checkpointer.committed(FRAMES)
        copied(checkpointer)
        write(writer, 1)
        checkpointer.finish(writer)
        write(writer, FRAMES)
    assert log.stat().st_size < 2 * longest


def test_a_reader_that_stays_delays_the_new_log_and_breaks_nothing(
    checkpointer: Checkpointer, writer: sqlite3.Connection, path: Path
) -> None:
    reader = connect(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    write(writer, FRAMES)
    checkpointer.committed(FRAMES)
    copied(checkpointer)
    checkpointer.finish(writer)
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (0,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (FRAMES,)
    reader.close()


def test_a_thread_that_cannot_open_the_file_leaves_all_of_it_to_the_writer(
    writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    checkpointer = Checkpointer(refuse)
    write(writer, FRAMES)
    checkpointer.committed(FRAMES)
    copied(checkpointer)
    checkpointer.finish(writer)
    checkpointer.close()
    _, frames, done = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert frames == done
    assert "could not be copied" in caplog.text


async def test_a_store_that_writes_much_keeps_its_log_short_and_sound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FRAMES", FRAMES)
    log = path.with_name("run.db-wal")
    async with await open_store(f"sqlite:///{path}") as store:
        for _ in range(40):
            requests = [EnqueueRolloutRequest(input="x" * 500) for _ in range(20)]
            await asyncio.gather(*(store.enqueue_many_rollouts(requests) for _ in range(4)))
        copied_bytes = size(path)
        assert copied_bytes > 5 * FRAMES * PAGE, "nothing was copied"
        assert size(log) < copied_bytes
        assert (await store.log.verify()).ok
    assert size(log) == 0
    checked = sqlite3.connect(path)
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()
