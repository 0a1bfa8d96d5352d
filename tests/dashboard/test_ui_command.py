"""`rollbook ui` shows a database without a server, on the loopback interface only, and changes nothing."""

from __future__ import annotations

import signal
from typing import Any

import aiohttp
import pytest

from store import open_store
from store.interface.store import Store
from store.models import Rollout
from tests.server.test_serving import finish, run, serving

pytestmark = pytest.mark.slow

HTML = {"Accept": "text/html"}
WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "enqueue": ("/v1/agl/queues/rollouts/enqueue", {"json": {"rollouts": [{"input": 1}]}}),
    "dequeue": ("/v1/agl/queues/rollouts/dequeue", {"json": {}}),
    "worker": ("/v1/agl/workers/w-1", {"json": {"heartbeat_stats": {}}}),
    "traces": ("/v1/traces", {"data": b"", "headers": {"Content-Type": "application/x-protobuf"}}),
}


async def test_a_database_is_shown_and_left_as_it_was_while_others_write(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        first = await store.enqueue_rollout({"question": 1})
        with serving("ui", "--db", durable_url, "--port", "0") as (process, url):
            assert url.startswith("http://127.0.0.1:")
            assert url.endswith("/ui/")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{url}rollouts", headers=HTML) as page:
                    text = await page.text()
                assert first.rollout_id in text
                assert "Read-only" in text
                assert '<form method="post"' not in text
                await _expect_refusals(session, url, first.rollout_id)
                second = await _expect_news(session, url, store)
            process.send_signal(signal.SIGINT)
            code, logged = finish(process)
        assert (code, logged) == (0, [])
        for rollout in (first, second):
            assert [event.type for event in await store.log.history(rollout.rollout_id)] == ["rollout.enqueued"]


async def _expect_refusals(session: aiohttp.ClientSession, url: str, rollout_id: str) -> None:
    """Fail if a request changes the database."""
    root = url.removesuffix("/ui/")
    async with session.get(f"{root}/v1/agl/rollouts/{rollout_id}") as answer:
        assert (await answer.json())["status"] == "queuing"
    for path, body in WRITES.values():
        async with session.post(root + path, **body) as answer:
            assert answer.status >= 400 or path == "/v1/traces"
            if path != "/v1/traces":
                assert "read_only" in await answer.text()
    sent: dict[str, Any] = {"data": {"a": "b"}, "headers": HTML | {"Origin": root}}
    async with session.post(f"{url}rollouts/{rollout_id}/cancel", **sent) as answer:
        assert answer.status >= 400
        assert "this dashboard is read-only" in await answer.text()


async def _expect_news(session: aiohttp.ClientSession, url: str, store: Store) -> Rollout:
    """Enqueue a rollout, and return it when an open page and a new one show it."""
    async with session.get(f"{url}live?after=0") as news:
        rollout = await store.enqueue_rollout(1)
        read = b""
        async for line in news.content:
            read += line
            if rollout.rollout_id.encode() in read:
                break
    async with session.get(f"{url}rollouts.json") as page:
        assert (await page.json())["rollouts"][0]["rollout_id"] == rollout.rollout_id
    return rollout


@pytest.mark.parametrize("db", ["sqlite:///nothing.db", "memory://", "http://127.0.0.1:1", "nothing"])
def test_missing_database_is_refused_and_not_created(db: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("ui", "--db", db, "--port", "0")
    assert done.exit_code in {2, 5}
    assert done.stdout == ""
    assert done.stderr.startswith("rollbook: ")
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_reported(tmp_path: Any) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    assert run("migrate", "--db", db).exit_code == 0
    with serving("ui", "--db", db, "--port", "0") as (_, url):
        done = run("ui", "--db", db, "--port", url.split(":")[2].partition("/")[0])
    assert done.exit_code != 0
    assert "address already in use" in done.stderr
