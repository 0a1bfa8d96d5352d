"""Rollouts of a plan are reported as they end: in order, each once, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from store import open_store
from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.models import Rollout, RolloutConfig, RolloutStatus
from store.training.algorithms.rollout_ends import Finished, finished, follow, left_the_queue
from tests.training.stores import ON_EACH_STORE
from tests.training.unreliable import Unreliable


async def enqueued(store: Store, count: int) -> list[Rollout]:
    """Return so many new rollouts."""
    return [await store.enqueue_rollout(number) for number in range(count)]


async def end(store: Store, *rollouts: Rollout, status: RolloutStatus = "succeeded") -> None:
    """End rollouts, one after the other."""
    for rollout in rollouts:
        await store.update_rollout(rollout.rollout_id, status=status)


async def take(batches: AsyncIterator[Finished], count: int) -> list[Finished]:
    """Return the next batches, and stop."""
    taken: list[Finished] = []
    async with aclosing(cast("Any", batches)):
        while len(taken) < count:
            taken.append(await anext(batches))
    return taken


def inputs(batch: Finished) -> list[Any]:
    """Return which rollouts a batch holds."""
    return [rollout.input for rollout in batch.rollouts]


async def test_batch_contains_ended_rollouts_in_order_of_their_end(live: Store) -> None:
    first, second, third = await enqueued(live, 3)
    await end(live, third, first)
    await end(live, second, status="cancelled")
    (batch,) = await take(follow(live, min_rollouts=3), 1)
    assert inputs(batch) == [2, 0, 1]
    assert [rollout.status for rollout in batch.rollouts] == ["succeeded", "succeeded", "cancelled"]


@ON_EACH_STORE
async def test_a_follower_hears_of_ends_that_are_yet_to_come(live: Store) -> None:
    rollouts = await enqueued(live, 4)
    following = asyncio.ensure_future(take(follow(live, min_rollouts=2), 2))
    await end(live, *rollouts)
    assert [inputs(batch) for batch in await following] == [[0, 1], [2, 3]]


async def test_restart_at_each_cursor_delivers_every_rollout_once(live: Store) -> None:
    rollouts = await enqueued(live, 9)
    heard: list[Any] = []
    cursor = None
    for rollout in rollouts:
        await end(live, rollout)
        (batch,) = await take(follow(live, cursor), 1)
        heard += inputs(batch)
        cursor = batch.cursor
    assert heard == list(range(9))


async def test_rollouts_beyond_the_batch_are_in_the_next_batch(memory: Store) -> None:
    await end(memory, *await enqueued(memory, 5))
    (first,) = await take(follow(memory, min_rollouts=2), 1)
    (rest,) = await take(follow(memory, first.cursor, min_rollouts=3), 1)
    assert (inputs(first), inputs(rest)) == ([0, 1], [2, 3, 4])


async def test_batch_after_the_timeout_contains_the_ended_rollouts(memory: Store) -> None:
    (first,) = await enqueued(memory, 1)
    (empty,) = await take(follow(memory, min_rollouts=2, timeout=0.01), 1)
    assert (empty.rollouts, empty.cursor) == ([], None)
    await end(memory, first)
    batches = follow(memory, empty.cursor, min_rollouts=2, timeout=0.05)
    async with aclosing(cast("Any", batches)):
        while not (batch := await anext(batches)).rollouts:
            pass
        assert inputs(batch) == [0]
        assert (await anext(batches)).cursor == batch.cursor


async def test_reopened_rollout_is_in_a_batch_when_it_ends_again(memory: Store) -> None:
    (rollout,) = await enqueued(memory, 1)
    await end(memory, rollout)
    (first,) = await take(follow(memory), 1)
    await end(memory, rollout)  # Stamped anew, which is no end.
    await memory.update_rollout(rollout.rollout_id, status="queuing")
    await end(memory, rollout, status="failed")
    (again,) = await take(follow(memory, first.cursor), 1)
    assert [item.status for item in again.rollouts] == ["failed"]


async def test_rollout_reopened_before_the_read_is_in_a_later_batch(memory: Store) -> None:
    (rollout,) = await enqueued(memory, 1)
    await end(memory, rollout)
    await memory.update_rollout(rollout.rollout_id, status="queuing")
    (batch,) = await take(follow(memory), 1)
    assert batch.rollouts == []
    await end(memory, rollout)
    (later,) = await take(follow(memory, batch.cursor), 1)
    assert inputs(later) == [0]


async def test_impossible_batches_are_refused_by_name(memory: Store) -> None:
    with pytest.raises(Invalid, match="min_rollouts"):
        await anext(follow(memory, min_rollouts=0))
    for timeout in (0, -1, float("nan")):
        with pytest.raises(Invalid, match="timeout"):
            await anext(follow(memory, timeout=timeout))


async def test_finished_yields_those_that_ended_before_and_then_each_as_it_ends(live: Store) -> None:
    rollouts = await enqueued(live, 5)
    await end(live, rollouts[3], rollouts[1])
    ends = finished(live, [*rollouts, rollouts[0]])
    assert [(await anext(ends)).input for _ in range(2)] == [1, 3]
    for number in (4, 0, 2):
        await end(live, rollouts[number])
        assert (await anext(ends)).input == number
    with pytest.raises(StopAsyncIteration):
        await anext(ends)


async def test_finished_hears_of_other_rollouts_without_yielding_them(memory: Store) -> None:
    mine, other = await enqueued(memory, 2)
    await end(memory, other)
    ends = finished(memory, [mine])
    await end(memory, mine)
    assert [rollout.rollout_id async for rollout in ends] == [mine.rollout_id]
    assert [rollout async for rollout in finished(memory, [])] == []


async def test_rollouts_of_another_store_are_not_waited_for(memory: Store) -> None:
    (rollout,) = await enqueued(memory, 1)
    async with await open_store("memory://") as other:
        with pytest.raises(NotFound, match=rollout.rollout_id):
            await anext(finished(other, [rollout]))


async def test_finished_waits_for_the_last_attempt_of_a_rollout_that_is_tried_again(memory: Store) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await memory.enqueue_rollout(1, config=config)
    ends = asyncio.ensure_future(anext(finished(memory, [rollout])))
    for status in ("failed", "succeeded"):
        claimed = await memory.dequeue_rollout()
        assert claimed is not None
        assert not ends.done()
        await memory.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status)
    assert (await ends).status == "succeeded"


async def test_leaving_the_queue_is_heard_of(live: Store) -> None:
    first, second = await enqueued(live, 2)
    waits = [asyncio.ensure_future(left_the_queue(live, rollout)) for rollout in (first, second)]
    await live.dequeue_rollout()
    await waits[0]
    assert not waits[1].done()
    await end(live, second, status="cancelled")
    await waits[1]


async def test_a_rollout_that_is_in_the_queue_again_has_not_left_it(memory: Store) -> None:
    rollout = await memory.enqueue_rollout(1, config=RolloutConfig(max_attempts=3, retry_condition=["failed"]))
    claimed = await memory.dequeue_rollout()
    assert claimed is not None
    await memory.update_attempt(rollout.rollout_id, claimed.attempt.attempt_id, status="failed")
    waiting = asyncio.ensure_future(left_the_queue(memory, rollout))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    await memory.dequeue_rollout()
    await waiting


async def test_rollouts_that_ended_together_are_read_together(memory: Store) -> None:
    class Counted(Unreliable):
        reads = 0

        async def query_rollouts(self, **query: Any) -> Any:
            self.reads += 1
            page = await super().query_rollouts(**query)
            if self.reads == 1:
                # Between the first reading and the log.
                await asyncio.gather(*(end(memory, rollout) for rollout in rollouts))
            return page

    rollouts, store = await enqueued(memory, 50), Counted(memory)
    assert sorted([rollout.input async for rollout in finished(store, rollouts)]) == list(range(50))
    assert store.reads <= 5
