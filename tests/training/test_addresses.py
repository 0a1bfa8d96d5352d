"""Addresses of proxies in resources: a new proxy replaces only a proxy that does not respond."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store import open_store
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy
from store.models import NamedResources, PromptTemplate, ProxyLLM, RolloutStatus
from store.training.algorithms.model_addresses import meaning, move_to_proxy
from store.training.algorithms.plan import Plan
from tests.llm_proxy.model_server import model_server
from tests.postgres import free_port

BACKENDS = [Backend("main", "http://127.0.0.1:9", models=["tiny"])]
PROMPT = PromptTemplate(template="x", engine="f-string")


def behind(endpoint: str, model: str = "tiny") -> NamedResources:
    """Return resources with a model behind a proxy."""
    return {"main_llm": ProxyLLM(endpoint=endpoint, model=model), "prompt": PROMPT}


def dead() -> str:
    """Return an address at which no program listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
async def proxy(memory: Store) -> AsyncIterator[LLMProxy]:
    """The proxy of the resumed training."""
    async with LLMProxy(backends=BACKENDS) as proxy:
        yield proxy


async def test_unfinished_rollouts_get_the_address_of_the_new_proxy(live: Store, proxy: LLMProxy) -> None:
    queued = await live.update_resources("queued", behind(dead()))
    failed = await live.update_resources("failed", behind(f"{dead()}/v1"))
    ended = await live.update_resources("ended", behind(dead()))
    latest = await live.update_resources("latest", {"prompt": PROMPT})
    await live.enqueue_rollout(1, resources_id="queued")
    statuses: list[tuple[str, RolloutStatus]] = [("failed", "failed"), ("ended", "succeeded")]
    for resources_id, status in statuses:
        rollout = await live.enqueue_rollout(1, resources_id=resources_id)
        await live.update_rollout(rollout.rollout_id, status=status)
    assert await move_to_proxy(live, proxy) == ["queued", "failed"]
    for before in (queued, failed):
        after = await live.get_resources_by_id(before.resources_id)
        assert after is not None
        assert (after.version, after.resources) == (2, behind(proxy.endpoint))
        assert meaning(after.resources) == meaning(before.resources)
    assert await live.get_resources_by_id("ended") == ended
    now = await live.get_latest_resources()
    assert now is not None
    assert (now.resources_id, now.resources) == ("latest", latest.resources)
    assert await move_to_proxy(live, proxy) == []


async def test_proxy_that_still_answers_keeps_its_rollouts(memory: Store, proxy: LLMProxy) -> None:
    async with LLMProxy(store=memory, backends=BACKENDS) as other:
        await memory.add_resources(behind(other.endpoint))
        assert await move_to_proxy(memory, proxy) == []


async def test_proxy_of_another_store_on_the_old_port_is_replaced(memory: Store, proxy: LLMProxy) -> None:
    async with (
        await open_store("memory://") as elsewhere,
        LLMProxy(store=elsewhere, backends=BACKENDS) as other,
        model_server() as no_proxy,
    ):
        for endpoint in (other.endpoint, no_proxy.url):
            update = await memory.add_resources(behind(endpoint))
            assert await move_to_proxy(memory, proxy) == [update.resources_id]


async def test_model_that_the_new_proxy_does_not_serve_keeps_its_address(memory: Store, proxy: LLMProxy) -> None:
    await memory.add_resources(behind(dead(), model="judge"))
    assert await move_to_proxy(memory, proxy) == []
    proxy.update_backends([])
    assert len(await move_to_proxy(memory, proxy)) == 1


async def test_plan_is_resumed_with_resources_that_it_did_not_publish(live: Store, proxy: LLMProxy) -> None:
    await live.add_resources(behind(dead()))
    await Plan("r").enqueue(live, [1])
    await move_to_proxy(live, proxy)
    claimed = await live.dequeue_rollout("w")
    assert claimed is not None
    assert claimed.resources_id is not None
    resources = await live.get_resources_by_id(claimed.resources_id)
    assert resources is not None
    assert resources.resources == behind(proxy.endpoint)
