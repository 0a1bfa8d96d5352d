"""Past rollouts are enqueued again once, with everything that their agents were given."""

from __future__ import annotations

from typing import Any

import pytest

from store import open_store
from store.errors import Conflict, Invalid
from store.interface.store import Store
from store.models import PromptTemplate, RolloutConfig
from store.models.queries import RolloutQuery
from store.operations.redaction import Redaction, redact
from store.replaying import replay_as_queue
from store.semconv import GROUP_KEY, PLAN_KEY, REPLAY, STEP_KEY, plan_key_of

LIMITS = RolloutConfig(timeout_seconds=9.0, max_attempts=2, retry_condition=["failed"])


def prompt(text: str) -> dict[str, Any]:
    return {"prompt": PromptTemplate(template=text, engine="f-string")}


async def record(store: Store) -> None:
    """Record four rollouts that end; two of them begin with the first version of the prompt."""
    await store.update_resources("prompts", prompt("one"))
    for number in range(4):
        if number == 2:
            await store.update_resources("prompts", prompt("two"))
        metadata = {PLAN_KEY: f"run/train/0/{number}/0", GROUP_KEY: f"g{number // 2}", STEP_KEY: number, "seed": 7}
        mode = "val" if number == 3 else "train"
        await store.start_rollout({"n": number}, mode, None, LIMITS, metadata)
        (newest,) = await store.query_rollouts(step_in=[number])
        await store.update_attempt(newest.rollout_id, "latest", "succeeded")


async def replays(store: Store, name: str) -> list[Any]:
    metadata: list[Any] = [(rollout, (rollout.metadata or {}).get(REPLAY)) for rollout in await store.query_rollouts()]
    return [rollout for rollout, replay in metadata if replay is not None and replay["name"] == name]


async def test_replay_has_the_task_and_the_version_of_the_resources_of_its_source(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await record(store)
        sources = await store.query_rollouts()
        before = await store.get_latest_resources()
        assert before is not None
        plan = await replay_as_queue(store, "again", dry_run=True)
        assert (plan.selected, plan.enqueued, plan.by_mode) == (4, 4, {"train": 3, "val": 1})
        assert (plan.published, plan.examples[3].input) == (["replay/again/prompts@1"], {"n": 3})
        assert await replays(store, "again") == []
        report = await replay_as_queue(store, "again")
        assert (report.selected, report.enqueued, report.enqueued_before) == (4, 4, 0)
        copies = await replays(store, "again")
        assert [copy.rollout_id for copy in copies] == [pair.replay_id for pair in report.examples]
        store_id = (await store.log.position()).store_id
        for number, (source, copy) in enumerate(zip(sources, copies, strict=True)):
            assert (copy.input, copy.mode, copy.config) == (source.input, source.mode, LIMITS)
            assert copy.status == "queuing"
            assert copy.metadata == {
                **(source.metadata or {}),
                PLAN_KEY: f"again/{source.rollout_id}",
                GROUP_KEY: f"again/g{number // 2}",
                REPLAY: {
                    "name": "again",
                    "store_id": store_id,
                    "rollout_id": source.rollout_id,
                    "key": f"run/train/0/{number}/0",
                    "resources_id": "prompts",
                    "resources_version": 1 + number // 2,
                },
            }
            assert plan_key_of(copy.metadata) == plan_key_of(source.metadata)
            claimed = await store.dequeue_rollout("w")
            assert claimed is not None
            resources = await store.get_resources_by_id(claimed.resources_id or "")
            assert resources is not None
            assert resources.resources == prompt("one" if number < 2 else "two")
        # Rollouts that others enqueue meanwhile are given what they would be given without the replay.
        other = await store.enqueue_rollout("other")
        assert other.resources_id == before.resources_id


async def test_repeated_replay_enqueues_only_new_matches_and_another_name_all(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await record(store)
        query = RolloutQuery(mode_in=["train"])
        await replay_as_queue(store, "again", query=query)
        await store.start_rollout({"n": 9}, "train")
        repeated = await replay_as_queue(store, "again", query=query)
        assert (repeated.selected, repeated.enqueued, repeated.enqueued_before) == (4, 1, 3)
        other = await replay_as_queue(store, "other", query=RolloutQuery(mode_in=["val"]))
        assert (other.selected, other.enqueued) == (1, 1)
        assert len(await replays(store, "again")) == 4


async def test_replay_in_another_store_brings_its_resources(durable_url: str) -> None:
    async with await open_store(durable_url) as source, await open_store("memory://") as target:
        await record(source)
        position = await source.log.position()
        await replay_as_queue(source, "again", target=target)
        report = await replay_as_queue(source, "again", target=target)
        assert (report.enqueued, report.enqueued_before) == (0, 4)
        assert report.published == ["replay/again/prompts@1", "replay/again/prompts@2"]
        assert [rollout.resources_id for rollout in await target.query_rollouts()] == [
            f"replay/again/prompts@{1 + number // 2}" for number in range(4)
        ]
        assert await source.log.position() == position
        async with await open_store("memory://") as another:
            await another.update_resources("prompts", prompt("other"))
            await another.start_rollout({"n": 0})
            with pytest.raises(Conflict, match="choose another name"):
                await replay_as_queue(another, "again", target=target)


async def test_rollouts_whose_input_was_removed_are_counted_and_left_out(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        await record(store)
        first = (await store.query_rollouts(limit=1))[0]
    await redact(durable_url, first.rollout_id, Redaction(reason="it is private", input=True))
    async with await open_store(durable_url) as store:
        report = await replay_as_queue(store, "again")
        assert (report.selected, report.enqueued, report.payload_removed) == (4, 3, 1)


async def test_name_of_a_replay_is_bounded() -> None:
    async with await open_store("memory://") as store:
        for name in ("", "n" * 101):
            with pytest.raises(Invalid, match="1 to 100"):
                await replay_as_queue(store, name)
        # Long ids are replaced by their hashes.
        await store.enqueue_rollout(1, metadata={GROUP_KEY: "g" * 500})
        await replay_as_queue(store, "n" * 100)
        (copy,) = await replays(store, "n" * 100)
        assert len(copy.metadata[GROUP_KEY]) == 165
