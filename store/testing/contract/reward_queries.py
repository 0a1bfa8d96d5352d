"""Contract of rewards of rollouts and attempts, of queries by rewards, and of spans of several rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import Attempt, AttemptedRollout
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_prompt, make_span

__all__ = ["RewardQueriesContract"]


def rewarding(attempt: Attempt, number: int, /, **values: float) -> Any:
    """Return a span with a reward that has the given values; the first is the primary value."""
    attributes: dict[str, Any] = {}
    for index, (name, value) in enumerate(values.items()):
        attributes |= {f"agentlightning.reward.{index}.name": name, f"agentlightning.reward.{index}.value": value}
    return make_span(attempt, number, name="agentlightning.annotation", attributes=attributes)


async def rewarded(store: Store, reward: float | None = None, **arguments: Any) -> AttemptedRollout:
    """Start a rollout with the given arguments of `start_rollout` and a reward."""
    rollout = await store.start_rollout(reward, **arguments)
    if reward is not None:
        await store.add_span(rewarding(rollout.attempt, 1, quality=reward))
    return rollout


def ids(page: Any) -> list[str]:
    return [rollout.rollout_id for rollout in page]


class RewardQueriesContract:
    """Tests of rewards of rollouts and of queries that Agent-lightning does not have."""

    pytestmark = pytest.mark.asyncio

    async def test_every_read_returns_the_reward_of_the_latest_attempt(self, store: Store) -> None:
        rollout = await started(store)
        await store.add_span(rewarding(rollout.attempt, 1, accuracy=0.1 + 0.2, length=7))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        plain = await store.enqueue_rollout("no reward")
        expected = 0.1 + 0.2, {"accuracy": 0.1 + 0.2, "length": 7.0}
        (ended,) = await store.wait_for_rollouts([rollout.rollout_id], timeout=5)
        (attempt,) = await store.query_attempts(rollout.rollout_id)
        results = [
            (await store.query_rollouts())[0],
            (await store.query_rollouts(limit=1, sort_by="reward"))[0],
            await store.get_rollout_by_id(rollout.rollout_id),
            ended,
            attempt,
            await store.get_latest_attempt(rollout.rollout_id),
        ]
        for result in results:
            assert result is not None
            assert (result.reward, result.rewards) == expected
            if isinstance(result, AttemptedRollout):
                assert result.attempt == attempt
        reread = await store.get_rollout_by_id(plain.rollout_id)
        assert reread is not None
        assert (reread.reward, reread.rewards) == (None, {})

    async def test_the_reward_with_the_greatest_span_number_counts_in_any_order_of_arrival(self, store: Store) -> None:
        rollout = await started(store)
        spans = [
            rewarding(rollout.attempt, 12, quality=0.5),
            rewarding(rollout.attempt, 3, quality=1.0, style=0.25),
            make_span(rollout.attempt, 20),
            rewarding(rollout.attempt, 9, tests=2.0, quality=0.75),
        ]
        for span in spans:
            await store.add_span(span)
        current = await store.get_rollout_by_id(rollout.rollout_id)
        assert current is not None
        assert current.reward == 0.5
        assert current.rewards == {"quality": 0.5, "style": 0.25, "tests": 2.0}
        assert ids(await store.query_rollouts(reward_min=0.5, reward_max=0.5)) == [rollout.rollout_id]
        assert ids(await store.query_rollouts(reward_min=0.6)) == []

    async def test_equal_numbers_are_ordered_by_time(self, store: Store) -> None:
        rollout = await started(store)
        for start, value in ((5.0, 5), (None, 9), (7.0, 7)):
            span = rewarding(rollout.attempt, 1, quality=value)
            await store.add_span(span.model_copy(update={"start_time": start}))
        current = await store.get_rollout_by_id(rollout.rollout_id)
        assert current is not None
        assert current.reward == 9
        assert ids(await store.query_rollouts(reward_min=8)) == [rollout.rollout_id]

    async def test_a_reward_of_an_earlier_attempt_does_not_count(self, store: Store) -> None:
        rollout = await rewarded(store, 0.25)
        second = await store.start_attempt(rollout.rollout_id)
        await store.add_span(rewarding(rollout.attempt, 3, quality=0.75))
        current = await store.get_rollout_by_id(rollout.rollout_id)
        assert current is not None
        assert (current.reward, current.rewards) == (None, {})
        assert [attempt.reward for attempt in await store.query_attempts(rollout.rollout_id)] == [0.75, None]
        assert ids(await store.query_rollouts(reward_min=-10)) == []
        await store.add_span(rewarding(second.attempt, 2, quality=-1))
        (current,) = await store.query_rollouts(reward_max=-1)
        assert current.reward == -1

    async def test_past_rollouts_have_the_rewards_of_that_moment(self, store: Store) -> None:
        rollout = await rewarded(store, 0.25)
        other = await rewarded(store, 0.5)
        before = len(await store.log.history(rollout.rollout_id))
        (position,) = {event.position for event in (await store.log.history(other.rollout_id))[-1:]}
        await store.start_attempt(rollout.rollout_id)
        then = await store.get_rollout_by_id(rollout.rollout_id, at=before)
        assert then is not None
        assert (then.reward, then.rewards) == (0.25, {"quality": 0.25})
        assert [item.reward for item in await store.query_rollouts(as_at=position)] == [0.25, 0.5]
        assert [item.reward for item in await store.query_rollouts()] == [None, 0.5]
        assert ids(await store.query_rollouts(reward_max=0.3, as_at=position)) == [rollout.rollout_id]
        falling = await store.query_rollouts(sort_by="reward", sort_order="desc", as_at=position)
        assert ids(falling) == [other.rollout_id, rollout.rollout_id]

    async def test_past_spans_of_several_rollouts_are_those_of_that_moment(self, store: Store) -> None:
        first, second = await rewarded(store, 0.25), await rewarded(store, 0.5)
        rollout_ids = [first.rollout_id, second.rollout_id]
        position = (await store.log.history(second.rollout_id))[-1].position
        before = list(await store.query_spans(rollout_ids, "latest"))
        retried = await store.start_attempt(first.rollout_id)
        await store.add_span(rewarding(retried.attempt, 2, quality=1))
        assert list(await store.query_spans(rollout_ids, "latest", as_at=position)) == before
        assert list(await store.query_spans(rollout_ids, as_at=position)) == before
        assert len(await store.query_spans(rollout_ids)) == 3
        with pytest.raises(Invalid, match="as_at"):
            await store.query_spans(rollout_ids, at=1)

    async def filled(self, store: Store) -> list[AttemptedRollout]:
        """Create rollouts that differ in every field that a query can use."""
        await store.update_resources("prompts", make_prompt("first"))
        rollouts = [
            await rewarded(store, 0.5, mode="train", metadata={"rollbook.group": "b", "rollbook.step": 2}),
            await rewarded(
                store, -2.0, mode="val", metadata={"rollbook.group": "a", "rollbook.step": 10, "rollbook.key": "k"}
            ),
        ]
        await store.update_resources("prompts", make_prompt("second"))
        rollouts.append(await rewarded(store, 1.5, mode="train", resources_id="prompts"))
        rollouts.append(await rewarded(store, mode="test", resources_id="none"))
        await store.annotations.annotate(rollouts[0].rollout_id, add_labels=["good", "zebra"])
        await store.annotations.annotate(rollouts[1].rollout_id, add_labels=["bad", "good"])
        await store.annotations.annotate(rollouts[2].rollout_id, add_labels=["gone"])
        await store.annotations.annotate(rollouts[2].rollout_id, remove_labels=["gone"])
        return rollouts

    async def test_rollouts_are_filtered_by_each_field(self, store: Store) -> None:
        rollouts = await self.filled(store)
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({"mode_in": ["train"]}, [0, 2]),
            ({"mode_in": ["val", "test"]}, [1, 3]),
            ({"group_in": ["a"]}, [1]),
            ({"group_in": ["b", "none"]}, [0]),
            ({"step_in": [10, 3]}, [1]),
            ({"step_in": []}, []),
            ({"plan_key_in": ["k", "none"]}, [1]),
            ({"label_in": ["good"]}, [0, 1]),
            ({"label_in": ["bad", "zebra"]}, [0, 1]),
            ({"label_in": ["gone"]}, []),
            ({"resources_id_in": ["prompts"]}, [0, 1, 2]),
            ({"resources_version_in": [2]}, [2]),
            ({"resources_id_in": ["prompts"], "resources_version_in": [1]}, [0, 1]),
            ({"reward_min": 0.5}, [0, 2]),
            ({"reward_min": -2, "reward_max": 0.5}, [0, 1]),
            ({"reward_max": 0.4, "label_in": ["zebra"]}, []),
            ({"reward_max": 0.4, "label_in": ["zebra"], "filter_logic": "or"}, [0, 1]),
            ({"status_in": ["preparing"], "mode_in": ["test"]}, [3]),
        ]
        last = (await store.log.history(rollouts[2].rollout_id))[-1].position
        # These changes come after `last`. For a query at `last`, the store computes the changed rows from the log.
        for rollout in rollouts:
            await store.add_span(rewarding(rollout.attempt, 99, quality=50))
            await store.annotations.annotate(rollout.rollout_id, add_labels=["gone"], remove_labels=["good"])
        for conditions, expected in cases:
            matches = await store.query_rollouts(**conditions, as_at=last)
            assert ids(matches) == [rollouts[index].rollout_id for index in expected], conditions
            assert matches.total == len(expected)

    async def test_present_rollouts_are_filtered_as_past_ones(self, store: Store) -> None:
        rollouts = await self.filled(store)
        last = (await store.log.history(rollouts[2].rollout_id))[-1].position
        cases: list[dict[str, Any]] = [
            {"mode_in": ["train"]},
            {"group_in": ["a"]},
            {"step_in": [10, 2]},
            {"plan_key_in": ["k"]},
            {"label_in": ["good", "gone"]},
            {"resources_version_in": [2]},
            {"reward_min": 0.5},
            {"reward_max": 0.5, "limit": 1},
            {"reward_max": 0.4, "label_in": ["zebra"], "filter_logic": "or"},
        ]
        for conditions in cases:
            now = await store.query_rollouts(**conditions)
            assert ids(now)
            then = await store.query_rollouts(**conditions, as_at=last)
            assert (ids(now), now.total) == (ids(then), then.total)

    async def test_rollouts_are_sorted_by_each_field(self, store: Store) -> None:
        rollouts = await self.filled(store)
        last = (await store.log.history(rollouts[2].rollout_id))[-1].position
        cases = [
            ("reward", [1, 0, 2, 3], [2, 0, 1, 3]),
            ("step", [0, 1, 2, 3], [1, 0, 2, 3]),
            ("resources_version", [0, 1, 2, 3], [2, 0, 1, 3]),
            ("group", [2, 3, 1, 0], [0, 1, 2, 3]),
            ("label", [2, 3, 1, 0], [0, 1, 2, 3]),
        ]
        for field, rising, falling in cases:
            for order, expected in (("asc", rising), ("desc", falling)):
                pages: list[dict[str, int]] = [{}, {"limit": 3, "offset": 1}]
                for page in pages:
                    expected_ids = [rollouts[index].rollout_id for index in expected][page.get("offset", 0) :]
                    arguments: Any = {"sort_by": field, "sort_order": order, **page}
                    assert ids(await store.query_rollouts(**arguments)) == expected_ids, arguments
                    assert ids(await store.query_rollouts(**arguments, as_at=last)) == expected_ids, arguments

    async def test_values_of_a_wrong_kind_are_refused_by_name(self, store: Store) -> None:
        cases: list[tuple[str, list[Any]]] = [
            ("mode_in", [7, "train", [7]]),
            ("group_in", ["a", [1], ["\x00"]]),
            ("step_in", [1, ["1"], [True], [1.0], [2**63], [-(2**64)]]),
            ("label_in", ["a", [None]]),
            ("resources_version_in", ["1", [None]]),
            ("reward_min", ["1", True, [1], float("nan"), float("inf"), 10**400]),
            ("reward_max", ["1", False, float("-inf")]),
        ]
        for field, values in cases:
            for value in values:
                with pytest.raises(Invalid) as refused:
                    await store.query_rollouts(**{field: value})
                assert refused.value.field.startswith(field), (field, value)
