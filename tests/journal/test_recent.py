"""The writer's state between batches is never older than the writes of another process."""

from collections.abc import AsyncIterator

import pytest

from store import EnqueueRolloutRequest, Store, open_store
from store.testing.samples import make_span


@pytest.fixture
async def two(durable_url: str) -> AsyncIterator[tuple[Store, Store]]:
    """Two stores on one database, as two processes have them."""
    async with (
        await open_store(durable_url, scan_debounce_seconds=0) as one,
        await open_store(durable_url, scan_debounce_seconds=0) as other,
    ):
        yield one, other


async def test_store_decides_on_the_writes_of_another_store(two: tuple[Store, Store]) -> None:
    one, other = two
    rollout = await one.start_rollout("task", worker_id="w")
    for number in range(1, 7):
        store = two[number % 2]
        attempt = await store.start_attempt(rollout.rollout_id, worker_id="w")
        assert attempt.attempt.sequence_id == number + 1
        colleague = two[(number + 1) % 2]
        await colleague.add_span(make_span(attempt.attempt, 3 * number))
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "any") == 3 * number + 1
        assert await colleague.get_next_span_sequence_id(rollout.rollout_id, "any") == 3 * number + 2
    await other.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert (await one.get_worker_by_id("w")) == (await other.get_worker_by_id("w"))
    await one.update_rollout(rollout.rollout_id, status="requeuing")
    claimed = await other.dequeue_rollout("w")
    assert claimed is not None
    assert claimed.attempt.sequence_id == 8
    for store in two:
        assert (await store.log.verify()).ok


async def test_a_store_sees_the_resources_that_another_has_published(two: tuple[Store, Store]) -> None:
    one, other = two
    first = await one.add_resources({})
    assert (await one.enqueue_rollout(1)).resources_id == first.resources_id
    second = await other.add_resources({})
    assert (await one.enqueue_rollout(2)).resources_id == second.resources_id
    await other.update_resources(first.resources_id, {})
    assert (await one.update_resources(first.resources_id, {})).version == 3
    assert (await other.log.verify()).ok


async def test_an_older_attempt_can_be_named_after_many_batches(two: tuple[Store, Store]) -> None:
    one, other = two
    rollout = await one.start_rollout("task")
    for _ in range(3):
        await one.start_attempt(rollout.rollout_id)
    # The other has only the latest attempt at hand after this, and must look for the first.
    await other.update_attempt(rollout.rollout_id, "latest", metadata={"a": 1})
    changed = await other.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed")
    assert (changed.attempt_id, changed.status) == (rollout.attempt.attempt_id, "failed")
    assert (await one.log.verify()).ok


async def test_a_queue_is_shared(two: tuple[Store, Store]) -> None:
    one, other = two
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(10)])
    claimed = [await two[number % 2].dequeue_rollout() for number in range(11)]
    assert [rollout and rollout.input for rollout in claimed] == [*range(10), None]
    assert (await other.log.verify()).ok
