"""Contract of plan keys: if a rollout is enqueued twice with the same key, the store contains it only once."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Conflict, Invalid
from store.interface.store import Store
from store.models import EnqueueRolloutRequest
from store.testing.contract.rollout_helpers import reread, statuses

__all__ = ["PlanKeyContract"]

KEY = "rollbook.key"


def keyed(key: str, value: Any) -> EnqueueRolloutRequest:
    return EnqueueRolloutRequest(input=value, metadata={KEY: key})


class PlanKeyContract:
    """Tests of the metadata keys `rollbook.key`, `rollbook.group` and `rollbook.step`."""

    pytestmark = pytest.mark.asyncio

    async def test_enqueue_with_a_known_key_and_an_equal_input_returns_the_existing_rollout(self, store: Store) -> None:
        first = await store.enqueue_rollout({"a": 1, "b": [2]}, metadata={KEY: "k"})
        again = await store.enqueue_rollout({"b": [2], "a": 1}, metadata={KEY: "k"})
        assert again.rollout_id == first.rollout_id
        assert len(await store.dequeue_many_rollouts(limit=5)) == 1
        assert (await store.query_rollouts()).total == 1

    async def test_enqueue_with_a_known_key_returns_a_finished_rollout_too(self, store: Store) -> None:
        first = await store.enqueue_rollout(1, metadata={KEY: "k"})
        await store.update_rollout(first.rollout_id, status="succeeded")
        again = await store.enqueue_rollout(1, metadata={KEY: "k"})
        assert (again.rollout_id, again.status) == (first.rollout_id, "succeeded")
        assert await store.dequeue_rollout() is None

    async def test_a_known_key_with_another_input_is_a_conflict_that_names_the_key(self, store: Store) -> None:
        first = await store.enqueue_rollout(1, metadata={KEY: "epoch-3/task-9"})
        with pytest.raises(Conflict, match="epoch-3/task-9"):
            await store.enqueue_rollout(2, metadata={KEY: "epoch-3/task-9"})
        assert (await reread(store, first)).input == 1
        assert (await store.query_rollouts()).total == 1

    async def test_the_input_is_compared_with_the_input_at_creation(self, store: Store) -> None:
        first = await store.enqueue_rollout(1, metadata={KEY: "k"})
        await store.update_rollout(first.rollout_id, input=2, metadata={})
        assert (await store.enqueue_rollout(1, metadata={KEY: "k"})).rollout_id == first.rollout_id
        with pytest.raises(Conflict):
            await store.enqueue_rollout(2, metadata={KEY: "k"})

    async def test_a_key_that_occurs_twice_in_one_call_creates_one_rollout(self, store: Store) -> None:
        first, other, again = await store.enqueue_many_rollouts([keyed("k", 1), keyed("other", 1), keyed("k", 1)])
        assert first.rollout_id == again.rollout_id != other.rollout_id
        assert (await store.query_rollouts()).total == 2

    async def test_one_conflict_refuses_the_whole_call(self, store: Store) -> None:
        await store.enqueue_rollout(1, metadata={KEY: "k"})
        with pytest.raises(Conflict):
            await store.enqueue_many_rollouts([keyed("new", 1), keyed("k", 2), keyed("newer", 1)])
        assert (await store.query_rollouts()).total == 1

    async def test_starting_with_a_key_that_exists_is_a_conflict_that_names_the_rollout(self, store: Store) -> None:
        first = await store.enqueue_rollout(1, metadata={KEY: "k"})
        with pytest.raises(Conflict, match=first.rollout_id):
            await store.start_rollout(1, metadata={KEY: "k"})
        assert await statuses(store, first) == ("queuing",)

    async def test_start_rollout_reserves_a_new_key(self, store: Store) -> None:
        first = await store.start_rollout(1, metadata={KEY: "k"})
        assert (await store.enqueue_rollout(1, metadata={KEY: "k"})).rollout_id == first.rollout_id
        assert await store.dequeue_rollout() is None

    async def test_rollouts_without_a_key_are_never_merged(self, store: Store) -> None:
        first = await store.enqueue_rollout(1)
        assert (await store.enqueue_rollout(1)).rollout_id != first.rollout_id

    async def test_the_reserved_keys_stay_in_the_metadata(self, store: Store) -> None:
        metadata = {KEY: "k", "rollbook.group": "g", "rollbook.step": 4, "mine": 1}
        rollout = await store.enqueue_rollout(1, metadata=metadata)
        assert (await reread(store, rollout)).metadata == metadata

    async def test_a_reserved_key_of_the_wrong_kind_or_length_is_refused_by_name(self, store: Store) -> None:
        cases: list[tuple[str, Any]] = [
            (KEY, 7),
            (KEY, ["k"]),
            ("rollbook.group", 7),
            ("rollbook.group", {}),
            ("rollbook.step", "four"),
            (KEY, "k" * 513),
        ]
        for key, value in cases:
            for create in (store.enqueue_rollout, store.start_rollout):
                with pytest.raises(Invalid, match=key):
                    await create(1, metadata={key: value})
            assert (await store.query_rollouts()).total == 0
