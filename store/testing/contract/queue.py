"""Contract of the queue: a rollout is enqueued, waits, and is claimed by a worker."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from store.interface.store import Store
from store.models import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import reread, started, statuses

__all__ = ["QueueContract"]


JSON_VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    1.0,
    -0.5,
    1e300,
    -0.0,
    0.1 + 0.2,
    5e-324,
    -0.0,
    2**63 - 1,
    -(2**63),
    "",
    "é 漢 🙂 \n\t\"'\\",
    [],
    {},
    [1, 1.0, True, None, "1", [[]]],
    {"": {"nested": [{"deep": {}}]}, "rollout_id": "not mine"},
]


def requests(*inputs: Any) -> list[EnqueueRolloutRequest]:
    return [EnqueueRolloutRequest(input=item) for item in inputs]


class QueueContract:
    """Tests of enqueueing, starting and claiming rollouts: ids, defaults, order, and the effects of a claim."""

    pytestmark = pytest.mark.asyncio

    async def test_an_enqueued_rollout_is_queuing_and_has_no_attempt(self, store: Store) -> None:
        rollout = await store.enqueue_rollout({"task": 1})
        assert (rollout.status, rollout.end_time, rollout.mode) == ("queuing", None, None)
        assert not isinstance(rollout, AttemptedRollout)
        assert not isinstance(await reread(store, rollout), AttemptedRollout)
        assert await store.get_latest_attempt(rollout.rollout_id) is None

    async def test_a_rollout_without_metadata_or_config_gets_empty_metadata_and_the_default_config(
        self, store: Store
    ) -> None:
        for rollout in (await store.enqueue_rollout(1), await store.start_rollout(1)):
            assert rollout.metadata == {}
            assert rollout.config == RolloutConfig()
            assert rollout.resources_id is None

    async def test_generated_ids_have_the_documented_form(self, store: Store) -> None:
        started_one = await store.start_rollout(1)
        enqueued = await store.enqueue_rollout(1)
        resources = await store.add_resources({})
        assert re.fullmatch(r"ro-[0-9a-f]{12}", started_one.rollout_id)
        assert re.fullmatch(r"ro-[0-9a-f]{12}", enqueued.rollout_id)
        assert re.fullmatch(r"at-[0-9a-f]{8}", started_one.attempt.attempt_id)
        assert re.fullmatch(r"rs-[0-9a-f]{12}", resources.resources_id)

    async def test_rollout_preserves_the_fields_of_its_creation(self, store: Store) -> None:
        config = RolloutConfig(timeout_seconds=5, unresponsive_seconds=2.5, max_attempts=3, retry_condition=["failed"])
        fields: dict[str, Any] = {"mode": "val", "resources_id": "rs-unknown", "config": config, "metadata": {"m": [1]}}
        for rollout in (await store.enqueue_rollout({"a": 1}, **fields), await store.start_rollout({"a": 1}, **fields)):
            again = await reread(store, rollout)
            assert again.input == {"a": 1}
            assert (again.mode, again.resources_id) == ("val", "rs-unknown")
            assert again.config == config
            assert again.metadata == {"m": [1]}
            assert again.start_time == rollout.start_time

    async def test_an_enqueue_request_carries_the_same_fields_as_a_single_enqueue(self, store: Store) -> None:
        config = RolloutConfig(max_attempts=2)
        request = EnqueueRolloutRequest(input="x", mode="test", resources_id="rs-1", config=config, metadata={"m": 1})
        (rollout,) = await store.enqueue_many_rollouts([request])
        assert (rollout.input, rollout.mode, rollout.resources_id) == ("x", "test", "rs-1")
        assert (rollout.config, rollout.metadata, rollout.status) == (config, {"m": 1}, "queuing")

    async def test_an_input_of_any_json_type_is_returned_unchanged(self, store: Store) -> None:
        for value in JSON_VALUES:
            rollout = await store.enqueue_rollout(value)
            read = await reread(store, rollout)
            assert json.dumps(rollout.input) == json.dumps(read.input) == json.dumps(value)

    async def test_changing_an_input_after_the_call_changes_nothing_in_the_store(self, store: Store) -> None:
        value = {"list": [1]}
        metadata = {"list": [1]}
        rollout = await store.enqueue_rollout(value, metadata=metadata)
        value["list"].append(2)
        metadata["list"].append(2)
        read = await reread(store, rollout)
        assert read.input == {"list": [1]}
        assert read.metadata == {"list": [1]}

    async def test_enqueue_many_keeps_the_order_and_assigns_distinct_ids_and_start_times(self, store: Store) -> None:
        rollouts = await store.enqueue_many_rollouts(requests(*range(5)))
        assert [rollout.input for rollout in rollouts] == [0, 1, 2, 3, 4]
        assert len({rollout.rollout_id for rollout in rollouts}) == 5
        starts = [rollout.start_time for rollout in rollouts]
        assert starts == sorted(set(starts))
        claimed = await store.dequeue_many_rollouts(limit=10)
        assert [rollout.rollout_id for rollout in claimed] == [rollout.rollout_id for rollout in rollouts]

    async def test_enqueue_many_without_requests_returns_an_empty_list(self, store: Store) -> None:
        assert list(await store.enqueue_many_rollouts([])) == []
        assert await store.dequeue_rollout() is None

    async def test_rollouts_are_claimed_in_the_order_in_which_they_were_enqueued(self, store: Store) -> None:
        entered = [await store.enqueue_rollout(number) for number in range(3)]
        left = [await store.dequeue_rollout() for _ in range(3)]
        assert [rollout.rollout_id for rollout in left if rollout] == [rollout.rollout_id for rollout in entered]

    async def test_calls_in_sequence_have_strictly_rising_times_even_when_the_clock_stands_still(
        self, store: Store
    ) -> None:
        times = [(await store.enqueue_rollout(number)).start_time for number in range(5)]
        assert times == sorted(set(times))

    async def test_times_are_seconds_of_the_stores_clock(self, store: Store, clock: ManualClock) -> None:
        clock.advance(1000)
        rollout = await store.start_rollout(1)
        assert rollout.start_time == pytest.approx(clock.seconds, abs=0.001)
        assert rollout.attempt.start_time == rollout.start_time

    async def test_claiming_makes_the_rollout_preparing_with_a_first_attempt(self, store: Store) -> None:
        rollout = await store.enqueue_rollout({"task": 1}, mode="train", metadata={"m": 1})
        claimed = await store.dequeue_rollout(worker_id="w1")
        assert claimed is not None
        assert (claimed.rollout_id, claimed.status, claimed.end_time) == (rollout.rollout_id, "preparing", None)
        assert (claimed.input, claimed.mode, claimed.metadata) == ({"task": 1}, "train", {"m": 1})
        assert claimed.start_time == rollout.start_time
        attempt = claimed.attempt
        assert (attempt.rollout_id, attempt.sequence_id, attempt.status) == (rollout.rollout_id, 1, "preparing")
        assert (attempt.worker_id, attempt.end_time, attempt.last_heartbeat_time) == ("w1", None, None)
        assert attempt.metadata is None
        assert attempt.start_time > rollout.start_time
        assert await reread(store, rollout) == claimed

    async def test_a_claim_without_a_worker_id_stores_no_worker(self, store: Store) -> None:
        await store.enqueue_rollout(1)
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.attempt.worker_id is None
        assert (await store.query_workers()).total == 0

    async def test_a_claim_from_an_empty_queue_returns_nothing(self, store: Store) -> None:
        assert await store.dequeue_rollout() is None
        assert list(await store.dequeue_many_rollouts(limit=3)) == []

    async def test_dequeue_many_claims_in_order_and_returns_fewer_if_the_queue_is_short(self, store: Store) -> None:
        await store.enqueue_many_rollouts(requests(*range(5)))
        first = await store.dequeue_many_rollouts(limit=3)
        rest = await store.dequeue_many_rollouts(limit=3)
        assert [rollout.input for rollout in first] == [0, 1, 2]
        assert [rollout.input for rollout in rest] == [3, 4]
        assert {rollout.attempt.status for rollout in [*first, *rest]} == {"preparing"}

    async def test_dequeue_many_claims_one_rollout_by_default(self, store: Store) -> None:
        await store.enqueue_many_rollouts(requests(1, 2))
        assert [rollout.input for rollout in await store.dequeue_many_rollouts()] == [1]

    async def test_thousands_of_rollouts_are_enqueued_and_claimed_in_one_call(self, store: Store) -> None:
        entered = await store.enqueue_many_rollouts(requests(*range(2000)))
        left = await store.dequeue_many_rollouts(limit=2000, worker_id="w1")
        assert [rollout.input for rollout in left] == list(range(2000))
        assert [rollout.rollout_id for rollout in left] == [rollout.rollout_id for rollout in entered]
        # An attempt id is unique only within its rollout. Two of the 2,000 attempts may have the same id.
        for rollout in left[::100]:
            assert await store.get_latest_attempt(rollout.rollout_id) == rollout.attempt

    async def test_a_limit_far_above_the_length_of_the_queue_is_accepted(self, store: Store) -> None:
        await store.enqueue_many_rollouts(requests(1, 2))
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=2**62)] == [1, 2]

    async def test_a_limit_of_zero_or_less_claims_nothing(self, store: Store) -> None:
        for limit in [0, -1, -5]:
            rollout = await store.enqueue_rollout(1)
            assert list(await store.dequeue_many_rollouts(limit=limit)) == []
            assert await statuses(store, rollout) == ("queuing",)

    async def test_a_claim_skips_a_rollout_that_is_no_longer_queued(self, store: Store) -> None:
        cases: list[Any] = ["preparing", "running", "succeeded", "failed", "cancelled"]
        for status in cases:
            gone = await store.enqueue_rollout("gone")
            await store.enqueue_rollout("next")
            await store.update_rollout(gone.rollout_id, status=status)
            claimed = await store.dequeue_rollout()
            assert claimed is not None
            assert claimed.input == "next"
            assert await store.dequeue_rollout() is None
            assert await statuses(store, gone) == (status,)

    async def test_dequeue_many_skips_rollouts_that_are_no_longer_queued(self, store: Store) -> None:
        rollouts = await store.enqueue_many_rollouts(requests(*range(6)))
        for number in (0, 1, 3):
            await store.update_rollout(rollouts[number].rollout_id, status="cancelled")
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=2)] == [2, 4]
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=2)] == [5]

    async def test_setting_a_queuing_status_puts_the_rollout_at_the_end_of_the_queue(self, store: Store) -> None:
        cases: list[Any] = ["queuing", "requeuing"]
        for status in cases:
            outside = await store.start_rollout("outside")
            await store.enqueue_rollout("inside")
            await store.update_rollout(outside.rollout_id, status=status)
            assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=5)] == ["inside", "outside"]

    async def test_a_queued_rollout_is_not_queued_again_and_keeps_its_place(self, store: Store) -> None:
        cases: list[Any] = ["queuing", "requeuing"]
        for status in cases:
            first = await store.enqueue_rollout("first")
            await store.enqueue_rollout("second")
            await store.update_rollout(first.rollout_id, status=status)
            assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=5)] == ["first", "second"]

    async def test_a_rollout_that_left_the_queue_loses_its_place(self, store: Store) -> None:
        first = await store.enqueue_rollout("first")
        await store.enqueue_rollout("second")
        await store.update_rollout(first.rollout_id, status="running")
        await store.update_rollout(first.rollout_id, status="requeuing")
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=5)] == ["second", "first"]

    async def test_an_update_without_a_status_keeps_the_place_in_the_queue(self, store: Store) -> None:
        first = await store.enqueue_rollout("first")
        await store.enqueue_rollout("second")
        await store.update_rollout(first.rollout_id, metadata={"m": 1}, mode="val")
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=5)] == ["first", "second"]

    async def test_a_claim_keeps_an_earlier_end_time(self, store: Store) -> None:
        rollout = await store.start_rollout(1)
        ended = await store.update_rollout(rollout.rollout_id, status="succeeded")
        await store.update_rollout(rollout.rollout_id, status="queuing")
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert ended.end_time is not None
        assert claimed.end_time == ended.end_time

    async def test_a_claim_continues_the_numbers_of_the_attempts(self, store: Store) -> None:
        rollout = await store.start_rollout(1)
        await store.start_attempt(rollout.rollout_id)
        await store.update_rollout(rollout.rollout_id, status="queuing")
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.attempt.sequence_id == 3

    async def test_a_started_rollout_is_preparing_with_its_first_attempt_and_never_queued(self, store: Store) -> None:
        rollout = await store.start_rollout({"task": 1}, worker_id="w1")
        assert (rollout.status, rollout.end_time) == ("preparing", None)
        attempt = rollout.attempt
        assert (attempt.rollout_id, attempt.sequence_id, attempt.status) == (rollout.rollout_id, 1, "preparing")
        assert (attempt.worker_id, attempt.end_time, attempt.last_heartbeat_time) == ("w1", None, None)
        assert attempt.metadata is None
        assert attempt.start_time == rollout.start_time
        assert await store.dequeue_rollout() is None
        assert await reread(store, rollout) == rollout

    async def test_a_started_rollout_does_not_disturb_the_queue(self, store: Store) -> None:
        await store.enqueue_rollout("queued")
        await started(store)
        assert [rollout.input for rollout in await store.dequeue_many_rollouts(limit=5)] == ["queued"]
