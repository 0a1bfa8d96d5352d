"""All streams of a log share one reader, and each receives every event once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import cached_property
from typing import Any

import pytest

from store import open_store
from store.errors import Closed
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.server.streaming import hub
from store.server.streaming.feed import Fact, TailQuery
from store.server.streaming.hub import Hubs
from store.sql.log import SQLLog
from store.sql.store import SQLStore
from tests.conftest import SQLITE

ON_ONE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For claims about the hub alone, which reads the log of the store."""
ALL = TailQuery(None, None, None)
HANG = 60


@pytest.fixture
def store_url(durable_url: str) -> str:
    return durable_url


class CountingLog(SQLLog):
    """A log that counts its readers. Those that follow it can be held up."""

    following = 0
    followed = 0
    read = 0

    @cached_property
    def may_go_on(self) -> asyncio.Event:
        """Set while those that follow are not held up."""
        event = asyncio.Event()
        event.set()
        return event

    async def tail(self, after: str | None = None, *, follow: bool = False, **more: Any) -> AsyncIterator[Any]:
        self.following += follow
        self.followed += follow
        try:
            async for event in super().tail(after, follow=follow, **more):
                if follow:
                    await self.may_go_on.wait()
                yield event
        finally:
            self.following -= follow

    async def page(self, *filters: Any, **more: Any) -> Any:
        self.read += 1
        return await super().page(*filters, **more)


class Counting(SQLStore):
    """A store that knows how many follow its log."""

    @cached_property
    def log(self) -> CountingLog:
        return CountingLog(self.core)

    @property
    def following(self) -> int:
        return self.log.following

    @property
    def followed(self) -> int:
        return self.log.followed


@pytest.fixture
async def counting(store_url: str, store: Store) -> AsyncIterator[Counting]:
    """The test's store once more."""
    async with await Counting.open(store_url) as counting:
        yield counting


async def enqueue(store: Store, count: int) -> None:
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(count)])


async def take(facts: AsyncGenerator[Fact], count: int) -> list[int]:
    async with asyncio.timeout(HANG):
        return [(await anext(facts)).position for _ in range(count)]


async def test_many_streams_follow_the_store_once_and_the_last_one_ends_it(store: Store, counting: Counting) -> None:
    await enqueue(store, 10)
    hubs = Hubs()
    streams = [hubs.follow(counting, ALL) for _ in range(20)]
    assert await asyncio.gather(*(take(stream, 10) for stream in streams)) == [list(range(1, 11))] * 20
    # Some wait, and some do not when it is written.
    waiting = asyncio.gather(*(take(stream, 5) for stream in streams[:10]))
    await enqueue(store, 5)
    assert await waiting == [list(range(11, 16))] * 10
    assert await asyncio.gather(*(take(stream, 5) for stream in streams[10:])) == [list(range(11, 16))] * 10
    assert (counting.followed, counting.following) == (1, 1)
    for stream in streams:
        await stream.aclose()
    assert counting.following == 0
    async with aclosing(hubs.follow(counting, ALL)) as again:
        assert await take(again, 15) == list(range(1, 16))
    assert (counting.followed, counting.following) == (2, 0)


@ON_ONE
async def test_slow_follower_of_the_hub_misses_no_events(
    store: Store, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "REMEMBERED", 4)
    hubs = Hubs()
    async with aclosing(hubs.follow(counting, ALL)) as slow, aclosing(hubs.follow(counting, ALL)) as quick:
        await enqueue(store, 1)
        assert await take(slow, 1) == await take(quick, 1) == [1]
        for turn in range(5):
            await enqueue(store, 30)
            assert await take(quick, 30) == list(range(2 + 30 * turn, 32 + 30 * turn))
        assert await take(slow, 150) == list(range(2, 152))


@ON_ONE
async def test_large_events_are_forgotten_sooner(
    store: Store, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_REMEMBERED_BYTES", 50_000)
    hubs = Hubs()
    async with aclosing(hubs.follow(counting, ALL)) as stream:
        first = asyncio.ensure_future(take(stream, 1))
        for _ in range(20):
            await store.enqueue_rollout("x" * 20_000)
        assert await first == [1]
        (opened,) = hubs._open.values()  # pyright: ignore[reportPrivateUsage] - how much it holds shows nowhere else
        assert await take(stream, 19) == list(range(2, 21))
        assert len(opened._facts) < 10  # pyright: ignore[reportPrivateUsage] - as above


@ON_ONE
async def test_each_stream_gets_the_events_of_its_filter(store: Store, counting: Counting) -> None:
    hubs = Hubs()
    rollout = await store.start_rollout("wanted")
    only = TailQuery(None, None, rollout.rollout_id)
    claims = TailQuery(None, ["attempt.started"], None)
    async with aclosing(hubs.follow(counting, only)) as one, aclosing(hubs.follow(counting, claims)) as other:
        assert await take(one, 2) == [1, 2]
        assert await take(other, 1) == [2]
        await enqueue(store, 3)
        await store.start_rollout("another")
        await store.update_rollout(rollout.rollout_id, status="cancelled")
        expected = [event.position async for event in store.log.tail(rollout_id=rollout.rollout_id)]
        assert await take(one, len(expected) - 2) == expected[2:]
        assert await take(other, 1) == [7]


async def test_readers_that_come_while_others_write_each_see_everything_once(store: Store, counting: Counting) -> None:
    hubs = Hubs()
    total = 150

    async def write() -> None:
        for _ in range(total // 3):
            await enqueue(store, 3)

    async def read(begin: int) -> list[int]:
        async with aclosing(hubs.follow(counting, ALL)) as stream:
            before = await take(stream, begin)
            cursor = (await anext(stream)).cursor
        async with aclosing(hubs.follow(counting, TailQuery(cursor, None, None))) as stream:
            return [*before, begin + 1, *await take(stream, total - begin - 1)]

    writing = asyncio.ensure_future(write())
    positions = await asyncio.gather(*(read(begin) for begin in range(0, 100, 10)))
    await writing
    assert positions == [list(range(1, total + 1))] * 10


@ON_ONE
async def test_a_reader_that_is_ahead_of_the_hub_gets_nothing_twice(store: Store, counting: Counting) -> None:
    hubs, log = Hubs(), counting.log
    async with hubs.use(counting):
        log.may_go_on.clear()
        await enqueue(store, 3)
        cursors = [event.cursor async for event in log.tail()]
        async with aclosing(hubs.follow(counting, TailQuery(cursors[-1], None, None))) as ahead:
            coming = asyncio.ensure_future(take(ahead, 1))
            async with asyncio.timeout(HANG):
                # It has looked where the hub is when it begins to read the log itself.
                while not log.read:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0)
            log.may_go_on.set()
            await enqueue(store, 1)
            assert await coming == [4]


async def test_closing_the_store_ends_present_and_later_streams(durable_url: str) -> None:
    store = await open_store(durable_url)
    assert isinstance(store, SQLStore)
    hubs = Hubs()
    streams = [hubs.follow(store, ALL) for _ in range(3)]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await enqueue(store, 1)
    assert [(await task).position for task in waiting] == [1, 1, 1]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await store.close()
    async with asyncio.timeout(HANG):
        for task in [*waiting, anext(hubs.follow(store, ALL))]:
            with pytest.raises(Closed):
                await task
