"""The work of a killed runner is repeated by another one, with the default settings of runner and rollout."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, RolloutConfig
from store.training import Runner
from tests.faults import processes
from tests.training.agents import runner_at_work
from tests.training.doing import Doing, ended, returning, running, status_of
from tests.training.training_helpers import RESOURCES, until

FAST: dict[str, Any] = {"heartbeat_interval": 0.2, "interval_jitter": 0.0}


def killed_at_work(url: str, attempts: int) -> str:
    """Return the name of a runner that was killed while it executed so many attempts."""
    process = runner_at_work(url, attempts, concurrency=attempts, **FAST)
    processes.kill(process)
    return f"{os.uname().nodename}-{process.pid}-0"


@pytest.mark.slow
async def test_another_runner_finishes_the_work_of_a_killed_one(durable_url: str) -> None:
    async with await open_store(durable_url, scan_debounce_seconds=0.1) as store:
        left = [await store.enqueue_rollout(number) for number in range(3)]
        lost = await asyncio.to_thread(killed_at_work, durable_url, 3)
        async with running(store, returning(1.0), name="second", **FAST):
            done = await ended(store, *left)
            events = (await store.log.history(left[0].rollout_id))[:6]
        assert [rollout.status for rollout in done] == ["succeeded"] * 3
        for rollout in done:
            first, second = await store.query_attempts(rollout.rollout_id)
            assert (first.status, first.worker_id) == ("unresponsive", lost)
            assert (second.status, second.worker_id) == ("succeeded", "second-0")
            assert rollout.config == RolloutConfig(
                unresponsive_seconds=1.2, max_attempts=3, retry_condition=["unresponsive"]
            )
        limits = [event for event in events if event.type == "rollout.amended"]
        assert [(event.actor, event.data["fields"]) for event in limits] == [("store", ["config"])]
        assert (await store.log.verify()).ok


async def test_a_rollout_whose_worker_lives_costs_no_further_event(live: Store) -> None:
    async with running(live, returning(1.0), **FAST):
        (done,) = await ended(live, await live.enqueue_rollout(1))
        await asyncio.sleep(0.5)
    assert done.config == RolloutConfig()
    assert "rollout.amended" not in {event.type for event in await live.log.history(done.rollout_id)}


async def orphan(store: Store, worker_id: str, config: RolloutConfig, stats: dict[str, Any] | None) -> AttemptedRollout:
    """Return a claimed rollout of a worker whose last heartbeat contained `stats`."""
    await store.enqueue_rollout(worker_id, config=config)
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    if stats is not None:
        await store.update_worker(worker_id, stats)
    return claimed


async def test_limits_and_retries_of_a_rollout_are_kept(live: Store) -> None:
    beat = {"heartbeat_interval": 0.1}
    configs = [
        RolloutConfig(timeout_seconds=600),
        RolloutConfig(unresponsive_seconds=600, max_attempts=2, retry_condition=["failed"]),
    ]
    rollouts = [await orphan(live, f"w{number}", config, beat) for number, config in enumerate(configs)]
    retried = await orphan(live, "w3", RolloutConfig(max_attempts=2, retry_condition=["failed"]), beat)
    raised = await orphan(live, "w4", RolloutConfig(max_attempts=5), beat)
    await live.add_resources(dict(RESOURCES))
    async with running(live, returning(1.0), **FAST):
        failed, again = await ended(live, retried, raised)
    assert (failed.status, failed.config.unresponsive_seconds, failed.config.max_attempts) == ("failed", 1.0, 2)
    assert (again.status, again.config.retry_condition, again.config.max_attempts) == ("succeeded", ["unresponsive"], 5)
    assert [(await live.get_rollout_by_id(rollout.rollout_id)).config for rollout in rollouts] == configs  # pyright: ignore[reportOptionalMemberAccess]


async def test_only_workers_that_declare_their_heartbeats_are_given_up(live: Store) -> None:
    beats: list[Any] = [None, {}, {"heartbeat_interval": "x"}, {"heartbeat_interval": 0.1, "stopped": True}]
    others = [await orphan(live, f"other{number}", RolloutConfig(), beat) for number, beat in enumerate(beats)]
    lost = await orphan(live, "lost", RolloutConfig(), {"heartbeat_interval": 0.1})
    async with running(live, returning(1.0), **FAST):
        await ended(live, lost)
    assert [await status_of(live, rollout) for rollout in others] == ["preparing"] * len(others)


async def test_attempts_of_a_dead_runner_are_reported_though_its_last_one_has_ended(memory: Store) -> None:
    program = await asyncio.create_subprocess_exec("true")
    await program.wait()
    process = {"host": os.uname().nodename, "pid": program.pid, "pid_started": 1}
    config = RolloutConfig(unresponsive_seconds=600, max_attempts=2, retry_condition=["unresponsive"])
    lost = await orphan(memory, "dead", config, process)
    other = await orphan(memory, "dead", config, process)
    await memory.update_attempt(other.rollout_id, other.attempt.attempt_id, status="succeeded")
    await memory.add_resources(dict(RESOURCES))
    async with running(memory, returning(1.0), **FAST):
        (again,) = await ended(memory, lost)
    assert again.attempt.sequence_id == 2


async def test_a_limit_does_not_end_an_attempt_that_is_alive(memory: Store) -> None:
    claimed = await orphan(memory, "slow", RolloutConfig(), {"heartbeat_interval": 0.1})

    async def limited() -> bool:
        now = (await memory.update_worker("other", {"heartbeat_interval": 0.1})).last_heartbeat_time
        assert now is not None
        await memory.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, last_heartbeat_time=now)
        rollout = await memory.get_rollout_by_id(claimed.rollout_id)
        return rollout is not None and rollout.config.unresponsive_seconds == 1.0

    assert await until(limited)
    assert await status_of(memory, claimed) == "preparing"


async def test_two_runners_have_different_names(memory: Store) -> None:
    host, pid = os.uname().nodename, os.getpid()
    named: list[Runner[Any]] = [Runner(), Runner(), Runner(name="night")]
    for number, runner in enumerate(named):
        runner.init_worker(number, memory)
    assert [runner.label for runner in named] == [f"{host}-{pid}-0", f"{host}-{pid}-1", "night-2"]
    agent = Doing(lambda *_: 1.0)
    async with running(memory, agent, name="night", worker_id=4):
        (done,) = await ended(memory, await memory.enqueue_rollout(1))
    assert done.attempt.worker_id == "night-4"
