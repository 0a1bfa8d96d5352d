"""Heartbeats keep attempts alive while their worker lives, and end with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import RolloutConfig
from store.runtime.process import is_gone, this_process, worker_name
from store.testing import ManualClock
from store.training import Runner
from store.training.running import heartbeat
from store.training.running.machine_state import snapshot
from tests.faults import processes
from tests.training.agents import runner_at_work
from tests.training.doing import (
    Doing,
    Gate,
    ended,
    returning,
    running,
    status_of,
)
from tests.training.training_helpers import RESOURCES, until
from tests.training.unreliable import Unreliable

OFTEN: dict[str, Any] = {"heartbeat_interval": 0.3, "interval_jitter": 0.0}
LIMITED = RolloutConfig(unresponsive_seconds=4.0)
MOST_OF_THE_LIMIT = 3.0


@pytest.fixture
def clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the store, by which the time of a runner advances too."""
    began = clock()
    advancing = SimpleNamespace(monotonic=lambda: time.monotonic() + (clock() - began) / 1e6)
    monkeypatch.setattr(heartbeat, "time", advancing)
    return clock


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_a_quiet_agent_stays_alive_while_its_worker_is(timed: Store, clock: ManualClock, mode: Any) -> None:
    gate = Gate()
    async with running(timed, gate.agent(), worker_id=5, heartbeat_launch_mode=mode, **OFTEN):
        rollout = await timed.enqueue_rollout(1, config=LIMITED)
        await gate.holds(1)

        async def last_sign() -> float | None:
            attempt = await timed.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            assert attempt.status == "preparing"
            return attempt.last_heartbeat_time

        for _ in range(2):
            clock.advance(MOST_OF_THE_LIMIT)
            # The first heartbeat may have been on its way before.
            for _ in range(2):
                last = await last_sign()

                async def is_next(last: float | None = last) -> bool:
                    return await last_sign() != last

                await until(is_next)
        gate.open.set()
        (result,) = await ended(timed, rollout)
    assert result.status == "succeeded"
    worker = await timed.get_worker_by_id(worker_name(5))
    assert worker is not None
    assert worker.heartbeat_stats is not None
    assert worker.heartbeat_stats["pid"] == os.getpid()


@pytest.mark.slow
async def test_an_agent_that_blocks_the_event_loop_stays_alive_all_the_same(clock: ManualClock) -> None:
    class Counting(Unreliable):
        def __init__(self, target: Store) -> None:
            super().__init__(target)
            self.heartbeats = 0

        async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
            attempt = await super().update_attempt(*args, **kwargs)
            self.heartbeats += "last_heartbeat_time" in kwargs
            return attempt

    async def agent(*arguments: Any) -> float:
        for _ in range(2):
            clock.advance(MOST_OF_THE_LIMIT)
            before = store.heartbeats
            while store.heartbeats < before + 2:
                time.sleep(0.005)  # noqa: ASYNC251 - as careless agents do
        return 1.0

    async with await open_store("memory://", clock=clock, scan_debounce_seconds=0) as target:
        store = Counting(target)
        async with running(store, Doing(agent), **OFTEN):
            (rollout,) = await ended(store, await store.enqueue_rollout(1, config=LIMITED))
    assert (rollout.status, rollout.attempt.last_heartbeat_time is not None) == ("succeeded", True)


async def test_without_heartbeats_the_worker_is_known_by_its_claims_alone(memory: Store) -> None:
    async with running(memory, returning(1.0), heartbeat_interval=0):
        await ended(memory, await memory.enqueue_rollout(1))
    worker = await memory.get_worker_by_id(worker_name(0))
    assert worker is not None
    assert worker.last_heartbeat_time is None


async def test_a_worker_without_an_id_sends_no_heartbeats_and_says_so(memory: Store, caplog: Any) -> None:
    runner: Runner[Any] = Runner(max_rollouts=1)
    nobody: Any = None
    runner.init(returning(1.0))
    runner.init_worker(nobody, memory)
    await memory.add_resources(dict(RESOURCES))
    await memory.enqueue_rollout(1)
    await runner.iter()
    assert "without an id sends no heartbeats" in caplog.text
    worker = await memory.get_worker_by_id("Worker-Unknown")
    assert worker is not None
    assert worker.last_heartbeat_time is None


async def test_a_store_that_does_not_answer_a_heartbeat_holds_nothing_up(memory: Store, caplog: Any) -> None:
    class Deaf(Unreliable):
        async def update_worker(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    store = Deaf(memory)
    async with running(store, returning(1.0), heartbeat_interval=0.1, interval_jitter=0.0):
        (rollout,) = await ended(store, await store.enqueue_rollout(1))
    assert rollout.status == "succeeded"
    assert "took longer than 0.1 s" in caplog.text


def test_heartbeat_has_the_fields_of_agent_lightning() -> None:
    state = snapshot(include_gpu=True)
    fields = (
        "timestamp host os cpu_name cpu_cores cpu_threads cpu_usage_pct mem_used_gb mem_total_gb mem_pct disk_used_gb"
        " disk_total_gb disk_pct bytes_sent_mb bytes_recv_mb gpus"
    )
    assert set(fields.split()) <= set(state)
    assert state["mem_total_gb"] > 0


def test_a_process_is_gone_only_if_it_was_of_this_machine_and_runs_no_more() -> None:
    mine = this_process()
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    assert not is_gone(mine)
    assert is_gone(mine | {"pid": over.pid})
    assert is_gone(mine | {"pid_started": 1}), "the pid is used again"
    assert not is_gone(mine | {"pid": over.pid, "host": "another"})
    assert not is_gone({})


@pytest.mark.slow
async def test_restarted_runner_closes_attempts_of_its_last_process(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.add_resources(dict(RESOURCES))
        config = RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
        left, untouched = await store.enqueue_rollout(1, config=config), await store.start_rollout(2)
        process = await asyncio.to_thread(runner_at_work, durable_url, worker_id=1)
        processes.kill(process)
        async with running(store, returning(1.0), worker_id=1):
            (rollout,) = await ended(store, left)
        assert rollout.status == "succeeded"
        first, second = await store.query_attempts(left.rollout_id)
        assert (first.status, first.metadata) == ("unresponsive", {"reason": "interrupted"})
        assert second.status == "succeeded"
        assert await status_of(store, untouched) == "preparing"


@pytest.mark.slow
async def test_ctrl_c_closes_the_attempt_as_failed(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.add_resources(dict(RESOURCES))
        rollout = await store.enqueue_rollout(1)
        process = await asyncio.to_thread(runner_at_work, durable_url)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        await asyncio.to_thread(process.join)
        current: Any = await store.get_rollout_by_id(rollout.rollout_id)
        assert (current.status, current.attempt.status) == ("failed", "failed")
        assert current.attempt.metadata == {"reason": "interrupted"}
        assert process.exitcode != 0


def test_heartbeat_contains_the_gpu_state_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'A100, 37, 1024, 40960, [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert snapshot(include_gpu=True)["gpus"] == [
        {"gpu": "A100", "util_pct": 37.0, "mem_used_mb": 1024.0, "mem_total_mb": 40960.0, "temp_c": "[N/A]"}
    ]
    monkeypatch.setenv("PATH", "/nowhere")
    assert snapshot(include_gpu=True)["gpus"] == []
