"""Documented ways of serving the store of Agent-lightning 0.3 work here under the same names.

Each test executes one documented use with Agent-lightning's names, arguments and results.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import store as agl
from store.client import LightningStoreClient
from store.server import LightningStoreServer, LightningStoreThreaded
from tests.postgres import free_port

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-sqlite")]


async def test_a_store_is_served_to_clients_and_used_by_its_owner() -> None:
    store = agl.InMemoryLightningStore()
    server = LightningStoreServer(store, host="127.0.0.1", port=free_port())
    await server.start()
    try:
        await server.add_resources({"prompt": agl.PromptTemplate(template="Answer {question}", engine="f-string")})
        client = LightningStoreClient(server.endpoint)
        queued = await client.enqueue_rollout(input={"question": "2 + 2"}, mode="train")
        claimed = await server.dequeue_rollout(worker_id="runner-1")
        assert claimed is not None
        assert claimed.rollout_id == queued.rollout_id
        await client.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        (ended,) = await store.wait_for_rollouts([queued.rollout_id], timeout=10)
        assert ended.status == "succeeded"
        await client.close()
    finally:
        await server.stop()
    await store.close()


async def test_a_server_handed_to_another_process_is_a_client_there() -> None:
    store = agl.InMemoryLightningStore()
    server = LightningStoreServer(store, host="127.0.0.1", port=free_port())
    await server.start()
    runner = multiprocessing.get_context("spawn").Process(target=_answer, args=(server,))
    try:
        queued = await server.enqueue_rollout("task")
        runner.start()
        (ended,) = await server.wait_for_rollouts([queued.rollout_id], timeout=60)
        assert ended.status == "succeeded"
        await asyncio.to_thread(runner.join, 30)
        assert runner.exitcode == 0
    finally:
        if runner.is_alive():
            runner.kill()
        await server.stop()
        await store.close()


def _answer(store: LightningStoreServer) -> None:
    async def answer() -> None:
        claimed = await store.dequeue_rollout("runner-1")
        assert claimed is not None
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await store.close()

    asyncio.run(answer())


async def test_a_server_says_where_traces_go_and_that_it_may_be_shared() -> None:
    store = agl.InMemoryLightningStore(thread_safe=True)
    server = LightningStoreServer(store, host="127.0.0.1", port=4747, cors_allow_origins=["http://localhost:3000"])
    assert server.capabilities.get("otlp_traces")
    assert server.capabilities.get("zero_copy")
    assert server.endpoint == "http://127.0.0.1:4747"
    assert server.otlp_traces_endpoint() == "http://127.0.0.1:4747/v1/traces"
    assert LightningStoreClient("http://127.0.0.1:4747/").otlp_traces_endpoint() == server.otlp_traces_endpoint()
    await store.close()


async def test_a_store_wrapped_for_threads_is_used_from_several() -> None:
    store = LightningStoreThreaded(agl.InMemoryLightningStore())
    assert store.capabilities.get("thread_safe")
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(asyncio.to_thread(asyncio.run, store.enqueue_rollout(number)))
    assert len(await store.query_rollouts()) == 8
    await store.close()


@pytest.mark.parametrize("command", ["store", "serve"])
def test_serve_command_runs_until_a_signal(command: str, tmp_path: Path) -> None:
    port = free_port()
    serving = subprocess.Popen(
        [str(Path(sys.executable).parent / "rollbook"), command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "ROLLBOOK_DB": f"sqlite:///{tmp_path / 'run.db'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        assert str(port) in serving.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/agl/health", timeout=30) as answer:
            assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0
    finally:
        serving.kill()
        serving.communicate()
