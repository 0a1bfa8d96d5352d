"""Signs of life keep attempts alive while their worker is, and end with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import RolloutConfig
from store.runtime.process import is_gone, this_process, worker_name
from store.training import (
    Runner,
)
from store.training.machine import snapshot
from tests.training.doing import (
    Doing,
    Gate,
    ended,
    returning,
    running,
    status_of,
)
from tests.training.given import RESOURCES, until
from tests.training.unreliable import Unreliable


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_a_quiet_agent_stays_alive_while_its_worker_is(live: Store, mode: Any) -> None:
    gate = Gate()
    settings: dict[str, Any] = {"heartbeat_interval": 0.1, "interval_jitter": 0.0, "heartbeat_launch_mode": mode}
    async with running(live, gate.agent(), worker_id=5, **settings):
        rollout = await live.enqueue_rollout(1, config=RolloutConfig(unresponsive_seconds=4.0))
        await gate.holds(1)
        began = time.monotonic()

        async def beaten() -> bool:
            attempt = await live.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            assert attempt.status == "preparing"
            return time.monotonic() - began > 5.0

        await until(beaten)
        gate.open.set()
        (found,) = await ended(live, rollout)
    assert found.status == "succeeded"
    worker = await live.get_worker_by_id(worker_name(5))
    assert worker is not None
    assert worker.heartbeat_stats is not None
    assert worker.heartbeat_stats["pid"] == os.getpid()


@pytest.mark.slow
async def test_an_agent_that_blocks_the_event_loop_stays_alive_all_the_same(memory: Store) -> None:
    async def agent(*_: Any) -> float:
        time.sleep(5.0)  # noqa: ASYNC251 - as careless agents do
        return 1.0

    async with running(memory, Doing(agent), heartbeat_interval=0.1, interval_jitter=0.0):
        rollout = await memory.enqueue_rollout(1, config=RolloutConfig(unresponsive_seconds=4.0))
        (found,) = await ended(memory, rollout)
    assert (found.status, found.attempt.last_heartbeat_time is not None) == ("succeeded", True)


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
        (found,) = await ended(store, await store.enqueue_rollout(1))
    assert found.status == "succeeded"
    assert "took longer than 0.1 s" in caplog.text


def test_a_heartbeat_says_what_agent_lightnings_says() -> None:
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


RUNNER = """
import asyncio, sys
from store import HTTPStore, open_store
from store.training import Runner, Tracer, emit_message, rollout

@rollout
async def agent(task, llm):
    emit_message("at work")
    print("at work", flush=True)
    await asyncio.Event().wait()

async def main(url):
    async with await open_store(url) as store:
        runner = Runner()
        with runner.run_context(agent=agent, store=store, worker_id=1):
            await runner.iter()

asyncio.run(main(sys.argv[1]))
"""


def started_runner(url: str) -> subprocess.Popen[str]:
    """Return a process of a runner that has begun its first attempt."""
    process = subprocess.Popen([sys.executable, "-c", RUNNER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    return process


@pytest.mark.slow
async def test_a_runner_that_starts_again_closes_what_its_last_process_left(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.add_resources(dict(RESOURCES))
        config = RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
        left, untouched = await store.enqueue_rollout(1, config=config), await store.start_rollout(2)
        process = await asyncio.to_thread(started_runner, durable_url)
        process.kill()
        process.communicate()
        async with running(store, returning(1.0), worker_id=1):
            (found,) = await ended(store, left)
        assert found.status == "succeeded"
        first, second = await store.query_attempts(left.rollout_id)
        assert (first.status, first.metadata) == ("unresponsive", {"reason": "interrupted"})
        assert second.status == "succeeded"
        assert await status_of(store, untouched) == "preparing"


@pytest.mark.slow
async def test_ctrl_c_closes_the_attempt_as_failed(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await store.add_resources(dict(RESOURCES))
        rollout = await store.enqueue_rollout(1)
        process = await asyncio.to_thread(started_runner, durable_url)
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.communicate)
        found: Any = await store.get_rollout_by_id(rollout.rollout_id)
        assert (found.status, found.attempt.status) == ("failed", "failed")
        assert found.attempt.metadata == {"reason": "interrupted"}
        assert process.returncode != 0


def test_a_heartbeat_tells_of_gpus_what_nvidia_smi_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'A100, 37, 1024, 40960, [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert snapshot(include_gpu=True)["gpus"] == [
        {"gpu": "A100", "util_pct": 37.0, "mem_used_mb": 1024.0, "mem_total_mb": 40960.0, "temp_c": "[N/A]"}
    ]
    monkeypatch.setenv("PATH", "/nowhere")
    assert snapshot(include_gpu=True)["gpus"] == []
