"""`rollbook serve` as a process: start, output and end."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from tests.command_line import logging_restored
from tests.server.fleet import ForkedCommand
from tests.torture import Rounds

if TYPE_CHECKING:
    from typer.testing import Result

HANG = 120
_ONE = {"rollouts": [{"input": 1}]}
SCRIPT = "from store.cli import main; main()"


@contextmanager
def serving(*arguments: str) -> Generator[tuple[ForkedCommand, str]]:
    """Give a running server and its URL; whatever happens, it is gone afterwards."""
    process = ForkedCommand(*arguments)
    try:
        line = process.stdout.readline()
        match = re.search(r"https?://\S+", line)
        assert match, (line, process.stderr.read())
        yield process, match[0]
    finally:
        process.end()


def run(*arguments: str) -> Result:
    """Run a command that ends by itself, in this process. Any error but an exit of the command is raised."""
    with logging_restored():
        result = CliRunner().invoke(app, arguments, prog_name="rollbook")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def finish(process: ForkedCommand) -> tuple[int, list[Any]]:
    """Wait for the end; return the exit code and what was logged."""
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in errors.splitlines()]


async def _enqueue(url: str, value: Any) -> str:
    body = {"rollouts": [{"input": value}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/agl/queues/rollouts/enqueue", json=body) as answer,
    ):
        assert answer.status == 201
        return (await answer.json())[0]["rollout_id"]


@pytest.mark.slow
async def test_quotas_are_options_of_the_server(tmp_path: Path) -> None:
    options = ("--quota", "events=2,calls=1000", "--quota", "other:events=none")
    with serving("serve", "--db", f"sqlite:///{tmp_path / 'run.db'}", "--port", "0", *options) as (_, url):
        for number in range(2):
            await _enqueue(url, number)
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/agl/queues/rollouts/enqueue", json=_ONE) as answer:
                assert (answer.status, (await answer.json())["error_type"]) == (400, "QuotaExceeded")
            async with session.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
    limits = [line.rpartition(" ")[2] for line in lines if line.startswith("rollbook_quota_limit")]
    assert {"2", "1000"} == set(limits)


@pytest.mark.slow
async def test_store_is_another_name_of_serve(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    with serving("store", "--db", db, "--port", "0") as (process, url):
        assert process.stdout.readline() == f"the dashboard is at {url}/ui/\n"
        rollout_id = await _enqueue(url, {"a": 1})
        process.send_signal(signal.SIGTERM)
        code, _ = finish(process)
    assert code == 0
    async with await open_store(db) as store:
        assert await store.get_rollout_by_id(rollout_id) is not None
        assert (await store.log.verify()).ok


@pytest.mark.slow
async def test_waiting_calls_are_answered_503_when_the_server_ends(tmp_path: Path) -> None:
    with serving("serve", "--db", f"sqlite:///{tmp_path / 'run.db'}", "--port", "0") as (process, url):
        async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
            dequeue = f"{url}/v1/agl/queues/rollouts/dequeue"
            waiting = asyncio.ensure_future(session.post(dequeue, json={"wait_seconds": 100_000}))
            while True:
                async with session.get(f"{url}/metrics") as answer:
                    if "rollbook_parked_calls 1" in await answer.text():
                        break
            process.send_signal(signal.SIGINT)
            async with await waiting as answer:
                assert answer.status == 503
                assert answer.headers["Retry-After"] == "1"
        code, _ = await asyncio.to_thread(finish, process)
    assert code == 0


@pytest.mark.slow
async def test_logs_are_json_with_request_ids_and_without_payloads(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    with serving("serve", "--db", db, "--port", "0", "--log-level", "debug") as (process, url):
        await _enqueue(url, "the secret question")
        process.send_signal(signal.SIGTERM)
        _, logged = finish(process)
    (entry,) = [entry for entry in logged if entry["logger"] == "store.server.access"]
    assert entry["message"] == "POST /v1/agl/queues/rollouts/enqueue 201"
    assert (entry["status"], entry["partition"], entry["level"]) == (201, "default", "debug")
    assert re.fullmatch(r"[0-9a-f]{16}", entry["request_id"])
    assert "secret" not in json.dumps(logged)


@pytest.mark.slow
def test_the_error_of_a_used_port_names_its_server(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    with serving("serve", "--db", db, "--port", "0") as (_, url):
        port = url.rpartition(":")[2]
        second = run("serve", "--db", "memory://", "--port", port)
    assert second.exit_code == 1
    assert "address already in use" in second.stderr
    assert "a Rollbook server of the store" in second.stderr


def test_other_machines_are_served_only_with_keys_or_insecure() -> None:
    refused = run("serve", "--db", "memory://", "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 2
    assert "--insecure" in refused.stderr
    nowhere = run("serve", "--db", "memory://", "--host", "no-such-host.invalid", "--port", "0")
    assert nowhere.exit_code == 2


@pytest.mark.slow
async def test_other_machines_are_served_with_insecure() -> None:
    with serving("serve", "--db", "memory://", "--host", "0.0.0.0", "--port", "0", "--insecure") as (_, url):
        assert not url.startswith("http://0.0.0.0")
        local = f"http://127.0.0.1:{url.rpartition(':')[2]}"
        async with aiohttp.ClientSession() as session, session.get(f"{local}/v1/agl/health") as answer:
            assert answer.status == 200


@pytest.mark.slow
@pytest.mark.torture
async def test_thousands_of_idle_sockets_do_not_block_calls(rounds: Rounds) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(rounds(10_000, few=2_500), hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 400), hard))
    idle: list[socket.socket] = []
    try:
        with serving("serve", "--db", "memory://", "--port", "0") as (_, url):
            port = int(url.rpartition(":")[2])
            idle.extend(socket.create_connection(("127.0.0.1", port), timeout=HANG) for _ in range(count))
            async with asyncio.timeout(HANG):
                for value in range(10):
                    await _enqueue(url, value)
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_server_in_a_traced_process_is_not_traced_itself() -> None:
    script = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import aiohttp
from store import open_store
from store.server import StoreServer

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    async with StoreServer(await open_store("memory://"), port=0) as server, aiohttp.ClientSession() as session:
        for path in ("/v1/agl/health", "/docs", "/v1/nothing"):
            async with session.get(server.endpoint + path) as answer:
                await answer.read()
    print(len(exporter.get_finished_spans()), "spans")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.stdout == "0 spans\n", done.stderr


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("this is no database, and it is long enough for a header to be read from it" * 9)
    failed = run("serve", "--db", f"sqlite:///{tmp_path / 'run.db'}", "--port", "0")
    assert failed.exit_code != 0


@pytest.mark.slow
async def test_a_new_partition_is_listed_and_served_at_once(tmp_path: Path) -> None:
    db, name = f"sqlite:///{tmp_path / 'run.db'}", "run_7"
    with serving("serve", "--db", db, "--port", "0") as (_, url):
        created = await asyncio.to_thread(run, "partitions", "create", name, "--db", db)
        assert (created.exit_code, f"partition={name}" in created.stdout) == (0, True)
        listed = await asyncio.to_thread(run, "partitions", "ls", "--db", db, "--json")
        assert name in json.loads(listed.stdout)
        await _enqueue(f"{url}/p/{name}", 1)
    async with await open_store(f"{db}?partition={name}", create=False) as store:
        assert (await store.statistics()).get("total_rollouts") == 1


@pytest.mark.parametrize("name", ["Upper", "../x", "a b", "1a", "x" * 41])
def test_a_partition_has_a_plain_name(tmp_path: Path, name: str) -> None:
    created = run("partitions", "create", "--db", f"sqlite:///{tmp_path / 'run.db'}", "--", name)
    assert created.exit_code == 2
    assert list(tmp_path.iterdir()) == []
