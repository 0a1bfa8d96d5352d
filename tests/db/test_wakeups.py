"""Notifications of commits of other processes. A process needs none for its own commits."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from store.opening import open_store
from store.sql.store import SQLStore

# What is only waited for if it fails to come.
_LONG = 60.0
_SHORT = 0.5


class Party:
    """One of several stores on a database, and the news it hears; nothing else asks for them while nobody waits."""

    def __init__(self, store: SQLStore) -> None:
        self.store = store

    async def hears(self, seconds: float) -> bool:
        wakeups = self.store.core.waiting._wakeups  # pyright: ignore[reportPrivateUsage]
        return await self.store.core.thread.run(wakeups.wait(seconds))  # pyright: ignore[reportPrivateUsage]

    async def commit(self) -> None:
        await self.store.enqueue_rollout("more")


@pytest.fixture
async def parties(durable_url: str) -> AsyncIterator[tuple[Party, Party]]:
    async with AsyncExitStack() as stack:
        opened: list[Party] = []
        for _ in range(2):
            store = await stack.enter_async_context(await open_store(durable_url))
            assert isinstance(store, SQLStore)
            opened.append(Party(store))
        one, other = opened
        for party in opened:
            await party.commit()
            # The first time nobody knows what was before.
            await party.hears(_SHORT)
        while await one.hears(_SHORT) or await other.hears(_SHORT):
            pass
        yield one, other


async def test_own_commits_are_no_news(parties: tuple[Party, Party]) -> None:
    one, other = parties
    for _ in range(3):
        await one.commit()
    assert not await one.hears(_SHORT)
    assert await other.hears(_LONG)


async def test_a_commit_of_another_process_among_own_ones_is_news(parties: tuple[Party, Party]) -> None:
    one, other = parties
    for first in (one, other):
        await first.commit()
        await (other if first is one else one).commit()
        await first.commit()
        assert await one.hears(_LONG)
        assert await other.hears(_LONG)
    while await one.hears(_SHORT):
        pass
    await one.commit()
    assert not await one.hears(_SHORT)
    await other.commit()
    assert await one.hears(_LONG)


async def test_commit_between_two_waits_wakes_the_next_wait(parties: tuple[Party, Party]) -> None:
    one, other = parties
    await other.commit()
    for _ in range(3):
        await one.commit()
    assert await one.hears(_LONG)
    assert not await one.hears(_SHORT)
