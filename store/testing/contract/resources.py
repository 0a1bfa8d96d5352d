"""Contract of resources: models and prompts that an algorithm publishes for its agents."""

from __future__ import annotations

import re
from types import MappingProxyType

import pytest

from store.interface.store import Store
from store.models import LLM, NamedResources, PromptTemplate, ProxyLLM
from store.testing.clock import ManualClock
from store.testing.contract.rollout_helpers import reread
from store.testing.samples import make_llm, make_prompt

__all__ = ["ResourcesContract"]


class ResourcesContract:
    """Tests of `add_resources` and `update_resources`, of the latest resources, and of the resources of rollouts."""

    pytestmark = pytest.mark.asyncio

    async def test_add_resources_creates_version_one_of_a_new_id_and_makes_it_the_latest(
        self, store: Store, clock: ManualClock
    ) -> None:
        added = await store.add_resources(make_llm())
        assert re.fullmatch(r"rs-[0-9a-f]{12}", added.resources_id)
        assert (added.version, added.resources) == (1, make_llm())
        assert added.create_time == added.update_time == pytest.approx(clock.seconds, abs=0.001)
        assert await store.get_latest_resources() == added
        assert await store.get_resources_by_id(added.resources_id) == added

    async def test_adding_equal_resources_twice_creates_two_ids(self, store: Store) -> None:
        first, second = await store.add_resources(make_llm()), await store.add_resources(make_llm())
        assert first.resources_id != second.resources_id
        assert first.update_time < second.update_time
        assert await store.get_latest_resources() == second

    async def test_every_kind_of_resource_is_returned_unchanged(self, store: Store) -> None:
        resources: NamedResources = {
            "llm": LLM(endpoint="e", model="m", api_key="k", sampling_parameters={"temperature": 1.0, "stop": ["a"]}),
            "proxy": ProxyLLM(endpoint="http://host/v1", model="m"),
            "prompt": PromptTemplate(template="{é}", engine="jinja"),
        }
        added = await store.add_resources(resources)
        read = await store.get_resources_by_id(added.resources_id)
        assert read is not None
        assert read.resources == resources
        assert {name: type(resource) for name, resource in read.resources.items()} == {
            "llm": LLM,
            "proxy": ProxyLLM,
            "prompt": PromptTemplate,
        }

    async def test_any_mapping_is_accepted_as_a_json_object(self, store: Store) -> None:
        added = await store.add_resources(MappingProxyType(make_llm()))
        updated = await store.update_resources(added.resources_id, MappingProxyType(make_prompt()))
        assert (added.resources, updated.resources) == (make_llm(), make_prompt())
        metadata = MappingProxyType({"owner": "team", "tags": ["a"]})
        rollout = await store.enqueue_rollout("task", metadata=metadata)
        started = await store.start_rollout("task", metadata=metadata)
        assert rollout.metadata == started.metadata == dict(metadata)
        changed = MappingProxyType({"owner": "other"})
        assert (await store.update_rollout(rollout.rollout_id, metadata=changed)).metadata == dict(changed)
        attempt = await store.update_attempt(started.rollout_id, "latest", metadata=changed)
        worker = await store.update_worker("worker", MappingProxyType({"load": 1}))
        assert (attempt.metadata, worker.heartbeat_stats) == (dict(changed), {"load": 1})

    async def test_empty_resources_are_stored_and_become_the_latest(self, store: Store) -> None:
        added = await store.add_resources({})
        assert added.resources == {}
        assert await store.get_latest_resources() == added

    async def test_a_store_without_resources_returns_none_and_an_empty_page(self, store: Store) -> None:
        assert await store.get_latest_resources() is None
        assert await store.get_resources_by_id("rs-none") is None
        page = await store.query_resources()
        assert (list(page), page.total) == ([], 0)

    async def test_an_update_replaces_the_whole_set_and_raises_the_version(
        self, store: Store, clock: ManualClock
    ) -> None:
        added = await store.add_resources(make_llm())
        clock.advance(3)
        updated = await store.update_resources(added.resources_id, make_prompt())
        assert (updated.resources_id, updated.version) == (added.resources_id, 2)
        assert updated.resources == make_prompt()
        assert updated.create_time == added.create_time
        assert updated.update_time == pytest.approx(clock.seconds, abs=0.001)
        assert await store.get_resources_by_id(added.resources_id) == updated
        assert (await store.query_resources()).total == 1

    async def test_an_update_of_an_unknown_id_creates_it(self, store: Store) -> None:
        created = await store.update_resources("my own/id é", make_llm())
        assert (created.resources_id, created.version) == ("my own/id é", 1)
        assert created.create_time == created.update_time
        assert await store.get_resources_by_id("my own/id é") == created
        assert await store.get_latest_resources() == created

    async def test_an_update_of_an_older_id_makes_it_the_latest(self, store: Store) -> None:
        older = await store.add_resources(make_llm("older"))
        await store.add_resources(make_llm("newer"))
        updated = await store.update_resources(older.resources_id, make_llm("again"))
        assert await store.get_latest_resources() == updated

    async def test_each_id_has_its_own_version_numbers(self, store: Store) -> None:
        first, second = await store.add_resources({}), await store.add_resources({})
        for _ in range(3):
            await store.update_resources(first.resources_id, make_llm())
        assert (await store.update_resources(first.resources_id, {})).version == 5
        assert (await store.update_resources(second.resources_id, {})).version == 2

    async def test_an_update_keeps_the_place_in_the_list(self, store: Store) -> None:
        ids = [(await store.add_resources({})).resources_id for _ in range(3)]
        await store.update_resources(ids[0], make_llm())
        assert [update.resources_id for update in await store.query_resources()] == ids

    async def test_a_rollout_captures_the_latest_resources_at_its_creation(self, store: Store) -> None:
        before = await store.enqueue_rollout(0)
        first = await store.add_resources(make_llm())
        enqueued, begun = await store.enqueue_rollout(1), await store.start_rollout(1)
        second = await store.add_resources(make_llm())
        later = await store.enqueue_rollout(2)
        assert before.resources_id is None
        assert enqueued.resources_id == begun.resources_id == first.resources_id
        assert later.resources_id == second.resources_id
        assert (await reread(store, enqueued)).resources_id == first.resources_id
        assert (await reread(store, before)).resources_id is None

    async def test_resources_named_by_a_rollout_need_not_exist(self, store: Store) -> None:
        await store.add_resources({})
        assert (await store.enqueue_rollout(1, resources_id="rs-none")).resources_id == "rs-none"
        assert (await store.start_rollout(1, resources_id="rs-none")).resources_id == "rs-none"

    async def test_a_claim_does_not_change_the_resources_captured(self, store: Store) -> None:
        first = await store.add_resources(make_llm())
        await store.enqueue_rollout(1)
        await store.add_resources(make_llm())
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.resources_id == first.resources_id
