"""An import that is killed again and again has brought in everything once when one gets to its end."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import open_store
from store.run_folders import export_run_folder, import_runs
from tests.run_folders.given import Written, event, lines, tree
from tests.torture import IS_TORTURE

ROUNDS = 30 if IS_TORTURE else 3
RUNS = 5

IMPORTER = """
import asyncio, sys
from store import open_store
from store.run_folders import import_runs

async def main():
    url, root = sys.argv[1:]
    async with await open_store(url) as store:
        print("begins", flush=True)
        async for report in import_runs(store, root):
            pass

asyncio.run(main())
"""


def import_and_kill(url: str, root: Path, seconds: float) -> None:
    """Let a process import, and kill it at a moment that may be any."""
    arguments = [sys.executable, "-c", IMPORTER, url, str(root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(seconds)
        child.kill()


@pytest.mark.torture
@pytest.mark.slow
async def test_killed_imports_add_up_to_one(durable_url: str, tmp_path: Path) -> None:
    chance = random.Random(11)
    async with await open_store(durable_url) as store:
        for number in range(RUNS):
            rows = [event("log", f"n{place}", "RIG", rerun_seq=place // 700) for place in range(1400)]
            run = Written(run_id=f"run-{number}", flow_id=f"flow-{number}", events=lines(rows), rerun_seq=1)
            run.write(tmp_path / "in")
        for _ in range(ROUNDS):
            await asyncio.to_thread(import_and_kill, durable_url, tmp_path / "in", chance.uniform(0, 0.6))
        reports = [report async for report in import_runs(store, tmp_path / "in")]
        assert len(reports) == RUNS
        assert (await store.query_rollouts(limit=0)).total == RUNS
        for report in reports:
            assert report.rollout_id is not None
            out = await export_run_folder(store, report.rollout_id, tmp_path / "out")
            assert tree(out) == tree(Path(report.path))
        assert (await store.log.verify()).ok
