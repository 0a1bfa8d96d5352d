"""The log over HTTP: history, the past, tail and proof equal those of the store in process."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.client import HTTPStore
from store.client import log as client_log
from store.errors import Closed, Incompatible, Invalid, NotFound
from store.interface.store import Store
from store.models import AttemptedRollout, LoggedEvent
from store.server import StoreServer
from store.testing.samples import make_llm, make_span
from store.wire.errors import error_body
from store.wire.sse import EventReader
from tests.client.scripted_server import HANG_UP, ScriptedServer, answer

UNAVAILABLE = answer("503 Service Unavailable", b"nobody home", content_type="text/plain")

HUNG = 30.0
"""Seconds after which something that should have happened is taken to hang."""


async def lived(store: Store) -> AttemptedRollout:
    """Let a rollout go from the queue to its end, and return it as it was claimed."""
    await store.add_resources(make_llm())
    await store.enqueue_rollout({"task": "é"}, metadata={"m": 1})
    claimed = await store.dequeue_rollout("w1")
    assert claimed is not None
    await store.add_span(make_span(claimed.attempt))
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    return claimed


async def test_history_and_tail_are_those_of_the_store(store: HTTPStore, behind: Store) -> None:
    rollout = await lived(store)
    assert await store.log.history(rollout.rollout_id) == await behind.log.history(rollout.rollout_id)
    assert await store.log.history(rollout.rollout_id, as_at=3) == await behind.log.history(rollout.rollout_id, as_at=3)
    everything = [event async for event in behind.log.tail()]
    assert [event async for event in store.log.tail()] == everything
    choices: list[dict[str, Any]] = [
        {"types": ["span.recorded", "rollout.enqueued"]},
        {"rollout_id": rollout.rollout_id},
    ]
    for chosen in choices:
        assert [event async for event in store.log.tail(**chosen)] == [
            event async for event in behind.log.tail(**chosen)
        ]
    assert [event async for event in store.log.tail(everything[2].cursor)] == everything[3:]
    assert [event async for event in store.log.tail(types=[])] == [event async for event in behind.log.tail(types=[])]


async def test_a_history_longer_than_a_page_is_read_to_its_end_once(
    store: HTTPStore, behind: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_log, "_PAGE", 2)
    ro = (await lived(store)).rollout_id
    history = await behind.log.history(ro)
    assert len(history) > 4
    parts: list[dict[str, int]] = [{}, {"limit": 0}, {"limit": 1}, {"limit": 3}, {"after": 1}, {"after": 2, "limit": 3}]
    for part in [*parts, {"after": len(history)}, {"after": 2**70}, {"limit": 2**70}]:
        after, limit = part.get("after", 0), part.get("limit", -1)
        expected = [event for event in history if event.number > after][: None if limit < 0 else limit]
        assert await store.log.history(ro, **part) == await behind.log.history(ro, **part) == expected
    with pytest.raises(NotFound):
        await store.log.history("ro-none", after=1, limit=0)


async def test_a_log_longer_than_a_page_is_read_to_its_end_once(store: HTTPStore, behind: Store) -> None:
    for _ in range(13):
        await asyncio.gather(*[behind.enqueue_rollout(number) for number in range(100)])
    positions = [event.position async for event in store.log.tail()]
    assert positions == [event.position async for event in behind.log.tail()]
    assert len(positions) == 1300


async def test_a_reader_that_follows_hears_of_each_fact_once(store: HTTPStore, behind: Store) -> None:
    heard: list[LoggedEvent] = []

    async def follow() -> None:
        async for event in store.log.tail(follow=True, types=["rollout.enqueued"]):
            heard.append(event)
            if len(heard) == 30:
                return

    following = asyncio.ensure_future(follow())
    for number in range(30):
        await behind.enqueue_rollout(number)
        await asyncio.sleep(number % 3 / 100)
    async with asyncio.timeout(HUNG):
        await following
    assert heard == [event async for event in behind.log.tail(types=["rollout.enqueued"])]


async def test_closing_ends_a_reader_that_follows(store: HTTPStore) -> None:
    await store.enqueue_rollout(1)
    reader = store.log.tail(follow=True)
    assert (await anext(reader)).type == "rollout.enqueued"
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    async with asyncio.timeout(HUNG):
        await store.close()
        with pytest.raises(Closed):
            await waiting


async def test_a_cursor_of_another_store_is_refused(store: HTTPStore) -> None:
    with pytest.raises(Invalid, match="after"):
        await anext(store.log.tail("nonsense"))
    with pytest.raises(Incompatible, match="belongs to store other"):
        await anext(store.log.tail("1.other.0." + "0" * 16 + ".0"))


async def test_the_past_is_read_as_beside_the_store(store: HTTPStore, behind: Store) -> None:
    rollout = await lived(store)
    ro = rollout.rollout_id
    moments = [*range(12), datetime.now(UTC), datetime(2020, 1, 1, tzinfo=UTC)]
    for as_at in moments:
        assert await store.get_rollout_by_id(ro, as_at=as_at) == await behind.get_rollout_by_id(ro, as_at=as_at)
        assert await store.get_latest_attempt(ro, as_at=as_at) == await behind.get_latest_attempt(ro, as_at=as_at)
        assert await store.get_latest_resources(as_at=as_at) == await behind.get_latest_resources(as_at=as_at)
        assert await store.get_worker_by_id("w1", as_at=as_at) == await behind.get_worker_by_id("w1", as_at=as_at)
        assert await store.query_rollouts(as_at=as_at) == await behind.query_rollouts(as_at=as_at)
        assert await store.query_attempts(ro, as_at=as_at) == await behind.query_attempts(ro, as_at=as_at)
        assert await store.query_spans(ro, as_at=as_at) == await behind.query_spans(ro, as_at=as_at)
        assert await store.query_workers(as_at=as_at) == await behind.query_workers(as_at=as_at)
        assert await store.query_resources(as_at=as_at) == await behind.query_resources(as_at=as_at)
        here, there = await store.statistics(as_at=as_at), await behind.statistics(as_at=as_at)
        assert {**here, "uptime": 0, "name": ""} == {**there, "uptime": 0, "name": ""}
    for at in range(1, 1 + len(await behind.log.history(ro))):
        assert await store.get_rollout_by_id(ro, at=at) == await behind.get_rollout_by_id(ro, at=at)
        assert await store.query_attempts(ro, at=at) == await behind.query_attempts(ro, at=at)
        assert await store.query_spans(ro, at=at) == await behind.query_spans(ro, at=at)
        assert await store.get_latest_attempt(ro, at=at) == await behind.get_latest_attempt(ro, at=at)


async def test_verify_and_rebuild_over_http_report_like_the_store(store: HTTPStore, behind: Store) -> None:
    await lived(store)
    here, there = await store.log.verify(), await behind.log.verify()
    assert here.model_copy(update={"seconds": there.seconds}) == there
    assert here.ok
    assert (await store.log.rebuild()).state_hash == there.state_hash


# The stream


def frame(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"v": 1, "kind": kind, **fields}) + b"\n\n"


def event(number: int) -> bytes:
    fields = {"number": number, "position": number, "at": 1.0, "type": "worker.seen", "actor": None, "cause": None}
    return frame("event", **fields, data={}, body=None, stream="worker/w", commit_id=number, cursor=f"c{number}")


def stream(*frames: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + b"".join(frames) + HANG_UP
    )


async def numbers_of(url: str, count: int) -> list[int]:
    async with HTTPStore(url) as store, asyncio.timeout(HUNG):
        numbers: list[int] = []
        async for event in store.log.tail("c0", follow=True):
            numbers.append(event.number)
            if len(numbers) == count:
                break
        return numbers


async def test_a_stream_that_breaks_off_is_resumed_after_the_last_event_that_came_whole() -> None:
    first = stream(frame("hello"), event(1), event(2), event(3)[:40])
    again = stream(frame("hello"), frame("heartbeat"), event(3), frame("error", detail="stopping", retryable=True))
    with ScriptedServer([first, UNAVAILABLE, HANG_UP, again, stream(event(4))]) as server:
        assert await numbers_of(server.url, 4) == [1, 2, 3, 4]
        asked = [head.split(" ")[1] for head, _ in server.requests]
    after = [re.findall("after=(c[0-9]+)", path) for path in asked]
    assert after == [["c0"], ["c2"], ["c2"], ["c2"], ["c3"]]


async def test_permanent_end_of_a_stream_raises_its_error() -> None:
    gone = error_body(Incompatible("commit 7 is not in this log any more", "start from the beginning"))
    with ScriptedServer([stream(event(1), frame("gap", **gone, retryable=False))]) as server:
        with pytest.raises(Incompatible, match="commit 7 is not in this log any more; start from the beginning"):
            await numbers_of(server.url, 2)
        assert len(server.requests) == 1


async def test_a_server_that_has_only_pages_says_so() -> None:
    page = answer("200 OK", b'{"events":[],"cursor":null}')
    with ScriptedServer([page]) as server, pytest.raises(Incompatible, match="does not stream the log"):
        await numbers_of(server.url, 1)


def test_frames_are_found_wherever_the_network_cuts_them() -> None:
    text = b": a comment\n\n" + event(1) + b"retry: 1000\n" + event(2) + frame("heartbeat") + event(3)
    frames = [orjson.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: ")]
    for cut in range(len(text)):
        for other in {cut, cut + 1, cut + 2, len(text)}:
            reader = EventReader()
            pieces = (text[:cut], text[cut:other], text[other:])
            assert [orjson.loads(data) for piece in pieces for data in reader.feed(piece)] == frames


async def test_a_reader_goes_on_when_its_server_is_replaced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    heard: list[int] = []
    async with await open_store(url) as behind:
        first = StoreServer(behind, port=0)
        await first.start()
        store = HTTPStore(first.endpoint)

        async def follow() -> None:
            async for event in store.log.tail(follow=True, types=["rollout.enqueued"]):
                heard.append(event.position)
                if len(heard) == 40:
                    return

        following = asyncio.ensure_future(follow())
        for number in range(40):
            await behind.enqueue_rollout(number)
            if number == 20:
                await first.stop()
                first = StoreServer(behind, port=int(first.endpoint.rpartition(":")[2]))
                await first.start()
        async with asyncio.timeout(HUNG):
            await following
        assert heard == [event.position async for event in behind.log.tail(types=["rollout.enqueued"])]
        await store.close()
        await first.stop()
