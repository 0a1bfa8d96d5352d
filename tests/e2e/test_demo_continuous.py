"""`rollbook demo --continuous` as its user runs it: stopped with Ctrl+C, killed, and started again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import open_store
from store.examples.doc_search.live import BATCH, LEARNED, LIVE, Learned
from store.interface.store import Store
from store.models import PromptTemplate
from store.training.algorithms.rollout_ends import ENDED
from tests.conftest import SQLITE
from tests.torture import IS_TORTURE

pytestmark = [pytest.mark.slow]

POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])

COMMAND = [sys.executable, "-P", "-c", "from store.cli import main; main()", "demo", "--continuous", "--db"]


def start(url: str, request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    """Start it on a database."""
    pytest_cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without plugin
    environment = {
        "XDG_CACHE_HOME": str(pytest_cache.mkdir("doc-search")),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(
        [*COMMAND, url],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


async def version(store: Store) -> int:
    """Return which version is published, or -1 for none."""
    resources = await store.get_resources_by_id(LIVE)
    return -1 if resources is None else _learned(resources.resources[LEARNED]).version


def _learned(resource: object) -> Learned:
    assert isinstance(resource, PromptTemplate)
    return Learned(**json.loads(resource.template))


async def until_version(store: Store, number: int, process: subprocess.Popen[str]) -> None:
    """Wait until that version is published."""
    deadline = time.monotonic() + 250
    while await version(store) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def learned(store: Store) -> list[str]:
    """Return the rollouts that the versions were learned from, one after the other, as the log has them."""
    batches: dict[int, list[str]] = {}
    async for event in store.log.tail(types=["resources.published", "resources.replaced"]):
        then = await store.get_resources_by_id(LIVE, as_at=event.position)
        if then is not None:
            told = _learned(then.resources[LEARNED])
            # A version is published anew when the process starts again, and then names nothing new.
            batches.setdefault(told.version, told.rollouts)
    return [rollout_id for number in sorted(batches) for rollout_id in batches[number]]


async def ended(store: Store) -> list[str]:
    """Return the rollouts that have ended, in the order of their ends."""
    return [
        event.stream.removeprefix("rollout/")
        async for event in store.log.tail(types=["rollout.status_changed"])
        if event.data["to"] in ENDED
    ]


async def test_ctrl_c_ends_both_sides_and_the_last_line_reports_the_result(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    async with await open_store(url) as store:
        process = start(url, request)
        await until_version(store, 1, process)
        process.send_signal(signal.SIGINT)
        said, complaints = await asyncio.to_thread(process.communicate, timeout=250)
        assert process.returncode == 130, complaints
        assert "Traceback" not in complaints
        done = await version(store)
        last = said.splitlines()[-1]
        assert f"version {done} is published and was learned from {done * BATCH:,} rollouts" in last
        assert not await store.query_rollouts(status_in=["queuing", "requeuing", "preparing", "running"])


@pytest.mark.torture
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_killed_and_started_again_it_misses_no_rollout_and_learns_from_none_twice(
    durable_url: str, request: pytest.FixtureRequest
) -> None:
    async with await open_store(durable_url) as store:
        for kills in range(1, 4 if IS_TORTURE else 3):
            process = start(durable_url, request)
            await until_version(store, 2 * kills if IS_TORTURE else kills, process)
            # Anywhere between two versions, and in the publication of one.
            await asyncio.sleep(random.uniform(0, 0.5))
            process.kill()
            await asyncio.to_thread(process.communicate)
        done, all_ended = await learned(store), await ended(store)
        assert len(done) >= (6 if IS_TORTURE else 2) * BATCH
        assert done == all_ended[: len(done)]
        assert len(set(done)) == len(done)
        assert (await store.log.verify()).ok
