"""Full disks and files that cannot be written: a typed error, no loss of acknowledged data, and recovery."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import open_store
from store.db.dialect import WriteSession
from store.db.drivers.sqlite.writer import SQLiteWriter
from store.errors import ReadOnly, Unavailable
from store.sql.store import SQLStore
from tests import databases
from tests.faults import processes
from tests.faults.work import Acknowledged, Ledger

ROOM_BYTES = 400_000
PAYLOAD_BYTES = 20_000


async def fill(url: str, path: Path, ledger_path: Path) -> None:
    """Write until no file of this process may grow any more, read, and go on once they may."""
    ledger = Ledger(ledger_path)
    store = await open_store(url)

    async def enqueue(name: str) -> None:
        rollout = await store.enqueue_rollout(name + os.urandom(PAYLOAD_BYTES // 2).hex())
        ledger.note("enqueue", rollout.rollout_id, name)

    await enqueue("first")
    size = max(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + ROOM_BYTES, resource.RLIM_INFINITY))
    told: list[Unavailable] = []
    for number in range(2 * ROOM_BYTES // PAYLOAD_BYTES):
        try:
            await enqueue(f"until full {number}")
        except Unavailable as error:
            told.append(error)
            if len(told) == 3:
                break
    assert len(told) == 3
    assert all(type(error) is Unavailable and "the disk is full" in str(error) for error in told)
    assert (await store.query_rollouts(limit=1)).total > 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for number in range(10):
        await enqueue(f"after {number}")
    await store.close()


@pytest.mark.slow
async def test_store_survives_a_full_disk(tmp_path: Path) -> None:
    path, ledger = tmp_path / "run.db", tmp_path / "ledger"
    url = f"sqlite:///{path}"
    with processes.running(fill, (url, path, ledger)) as filling:
        assert await asyncio.to_thread(processes.leave, filling) == [0]
    acknowledged = Acknowledged()
    acknowledged.read([ledger])
    names = [*acknowledged.enqueued.values()]
    assert names[0] == "first"
    assert names[-10:] == [f"after {number}" for number in range(10)]
    database = await databases.connect(url)
    assert await acknowledged.missing(database) == []
    await database.close()
    async with await open_store(url) as store:
        report = await store.log.verify()
        assert report.ok, report.differences
        assert (await store.query_rollouts(limit=1)).total == len(names)


async def set_pragma(store: SQLStore, name: str, value: object) -> None:
    """Set one of SQLite's switches on the connection that writes, in its own thread."""

    async def execute(session: WriteSession) -> None:
        assert isinstance(session, SQLiteWriter)
        session._connection.execute(f"PRAGMA {name} = {value}")

    await store.core.thread.run(store.core.writer.run_job(execute))


@pytest.fixture
async def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'run.db'}"


async def test_a_database_that_may_not_grow_says_that_the_disk_is_full(url: str) -> None:
    store = await SQLStore.open(url)
    # Less than there are already: it becomes just that.
    await set_pragma(store, "max_page_count", 1)
    with pytest.raises(Unavailable, match=r"the disk is full.*free some space; no acknowledged call is lost"):
        await store.enqueue_rollout(os.urandom(PAYLOAD_BYTES).hex())
    assert store.core.writer_statistics.retries == 0
    await set_pragma(store, "max_page_count", 1_000_000)
    await store.enqueue_rollout("again")
    assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["again"]
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; without the right to mount one, the test is skipped."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


async def test_full_file_system_raises_unavailable_at_the_commit(small_disk: Path) -> None:
    async with await SQLStore.open(f"sqlite:///{small_disk / 'run.db'}") as store:
        await store.enqueue_rollout("before")
        fill_disk(small_disk)
        told = [
            await asyncio.gather(store.enqueue_rollout(os.urandom(200_000).hex()), return_exceptions=True)
            for _ in range(3)
        ]
        for (error,) in told:
            assert type(error) is Unavailable
            assert "the disk is full" in str(error)
            assert "free some space" in str(error)
        assert store.core.writer_statistics.retries == 0
        (small_disk / "filler").unlink()
        await store.enqueue_rollout("after")
        assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["before", "after"]
        assert (await store.log.verify()).ok


def fill_disk(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)


async def test_store_on_a_full_disk_closes_without_losing_acknowledged_data(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    url = f"sqlite:///{small_disk / 'run.db'}"
    async with await open_store(url) as store:
        # The write-ahead log has content for which the file has no room.
        for number in range(12):
            await store.enqueue_rollout(f"{number} {os.urandom(3000).hex()}")
        fill_disk(small_disk)
        for _ in range(50):
            with pytest.raises(Unavailable, match="the disk is full"):
                await store.enqueue_rollout(os.urandom(50_000).hex())
    assert len(caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)
    (small_disk / "filler").unlink()
    async with await open_store(url) as store:
        assert (await store.query_rollouts(limit=1)).total == 12
        assert (await store.log.verify()).ok


async def test_a_command_on_a_full_disk_is_one_line_and_exit_code_4(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk / 'run.db'}"
    async with await open_store(url) as store:
        await store.enqueue_rollout("before")
        for number in range(12):
            await store.enqueue_rollout(f"{number} {os.urandom(3000).hex()}")
        fill_disk(small_disk)
        task = json.dumps({"input": os.urandom(10_000).hex()})
        command = [sys.executable, "-m", "store", "enqueue", "--db", url, "--file", "-"]
        ended = await asyncio.to_thread(
            subprocess.run, command, input=task, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 4, ended.stderr
    assert ended.stderr.startswith("rollbook: the disk is full")
    assert ended.stderr.count("\n") == 1


TRAINING = """
import os
from store.training import Baseline, SharedMemoryExecutionStrategy, Trainer, emit_message, rollout

@rollout
def agent(task):
    emit_message(os.urandom(20_000).hex())
    return 1.0

strategy = SharedMemoryExecutionStrategy(2, graceful_delay=0.2, join_timeout=0.5)
trainer = Trainer(algorithm=Baseline(), strategy=strategy)
"""


@pytest.mark.slow
async def test_training_on_a_full_disk_ends_with_short_messages_and_exit_code_4(
    small_disk: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{small_disk / 'run.db'}"
    (tmp_path / "tuning.py").write_text(TRAINING)
    (tmp_path / "tasks.jsonl").write_text("".join(f'"{os.urandom(20_000).hex()}"\n' for _ in range(60)))
    command = [sys.executable, "-m", "store", "train", "tuning:trainer", "--db", url, "--train", "tasks.jsonl"]
    ended = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 4, ended.stderr
    *lines, last = ended.stderr.splitlines()
    assert last.startswith("rollbook: the disk is full")
    assert len(lines) <= 20
    assert "Traceback" not in ended.stderr
    enlarge(small_disk)
    async with await open_store(url) as store:
        assert (await store.query_rollouts(limit=1)).total > 1
        assert (await store.log.verify()).ok


@pytest.mark.postgres
@pytest.mark.parametrize("when", ["INITIALLY IMMEDIATE", "INITIALLY DEFERRED"])
async def test_full_disk_of_postgres_raises_unavailable_at_once(postgres_url: str, when: str) -> None:
    async with await SQLStore.open(postgres_url) as store:
        await store.enqueue_rollout("before")
        database = await databases.connect(postgres_url)
        # A deferred trigger fails in COMMIT.
        await database.execute(
            "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
            " 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;"
            "CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON events DEFERRABLE"
            f" {when} FOR EACH ROW EXECUTE FUNCTION no_space()"
        )
        with pytest.raises(Unavailable, match=r"the disk is full: .*No space left.* free some space") as told:
            await store.enqueue_rollout("refused")
        assert type(told.value) is Unavailable
        assert store.core.writer_statistics.retries == 0
        await database.execute("DROP TRIGGER full_disk ON events; DROP FUNCTION no_space()")
        await database.close()
        await store.enqueue_rollout("after")
        assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["before", "after"]
        assert (await store.log.verify()).ok


async def test_a_file_that_may_not_be_written_says_so_at_once(url: str) -> None:
    store = await SQLStore.open(url)
    await store.enqueue_rollout("before")
    await set_pragma(store, "query_only", "ON")
    with pytest.raises(ReadOnly, match="would write"):
        await store.enqueue_rollout("refused")
    assert [rollout.input for rollout in (await store.query_rollouts()).items] == ["before"]
    await set_pragma(store, "query_only", "OFF")
    await store.enqueue_rollout("after")
    assert (await store.log.verify()).ok
    await store.close()


async def test_a_store_opened_for_reading_refuses_each_write(url: str) -> None:
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout("kept")
    async with await open_store(url, read_only=True) as store:
        for call in (
            store.enqueue_rollout("no"),
            store.dequeue_rollout("w1"),
            store.update_rollout(rollout.rollout_id, status="cancelled"),
            store.update_worker("w1", {}),
            store.get_next_span_sequence_id(rollout.rollout_id, "at-1"),
            store.log.rebuild(),
        ):
            with pytest.raises(ReadOnly, match="opened with read_only=True; open it without read_only=True"):
                await call
        assert [one.input for one in (await store.query_rollouts()).items] == ["kept"]
