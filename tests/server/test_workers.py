"""`rollbook serve --workers`: several processes on one port that start and end together."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from store import open_store
from store.db.url import parse
from tests.server.fleet import HANG, ForkedCommand, fleet, fork_workers, socket_directories, spawn_workers
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
    async with fleet(postgres_url, "--quota", "events=50", before=spawn_workers) as server:
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


@pytest.mark.parametrize(
    "whom,how",
    [
        # Ctrl+C in a shell. test_shutdown.py sends SIGTERM to the parent.
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
        directories = socket_directories(server)
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


def test_workers_that_cannot_start_are_one_line(tmp_path: Path) -> None:
    db = "postgresql://postgres@127.0.0.1:1/postgres"
    options = ("--db", db, "--port", "0", "--workers", "2")
    command = ForkedCommand("serve", *options, directory=tmp_path, before=fork_workers, leads=True)
    try:
        _, errors = command.communicate(HANG)
    finally:
        command.end()
    assert command.returncode == 4, errors
    assert "cannot be reached" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("db", ["sqlite:///run.db", "memory://"])
def test_several_workers_need_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("serve", "--db", db, "--port", "0", "--workers", "2")
    assert refused.exit_code == 2
    assert "--workers" in refused.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
