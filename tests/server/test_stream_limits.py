"""Followers of the log: their number is bounded, and their cost for other calls is small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import LoggedEvent
from store.server.streaming.feed import Batch, Fact, Frame
from store.server.streaming.hub import Hubs
from store.server.streaming.output import PIECE_BYTES
from store.server.streaming.paths import LOG_SOCKET
from store.server.streaming.slots import StreamSlots
from store.testing import ManualClock
from tests.server.keyed import bearer, keyed_server
from tests.server.stream_clients import LOG, Client, Socket, serving, until
from tests.server.test_hub import ALL, HANG, Counting, counting
from tests.server.test_streams import NotReading, as_events, logged

WAYS = ["events", "socket"]
LARGE = 5 * 2**20
__all__ = ["counting"]


async def _until_followed(client: Client) -> None:
    """Return once a stream is accepted: the server may learn late that another reader has left."""
    async with asyncio.timeout(HANG):
        while True:
            async with client.session.ws_connect(client.url + LOG_SOCKET) as connected:
                frame = await Socket(connected).frame()
                if frame is not None and frame["kind"] == "hello":
                    return


def test_events_of_a_page_are_queued_in_parts_of_limited_number_and_size() -> None:
    sizes = [10] * 150 + [40_000, 30_000, 200_000, 10]
    facts = [
        Fact(number, number, 0.0, "", "", "", Frame("event", str(number), b"x" * size))
        for number, size in enumerate(sizes)
    ]
    batches = Batch.several(facts)
    assert [fact for batch in batches for fact in batch.facts] == facts
    assert [len(batch.facts) for batch in batches] == [64, 64, 23, 1, 1, 1]
    assert [batch.size for batch in batches[3:]] == [30_000, 200_000, 10]


async def test_streams_beyond_the_limit_are_refused_until_another_ends(store: Store) -> None:
    slots = StreamSlots(total=2)
    async with serving(store, slots=slots) as client:
        async with client.follow("events") as one, client.follow("socket") as two:
            assert await one.frame()
            assert await two.frame()
            headers = {"Accept": "text/event-stream"}
            async with client.session.get(client.url + LOG, headers=headers) as answer:
                body = await answer.json()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
                assert body["error_type"] == "Unavailable"
                assert "2 streams are open, the most that this server allows (--max-streams)" in body["detail"]
            async with client.follow("socket") as refused:
                frame = await refused.frame()
                assert frame is not None
                assert (frame["kind"], frame["error_type"], frame["retryable"]) == ("error", "Unavailable", True)
                assert await refused.frame() is None
                assert refused.socket.close_code == 1013
            assert slots.refused == 2
            # A page of the log is no stream.
            assert (await client.get(LOG))[0] == 200
        await _until_followed(client)


async def test_one_key_cannot_take_the_streams_of_others(store_url: str, clock: ManualClock) -> None:
    slots = StreamSlots(total=3, per_key=1)
    async with (
        await open_store(store_url, clock=clock) as store,
        keyed_server(store, store_url, clock, stream_slots=slots) as keyed,
    ):
        first, second = await keyed.make("reader"), await keyed.make("reader")

        def follow(text: str) -> Any:
            headers = {"Accept": "text/event-stream", **bearer(text)}
            return keyed.api.session.get(keyed.api.url + LOG, headers=headers)

        async with follow(first[1]) as one:
            assert one.status == 200
            async with follow(first[1]) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
                detail = (await refused.json())["detail"]
                assert f"the key {first[0].key_id} has 1 open streams" in detail
                assert "--max-streams-per-key" in detail
            async with follow(second[1]) as other:
                assert other.status == 200


async def test_followers_at_one_place_read_and_encode_the_past_once(store: Store, counting: Counting) -> None:
    for number in range(3):
        await store.enqueue_rollout([number, "x" * 2**20])
    hubs = Hubs()

    async def take(facts: AsyncGenerator[Fact]) -> list[Fact]:
        async with asyncio.timeout(HANG):
            return [await anext(facts) for _ in range(3)]

    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(aclosing(hubs.follow(counting, ALL))) for _ in range(20)]
        pages = await asyncio.gather(*map(take, streams))
    assert [fact.position for fact in pages[0]] == [1, 2, 3]
    assert {tuple(map(id, facts)) for facts in pages} == {tuple(map(id, pages[0]))}
    # One page for each large event, and the end.
    assert counting.log.read <= 4


@pytest.mark.parametrize("way", WAYS)
async def test_other_calls_are_answered_while_followers_receive_a_large_event(store: Store, way: str) -> None:
    async with serving(store) as client, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.follow(way)) for _ in range(4)]
        for stream in streams:
            await stream.frame()
        await store.enqueue_rollout("x" * LARGE)
        reading = asyncio.gather(*(stream.events(1) for stream in streams))
        answered = 0
        while not reading.done():
            async with client.session.get(f"{client.url}/v1/agl/health") as answer:
                assert answer.status == 200
            answered += 1
        received = [frames[0] for frames in await reading]
    (event,) = await logged(store)
    assert as_events(received) == [event] * 4
    # There are 80 pieces for each follower. Written whole, no more than a call or two come between them.
    assert answered >= 10


@pytest.mark.parametrize("way", WAYS)
async def test_a_slow_reader_of_a_large_event_holds_a_piece_of_it(store: Store, way: str) -> None:
    await store.enqueue_rollout("x" * LARGE)
    async with serving(store) as client:
        readers = [NotReading(client.port, way) for _ in range(3)]
        try:
            await until(lambda: len([stream for stream in client.app.state.parked.streams if stream.untaken]) == 3)
            for _ in range(200):
                await asyncio.sleep(0)
            connections = client.server.server_state.connections
            unsent = [connection.transport.get_write_buffer_size() for connection in connections]
            assert len(unsent) >= 3
            assert max(unsent) <= 4 * PIECE_BYTES
        finally:
            for reader in readers:
                reader.close()
        await client.quiet()


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_that_ends_within_an_event_sends_no_other_frame(store: Store, way: str) -> None:
    await store.enqueue_rollout("small")
    await store.enqueue_rollout("x" * LARGE)
    events: list[LoggedEvent] = await logged(store)
    async with serving(store, write_seconds=0.2) as client:
        reader = NotReading(client.port, way)
        try:
            await until(lambda: len(client.app.state.parked) == 1)
            await client.quiet()
            rest = await asyncio.to_thread(reader.bytes)
        finally:
            reader.close()
        # The event before is complete. The large one is not, and nothing follows its beginning.
        assert b'"small"' in rest
        assert b'"kind":"error"' not in rest
    # This server has the default time limit for slow readers.
    async with serving(store) as client, client.follow(way, events[0].cursor) as stream:
        assert as_events(await stream.events(1)) == [events[1]]
