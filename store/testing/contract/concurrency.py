"""Contract of concurrent calls: each call is atomic, and calls may come from any task, thread and event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from store.interface.store import Store
from store.models import Rollout
from store.testing.contract.rollout_helpers import attempt_of, attempts_of, reread, started, statuses
from store.testing.samples import make_llm, make_sdk_span, make_span

__all__ = ["ConcurrencyContract"]


class ConcurrencyContract:
    """Tests of many calls at the same time."""

    pytestmark = pytest.mark.asyncio

    async def test_fifty_concurrent_enqueues_all_succeed(self, store: Store) -> None:
        rollouts = await asyncio.gather(*[store.enqueue_rollout(number) for number in range(50)])
        assert len({rollout.rollout_id for rollout in rollouts}) == 50
        assert sorted(rollout.input for rollout in await store.query_rollouts()) == list(range(50))
        claimed = await store.dequeue_many_rollouts(limit=100)
        assert sorted(rollout.input for rollout in claimed) == list(range(50))

    async def test_concurrent_claims_give_each_rollout_to_one_worker(self, store: Store) -> None:
        entered = [(await store.enqueue_rollout(number)).rollout_id for number in range(20)]
        claims = await asyncio.gather(*[store.dequeue_rollout(f"w{number}") for number in range(30)])
        claimed = [rollout for rollout in claims if rollout is not None]
        assert sorted(rollout.rollout_id for rollout in claimed) == sorted(entered)
        assert {rollout.attempt.sequence_id for rollout in claimed} == {1}
        assert len({rollout.attempt.worker_id for rollout in claimed}) == 20
        page = await store.query_workers(status_in=["idle"])
        assert page.total == 10

    async def test_concurrent_claims_of_several_rollouts_share_the_queue(self, store: Store) -> None:
        await asyncio.gather(*[store.enqueue_rollout(number) for number in range(30)])
        claims = await asyncio.gather(*[store.dequeue_many_rollouts(limit=4) for _ in range(10)])
        assert sorted(rollout.input for claim in claims for rollout in claim) == list(range(30))

    async def test_rollouts_are_claimed_while_others_are_enqueued(self, store: Store) -> None:
        async def claim() -> list[Any]:
            return [rollout.input for _ in range(10) if (rollout := await store.dequeue_rollout())]

        _, *claims = await asyncio.gather(
            asyncio.gather(*[store.enqueue_rollout(number) for number in range(20)]), claim(), claim()
        )
        rest = [rollout.input for rollout in await store.dequeue_many_rollouts(limit=100)]
        assert sorted([*rest, *[item for claim in claims for item in claim]]) == list(range(20))

    async def test_thirty_concurrent_spans_get_the_numbers_one_to_thirty(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id)
        ids = [rollout.attempt.attempt_id, second.attempt.attempt_id]
        adds = [store.add_otel_span(rollout.rollout_id, ids[number % 2], make_sdk_span()) for number in range(30)]
        spans = await asyncio.gather(*adds)
        assert sorted(span.sequence_id for span in spans if span) == list(range(1, 31))
        assert [span.sequence_id for span in await store.query_spans(rollout.rollout_id)] == list(range(1, 31))

    async def test_concurrently_drawn_numbers_have_no_gaps_and_no_duplicates(self, store: Store) -> None:
        rollout = await started(store)
        single = [store.get_next_span_sequence_id(rollout.rollout_id, "any") for _ in range(20)]
        many = [store.get_many_span_sequence_ids([(rollout.rollout_id, "any")] * 3) for _ in range(10)]
        drawn = await asyncio.gather(*single)
        more = [number for numbers in await asyncio.gather(*many) for number in numbers]
        assert sorted([*drawn, *more]) == list(range(1, 51))

    async def test_the_same_span_in_concurrent_calls_is_stored_once(self, store: Store) -> None:
        rollout = await started(store)
        span = make_span(rollout.attempt)
        answers = await asyncio.gather(*[store.add_span(span) for _ in range(10)])
        assert Counter(item is None for item in answers) == {True: 9, False: 1}
        assert (await store.query_spans(rollout.rollout_id)).total == 1

    async def test_fifty_concurrent_updates_of_resources_create_fifty_versions(self, store: Store) -> None:
        added = await store.add_resources(make_llm())
        updates = [store.update_resources(added.resources_id, make_llm(str(number))) for number in range(50)]
        versions = [update.version for update in await asyncio.gather(*updates)]
        assert sorted(versions) == list(range(2, 52))
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.version == 51

    async def test_fifty_concurrent_additions_of_resources_create_fifty_ids(self, store: Store) -> None:
        added = await asyncio.gather(*[store.add_resources({}) for _ in range(50)])
        assert len({update.resources_id for update in added}) == 50
        latest = await store.get_latest_resources()
        assert latest == max(added, key=lambda update: update.update_time)

    async def test_concurrently_started_attempts_are_numbered_without_gaps(self, store: Store) -> None:
        rollout = await started(store)
        await asyncio.gather(*[store.start_attempt(rollout.rollout_id, f"w{number}") for number in range(20)])
        attempts = await attempts_of(store, rollout)
        assert [attempt.sequence_id for attempt in attempts] == list(range(1, 22))
        assert len({attempt.attempt_id for attempt in attempts}) == 21

    async def test_concurrent_enqueues_with_one_plan_key_create_one_rollout(self, store: Store) -> None:
        enqueues = [store.enqueue_rollout({"task": 1}, metadata={"rollbook.key": "k"}) for _ in range(20)]
        rollouts = await asyncio.gather(*enqueues)
        assert len({rollout.rollout_id for rollout in rollouts}) == 1
        assert (await store.query_rollouts()).total == 1

    async def test_concurrent_spans_and_updates_of_an_attempt_are_all_stored(self, store: Store) -> None:
        rollout = await started(store)
        await asyncio.gather(
            *[store.add_span(make_span(rollout.attempt, number)) for number in range(1, 11)],
            store.update_attempt(rollout.rollout_id, "latest", metadata={"m": 1}),
            store.update_attempt(rollout.rollout_id, "latest", worker_id="w1"),
            store.update_rollout(rollout.rollout_id, metadata={"r": 1}),
        )
        attempt = await attempt_of(store, rollout)
        assert (attempt.metadata, attempt.worker_id, attempt.status) == ({"m": 1}, "w1", "running")
        assert attempt.last_heartbeat_time is not None
        assert (await reread(store, rollout)).metadata == {"r": 1}
        assert (await store.query_spans(rollout.rollout_id)).total == 10

    async def test_a_refused_call_does_not_affect_concurrent_calls(self, store: Store) -> None:
        rollout = await started(store)
        calls: list[Any] = [store.enqueue_rollout(number) for number in range(10)]
        calls[5:5] = [
            store.update_rollout("ro-none", status="running"),
            store.add_span(make_span(rollout.attempt, attempt_id="at-none")),
            store.start_attempt("ro-none"),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(item, ValueError) for item in answers] == [False] * 5 + [True] * 3 + [False] * 5
        assert (await store.query_rollouts()).total == 11

    async def test_every_call_sees_the_effects_of_earlier_calls(self, store: Store) -> None:
        async def life(number: int) -> None:
            rollout = await store.enqueue_rollout(number)
            assert await statuses(store, rollout) == ("queuing",)
            begun = await store.start_attempt(rollout.rollout_id)
            await store.add_span(make_span(begun.attempt))
            assert await statuses(store, rollout) == ("running", "running")
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            assert await statuses(store, rollout) == ("succeeded", "succeeded")

        await asyncio.gather(*[life(number) for number in range(10)])

    async def test_a_fresh_event_loop_in_another_thread_reads_and_writes(self, store: Store) -> None:
        rollout = await started(store)

        async def elsewhere() -> Rollout | None:
            await store.add_span(make_span(rollout.attempt))
            return await store.get_rollout_by_id(rollout.rollout_id)

        read = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert read is not None
        assert read.status == "running"
        assert await reread(store, rollout) == read

    async def test_several_event_loops_at_once_share_the_queue(self, store: Store) -> None:
        await asyncio.gather(*[store.enqueue_rollout(number) for number in range(20)])

        async def claim_all() -> list[Any]:
            claimed: list[Any] = []
            while rollout := await store.dequeue_rollout():
                claimed.append(rollout.input)
            return claimed

        claims = await asyncio.gather(*[asyncio.to_thread(lambda: asyncio.run(claim_all())) for _ in range(3)])
        assert sorted(item for claim in claims for item in claim) == list(range(20))

    async def test_the_end_of_a_rollout_ends_a_wait_in_another_event_loop(self, store: Store) -> None:
        rollout = await started(store)

        async def wait() -> list[Rollout]:
            return list(await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60))

        waiting = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(wait())))
        await asyncio.sleep(0.05)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert [item.status for item in await waiting] == ["succeeded"]
