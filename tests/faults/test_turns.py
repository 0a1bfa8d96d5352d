"""Several processes on one SQLite file: each can write, and none gets the error that the database is locked."""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from store import open_store
from tests import databases
from tests.faults import processes
from tests.faults.turn_taking import BUSY, BUSY_CALLERS, LIGHT, measure
from tests.torture import Rounds

pytestmark = pytest.mark.slow

OPENERS = 8


async def test_light_writers_get_their_turn_beside_saturating_ones(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    await databases.prepare(url)
    measured = measure(url, tmp_path, 0.7, "the store's")
    print(
        f"\n{BUSY} processes of {BUSY_CALLERS} callers: {measured.commits_per_second:,.0f} calls/s;"
        f" {LIGHT} light ones: {len(measured.light_seconds)} calls,"
        f" p50 {measured.light(0.5):.1f}, p99 {measured.light(0.99):.1f}, worst {measured.light(1):.1f} ms"
    )
    assert measured.errors == []
    assert all(measured.shares)
    async with await open_store(url) as store:
        report = await store.log.verify()
        assert report.ok, report.differences
        assert (await store.query_rollouts(limit=1)).total == sum(measured.shares) + len(measured.light_seconds)


async def open_and_write(url: str, ready: Path, number: int) -> None:
    """Wait until everybody is there, open, and write one thing."""
    _meet(ready, number)
    async with await open_store(url) as store:
        await store.enqueue_rollout(number)


@pytest.mark.torture
async def test_processes_that_open_a_new_file_at_once_make_one_store(rounds: Rounds, tmp_path: Path) -> None:
    for turn in range(rounds(25, few=1)):
        ready = tmp_path / f"ready{turn}"
        ready.mkdir()
        url = f"sqlite:///{tmp_path / f'run{turn}.db'}"
        with processes.running(open_and_write, *((url, ready, number) for number in range(OPENERS))) as openers:
            _assert_left_well(openers)
        async with await open_store(url) as store:
            assert sorted(rollout.input for rollout in (await store.query_rollouts()).items) == [*range(OPENERS)]
            report = await store.log.verify()
            assert report.ok, report.differences


def _meet(ready: Path, number: int) -> None:
    (ready / str(number)).touch()
    while len([*ready.iterdir()]) < OPENERS:
        time.sleep(0.001)


def _assert_left_well(openers: list[BaseProcess]) -> None:
    assert processes.leave(openers) == [0] * OPENERS
