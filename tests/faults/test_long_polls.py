"""A claim whose caller has gone is passed to another waiting worker or returned to the queue."""

# A test of a part may look inside that part.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest
from store.sql.store import SQLStore
from store.sql.waiters import WaitingCalls
from tests.faults.conftest import ON_SQLITE
from tests.faults.sessions import Trouble, taken, until
from tests.torture import Rounds

WORKERS = ("w1", "w2", None)


async def parked_poll(store: SQLStore, worker_id: str | None) -> asyncio.Task[AttemptedRollout | None]:
    """Start a long poll on an empty queue and return once it waits, behind those that wait already."""
    in_line = store.core.waiting._claimers
    ahead = len(in_line)
    poll = asyncio.create_task(store.dequeue_rollout(worker_id, wait_seconds=60))
    await until(lambda: len(in_line) > ahead)
    # It stands in line before it looks at the queue a last time; it waits once something hangs on its future.
    waiter: Any = in_line[-1]
    await until(lambda: bool(waiter.future._callbacks))
    return poll


async def types_of(store: Store, rollout_id: str) -> list[str]:
    return [event.type for event in await store.log.history(rollout_id)]


async def released(store: Store, rollout_id: str) -> None:
    """Return once the claim of a rollout was released."""
    async for event in store.log.tail(follow=True, types=["claim.released"], rollout_id=rollout_id):
        assert event.stream == f"rollout/{rollout_id}"
        return


async def claim_and_leave(
    store: SQLStore, trouble: Trouble, poll: asyncio.Task[AttemptedRollout | None], inputs: list[str]
) -> list[str]:
    """Let the poll that waited longest claim the first of these rollouts, and cancel it before it hears of that."""

    def hold() -> None:
        trouble.holds = True
        trouble.after_commit = lambda: None

    trouble.after_commit = hold
    rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=input_) for input_ in inputs])
    await until(lambda: trouble.is_holding)
    poll.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await poll
    trouble.holds = False
    return [rollout.rollout_id for rollout in rollouts]


@ON_SQLITE
async def test_abandoned_claim_goes_to_a_waiting_call_of_the_same_worker(
    troubled: SQLStore, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ignore_news(_: WaitingCalls) -> None:
        """News that might come from other processes send whoever waits to look; then nobody would be waiting."""

    monkeypatch.setattr(WaitingCalls, "_look_again", ignore_news)
    leaving, staying = await parked_poll(troubled, "w1"), await parked_poll(troubled, "w1")
    (rollout_id,) = await claim_and_leave(troubled, trouble, leaving, ["only"])
    async with asyncio.timeout(10):
        handed_over = await staying
    assert handed_over is not None
    assert (handed_over.rollout_id, handed_over.attempt.sequence_id) == (rollout_id, 1)
    assert await types_of(troubled, rollout_id) == ["rollout.enqueued", "attempt.started", "rollout.status_changed"]
    assert [attempt.worker_id for attempt in (await troubled.query_attempts(rollout_id)).items] == ["w1"]


async def test_abandoned_claim_returns_to_its_old_place_without_an_attempt(
    troubled: SQLStore, trouble: Trouble
) -> None:
    leaving = await parked_poll(troubled, "w1")
    first_id, second_id = await claim_and_leave(troubled, trouble, leaving, ["first", "second"])
    async with asyncio.timeout(10):
        await released(troubled, first_id)
    claims = await troubled.dequeue_many_rollouts(2, "w2")
    assert [claim.rollout_id for claim in claims] == [first_id, second_id]
    assert [claim.attempt.sequence_id for claim in claims] == [1, 1]
    assert await types_of(troubled, first_id) == [
        "rollout.enqueued",
        *("attempt.started", "rollout.status_changed", "claim.released"),
        *("attempt.started", "rollout.status_changed"),
    ]
    attempts = (await troubled.query_attempts(first_id)).items
    assert [(attempt.worker_id, attempt.sequence_id) for attempt in attempts] == [("w2", 1)]
    report = await troubled.log.verify()
    assert report.ok, report.differences


async def test_a_claim_at_the_end_of_an_attempt_is_released_if_the_caller_leaves(
    troubled: SQLStore, trouble: Trouble
) -> None:
    for number in range(2):
        await troubled.enqueue_rollout(number)
    first = await troubled.dequeue_rollout("w1")
    assert first is not None
    call = troubled.finish_attempt(first.rollout_id, first.attempt.attempt_id, "succeeded", claim_as="w1")
    finishing = await taken(trouble, call)
    finishing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await finishing
    trouble.holds = False
    async with asyncio.timeout(10):
        async for event in troubled.log.tail(follow=True, types=["claim.released"]):
            assert event.stream != f"rollout/{first.rollout_id}"
            break
    claimed = await troubled.dequeue_rollout("w2")
    assert claimed is not None
    assert (claimed.input, claimed.attempt.sequence_id) == (1, 1)
    assert (await troubled.query_rollouts(status_in=["succeeded"])).total == 1


@ON_SQLITE
async def test_a_claim_given_back_wakes_a_poll_of_another_worker(troubled: SQLStore, trouble: Trouble) -> None:
    leaving, other = await parked_poll(troubled, "w1"), await parked_poll(troubled, "w2")
    (rollout_id,) = await claim_and_leave(troubled, trouble, leaving, ["only"])
    async with asyncio.timeout(10):
        claimed = await other
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout_id, 1)
    assert "claim.released" in await types_of(troubled, rollout_id)


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_cancelled_long_polls_leave_no_rollout_stuck_and_use_up_no_attempt(
    durable_url: str, rounds: Rounds
) -> None:
    polls = rounds(1000, few=40)
    async with await open_store(durable_url) as store, await open_store(durable_url) as other:
        enqueued: list[str] = []
        taken: list[AttemptedRollout] = []
        for number in range(polls):
            worker_id = random.choice(WORKERS)
            poller = store if number % 4 else other
            poll = asyncio.create_task(poller.dequeue_rollout(worker_id, wait_seconds=30))
            await asyncio.sleep(random.uniform(0, 0.004))
            if number % 3 == 0:
                adding = asyncio.create_task(store.enqueue_rollout(number))
                await asyncio.sleep(random.uniform(0, 0.006))
                poll.cancel()
                enqueued.append((await adding).rollout_id)
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if claimed := await poll:
                    taken.append(claimed)
        # What was given back may still be on its way.
        left: list[AttemptedRollout] = []
        async with asyncio.timeout(30):
            while len(taken) + len(left) < len(enqueued):
                left += await store.dequeue_many_rollouts(len(enqueued), "last")
        given_back = len([event async for event in store.log.tail(types=["claim.released"])])
        report = await store.log.verify()
    print(
        f"\n{durable_url.partition(':')[0]}: {polls} polls cancelled, {len(enqueued)} rollouts, {given_back} claims"
        f" released, {len(taken)} claims taken in spite of it, {len(left)} left for the last worker"
    )
    assert Counter(one.rollout_id for one in (*taken, *left)) == Counter(enqueued)
    assert {one.attempt.sequence_id for one in (*taken, *left)} == {1}
    assert report.ok, report.differences
