"""Streams: replay and live events from one cursor, resumed after every interruption without loss or repetition."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
import pytest

from store import open_store
from store.interface.store import Store
from store.models import LoggedEvent
from store.server.auth.admission import while_admitted
from store.server.partitions import Partitions, with_partition
from store.server.streaming import streams
from store.server.streaming.paths import LOG_SOCKET
from store.sql import core, waiters
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.journal.database_helpers import fill, tamper
from tests.server.api import ON_BOTH_DATABASES
from tests.server.stream_clients import LOG, Client, Json, serving, until, unused_partition

WAYS = ["events", "socket"]


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with serving(store) as ready:
        yield ready


@pytest.fixture
async def filled(store: Store, clock: ManualClock) -> list[LoggedEvent]:
    """The log of a store with something of everything."""
    await fill(store, clock)
    return await logged(store)


async def logged(store: Store, after: str | None = None, **filters: Any) -> list[LoggedEvent]:
    return [event async for event in store.log.tail(after, **filters)]


def as_events(frames: list[Json]) -> list[LoggedEvent]:
    return [LoggedEvent.model_validate(frame) for frame in frames]


async def add(store: Store, count: int, text: str = "") -> None:
    for number in range(count):
        await store.enqueue_rollout({"number": number, "text": text})


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_says_hello_and_then_tells_the_whole_log(
    store: Store, client: Client, filled: list[LoggedEvent], way: str
) -> None:
    async with client.follow(way) as stream:
        assert await stream.frame() == {
            "v": 1,
            "kind": "hello",
            "cursor": None,
            "position": 0,
            "seq": 0,
            "store_id": getattr(store, "store_id", None),
            "partition": client.app.state.partitions.root_name,
            "rollout": None,
            "types": None,
            "heartbeat_seconds": 15.0,
        }
        frames = await stream.events(len(filled))
    assert as_events(frames) == filled
    assert [(frame["v"], frame["seq"], frame["position"], frame["cursor"]) for frame in frames] == [
        (1, event.number, event.position, event.cursor) for event in filled
    ]


@ON_BOTH_DATABASES
async def test_both_ways_carry_the_same_frames(client: Client, filled: list[LoggedEvent]) -> None:
    async with client.follow("events") as one, client.follow("socket") as two:
        assert await one.frame() == await two.frame()
        # Not frame by frame: on a slow machine a heartbeat may come between two events of one stream.
        assert await one.events(len(filled)) == await two.events(len(filled))


@pytest.mark.parametrize("way", WAYS)
async def test_stream_continues_with_later_commits(store: Store, client: Client, way: str) -> None:
    async with client.follow(way) as stream:
        await stream.frame()
        for number in range(5):
            await store.enqueue_rollout({"number": number})
            (frame,) = await stream.events(1)
            assert (frame["position"], frame["body"]["input"]) == (number + 1, {"number": number})


@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_stream_beats_and_says_where_it_stands(store: Store, way: str) -> None:
    await add(store, 2)
    async with serving(store, heartbeat_seconds=0.05) as client, client.follow(way) as stream:
        last = (await stream.events(2))[-1]
        for _ in range(3):
            beat = {"v": 1, "kind": "heartbeat", "cursor": last["cursor"], "position": 2, "seq": 1}
            assert await stream.frame() == beat
        await add(store, 1)
        assert (await stream.events(1))[0]["position"] == 3


async def test_without_the_wish_for_events_the_log_is_a_page(client: Client, filled: list[LoggedEvent]) -> None:
    status, page = await client.get(LOG)
    assert (status, len(page["events"])) == (200, len(filled))
    name = next(event.stream for event in filled if event.type == "span.recorded").removeprefix("rollout/")
    status, history = await client.get(f"/v1/agl/rollouts/{name}/history")
    assert (status, [event["number"] for event in history]) == (200, list(range(1, len(history) + 1)))


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_receives_only_the_requested_types(
    store: Store, client: Client, filled: list[LoggedEvent], way: str
) -> None:
    events = [event for event in filled if event.type in {"span.recorded", "worker.seen"}]
    async with client.follow(way, None, ("type", "span.recorded"), ("type", "worker.seen")) as stream:
        hello = await stream.frame()
        assert hello is not None
        assert hello["types"] == ["span.recorded", "worker.seen"]
        assert as_events(await stream.events(len(events))) == events
        await add(store, 3)
        await store.update_worker("w9")
        assert (await stream.events(1))[0]["type"] == "worker.seen"


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_receives_only_events_of_the_requested_rollout(
    store: Store, client: Client, filled: list[LoggedEvent], way: str
) -> None:
    name = next(event.stream for event in filled if event.type == "span.recorded")
    events = [event for event in filled if event.stream == name]
    async with client.follow(way, None, ("rollout", name.removeprefix("rollout/"))) as stream:
        assert as_events(await stream.events(len(events))) == events
        await add(store, 3)
        await store.update_rollout(name.removeprefix("rollout/"), metadata={"x": 1})
        (frame,) = await stream.events(1)
        assert (frame["stream"], frame["seq"]) == (name, events[-1].number + 1)


async def test_the_history_of_a_rollout_is_its_log(store: Store, client: Client, filled: list[LoggedEvent]) -> None:
    name = next(event.stream for event in filled if event.type == "span.recorded")
    rollout_id = name.removeprefix("rollout/")
    events = [event for event in filled if event.stream == name]
    path = f"/v1/agl/rollouts/{rollout_id}/history"
    async with client.events(path) as stream:
        assert as_events(await stream.events(len(events))) == events
        await store.update_rollout(rollout_id, metadata={"x": 1})
        assert (await stream.events(1))[0]["seq"] == len(events) + 1
    for version in range(len(events) + 1):
        async with client.events(path, [("after", str(version))]) as stream:
            assert as_events(await stream.events(len(events) - version)) == events[version:]
    async with client.events(path, [("type", "span.recorded"), ("after", "2")]) as stream:
        spans = [event for event in events if event.type == "span.recorded" and event.number > 2]
        assert as_events(await stream.events(len(spans))) == spans


async def test_an_id_that_must_be_encoded_is_found(client: Client) -> None:
    status, body = await client.get("/v1/agl/rollouts/a%2Fb/history", None, Accept="text/event-stream")
    assert (status, body["error_type"], body["detail"]) == (400, "NotFound", "Rollout a/b not found")


@pytest.mark.parametrize("after", ["7", "x", "1.a.b.c.d", "2.a.1.0000000000000000.1"])
async def test_invalid_cursor_is_refused(client: Client, after: str) -> None:
    status, body = await client.get(LOG, [("after", after)], Accept="text/event-stream")
    assert (status, body["error_type"]) == (400, "Invalid")
    async with client.follow("socket", after) as stream:
        frame = await stream.frame()
        assert frame is not None
        assert (frame["kind"], frame["error_type"], frame["retryable"]) == ("error", "Invalid", False)
        assert await stream.frame() is None
        assert stream.socket.close_code == 1008


async def test_a_cursor_of_another_store_is_refused(client: Client, filled: list[LoggedEvent]) -> None:
    async with await open_store("memory://") as other:
        await add(other, 1)
        (foreign,) = await logged(other)
    status, body = await client.get(LOG, [("after", foreign.cursor)], Accept="text/event-stream")
    assert (status, body["error_type"]) == (400, "Incompatible")
    status, body = await client.get(LOG, None, **{"Accept": "text/event-stream", "Last-Event-ID": foreign.cursor})
    assert (status, body["error_type"]) == (400, "Incompatible")
    async with client.follow("socket", foreign.cursor) as stream:
        frame = await stream.frame()
        assert frame is not None
        assert (frame["kind"], frame["error_type"]) == ("error", "Incompatible")
        assert await stream.frame() is None
        assert stream.socket.close_code == 1008


async def test_a_version_the_rollout_does_not_have_is_refused(client: Client, filled: list[LoggedEvent]) -> None:
    path = f"/v1/agl/rollouts/{filled[-1].stream.removeprefix('rollout/')}/history"
    status, body = await client.get(path, [("after", "9999")], Accept="text/event-stream")
    assert (status, body["error_type"]) == (400, "Invalid")
    assert "beyond the last event" in body["detail"]


async def test_history_of_an_unknown_rollout_is_not_found(client: Client) -> None:
    status, body = await client.get("/v1/agl/rollouts/ro-nobody/history", Accept="text/event-stream")
    assert (status, body["error_type"]) == (400, "NotFound")


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "http://127.0.0.1:1", "null", "http://["])
async def test_a_page_from_elsewhere_cannot_open_a_socket(store: Store, origin: str) -> None:
    async with serving(store) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with client.socket(Origin=origin):
                pass
        assert refused.value.status == 403
        async with client.socket(Origin=client.url) as stream:
            assert await stream.frame()
    async with serving(store, origins=[origin]) as client, client.socket(Origin=origin) as stream:
        assert await stream.frame()


@ON_BOTH_DATABASES
async def test_each_partition_has_its_own_streams(store: Store, store_url: str) -> None:
    name = unused_partition()
    other_url = with_partition(store_url, name)
    async with await open_store(other_url) as other:
        await add(other, 2)

    async def open_partition(url: str) -> Store:
        return await open_store(url, create=False)

    partitions = Partitions(store, store_url, open_partition)
    await add(store, 1)
    try:
        async with serving(partitions) as client:
            async with client.events(f"/p/{name}{LOG}") as one, client.socket(path=f"/p/{name}{LOG}/ws") as two:
                for stream in (one, two):
                    hello = await stream.frame()
                    assert hello is not None
                    assert hello["partition"] == name
                    assert [frame["position"] for frame in await stream.events(2)] == [1, 2]
            async with client.follow("events") as stream:
                assert (await stream.events(1))[0]["body"]["input"]["number"] == 0
    finally:
        await partitions.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_resumes_at_every_cursor_without_gap_or_double(
    client: Client, filled: list[LoggedEvent], way: str
) -> None:
    for index, event in enumerate(filled):
        async with client.follow(way, event.cursor) as stream:
            hello = await stream.frame()
            assert hello is not None
            assert (hello["cursor"], hello["position"]) == (event.cursor, event.position)
            assert as_events(await stream.events(len(filled) - index - 1)) == filled[index + 1 :]


async def test_a_browser_that_comes_again_goes_on_where_it_was(client: Client, filled: list[LoggedEvent]) -> None:
    first, later = filled[3], filled[9]
    async with client.events(LOG, [("after", first.cursor)], **{"Last-Event-ID": later.cursor}) as stream:
        assert as_events(await stream.events(len(filled) - 10)) == filled[10:]
        assert stream.last_event_id == filled[-1].cursor


@pytest.mark.parametrize("way", WAYS)
async def test_readers_that_come_and_go_under_load_each_see_everything_once(
    store: Store, client: Client, way: str
) -> None:
    async def write(worker: int) -> None:
        for number in range(15):
            started = await store.start_rollout({"worker": worker, "number": number})
            await store.add_span(make_span(started.attempt))

    async def read(step: int, total: int) -> list[int]:
        positions: list[int] = []
        after: str | None = None
        while len(positions) < total:
            async with client.follow(way, after) as stream:
                for frame in await stream.events(min(step, total - len(positions))):
                    positions.append(frame["position"])
                    after = frame["cursor"]
        return positions

    # Each start is two facts, each first span three: the span, and that attempt and rollout run.
    writing = asyncio.gather(*(write(worker) for worker in range(4)))
    total = 4 * 15 * 5
    histories = await asyncio.gather(*(read(step, total) for step in (7, 31, 1000)))
    await writing
    everything = [event.position for event in await logged(store)]
    assert everything == list(range(1, total + 1))
    assert histories == [everything] * 3


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_stops_says_so_and_the_next_one_goes_on(store: Store, way: str) -> None:
    await add(store, 5)
    async with serving(store) as client, client.follow(way) as stream:
        seen = await stream.events(5)
        client.server.should_exit = True
        last = await stream.frame()
        assert last is not None
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Unavailable", True)
        assert (last["cursor"], last["position"]) == (seen[-1]["cursor"], 5)
        assert await stream.frame() is None
    await add(store, 3)
    async with serving(store) as client, client.follow(way, seen[-1]["cursor"]) as stream:
        assert [frame["position"] for frame in await stream.events(3)] == [6, 7, 8]


@pytest.mark.parametrize("way", WAYS)
async def test_a_store_that_is_closed_ends_its_streams(store_url: str, way: str) -> None:
    store = await open_store(store_url)
    await add(store, 1)
    async with serving(store) as client, client.follow(way) as stream:
        (seen,) = await stream.events(1)
        await store.close()
        last = await stream.frame()
        assert last is not None
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Closed", True)
        assert last["cursor"] == seen["cursor"]
        assert await stream.frame() is None


@ON_BOTH_DATABASES
@pytest.mark.parametrize("way", WAYS)
async def test_log_stream_ends_with_a_gap_when_the_log_is_cut_back(
    store_url: str, store: Store, filled: list[LoggedEvent], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On Postgres, nothing wakes the readers of a log that another program has cut. They look again after this time.
    for module in (core, waiters):
        monkeypatch.setattr(module, "FALLBACK_SECONDS", 0.1)
    async with serving(store) as client, client.follow(way, filled[-2].cursor) as stream:
        (seen,) = await stream.events(1)
        await tamper(
            store_url,
            f"DELETE FROM events WHERE commit_id = {seen['commit_id']}",
            f"DELETE FROM commits WHERE commit_id = {seen['commit_id']}",
        )
        last = await stream.frame()
        assert last is not None
        assert (last["kind"], last["error_type"], last["cursor"]) == ("gap", "Incompatible", seen["cursor"])
        assert await stream.frame() is None


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_that_leaves_leaves_nothing_behind(store: Store, client: Client, way: str) -> None:
    for _ in range(20):
        async with client.follow(way) as stream:
            await stream.frame()
    await client.quiet()
    await add(store, 1)


class NotReading:
    """A client that asks for a stream and does not read it, until it is told to."""

    def __init__(self, port: int, way: str, paths: tuple[str, str] = (LOG, LOG_SOCKET)) -> None:
        self._way = way
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(30)
        self._socket.connect(("127.0.0.1", port))
        upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        key = "\r\n".join([*upgrade, "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA=="])
        path, header = (paths[0], "Accept: text/event-stream") if way == "events" else (paths[1], key)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        self._read = self._socket.makefile("rb")

    async def rest(self) -> list[Json]:
        """Read to the end and return the frames."""
        return await asyncio.to_thread(self._rest)

    def bytes(self) -> bytes:
        """Read to the end and return what was sent besides the framing, also where it ends within a frame."""
        while self._read.readline().strip():
            pass  # the headers
        return b"".join(self._chunks() if self._way == "events" else self._fragments())

    def _fragments(self) -> Iterator[bytes]:
        while self._read.read(1)[0] & 15 != 8:  # the close
            (length,) = self._read.read(1)
            if length >= 126:
                length = int.from_bytes(self._read.read(2 if length == 126 else 8), "big")
            yield self._read.read(length)

    def _rest(self) -> list[Json]:
        while self._read.readline().strip():
            pass  # the headers
        if self._way == "events":
            lines = b"".join(self._chunks()).split(b"\n")
            return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        return [orjson.loads(message) for message in self._messages()]

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._read.readline(), 16):
            yield self._read.read(size)
            self._read.readline()

    def _messages(self) -> Iterator[bytes]:
        while (first := self._read.read(1)) == b"\x81":  # a whole text; what else comes is the close
            (length,) = self._read.read(1)
            if length >= 126:
                length = int.from_bytes(self._read.read(2 if length == 126 else 8), "big")
            yield self._read.read(length)
        assert first == b"\x88"

    def close(self) -> None:
        self._read.close()
        self._socket.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
async def test_a_reader_that_takes_nothing_is_sent_away_with_its_cursor_and_can_resume(store: Store, way: str) -> None:
    await add(store, 300, "x" * 50_000)
    everything = await logged(store)
    async with serving(store, write_seconds=0.3) as client:
        reader = NotReading(client.port, way)
        try:
            await until(lambda: len(client.app.state.parked) == 1)
            # Others are served meanwhile.
            async with client.follow(way, everything[-2].cursor) as other:
                assert (await other.events(1))[0]["position"] == 300
            await client.quiet()
            *frames, last = await reader.rest()
        finally:
            reader.close()
        seen = [frame for frame in frames if frame["kind"] == "event"]
        assert 0 < len(seen) < 300
        assert (last["kind"], last["error_type"], last["retryable"]) == ("error", "Unavailable", True)
        assert (last["cursor"], last["position"]) == (seen[-1]["cursor"], seen[-1]["position"])
    # This server has the default time limit for slow readers.
    async with serving(store) as client, client.follow(way, last["cursor"]) as stream:
        rest = await stream.events(300 - len(seen))
    assert as_events([*seen, *rest]) == everything


@pytest.mark.slow
async def test_a_reader_that_never_reads_again_keeps_no_server_from_stopping(store: Store) -> None:
    await add(store, 300, "x" * 50_000)
    async with serving(store) as client:
        readers = [NotReading(client.port, way) for way in WAYS * 3]
        await until(lambda: len(client.app.state.parked) == len(readers))
    for reader in readers:
        reader.close()


@pytest.mark.slow
async def test_a_reader_that_never_reads_again_is_disconnected_without_an_error_in_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "FAREWELL_SECONDS", 0.1)
    await add(store, 1, "x" * 14_000_000)
    async with serving(store, write_seconds=0.2) as client:
        reader = NotReading(client.port, "events")
        try:
            await until(lambda: len(client.app.state.parked) == 1)
            await client.quiet()
        finally:
            reader.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_call_that_fails_as_its_client_leaves_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    began = asyncio.Event()

    async def fail() -> None:
        began.set()
        await asyncio.sleep(0)
        raise ConnectionResetError

    state = SimpleNamespace(ring=object())
    call = asyncio.ensure_future(while_admitted({"app": SimpleNamespace(state=state)}, fail))
    await began.wait()
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    del call
    gc.collect()
    assert caplog.records == []
