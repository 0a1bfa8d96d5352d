"""Answers of other stores, other services and closed ports at the URL of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from store import open_store
from store.client import HTTPStore
from store.errors import Incompatible, NotFound, Unavailable
from store.models import Attempt, RunEvent
from store.testing.samples import make_sdk_span, make_span
from tests.client.scripted_server import ScriptedServer, answer
from tests.client.served import Served

NO_ROUTE = answer("404 Not Found", b'{"detail":"Not Found"}')
NO_METHOD = answer("405 Method Not Allowed", b'{"detail":"Method Not Allowed"}')
HEALTHY = answer("200 OK", b'{"status":"ok"}')
ATTEMPT = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=1.0)


OURS: list[Callable[[HTTPStore], Awaitable[object]]] = [
    lambda store: store.add_many_spans([make_span(ATTEMPT)]),
    lambda store: store.add_otel_span("ro-1", "at-1", make_sdk_span()),
    lambda store: store.get_many_span_sequence_ids([("ro-1", "at-1")]),
    lambda store: store.log.history("ro-1"),
    lambda store: anext(store.log.tail()),
    lambda store: store.log.verify(),
    lambda store: store.log.rebuild(),
    lambda store: store.runs.query_events("ro-1"),
    lambda store: store.runs.append_events("ro-1", "at-1", [RunEvent(kind="log")]),
    lambda store: store.runs.plan_fork("ro-1", phase="risk", scopes=["RIG"]),
    lambda store: store.get_rollout_by_id("ro-1", at=1),
    lambda store: store.query_rollouts(as_at=datetime.now(UTC)),
]


@pytest.mark.parametrize("said", [NO_ROUTE, NO_METHOD], ids=["404", "405"])
@pytest.mark.parametrize("call", OURS)
async def test_calls_missing_on_agent_lightning_servers_raise_incompatible(
    said: bytes, call: Callable[[HTTPStore], Awaitable[object]]
) -> None:
    with ScriptedServer([said]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(Incompatible, match=r"has no .*; give the URL of a Rollbook server"):
                await call(store)
        assert len(server.requests) == 1


async def test_calls_available_on_agent_lightning_servers_work_there() -> None:
    with ScriptedServer([NO_ROUTE, HEALTHY, answer("200 OK", b"[]")]) as server:
        async with await open_store(server.url) as store:
            assert await store.dequeue_rollout() is None


async def test_a_server_that_does_not_wait_is_not_asked_in_a_hurry() -> None:
    with ScriptedServer([answer("200 OK", b"[]")]) as server:
        async with HTTPStore(server.url) as store:
            assert await store.dequeue_rollout(wait_seconds=0.7) is None
        assert len(server.requests) <= 3


@pytest.mark.parametrize(
    "said",
    [
        answer("200 OK", b"<html>Please log in</html>", content_type="text/html"),
        answer("200 OK", b'{"hello": "world"}'),
        answer("200 OK", b""),
        answer("302 Found", b"", location="https://elsewhere/"),
        answer("301 Moved", b"", location="https://elsewhere/"),
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
    ids=["a login page", "other json", "nothing", "a redirect", "another redirect", "another protocol"],
)
async def test_service_that_is_no_store_raises_incompatible(said: bytes) -> None:
    with ScriptedServer([said]) as server:
        async with HTTPStore(server.url) as store:
            with pytest.raises(Incompatible, match="give the URL of a Rollbook server"):
                await store.query_rollouts()
        assert len(server.requests) == 1


async def test_opening_asks_whether_the_server_is_there(server: Served) -> None:
    async with await open_store(server.url) as store:
        assert isinstance(store, HTTPStore)
        assert store.store_id


async def test_opening_a_partition_that_does_not_exist_says_so(server: Served) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        await open_store(f"{server.url}/p/nowhere")


async def test_opening_where_nothing_answers_says_so() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 did not answer"):
        await HTTPStore.open("http://127.0.0.1:9", retry_seconds=0.1)


async def test_a_large_answer_is_read_whole_beside_other_calls(server: Served) -> None:
    async with await open_store(server.url) as store:
        rollout = await store.enqueue_rollout("x" * (8 << 20))
        reads = [store.get_rollout_by_id(rollout.rollout_id), store.statistics()]
        large, _ = await asyncio.gather(*reads)
        assert large == rollout
