"""A replay that is killed at any moment is continued by the same command: each rollout is enqueued once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from store import open_store
from store.models import PromptTemplate
from store.semconv import REPLAY
from tests.conftest import SQLITE
from tests.torture import IS_TORTURE, rounds

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(900)]

POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
ROLLOUTS = 20_000 if IS_TORTURE else 400
ROOT = Path(__file__).parents[2]


def started(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "store", "replay", "--as-queue", "--name", "again", "--db", url, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


async def count(url: str) -> int:
    async with await open_store(url, read_only=True) as store:
        return (await store.query_rollouts(limit=0)).total


# The database is not killed, and a replay takes the same steps on each.
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_replay_is_continued(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.update_resources("prompts", {"p": PromptTemplate(template="one", engine="f-string")})
        for start in range(0, ROLLOUTS, 200):
            await asyncio.gather(*(store.start_rollout({"n": start + number}) for number in range(200)))
        latest = await store.update_resources("prompts", {"p": PromptTemplate(template="two", engine="f-string")})
    for _ in range(rounds(20, few=1)):
        before = await count(durable_url)
        running = started(durable_url)
        while await count(durable_url) == before and running.poll() is None:  # noqa: ASYNC110 - another process enqueues
            await asyncio.sleep(0.05)
        await asyncio.sleep(random.uniform(0, 0.1))
        running.kill()
        running.communicate()
    last = started(durable_url)
    _, errors = await asyncio.to_thread(last.communicate)
    assert last.returncode == 0, errors
    async with await open_store(durable_url) as store:
        rollouts = await store.query_rollouts()
        replays = [rollout for rollout in rollouts if (rollout.metadata or {}).get(REPLAY)]
        sources = Counter((rollout.metadata or {})[REPLAY]["rollout_id"] for rollout in replays)
        assert (len(sources), set(sources.values())) == (ROLLOUTS, {1})
        assert {rollout.resources_id for rollout in replays} == {"replay/again/prompts@1"}
        newest = await store.get_latest_resources()
        assert newest is not None
        assert newest.resources == latest.resources
        assert (await store.log.verify()).ok
