"""A call that is repeated with its key returns the same result and is executed once."""

# These tests use private names of the module that they test.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from store import open_store
from store.domain.commands import Idempotency
from store.errors import Conflict, NotFound
from store.interface.store import Store
from store.journal import writer
from store.models import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store.projections.rollouts import KEY_MICROS
from store.runtime import context
from store.testing import ManualClock
from store.testing.samples import make_llm, make_prompt, make_sdk_span, make_span
from tests.journal.database_helpers import ask, blob, run_sql

Call = Callable[[Store, AttemptedRollout], Awaitable[Any]]


@contextmanager
def under(key: str, request: str = "", scope: str = "somebody") -> Generator[None]:
    """Make the calls inside under a key."""
    token = context.idempotency_key.set(Idempotency(scope, key, hashlib.sha256(request.encode()).digest()))
    try:
        yield
    finally:
        context.idempotency_key.reset(token)


async def started(store: Store) -> AttemptedRollout:
    return await store.start_rollout({"task": 1}, config=RolloutConfig(max_attempts=5), worker_id="w")


async def events_of(store: Store) -> int:
    return len([event async for event in store.log.tail()])


SPAN = make_sdk_span()
MANY = [EnqueueRolloutRequest(input=number) for number in range(3)]
CALLS: dict[str, Call] = {
    "enqueue": lambda store, _: store.enqueue_rollout("a", "train", metadata={"k": [1, 2.5]}),
    "enqueue many": lambda store, _: store.enqueue_many_rollouts(MANY),
    "start": lambda store, _: store.start_rollout("b", worker_id="w2"),
    "dequeue": lambda store, _: store.dequeue_rollout("w3"),
    "dequeue many": lambda store, _: store.dequeue_many_rollouts(2, "w3"),
    "wait": lambda store, _: store.dequeue_rollout("w3", wait_seconds=5),
    "attempt": lambda store, rollout: store.start_attempt(rollout.rollout_id, "w4"),
    "update rollout": lambda store, rollout: store.update_rollout(rollout.rollout_id, input="new", metadata={"m": 1}),
    "update attempt": lambda store, rollout: store.update_attempt(rollout.rollout_id, "latest", metadata={"m": 1}),
    "end attempt": lambda store, rollout: store.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, status="failed"
    ),
    "finish": lambda store, rollout: store.finish_attempt(
        rollout.rollout_id,
        rollout.attempt.attempt_id,
        "succeeded",
        spans=[make_span(rollout.attempt, 0, span_id="a" * 16)],
        number=True,
        claim_as="w5",
    ),
    "spans": lambda store, rollout: store.add_many_spans([make_span(rollout.attempt, 7, span_id="a" * 16)]),
    "span of the SDK": lambda store, rollout: store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, SPAN),
    "number": lambda store, rollout: store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id),
    "numbers": lambda store, rollout: store.get_many_span_sequence_ids(
        [(rollout.rollout_id, "x"), ("unknown", "y")] * 2
    ),
    "resources": lambda store, _: store.add_resources(make_llm()),
    "update resources": lambda store, _: store.update_resources("prompts", make_prompt()),
}


ON_POSTGRES = {"enqueue", "dequeue", "finish", "spans", "number"}
"""The calls that `make test` makes on Postgres too. The others find and store their answers by the same code."""


@pytest.mark.parametrize(
    "durable_url,name",
    [
        *(("sqlite", name) for name in CALLS),
        *(
            pytest.param("postgres", name, marks=() if name in ON_POSTGRES else pytest.mark.torture_only)
            for name in CALLS
        ),
    ],
    indirect=["durable_url"],
)
async def test_a_call_made_twice_is_done_once_and_answered_twice(name: str, store: Store, clock: ManualClock) -> None:
    rollout = await started(store)
    await store.enqueue_many_rollouts(MANY)
    clock.advance(1)
    with under("k"):
        first = await CALLS[name](store, rollout)
    before = await events_of(store)
    clock.advance(1)
    # What happens in between is not part of the answer.
    await store.update_rollout(rollout.rollout_id, mode="val")
    await store.update_resources("prompts", make_llm())
    with under("k"):
        again = await CALLS[name](store, rollout)
    assert again == first
    assert await events_of(store) == before + 2
    with under("k", scope="somebody else"):
        await CALLS[name](store, rollout)


async def test_a_key_is_known_after_the_store_was_opened_again(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        with under("k"):
            first = await store.enqueue_rollout("a")
    async with await open_store(durable_url) as store:
        with under("k"):
            assert await store.enqueue_rollout("a") == first
        assert len(await store.query_rollouts()) == 1


async def test_another_request_under_the_same_key_is_refused(store: Store) -> None:
    with under("k", "one request"):
        await store.enqueue_rollout("a")
    with under("k", "another"), pytest.raises(Conflict, match="used for another request"):
        await store.enqueue_rollout("b")
    assert len(await store.query_rollouts()) == 1


async def test_calls_at_once_under_one_key_are_done_once(store: Store) -> None:
    with under("k"):
        rollouts = await asyncio.gather(*(store.enqueue_rollout("a") for _ in range(20)))
    assert len({rollout.rollout_id for rollout in rollouts}) == 1
    assert len(await store.query_rollouts()) == 1


async def test_a_claim_that_found_nothing_claims_when_it_comes_again(store: Store) -> None:
    with under("k"):
        assert await store.dequeue_rollout("w") is None
    rollout = await store.enqueue_rollout("a")
    with under("k"):
        claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id


async def test_a_refused_call_is_decided_anew_when_it_comes_again(store: Store) -> None:
    with under("k"), pytest.raises(NotFound):
        await store.update_rollout("ro-unknown", mode="val")
    assert await events_of(store) == 0


async def test_a_claim_that_was_released_is_claimed_anew_under_its_key(store: Store) -> None:
    async def wait() -> AttemptedRollout | None:
        with under("k"):
            return await store.dequeue_rollout("w", wait_seconds=30)

    leaving = asyncio.create_task(wait())
    for _ in range(200):
        await asyncio.sleep(0)
    rollout = await store.enqueue_rollout("a")
    leaving.cancel()
    await asyncio.wait([leaving])
    with under("k"):
        claimed = await store.dequeue_rollout("w", wait_seconds=30)
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)


async def test_keys_are_forgotten_after_a_day(durable_url: str, clock: ManualClock) -> None:
    async with await open_store(durable_url, clock=clock) as store:
        with under("k"):
            first = await store.enqueue_rollout("a")
        clock.advance(KEY_MICROS / 1_000_000 + 1)
        await store.enqueue_rollout("the watch over old keys goes by commits")
        with under("k"):
            assert await store.enqueue_rollout("a") != first


async def test_each_batch_deletes_some_expired_keys_until_none_is_left(durable_url: str, clock: ManualClock) -> None:
    count = 2 * writer._PRUNED_AT_LEAST + 1
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        with under("k"):
            first = await store.enqueue_rollout("a")
        old = blob(bytes(32), durable_url)
        rows = ", ".join(f"('old {number}', 'somebody', {old}, 1, '{{}}', 1)" for number in range(count))
        keys = ", ".join(f"('batch {number}', 1)" for number in range(count))
        await run_sql(durable_url, f"INSERT INTO idempotency VALUES {rows}", f"INSERT INTO batches VALUES {keys}")
        clock.advance(61)
        left: list[tuple[str, ...]] = []
        for _ in range(4):
            await store.enqueue_rollout("more")
            counts = await ask(
                durable_url,
                "SELECT (SELECT count(*) FROM idempotency WHERE expires_at = 1),"
                " (SELECT count(*) FROM batches WHERE at = 1)",
            )
            left.append(tuple(counts[0]))
        assert left == [(str(n), str(n)) for n in (writer._PRUNED_AT_LEAST + 1, 1, 0, 0)]
        # The next search runs one minute later.
        await run_sql(durable_url, f"INSERT INTO idempotency VALUES ('old', 'somebody', {old}, 1, '{{}}', 1)")
        await store.enqueue_rollout("more")
        assert await ask(durable_url, "SELECT count(*) FROM idempotency WHERE expires_at = 1") == [["1"]]
        clock.advance(61)
        await store.enqueue_rollout("more")
        assert await ask(durable_url, "SELECT count(*) FROM idempotency WHERE expires_at = 1") == [["0"]]
        # A key that has not expired is kept.
        with under("k"):
            assert await store.enqueue_rollout("a") == first


async def test_a_large_batch_deletes_more_expired_keys_than_its_calls_add(durable_url: str, clock: ManualClock) -> None:
    count, calls = 500, 100
    async with await open_store(durable_url, clock=clock, scan_debounce_seconds=0) as store:
        await store.enqueue_rollout("a")
        old = blob(bytes(32), durable_url)
        rows = ", ".join(f"('old {number}', 'somebody', {old}, 1, '{{}}', 1)" for number in range(count))
        await run_sql(durable_url, f"INSERT INTO idempotency VALUES {rows}")
        clock.advance(61)

        async def enqueue(number: int) -> None:
            with under(f"new {number}"):
                await store.enqueue_rollout(number)

        for first in range(0, 3 * calls, calls):
            await asyncio.gather(*(enqueue(first + number) for number in range(calls)))
        assert await ask(durable_url, "SELECT count(*) FROM idempotency WHERE expires_at > 1") == [[str(3 * calls)]]
        assert await ask(durable_url, "SELECT count(*) FROM idempotency WHERE expires_at = 1") == [["0"]]
