"""SIGKILL of each process of a training: it continues or is resumed, without loss or repetition."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from store import open_store
from store.interface.store import Store
from store.training.algorithms.plan import Plan
from tests.client.server_process import ServerProcess
from tests.conftest import POSTGRES, SQLITE
from tests.torture import rounds
from tests.training.execution.killed import EPOCHS, MESSAGES, RUN, main
from tests.training.execution.programs import Program, running
from tests.training.stores import POSTGRES_IN_TORTURE, SQLITE_IN_TORTURE
from tests.training.training_helpers import until

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = rounds(50, few=15)
ALL_ROLLOUTS = EPOCHS * TASKS


def training(url: str, log: Path) -> AbstractContextManager[Program]:
    """Run the training; whatever happens, none of its processes is left."""
    return running(main, url, str(TASKS), log=log)


async def has_done(store: Store, part: float) -> None:
    """Wait until so much of the plan has succeeded, and a moment more."""

    async def enough() -> bool:
        return (await store.query_rollouts(status_in=["succeeded"], limit=0)).total >= part * ALL_ROLLOUTS

    await until(enough)
    await asyncio.sleep(random.uniform(0, 0.05))


async def a_runner(store: Store) -> psutil.Process:
    """Return the process of a runner that has a rollout."""

    async def pid() -> int | None:
        for worker in await store.query_workers(status_in=["busy"]):
            if worker.heartbeat_stats and psutil.pid_exists(worker.heartbeat_stats["pid"]):
                return worker.heartbeat_stats["pid"]
        return None

    return psutil.Process(await until(pid))


async def check(store: Store) -> None:
    """Every rollout of the plan is there once, has succeeded once, and has every span of that attempt, in order."""
    rollouts = await store.query_rollouts()
    keys = Counter((rollout.metadata or {})["rollbook.key"] for rollout in rollouts)
    plan = Plan(RUN, seed=1)
    assert keys == Counter(item.key for epoch in range(EPOCHS) for item in plan.planned(range(TASKS), epoch=epoch))
    assert Counter(rollout.status for rollout in rollouts) == {"succeeded": ALL_ROLLOUTS}
    for rollout in rollouts:
        attempts = await store.query_attempts(rollout.rollout_id)
        assert [attempt.status for attempt in attempts].count("succeeded") == 1
        spans = await store.query_spans(rollout.rollout_id, "latest")
        said = [span.attributes.get("agentlightning.message.body") for span in spans]
        assert said[:MESSAGES] == [str(number) for number in range(MESSAGES)]
        assert [span.name for span in spans[MESSAGES:]] == ["agentlightning.annotation", "agentlightning.attempt"]
    assert (await store.log.verify()).ok


# The runners use a server on any database, so `make test` runs one of the two tests on each.
@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_a_training_goes_on_without_its_runner_its_server_or_its_algorithm(
    durable_url: str, tmp_path: Path
) -> None:
    server = ServerProcess(durable_url)
    await asyncio.to_thread(server.start)
    log = tmp_path / "said"
    kills = rounds(10)
    orphans: list[psutil.Process] = []
    try:
        async with await open_store(durable_url) as store:
            for number in range(kills):
                with training(server.url, log) as process:
                    await has_done(store, (number + 0.2) / (kills + 1))
                    (await a_runner(store)).kill()
                    await has_done(store, (number + 0.6) / (kills + 1))
                    server.kill()
                    await asyncio.to_thread(server.start)
                    await has_done(store, (number + 1.0) / (kills + 1))
                    orphans += process.children(recursive=True)
                    process.kill()
            with training(server.url, log) as process:
                assert await asyncio.to_thread(process.exit_code) == 0, log.read_text()
            await check(store)
            psutil.wait_procs(orphans)
    finally:
        server.kill()


@pytest.mark.parametrize("durable_url", [SQLITE_IN_TORTURE, POSTGRES], indirect=True)
async def test_a_training_is_resumed_after_all_of_it_was_killed(durable_url: str, tmp_path: Path) -> None:
    log = tmp_path / "said"
    kills = rounds(10)
    async with await open_store(durable_url) as store:
        for number in range(kills):
            with training(durable_url, log) as process:
                await has_done(store, (number + 0.5) / (kills + 1))
                for member in [process, *process.children(recursive=True)]:
                    # A child process may end as soon as its parent is killed.
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
        with training(durable_url, log) as process:
            assert await asyncio.to_thread(process.exit_code) == 0, log.read_text()
        await check(store)
