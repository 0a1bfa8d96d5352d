"""A call whose response is lost is sent again and executed once.

The call contains an idempotency key, and the server stores the response under this key.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.testing.samples import make_llm, make_sdk_span, make_span
from tests.client.lossy_proxy import LossyProxy
from tests.client.served import Served
from tests.torture import Rounds


async def test_a_lost_reply_never_enqueues_twice(url: str, behind: Store) -> None:
    with LossyProxy.losing_first(url, "/enqueue", times=3) as proxy:
        async with HTTPStore(proxy.url) as store:
            rollout = await store.enqueue_rollout(1)
            many = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in (2, 3)])
        assert proxy.lost == 3
    assert [one.rollout_id for one in await behind.query_rollouts()] == [
        rollout.rollout_id,
        *(one.rollout_id for one in many),
    ]


async def test_a_lost_reply_never_starts_twice(url: str, behind: Store) -> None:
    with LossyProxy.losing_first(url, "/rollouts") as proxy:
        async with HTTPStore(proxy.url) as store:
            rollout = await store.start_rollout(1, worker_id="w1")
    assert list(await behind.query_rollouts()) == [rollout]


async def test_a_lost_reply_never_claims_twice(url: str, behind: Store) -> None:
    await behind.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    with LossyProxy.losing_first(url, "/dequeue", times=2) as proxy:
        async with HTTPStore(proxy.url) as store:
            claimed = await store.dequeue_rollout("w1")
        assert proxy.lost == 2
    assert claimed is not None
    assert (claimed.input, claimed.attempt.sequence_id) == (0, 1)
    assert await behind.get_rollout_by_id(claimed.rollout_id) == claimed
    assert [one.status for one in await behind.query_rollouts()] == ["preparing", "queuing", "queuing"]


async def test_a_lost_reply_to_a_call_that_waited_never_claims_twice(url: str, behind: Store) -> None:
    with LossyProxy.losing_first(url, "/dequeue") as proxy:
        async with HTTPStore(proxy.url) as store:
            waiting = asyncio.ensure_future(store.dequeue_rollout("w1", wait_seconds=20))
            await anext(behind.log.tail(follow=True, types=["worker.seen"]))  # which tells that it waits
            for number in range(3):
                await behind.enqueue_rollout(number)
            claimed = await waiting
        assert proxy.lost == 1
    assert claimed is not None
    assert claimed.attempt.sequence_id == 1
    statuses = Counter(one.status for one in await behind.query_rollouts())
    assert statuses == {"preparing": 1, "queuing": 2}


async def test_a_lost_reply_never_opens_another_attempt(url: str, behind: Store) -> None:
    rollout = await behind.start_rollout(1)
    with LossyProxy.losing_first(url, "/attempts") as proxy:
        async with HTTPStore(proxy.url) as store:
            second = await store.start_attempt(rollout.rollout_id)
    assert second.attempt.sequence_id == 2
    assert (await behind.query_attempts(rollout.rollout_id)).total == 2


async def test_a_lost_reply_never_draws_twice(url: str, behind: Store) -> None:
    with LossyProxy(url, lambda _: proxy.lost < proxy.passed + 1) as proxy:
        async with HTTPStore(proxy.url) as store:
            assert await store.get_next_span_sequence_id("ro-1", "at-1") == 1
            assert await store.get_many_span_sequence_ids([("ro-1", "at-1")] * 3) == [2, 3, 4]
            assert await store.get_next_span_sequence_id("ro-1", "at-1") == 5
        assert proxy.lost >= 3
    assert await behind.get_next_span_sequence_id("ro-1", "at-1") == 6


async def test_a_span_whose_reply_was_lost_is_stored_once_and_is_no_duplicate(url: str, behind: Store) -> None:
    rollout = await behind.start_rollout(1)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    one, two, three = (make_span(rollout.attempt, number) for number in (1, 2, 3))
    with LossyProxy(url, lambda _: proxy.lost < proxy.passed + 1) as proxy:
        async with HTTPStore(proxy.url) as store:
            assert await store.add_span(one) == one
            assert await store.add_many_spans([two, three]) == [two, three]
            numbered = await store.add_otel_span(*ids, make_sdk_span())
        assert proxy.lost >= 3
    assert numbered is not None
    assert numbered.sequence_id == 4
    assert list(await behind.query_spans(rollout.rollout_id)) == [one, two, three, numbered]


async def test_a_lost_reply_never_publishes_twice(url: str, behind: Store) -> None:
    with LossyProxy(url, lambda _: proxy.lost < proxy.passed + 1) as proxy:
        async with HTTPStore(proxy.url) as store:
            added = await store.add_resources(make_llm())
            updated = await store.update_resources(added.resources_id, make_llm("second"))
        assert proxy.lost >= 2
    assert updated.version == 2
    assert list(await behind.query_resources()) == [updated]


async def test_a_reply_that_comes_again_is_the_one_that_was_lost(url: str, behind: Store) -> None:
    rollout = await behind.start_rollout(1)
    with LossyProxy.losing_first(url, "/latest") as proxy:
        async with HTTPStore(proxy.url) as store:
            ended = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert await behind.get_latest_attempt(rollout.rollout_id) == ended
    types = [event.type for event in await behind.log.history(rollout.rollout_id)]
    assert types.count("attempt.status_changed") == 1


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_whole_lives_through_a_proxy_that_loses_a_tenth_of_all_answers(
    server: Served, durable_url: str, rounds: Rounds
) -> None:
    """With all rounds this is ten thousand calls."""
    lives = rounds(1000, few=40)
    entered: list[str] = []

    async def enter(store: Store, number: int) -> None:
        entered.append((await store.enqueue_rollout(number)).rollout_id)

    async def run(store: Store, worker_id: str) -> int:
        done = 0
        while claimed := await store.dequeue_rollout(worker_id, wait_seconds=5):
            for _ in range(3):
                number = await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id)
                assert await store.add_span(make_span(claimed.attempt, number)) is not None
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
            done += 1
        return done

    async with await open_store(durable_url) as behind:
        with server.serving(behind) as url, LossyProxy.losing(url, 0.1) as proxy:
            async with HTTPStore(proxy.url) as store:
                runners = [asyncio.ensure_future(run(store, f"w{number}")) for number in range(8)]
                for begin in range(0, lives, 20):
                    await asyncio.gather(*[enter(store, number) for number in range(begin, begin + 20)])
                done = await asyncio.gather(*runners)
                ended = await store.wait_for_rollouts(entered, timeout=0)
            assert len(proxy.heads) >= 9 * lives
            assert proxy.lost > lives / 2
        assert sum(done) == lives
        assert [one.status for one in ended] == ["succeeded"] * lives
        assert {one.rollout_id for one in await behind.query_rollouts()} == set(entered)
        for rollout_id in entered:
            assert (await behind.query_attempts(rollout_id)).total == 1
            assert [span.sequence_id for span in await behind.query_spans(rollout_id)] == [1, 2, 3]
        assert (await behind.log.verify()).ok
