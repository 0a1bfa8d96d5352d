"""A rescoring that is killed at any moment is continued by the same command, without loss and without doubles."""

from __future__ import annotations

import asyncio
import os
import random
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
ROLLOUTS = 400 if IS_TORTURE else 120
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "store", "rescore", "--reward", "tests.rescoring.rewards:slow@v1", "--processes", "2"]


def started(url: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*COMMAND, "--db", url, "--sample-twice", "5", "--json"]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


async def scored(url: str) -> int:
    async with await open_store(url, read_only=True) as store:
        return sum(version.scores for version in await store.annotations.query_reward_versions())


# The database is not killed, and a rescoring takes the same steps on each.
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_rescoring_is_continued(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await add_rollouts(store, range(ROLLOUTS))
    for _ in range(rounds(20, few=2)):
        before = await scored(durable_url)
        running = started(durable_url)
        # The processes begin to score after their start, so most kills come while scores are recorded.
        while await scored(durable_url) == before and running.poll() is None:  # noqa: ASYNC110 - another process scores
            await asyncio.sleep(0.05)
        await asyncio.sleep(random.uniform(0, 0.5))
        workers = psutil.Process(running.pid).children(recursive=True) if running.poll() is None else []
        running.kill()
        running.wait()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert alive == []
        if running.stderr is not None:
            running.stderr.close()
    last = started(durable_url)
    _, errors = await asyncio.to_thread(last.communicate)
    assert last.returncode == 0, errors
    async with await open_store(durable_url) as store:
        rollouts = await store.query_rollouts(reward_version="slow@v1")
        assert [rollout.reward for rollout in rollouts] == [float(number) for number in range(ROLLOUTS)]
        events = Counter([event.stream async for event in store.log.tail() if event.type == "reward.scored"])
        assert set(events.values()) == {1}
        assert (await store.log.verify()).ok
