"""A plan that is enqueued again: existing rollouts are returned, missing ones added, and none is duplicated."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from store.errors import Conflict, Invalid
from store.interface.store import Store
from store.models import LLM, NamedResources, PromptTemplate, ProxyLLM, RolloutConfig
from store.training.algorithms.plan import STEADY, Plan
from tests.training.stores import ON_EACH_STORE

ITEMS = [{"question": number} for number in range(7)]
RESOURCES: NamedResources = {"main_llm": LLM(endpoint="http://127.0.0.1:9", model="m")}


def ids(rollouts: list[object]) -> list[str]:
    """Return the ids of rollouts."""
    return [getattr(rollout, "rollout_id") for rollout in rollouts]  # noqa: B009 - of any model that has one


@ON_EACH_STORE
async def test_a_plan_enqueued_twice_is_enqueued_once(live: Store) -> None:
    first = await Plan("r").enqueue(live, ITEMS, replicas=2)
    again = await Plan("r").enqueue(live, ITEMS, replicas=2)
    assert ids([*first]) == ids([*again])
    assert (await live.query_rollouts()).total == 14


async def test_plan_adds_missing_rollouts_in_their_place(live: Store) -> None:
    half = await Plan("r").enqueue(live, ITEMS[:3])
    rollouts = await Plan("r").enqueue(live, ITEMS)
    assert ids([*rollouts])[:3] == ids([*half])
    assert [rollout.input for rollout in rollouts] == ITEMS


async def test_run_mode_epoch_item_and_replica_make_another_rollout(memory: Store) -> None:
    await Plan("r").enqueue(memory, ITEMS[:2], replicas=2)
    await Plan("r").enqueue(memory, ITEMS[:2], epoch=1)
    await Plan("r").enqueue(memory, ITEMS[:2], mode="val")
    await Plan("s").enqueue(memory, ITEMS[:2])
    assert (await memory.query_rollouts()).total == 4 + 2 + 2 + 2


async def test_replicas_of_an_item_are_one_group_and_lie_together(memory: Store) -> None:
    rollouts = await Plan("r").enqueue(memory, ITEMS[:2], replicas=3, epoch=4, step=9, metadata={"mine": 1})
    assert [rollout.metadata for rollout in rollouts] == [
        {
            "mine": 1,
            "rollbook.key": f"r/train/4/{index}/{replica}",
            "rollbook.group": f"r/train/4/{index}",
            "rollbook.step": 9,
        }
        for index in range(2)
        for replica in range(3)
    ]


async def test_the_step_is_the_epoch_unless_named(memory: Store) -> None:
    (rollout,) = await Plan("r").enqueue(memory, ITEMS[:1], epoch=3)
    assert rollout.metadata is not None
    assert rollout.metadata["rollbook.step"] == 3


def test_a_seed_shuffles_each_epoch_its_own_way_and_the_same_way_each_time() -> None:
    def order(seed: int | None, epoch: int = 0) -> list[int]:
        return [planned.index for planned in Plan("r", seed=seed).planned(range(50), epoch=epoch)]

    assert order(None) == list(range(50))
    assert order(1)[:8] == [2, 40, 25, 19, 31, 18, 48, 35]
    assert sorted(order(1)) == list(range(50))
    assert len({tuple(order(seed, epoch)) for seed in (None, 1, 2) for epoch in (1, 2)}) == 5


async def test_an_item_that_is_another_than_it_was_is_refused_by_its_key(memory: Store) -> None:
    await Plan("r").enqueue(memory, ITEMS)
    with pytest.raises(Conflict, match="r/train/0/6/0"):
        await Plan("r").enqueue(memory, [*ITEMS[:6], "another"])


async def test_rollouts_get_the_limits_of_the_plan(memory: Store) -> None:
    config = RolloutConfig(timeout_seconds=5)
    (steady,) = await Plan("r").enqueue(memory, ITEMS[:1])
    (other,) = await Plan("s", config=config).enqueue(memory, ITEMS[:1])
    assert (steady.config, other.config) == (STEADY, config)


async def test_finished_yields_rollouts_ended_before_the_restart_too(live: Store) -> None:
    for rollout in (await Plan("r").enqueue(live, ITEMS[:5]))[:2]:
        await live.update_rollout(rollout.rollout_id, status="succeeded")
    plan = Plan("r")
    rollouts = await plan.enqueue(live, ITEMS[:5])
    seen: Counter[int] = Counter()
    async for rollout in plan.finished(live, rollouts):
        seen[rollout.input["question"]] += 1
        if claimed := await live.dequeue_rollout():
            await live.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert seen == Counter(range(5))


async def test_a_plan_of_more_than_one_call_is_whole_and_in_order(memory: Store) -> None:
    rollouts = await Plan("r", seed=3).enqueue(memory, range(450))
    assert len(set(ids([*rollouts]))) == 450
    assert [rollout.input for rollout in rollouts] == [
        planned.index for planned in Plan("r", seed=3).planned(range(450))
    ]
    assert await Plan("r").enqueue(memory, []) == []


async def test_resources_of_a_step_are_published_once(live: Store) -> None:
    first = await Plan("r").publish(live, RESOURCES, step=1)
    again = await Plan("r").publish(live, {"main_llm": LLM(endpoint="http://x", model="other")}, step=1)
    assert (first.resources_id, first.version) == ("r/1", 1)
    assert again == first
    assert (await Plan("r").publish(live, RESOURCES, step=2)).resources_id == "r/2"


async def test_new_address_of_a_model_is_published_as_the_next_version(live: Store) -> None:
    prompt = PromptTemplate(template="first", engine="f-string")
    direct, proxied = LLM(endpoint="http://a:1", model="m"), ProxyLLM(endpoint="http://a:2", model="m@1")
    await Plan("r").publish(live, {"direct": direct, "proxied": proxied, "prompt": prompt}, step=0)
    moved: NamedResources = {
        "direct": LLM(endpoint="http://b:1", model="m", sampling_parameters={"temperature": 0.5}),
        "proxied": ProxyLLM(endpoint="http://b:2", model="m@2", api_key="sk-2"),
        "prompt": PromptTemplate(template="second", engine="f-string"),
    }
    for _ in range(2):
        again = await Plan("r").publish(live, moved, step=0)
        assert again.version == 2
        assert again.resources == {
            "direct": LLM(endpoint="http://b:1", model="m"),
            "proxied": ProxyLLM(endpoint="http://b:2", model="m@1", api_key="sk-2"),
            "prompt": prompt,
        }


def test_a_name_that_leaves_no_room_for_the_rest_of_a_key_is_refused() -> None:
    for name in ("", "x" * 401):
        with pytest.raises(Invalid, match="run"):
            Plan(name)


@pytest.mark.parametrize(
    "reason, status",
    [
        ("interrupted", "requeuing"),
        ("spool", "requeuing"),
        ("drained", "requeuing"),
        ("infrastructure", "requeuing"),
        ("error", "failed"),
        ("resources", "failed"),
    ],
)
async def test_plan_requeues_interrupted_rollouts_but_not_failed_ones(live: Store, reason: str, status: str) -> None:
    await Plan("r").enqueue(live, ITEMS[:2])
    claimed = await live.dequeue_rollout("w")
    assert claimed is not None
    await live.update_attempt(
        claimed.rollout_id, claimed.attempt.attempt_id, status="failed", metadata={"reason": reason}
    )
    first, second = await Plan("r").enqueue(live, ITEMS[:2])
    assert (first.rollout_id, first.status, second.status) == (claimed.rollout_id, status, "queuing")
    again = await live.dequeue_many_rollouts(2, "w")
    assert [rollout.attempt.sequence_id for rollout in again] == ([1, 2] if status == "requeuing" else [1])


async def test_rollout_of_a_lost_machine_is_enqueued_again_by_the_next_training(live: Store) -> None:
    config = RolloutConfig(unresponsive_seconds=30)
    await Plan("r", config=config).enqueue(live, [1])
    claimed = await live.dequeue_rollout("w")
    assert claimed is not None
    await live.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    (again,) = await Plan("r", config=config).enqueue(live, [1])
    assert again.status == "requeuing"


async def test_finished_enqueues_again_after_failures_of_infrastructure_but_not_endlessly(memory: Store) -> None:
    plan = Plan("r")
    rollouts = await plan.enqueue(memory, ITEMS[:2])

    async def work() -> None:
        while True:
            claimed = await memory.dequeue_rollout("w", wait_seconds=5)
            if claimed is None:
                continue
            succeeds = claimed.input == ITEMS[1] and claimed.attempt.sequence_id == 2
            outcome: dict[str, Any] = {"status": "failed", "metadata": {"reason": "infrastructure"}}
            if succeeds:
                outcome = {"status": "succeeded"}
            await memory.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **outcome)

    working = asyncio.create_task(work())
    ended = {rollout.input["question"]: rollout async for rollout in plan.finished(memory, rollouts)}
    working.cancel()
    attempts = {number: len(await memory.query_attempts(rollout.rollout_id)) for number, rollout in ended.items()}
    assert {number: rollout.status for number, rollout in ended.items()} == {0: "failed", 1: "succeeded"}
    assert attempts == {0: 4, 1: 2}


async def test_finished_enqueues_a_silent_attempt_again_only_if_an_earlier_training_began_it(memory: Store) -> None:
    config = RolloutConfig(unresponsive_seconds=30)
    await Plan("r", config=config).enqueue(memory, [1])
    inherited = await memory.dequeue_rollout("w")
    plan = Plan("r", config=config)
    upcoming = asyncio.ensure_future(anext(plan.finished(memory, await plan.enqueue(memory, [1]))))
    for claimed in (inherited, None):
        attempted = claimed or await memory.dequeue_rollout("w", wait_seconds=5)
        assert attempted is not None
        assert not upcoming.done()
        await memory.update_attempt(attempted.rollout_id, attempted.attempt.attempt_id, status="unresponsive")
    assert (await upcoming).status == "failed"
