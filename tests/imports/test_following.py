"""Files with traces are imported while they grow, are replaced, and appear, each trace once, also after kills."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.errors import ReadOnly, Unavailable
from store.imports import ForeignRollout, ImportResult, Skipped, TraceFollower, following
from store.imports.traces import TraceFolder
from store.interface.store import Store
from tests.conftest import SQLITE
from tests.imports.samples import trace_line
from tests.torture import IS_TORTURE, rounds

ROOT = Path(__file__).parents[2]
POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])


class Following:
    """A follower of a folder, and the results of its imports."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.results: list[ImportResult] = []
        self.follower = TraceFollower(store, folder, on_import=self.results.append)

    async def imported(self) -> int:
        """Import what is new, and return the number of rollouts that this added."""
        self.results.clear()
        while await self.follower.catch_up():
            pass
        return sum(result.imported for result in self.results)

    @property
    def skips(self) -> list[str]:
        return [skip.place for result in self.results for skip in result.skips]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "output"
    path.mkdir()
    return path


@pytest.fixture
def followed(sqlite_store: Store, folder: Path) -> Following:
    return Following(sqlite_store, folder)


def append(file: Path, *data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        stream.write(b"".join(data))


async def keys(store: Store) -> list[str]:
    return sorted((rollout.metadata or {})["rollbook.source"]["key"] for rollout in await store.query_rollouts())


async def test_complete_lines_of_old_and_new_files_are_imported_once(followed: Following, folder: Path) -> None:
    file = folder / "run/traces.jsonl"
    append(file, trace_line("a"), trace_line("b")[:500])
    assert await followed.imported() == 1
    assert await followed.imported() == 0
    append(file, trace_line("b")[500:-1])
    assert await followed.imported() == 1
    append(file, b"\n", trace_line("c"))
    append(folder / "run/rollouts/step_1/train/all/traces.jsonl", trace_line("c"), trace_line("d"))
    assert await followed.imported() == 2
    assert await followed.imported() == 0
    assert (await keys(followed.store), followed.skips) == (["a", "b", "c", "d"], [])


async def test_a_line_that_is_no_trace_is_reported_once_and_does_not_stop_the_others(
    followed: Following, folder: Path
) -> None:
    append(folder / "traces.jsonl", trace_line("a"), b"garbage\n", trace_line("b"))
    assert await followed.imported() == 2
    assert followed.skips == [f"{folder}/traces.jsonl:2"]
    append(folder / "traces.jsonl", b"more\n")
    assert await followed.imported() == 0
    assert followed.skips == [f"{folder}/traces.jsonl:4"]


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("kept", ["b", "bcd"])
async def test_a_replaced_file_is_read_from_its_beginning(
    followed: Following, folder: Path, kept: str, is_in_place: bool
) -> None:
    file = folder / "traces.jsonl"
    append(file, *map(trace_line, "abc"))
    await followed.imported()
    new = file if is_in_place else folder / "traces.jsonl.tmp"
    new.write_bytes(b"".join(map(trace_line, kept)))
    new.replace(file)
    await followed.imported()
    append(file, trace_line("e"))
    await followed.imported()
    assert await keys(followed.store) == sorted({*"abce", *kept})


async def test_a_file_written_again_with_equal_size_is_read_again(followed: Following, folder: Path) -> None:
    file = folder / "traces.jsonl"
    append(file, trace_line("a"))
    await followed.imported()
    time = file.stat().st_mtime_ns
    with file.open("r+b") as stream:
        stream.write(trace_line("b"))
    os.utime(file, ns=(time, time + 1_000_000_000))
    assert await followed.imported() == 1
    assert await keys(followed.store) == ["a", "b"]


async def test_a_store_restored_from_a_backup_gets_all_traces_again(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database, backup = tmp_path / "database", tmp_path / "backup"
    database.mkdir()
    url = f"sqlite:///{database / 'rollbook.db'}"
    await (await open_store(url)).close()
    shutil.copytree(database, backup)
    append(folder / "traces.jsonl", trace_line("a"), trace_line("b"))
    async with await open_store(url) as store:
        assert await Following(store, folder).imported() == 2
    shutil.rmtree(database)
    shutil.copytree(backup, database)
    async with await open_store(url) as store:
        with caplog.at_level(logging.WARNING, "store.imports.following"):
            assert await Following(store, folder).imported() == 2
        assert await Following(store, folder).imported() == 0
    assert sum("so all files are read again" in record.message for record in caplog.records) == 1


async def test_a_restarted_follower_continues_at_the_stored_place(
    followed: Following, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder / "traces.jsonl", trace_line("a"), trace_line("b"))
    await followed.imported()
    lines: list[str] = []
    read = following.records_of_line

    def count_line(line: bytes, place: str, origin: TraceFolder) -> Iterator[ForeignRollout | Skipped]:
        lines.append(place)
        return read(line, place, origin)

    monkeypatch.setattr(following, "records_of_line", count_line)
    append(folder / "traces.jsonl", trace_line("c"))
    restarted = Following(followed.store, folder)
    assert await restarted.imported() == 1
    assert lines == [f"{folder}/traces.jsonl:3"]


@pytest.mark.parametrize("damage", ["removed", "damaged", "of another store"])
async def test_without_the_stored_places_nothing_is_imported_twice(
    followed: Following, folder: Path, damage: str, tmp_path: Path
) -> None:
    append(folder / "traces.jsonl", trace_line("a"), trace_line("b"))
    await followed.imported()
    places = folder / f".rollbook-follow-{(await followed.store.log.position()).store_id}.json"
    if damage == "removed":
        places.unlink()
    elif damage == "damaged":
        places.write_text("{")
    else:
        async with await open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
            assert await Following(other, folder).imported() == 2
    assert await Following(followed.store, folder).imported() == 0
    assert await keys(followed.store) == ["a", "b"]


async def test_a_folder_that_cannot_be_written_is_followed_with_one_warning(
    followed: Following, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_id = (await followed.store.log.position()).store_id
    (folder / f".rollbook-follow-{store_id}.json").mkdir()
    with caplog.at_level(logging.WARNING, "store.imports.following"):
        for name in "ab":
            append(folder / "traces.jsonl", trace_line(name))
            assert await followed.imported() == 1
    assert sum("cannot be written" in record.message for record in caplog.records) == 1


async def test_rounds_are_small_and_read_every_line_once(
    followed: Following, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_BYTES_PER_ROUND", 1)
    for name in "xy":
        append(folder / name / "traces.jsonl", *(trace_line(f"{name}{number}") for number in range(5)))
    assert await followed.imported() == 10
    assert len(followed.results) == 10
    assert sum(result.unchanged for result in followed.results) == 0


class _Refusing:
    """A store whose next calls raise an error."""

    def __init__(self, store: Store, error: Exception, times: int) -> None:
        self._store = store
        self._error = error
        self.times = times

    def __getattr__(self, name: str) -> Any:
        if name == "find_rollouts" and self.times:
            self.times -= 1
            raise self._error
        return getattr(self._store, name)


async def test_a_store_that_cannot_be_reached_is_tried_again(
    sqlite_store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LONGEST_WAIT", 0.01)
    append(folder / "traces.jsonl", trace_line("a"))
    refusing: Any = _Refusing(sqlite_store, Unavailable("the database restarts"), 3)
    stopped = asyncio.Event()
    async with asyncio.timeout(20):
        await TraceFollower(refusing, folder, on_import=lambda _: stopped.set()).follow(stopped, poll_seconds=0.01)
    assert (await keys(sqlite_store), refusing.times) == (["a"], 0)


async def test_lines_before_a_torn_line_are_imported_after_an_outage(sqlite_store: Store, folder: Path) -> None:
    refusing: Any = _Refusing(sqlite_store, Unavailable("the database restarts"), 0)
    followed = Following(refusing, folder)
    append(folder / "traces.jsonl", trace_line("a"))
    await followed.imported()
    append(folder / "traces.jsonl", trace_line("b"), trace_line("c")[:500])
    refusing.times = 1
    with pytest.raises(Unavailable):
        await followed.imported()
    assert await followed.imported() == 1
    assert await keys(sqlite_store) == ["a", "b"]


async def test_a_store_that_refuses_ends_the_follower(sqlite_store: Store, folder: Path) -> None:
    append(folder / "traces.jsonl", trace_line("a"))
    refusing: Any = _Refusing(sqlite_store, ReadOnly("start_rollout"), 1)
    with pytest.raises(ReadOnly):
        await TraceFollower(refusing, folder).follow(asyncio.Event(), poll_seconds=0.01)


def _started(url: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "store", "follow", str(folder), "--db", url, "--poll", "0.05", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


# The database is not killed, and an import takes the same steps on each.
@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_follower_is_continued_without_loss_and_without_doubles(durable_url: str, folder: Path) -> None:
    names = [f"t{number:04}" for number in range(4000 if IS_TORTURE else 150)]
    data = b"".join(map(trace_line, names))
    async with await open_store(durable_url) as store:
        kills = rounds(20, few=2)
        for number in range(kills):
            running = _started(durable_url, folder)
            before = (await store.query_rollouts(limit=0)).total
            cut = len(data) * (number + 1) // (kills + 1)
            append(folder / f"step_{number % 3}/traces.jsonl", data[:cut])
            # The follower begins to import after its start, so most kills come while traces are imported.
            while (await store.query_rollouts(limit=0)).total == before and running.poll() is None:  # noqa: ASYNC110 - another process imports
                await asyncio.sleep(0.02)
            await asyncio.sleep(random.uniform(0, 0.2))
            running.kill()
            running.communicate()
        append(folder / "last/traces.jsonl", data)
        last = _started(durable_url, folder)
        async with asyncio.timeout(120):
            while (await store.query_rollouts(status_in=["succeeded"], limit=0)).total < len(names):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
        last.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(last.communicate)
        assert last.returncode == 0, output
        assert await keys(store) == names
        for rollout in await store.query_rollouts():
            assert [span.sequence_id for span in await store.query_spans(rollout.rollout_id)] == [1, 2, 3]
        assert (await store.log.verify()).ok
