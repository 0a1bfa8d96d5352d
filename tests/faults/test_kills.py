"""SIGKILL at random times: acknowledged calls are stored, none in part, and other processes continue."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from tests import databases
from tests.faults import processes
from tests.faults.work import LAST_SPAN, Acknowledged, work, work_copying
from tests.torture import Rounds

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

Work = Callable[[str, Path, str], Coroutine[Any, Any, None]]

KILLED_AT_ONCE = 2
UNTOUCHED_SECONDS = 0.4
"""A writer is killed at a random instant of its first so many seconds, its opening included."""

CREATING_SECONDS = 0.15

STATUSES = ("queuing", "requeuing", "preparing", "running", "succeeded", "failed", "cancelled")
MISPLACED = (
    "SELECT rollout_id, status FROM rollouts r WHERE (status IN ('queuing', 'requeuing'))"
    " <> EXISTS (SELECT 1 FROM queue q WHERE q.rollout_id = r.rollout_id)"
)
"""Rollouts that wait and are not in the queue, or the other way round."""
UNENDED = (
    "SELECT a.attempt_id FROM attempts a JOIN spans s ON s.rollout_id = a.rollout_id AND s.attempt_id = a.attempt_id"
    f" WHERE s.name = '{LAST_SPAN}' AND a.status <> 'succeeded'"
)
"""Attempts that have the span with which they ended, but not the end."""


async def test_killed_writers_lose_nothing_they_acknowledged(durable_url: str, rounds: Rounds, tmp_path: Path) -> None:
    stores, kills, acknowledged = rounds(10, few=1), rounds(20, few=4), 0
    # What is checked after each kill is the whole store: a new one from time to time keeps that quick.
    for number in range(stores):
        directory = tmp_path / str(number)
        directory.mkdir()
        acknowledged += await _kill_and_check(_numbered(durable_url, number), directory, kills=kills)
    print(
        f"\n{stores * kills} kills on {durable_url.partition(':')[0]}: {acknowledged:,} acknowledged calls, none lost"
    )


async def test_writers_killed_while_their_log_is_copied_into_the_file_lose_nothing(
    rounds: Rounds, tmp_path: Path
) -> None:
    for number in range(rounds(20, few=1)):
        directory = tmp_path / str(number)
        directory.mkdir()
        url = f"sqlite:///{directory / 'run.db'}"
        await _kill_and_check(url, directory, kills=2, main=work_copying)


async def test_a_writer_killed_while_it_creates_the_store_leaves_one_that_opens(
    durable_url: str, rounds: Rounds, tmp_path: Path
) -> None:
    for number in range(rounds(60, few=2)):
        url = _numbered(durable_url, number)
        with processes.running(work, (url, tmp_path / f"creator{number}", "creator")):
            await asyncio.sleep(random.uniform(0, CREATING_SECONDS))
        async with await open_store(url) as store:
            await store.enqueue_rollout("after the kill")
            report = await store.log.verify()
            assert report.ok, report.differences


def _numbered(url: str, number: int) -> str:
    """Return the URL of another store beside this one."""
    return f"{url[:-3]}{number}.db" if url.startswith("sqlite") else f"{url}{number}"


async def _kill_and_check(url: str, directory: Path, *, kills: int, main: Work = work) -> int:
    """Kill writers beside one that goes on, check after each kill, and return how many calls were acknowledged."""
    await databases.prepare(url)
    acknowledged, names = Acknowledged(), (f"w{number}" for number in count())
    survivor = directory / "survivor"
    survivor.touch()
    with processes.running(main, (url, survivor, "survivor")):
        for _ in range(kills // KILLED_AT_ONCE):
            ledgers = _kill_at_random_instants(url, directory, names, main)
            before = survivor.stat().st_size
            acknowledged.read(ledgers)
            await _assert_sound(url, acknowledged)
            _wait_until(lambda before=before: survivor.stat().st_size > before)
    acknowledged.read([survivor])
    await _assert_sound(url, acknowledged)
    return acknowledged.calls


def _kill_at_random_instants(url: str, directory: Path, names: Iterator[str], main: Work) -> list[Path]:
    ledgers = [directory / next(names) for _ in range(KILLED_AT_ONCE)]
    with processes.running(main, *((url, ledger, ledger.name) for ledger in ledgers)) as writers:
        instants = sorted(random.uniform(0, UNTOUCHED_SECONDS) for _ in writers)
        begun = time.monotonic()
        for instant, writer in zip(instants, writers, strict=True):
            time.sleep(max(0.0, begun + instant - time.monotonic()))
            assert writer.is_alive(), "a writer ended by itself"
            processes.kill(writer)
    return ledgers


async def _assert_sound(url: str, acknowledged: Acknowledged) -> None:
    database = await databases.connect(url)
    try:
        assert await acknowledged.missing(database) == []
        assert await database.rows(f"SELECT rollout_id, status FROM rollouts WHERE status NOT IN {STATUSES}") == []
        assert await database.rows(MISPLACED) == []
        assert await database.rows(UNENDED) == []
    finally:
        await database.close()
    async with await open_store(url, read_only=True) as store:
        report = await store.log.verify()
    assert report.ok, report.differences


def _wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "the writer that was not killed stands still"
        time.sleep(0.002)
