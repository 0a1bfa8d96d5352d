"""Calls in one commit see each other, in situations that random calls rarely produce."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.domain.views import ClaimView
from store.errors import NotFound
from store.models import RolloutConfig
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.conftest import SQLITE
from tests.machine.backend import Backend
from tests.machine.steps import release_of, sweep

# The calls of a commit see each other in the working set, which both databases load with the same statements.
_POSTGRES = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
pytestmark = [pytest.mark.torture, pytest.mark.parametrize("durable_url", [SQLITE, _POSTGRES], indirect=True)]

RETRY = RolloutConfig(max_attempts=5, retry_condition=["timeout", "failed"], timeout_seconds=10.0)


@pytest.fixture
async def backend(durable_url: str, clock: ManualClock) -> AsyncIterator[Backend]:
    opened = Backend("either", durable_url, clock, seed=1)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


async def claimed(backend: Backend) -> ClaimView:
    views: list[ClaimView] = []

    async def claim(store: Any) -> None:
        views.extend(await store.queue.claim(1, "w1", 0.0))

    await backend.call(claim)
    return views[0]


async def test_rollout_requeued_by_a_sweep_is_claimed_in_the_same_commit(backend: Backend, clock: ManualClock) -> None:
    await backend.store.start_rollout({"task": 1}, config=RETRY)
    clock.advance(11)
    given_up, again = await backend.call_in_one_commit([sweep, lambda store: store.dequeue_rollout("w2")])
    assert (given_up, again["input"], again["attempt"]["sequence_id"]) == (1, {"task": 1}, 2)


async def test_a_retry_that_a_report_queues_is_claimed_in_the_same_commit(backend: Backend) -> None:
    rollout = await backend.store.start_rollout({"task": 1}, config=RETRY)
    _, again = await backend.call_in_one_commit(
        [
            lambda store: store.update_attempt(rollout.rollout_id, "latest", status="failed"),
            lambda store: store.dequeue_rollout("w2"),
        ]
    )
    assert (again["input"], again["attempt"]["sequence_id"]) == ({"task": 1}, 2)


async def test_sweep_judges_earlier_changes_of_the_same_commit(backend: Backend, clock: ManualClock) -> None:
    rollout = await backend.store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=5.0), worker_id="w1")
    _, given_up = await backend.call_in_one_commit(
        [
            lambda store: store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=clock.seconds - 6),
            sweep,
        ]
    )
    assert given_up == 1
    worker = await backend.store.get_worker_by_id("w1")
    assert worker is not None
    assert worker.status == "unknown"


async def test_a_claim_given_back_is_claimed_again_in_the_same_commit(backend: Backend) -> None:
    await backend.store.enqueue_rollout({"task": 1})
    view = await claimed(backend)
    released, again = await backend.call_in_one_commit(
        [lambda store: store.core.call(release_of(view)), lambda store: store.dequeue_rollout("w2")]
    )
    assert (released, again["input"], again["attempt"]["sequence_id"]) == (True, {"task": 1}, 1)


async def test_behind_a_claim_given_back_the_attempt_before_it_is_the_latest(backend: Backend) -> None:
    rollout = await backend.store.start_rollout(1, config=RETRY)
    await backend.store.update_attempt(rollout.rollout_id, "latest", status="failed")
    view = await claimed(backend)
    await backend.close()
    await backend.open()
    released, attempt = await backend.call_in_one_commit(
        [
            lambda store: store.core.call(release_of(view)),
            lambda store: store.update_attempt(rollout.rollout_id, "latest", status="succeeded"),
        ]
    )
    assert released is True
    assert (attempt["attempt_id"], attempt["status"]) == (rollout.attempt.attempt_id, "succeeded")


async def test_a_rollout_set_going_behind_a_claim_given_back_is_watched(backend: Backend, clock: ManualClock) -> None:
    rollout = await backend.store.start_rollout(1, config=RETRY)
    await backend.store.update_attempt(rollout.rollout_id, "latest", status="failed")
    view = await claimed(backend)
    await backend.close()
    await backend.open()
    await backend.call_in_one_commit(
        [
            lambda store: store.core.call(release_of(view)),
            lambda store: store.update_rollout(rollout.rollout_id, status="running"),
        ]
    )
    clock.advance(11)
    current = await backend.store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    assert current.status == "requeuing"


async def test_numbers_drawn_by_the_way_are_not_drawn_again(backend: Backend) -> None:
    rollout = await backend.store.start_rollout(1)
    drawn = [await backend.store.get_next_span_sequence_id(rollout.rollout_id, "at") for _ in range(3)]
    await backend.store.update_attempt(rollout.rollout_id, "latest", metadata={})
    drawn += [await backend.store.get_next_span_sequence_id(rollout.rollout_id, "at") for _ in range(3)]
    assert drawn == [1, 2, 3, 4, 5, 6]


async def test_third_and_later_attempts_are_known_as_they_are(backend: Backend) -> None:
    await backend.store.enqueue_rollout(1, config=RETRY)
    for sequence in range(1, 6):
        claim = await backend.store.dequeue_rollout("w1")
        assert claim is not None
        assert claim.attempt.sequence_id == sequence
        ended = await backend.store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="failed")
        assert (ended.sequence_id, ended.status) == (sequence, "failed")
    assert (await backend.verify()).ok


async def test_an_equal_plan_beside_a_call_that_names_its_rollout_finds_it(backend: Backend) -> None:
    metadata = {"rollbook.key": "k"}
    rollout = await backend.store.enqueue_rollout(1, metadata=metadata)
    _, again = await backend.call_in_one_commit(
        [
            lambda store: store.update_rollout(rollout.rollout_id, mode="val"),
            lambda store: store.enqueue_rollout(1, metadata=metadata),
        ]
    )
    assert again["rollout_id"] == rollout.rollout_id


async def test_a_span_for_a_claim_given_back_does_not_hide_an_earlier_attempt(backend: Backend) -> None:
    first = await backend.store.start_rollout(1, config=RETRY)
    await backend.store.update_attempt(first.rollout_id, "latest", status="failed")
    gone = release_of(await claimed(backend))
    assert await backend.call(lambda store: store.core.call(gone)) is True
    assert await backend.store.dequeue_rollout("w2") is not None
    await backend.close()
    await backend.open()
    late = make_span(first.attempt, attempt_id=gone.attempt_id)
    with pytest.raises(NotFound):
        await backend.store.add_span(late)
    again = await backend.store.update_attempt(first.rollout_id, first.attempt.attempt_id, metadata={"still": "there"})
    assert again.sequence_id == 1
