"""An import that is killed repeatedly has imported everything once when it completes."""

from __future__ import annotations

import asyncio
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from store import open_store
from store.run_folders import export_run_folder, import_runs
from tests.conftest import SQLITE
from tests.faults import processes
from tests.run_folders.conftest import POSTGRES_TOO
from tests.run_folders.folder_samples import Written, event, lines, tree
from tests.torture import Rounds


async def import_all(begins: Connection, url: str, root: Path) -> None:
    """Import all folders, after a message to the test."""
    async with await open_store(url) as store:
        begins.send(None)
        async for _ in import_runs(store, root):
            pass


def import_and_kill(url: str, root: Path, seconds: float) -> None:
    """Let a process import, and kill it at a moment that may be any."""
    importer = processes.Killable(import_all, url, root)
    time.sleep(seconds)
    importer.kill()


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_TOO], indirect=True)
@pytest.mark.torture
@pytest.mark.slow
async def test_killed_imports_add_up_to_one(durable_url: str, rounds: Rounds, tmp_path: Path) -> None:
    chance, runs = random.Random(11), rounds(5, few=2)
    async with await open_store(durable_url) as store:
        for number in range(runs):
            rows = [event("log", f"n{place}", "RIG", rerun_seq=place // 700) for place in range(1400)]
            run = Written(run_id=f"run-{number}", flow_id=f"flow-{number}", events=lines(rows), rerun_seq=1)
            run.write(tmp_path / "in")
        for _ in range(rounds(30, few=1)):
            await asyncio.to_thread(import_and_kill, durable_url, tmp_path / "in", chance.uniform(0, 0.6))
        reports = [report async for report in import_runs(store, tmp_path / "in")]
        assert len(reports) == runs
        assert (await store.query_rollouts(limit=0)).total == runs
        for report in reports:
            assert report.rollout_id is not None
            out = await export_run_folder(store, report.rollout_id, tmp_path / "out")
            assert tree(out) == tree(Path(report.path))
        assert (await store.log.verify()).ok
