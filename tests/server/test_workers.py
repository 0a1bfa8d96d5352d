"""`rollbook serve --workers`: several processes on one port that start and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store import open_store
from store.client import HTTPStore
from store.db.url import parse
from tests.server.fleet import HANG, SCRIPT, Fleet, fleet, until
from tests.server.test_serving import run

ENQUEUE = "/v1/agl/queues/rollouts/enqueue"
ONE = {"rollouts": [{"input": 1}]}

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.own_database]


async def enqueue(url: str) -> str:
    """Enqueue on a connection of its own, which any worker may take."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}{ENQUEUE}", json=ONE) as answer:
        assert answer.status == 201
        return (await answer.json())[0]["rollout_id"]


async def test_all_workers_serve_and_any_of_them_tells_the_metrics_of_all(postgres_url: str) -> None:
    async with fleet(postgres_url, "--quota", "events=50") as server:
        assert server.told.rstrip().endswith("with 2 workers")
        await asyncio.gather(*(enqueue(server.url) for _ in range(40)))
        tellers: set[str] = set()
        async with asyncio.timeout(HANG):
            while len(tellers) < 2:
                async with aiohttp.ClientSession() as session:
                    before = await server.measured(session)
                    measured = await server.measured(session)
                assert [measured[f'rollbook_worker_up{{worker="{number}"}}'] for number in (0, 1)] == [1, 1]
                enqueued = [value for name, value in measured.items() if _is_enqueue(name)]
                assert sum(enqueued) == 40
                commits = [value for name, value in measured.items() if name.startswith("rollbook_commits_total")]
                assert 0 < sum(commits) <= 40
                # What comes from the database is told once, whoever is asked.
                partition = parse(postgres_url).partition
                waiting = [
                    value
                    for name, value in measured.items()
                    if name.startswith("rollbook_queue_depth") and f'"{partition}"' in name
                ]
                assert waiting == [40]
                # The two requests of this session met the same worker, which counted the first.
                tellers |= {
                    name for name, value in measured.items() if _is_scrape(name) and value > before.get(name, 0)
                }
        answers = await asyncio.gather(*(_refusal(server.url) for _ in range(20)))
        # The workers share the quota of events.
        assert sorted(map(str, answers)) == ["None"] * 10 + ["QuotaExceeded"] * 10
        async with aiohttp.ClientSession() as session:
            measured = await server.measured(session)
        refusals = [value for name, value in measured.items() if name.startswith("rollbook_quota_refusals_total{")]
        assert sum(refusals) == 10
        async with await open_store(postgres_url) as store:
            assert (await store.statistics()).get("total_rollouts") == 50


async def _refusal(url: str) -> str | None:
    """Enqueue on a connection of its own, and return the type of the error; None if the call succeeds."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}{ENQUEUE}", json=ONE) as answer:
        body = await answer.json()
        return None if answer.status == 201 else body["error_type"]


def _is_enqueue(name: str) -> bool:
    return name.startswith("rollbook_requests_total{") and ENQUEUE in name


def _is_scrape(name: str) -> bool:
    return name.startswith("rollbook_request_seconds_count{") and 'route="/metrics"' in name


async def test_a_worker_that_dies_is_replaced_and_the_others_go_on(postgres_url: str) -> None:
    async with fleet(postgres_url) as server:
        before = {worker.pid for worker in server.workers()}
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        async with HTTPStore(server.url, retry_seconds=HANG) as store:
            for number in range(20):
                await store.enqueue_rollout(number)
        await until(lambda: len({worker.pid for worker in server.workers()} - {min(before)}) == 2)
        async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
            while True:
                measured = await server.measured(session)
                if all(measured[f'rollbook_worker_up{{worker="{number}"}}'] for number in (0, 1)):
                    break
                # The pause leaves processor time for the worker that starts.
                await asyncio.sleep(0.2)
        server.process.terminate()
        code, logged = await server.ended()
        assert (code, logged.count("ended with -9")) == (0, 1)


@pytest.mark.parametrize(
    "whom,how",
    [
        # Ctrl+C in a shell. SIGTERM to the parent is a test below.
        ("group", signal.SIGINT),
        pytest.param("group", signal.SIGTERM, marks=pytest.mark.torture_only),
        pytest.param("parent", signal.SIGINT, marks=pytest.mark.torture_only),
        pytest.param("parent", signal.SIGTERM, marks=pytest.mark.torture_only),
    ],
)
async def test_a_signal_answers_waiting_calls_and_ends_all_processes(
    postgres_url: str, whom: str, how: signal.Signals
) -> None:
    async with fleet(postgres_url) as server:
        workers = server.workers()
        directories = _directories(server)
        async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
            waiting = asyncio.ensure_future(
                session.post(f"{server.url}/v1/agl/queues/rollouts/dequeue", json={"wait_seconds": 100_000})
            )
            while not any(  # noqa: ASYNC110 (there is no event to wait for)
                "parked_calls" in name and value for name, value in (await server.measured(session)).items()
            ):
                await asyncio.sleep(0.05)
            (os.kill if whom == "parent" else os.killpg)(server.process.pid, how)
            async with await waiting as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        code, logged = await server.ended()
        assert code == 0, logged
        assert "Traceback" not in logged
        assert not any(worker.is_running() for worker in workers)
        assert not any(directory.exists() for directory in directories)


def _directories(server: Fleet) -> list[Path]:
    """Where the workers meet: the directories of their Unix sockets."""
    sockets = [connection.laddr for worker in server.workers() for connection in worker.net_connections("unix")]
    paths = {Path(address).parent for address in sockets if isinstance(address, str) and "rollbook-workers" in address}
    assert len(paths) == 1
    return list(paths)


async def test_acknowledged_calls_are_stored_when_the_workers_end_under_load(postgres_url: str) -> None:
    answered: list[str] = []

    async def enqueue_repeatedly(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.post(f"{url}{ENQUEUE}", json=ONE) as answer:
                    if answer.status != 201:
                        return
                    answered.append((await answer.json())[0]["rollout_id"])

    async with fleet(postgres_url) as server:
        workers, directories = server.workers(), _directories(server)
        callers = [asyncio.ensure_future(enqueue_repeatedly(server.url)) for _ in range(16)]
        await until(lambda: len(answered) >= 100)
        server.process.terminate()
        async with asyncio.timeout(HANG):
            ends = await asyncio.gather(*callers, return_exceptions=True)
        code, logged = await server.ended()
        assert not any(worker.is_running() for worker in workers)
        assert not any(directory.exists() for directory in directories)
    assert code == 0, logged
    assert "Traceback" not in logged
    assert all(end is None or isinstance(end, aiohttp.ClientError | ConnectionError) for end in ends)
    async with await open_store(postgres_url) as store:
        assert {rollout.rollout_id for rollout in await store.query_rollouts()} >= set(answered)
        assert (await store.log.verify()).ok


def test_workers_that_cannot_start_are_one_line(tmp_path: Path) -> None:
    db = "postgresql://postgres@127.0.0.1:1/postgres"
    command = [sys.executable, "-c", SCRIPT, "serve", "--db", db, "--port", "0", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done: Any = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 4, done.stderr
    assert "cannot be reached" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("db", ["sqlite:///run.db", "memory://"])
def test_several_workers_need_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("serve", "--db", db, "--port", "0", "--workers", "2")
    assert refused.exit_code == 2
    assert "--workers" in refused.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
