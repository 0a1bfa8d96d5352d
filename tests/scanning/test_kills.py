"""A scan that is killed or stopped at any moment is continued by the same command, and no rollout gets two results."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from store import open_store
from tests.conftest import SQLITE
from tests.rescoring.conftest import add_rollouts
from tests.torture import IS_TORTURE, rounds

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(900)]

POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
ROLLOUTS = 400 if IS_TORTURE else 80
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "store", "scan", "slow@v1", "--function", "tests.scanning.scanners:slow"]


def started(url: str, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*COMMAND, "--db", url, "--processes", "1", "--json", *options]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def matches(url: str) -> int:
    async with await open_store(url, read_only=True) as store:
        return sum(scanner.matches for scanner in await store.scanners.query())


async def has_begun(url: str, running: subprocess.Popen[bytes]) -> None:
    """Wait until a scan has recorded results, or has ended."""
    before = await matches(url)
    while await matches(url) == before and running.poll() is None:  # noqa: ASYNC110 - another process scans
        await asyncio.sleep(0.05)


async def scanned_once(url: str) -> int:
    """Check that the log is complete and that no rollout has two results. Return the number of results."""
    async with await open_store(url) as store:
        events = Counter([event.stream async for event in store.log.tail() if event.type == "rollout.scanned"])
        assert set(events.values()) <= {1}
        assert await matches(url) == len(events)
        assert (await store.log.verify()).ok
        return len(events)


# The database is not killed, and a scan takes the same steps on each.
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_scan_is_continued(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await add_rollouts(store, range(ROLLOUTS))
    for _ in range(rounds(20, few=1)):
        running = started(durable_url)
        # The process begins to scan after its start, so most kills come while results are recorded.
        await has_begun(durable_url, running)
        await asyncio.sleep(random.uniform(0, 0.5))
        workers = psutil.Process(running.pid).children(recursive=True) if running.poll() is None else []
        running.kill()
        running.communicate()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert alive == []
        await scanned_once(durable_url)
    last = started(durable_url)
    _, errors = await asyncio.to_thread(last.communicate)
    assert last.returncode == 0, errors
    assert await scanned_once(durable_url) == ROLLOUTS


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.torture_only)])
async def test_following_scan_that_is_stopped_records_its_results(durable_url: str, number: signal.Signals) -> None:
    async with await open_store(durable_url) as store:
        await add_rollouts(store, range(ROLLOUTS))
    running = started(durable_url, "--follow")
    await has_begun(durable_url, running)
    running.send_signal(number)
    report, errors = await asyncio.to_thread(running.communicate)
    assert running.returncode == 0, errors
    assert json.loads(report)["scanned"] == await scanned_once(durable_url) < ROLLOUTS
