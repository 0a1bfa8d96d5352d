"""The start and end of a proxy, and the resource that it publishes."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import socket
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy, ProxySettings
from store.model_calls import attributes
from store.models import LLM, ProxyLLM
from store.wire.listener import PortTaken
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer
from tests.llm_proxy.proxied_agent import Agent, NewClient, NewProxy, backend_of
from tests.training.training_helpers import until

BACKEND = Backend("main", "http://127.0.0.1:9", models=[MODEL])


@pytest.mark.parametrize(
    "endpoint, url",
    [
        ("http://h:1", "http://h:1/rollout/ro-1/attempt/at-1"),
        ("http://h:1/", "http://h:1/rollout/ro-1/attempt/at-1"),
        ("http://h:1/v1", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://h:1/v1/", "http://h:1/rollout/ro-1/attempt/at-1/v1"),
    ],
)
async def test_c42_the_ids_go_before_a_trailing_v1(endpoint: str, url: str) -> None:
    assert ProxyLLM(endpoint=endpoint, model=MODEL).get_base_url("ro-1", "at-1") == url


async def test_c42_a_resource_without_ids_is_completed_for_each_attempt_and_one_with_ids_is_complete() -> None:
    proxy = LLMProxy(4000, backends=[BACKEND])
    open_to_all = proxy.as_resource(sampling_parameters={"temperature": 1.0})
    assert isinstance(open_to_all, ProxyLLM)
    assert (open_to_all.endpoint, open_to_all.model) == ("http://127.0.0.1:4000", MODEL)
    baked = proxy.as_resource("ro-1", "at-1", model="other")
    assert type(baked) is LLM
    assert baked.endpoint == open_to_all.get_base_url("ro-1", "at-1")
    assert (baked.model, open_to_all.sampling_parameters) == ("other", {"temperature": 1.0})


async def test_c42_one_id_without_the_other_is_refused() -> None:
    proxy = LLMProxy(4000, backends=[BACKEND])
    for ids in (("ro-1", None), (None, "at-1")):
        with pytest.raises(ValueError, match="together"):
            proxy.as_resource(*ids)


async def test_c42_each_base_url_of_the_resource_reaches_the_model_and_is_recorded(
    agent: Agent, proxy: LLMProxy
) -> None:
    resource = proxy.as_resource()
    plain = resource.get_base_url(agent.rollout_id, agent.attempt_id)
    for url in (plain, f"{plain}/", f"{plain}/v1", f"{plain}/v1/"):
        await agent.client.with_options(base_url=url).chat.completions.create(model=resource.model, messages=[])
    assert len(await agent.spans()) == 4


@pytest.mark.parametrize("models", [[], ["a", "b"]], ids=["none", "two"])
async def test_a_resource_needs_the_name_of_a_model_unless_there_is_only_one(models: list[str]) -> None:
    proxy = LLMProxy(4000, backends=[Backend("main", "http://h", models=models)])
    with pytest.raises(ValueError, match="name one"):
        proxy.as_resource()
    assert proxy.as_resource(model="a").model == "a"


async def test_the_key_is_part_of_a_resource_only_if_asked_for() -> None:
    proxy = LLMProxy(4000, backends=[BACKEND], api_key="sk-proxy")
    assert proxy.as_resource().api_key is None
    assert proxy.as_resource(with_api_key=True).api_key == "sk-proxy"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_c48_thirty_restarts_leak_nothing(store: Store, model: ModelServer, mode: Any) -> None:
    proxy = LLMProxy(
        store=store, backends=[backend_of(model)], launch_mode=mode, settings=ProxySettings(grace_seconds=0)
    )
    await proxy.start()
    endpoint = proxy.endpoint
    try:
        async with Agent.at_work(store, proxy) as agent:
            await used_once(agent, proxy)
            before = held()
            for _ in range(30):
                await used_once(agent, proxy)
            after = held()
            assert proxy.endpoint == endpoint
            assert len(await agent.spans()) == 31
    finally:
        await proxy.stop()
    # Pools of threads and connections breathe; what leaks would have leaked thirty times.
    assert {name: count for name, count in after.items() if count > before[name] + 5} == {}


async def used_once(agent: Agent, proxy: LLMProxy) -> None:
    await agent.chat()
    await proxy.restart()


def held() -> dict[str, int]:
    """What a process has open."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_it_starts_and_stops_in_either_mode(new_proxy: NewProxy, store: Store, mode: Any) -> None:
    proxy = await new_proxy(launch_mode=mode)
    assert proxy.is_running
    await proxy.start()
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        await proxy.stop()
        assert not proxy.is_running
        await proxy.start()
        await agent.chat()
        assert len(await agent.spans()) == 2


async def test_two_proxies_live_in_one_process(new_proxy: NewProxy, store: Store, model: ModelServer) -> None:
    first, second = await new_proxy(), await new_proxy(backends=[backend_of(model, "other")])
    async with Agent.at_work(store, first) as one, Agent.at_work(store, second) as other:
        await asyncio.gather(one.chat(), other.chat())
        assert (await one.span()).attributes["agl.call.backend"] == "main"
        assert (await other.span()).attributes["agl.call.backend"] == "other"


async def test_a_copy_in_another_process_names_the_same_endpoint_and_does_not_run(model: ModelServer) -> None:
    async with LLMProxy(backends=[backend_of(model)]) as proxy:
        copy: LLMProxy = pickle.loads(pickle.dumps(proxy))
        assert copy.as_resource() == proxy.as_resource()
        assert copy.backends == proxy.backends
        assert not copy.is_running


async def test_taken_port_raises_port_taken(new_proxy: NewProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = LLMProxy(taken.getsockname()[1], backends=[BACKEND])
        with pytest.raises(PortTaken):
            await proxy.start()
    assert not proxy.is_running


async def test_others_than_this_machine_need_a_key() -> None:
    with pytest.raises(Invalid, match="api_key"):
        LLMProxy(host="0.0.0.0", backends=[BACKEND])
    assert LLMProxy(host="0.0.0.0", backends=[BACKEND], api_key="sk-1")
    assert LLMProxy(host="0.0.0.0", backends=[BACKEND], insecure=True)


async def test_stop_of_a_stopped_proxy_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    await LLMProxy(backends=[BACKEND]).stop()
    assert "nothing to stop" in caplog.text


async def test_another_store_is_used_from_the_next_start_on(model: ModelServer, store: Store) -> None:
    async with LLMProxy(backends=[backend_of(model)]) as proxy, Agent.at_work(store, proxy) as agent:
        with pytest.raises(Exception, match="no store for spans"):
            await agent.chat()
        proxy.set_store(store)
        await proxy.restart()
        await agent.chat()
        assert await agent.span()


def test_its_port_is_known_once_it_has_started() -> None:
    with pytest.raises(RuntimeError, match="start it first"):
        _ = LLMProxy(backends=[BACKEND]).endpoint


def test_backends_are_given_in_one_way() -> None:
    with pytest.raises(Invalid, match="give one of them"):
        LLMProxy(model_list=[], backends=[])


@pytest.mark.parametrize(
    "wrong", [{"num_retries": -1}, {"wait_seconds": float("nan")}, {"on_ended": "drop"}, {"cache_bytes": None}], ids=str
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        ProxySettings(**wrong)


def test_the_page_names_every_setting_with_its_default_and_every_attribute() -> None:
    page = (Path(__file__).parents[2] / "docs/llm-proxy.md").read_text()
    table = page.partition("`ProxySettings` sets the limits")[2]
    rows = re.findall(r"^\| `(\w+)` \| `?([\w ]+?)`? \|", table, re.MULTILINE)
    told = {name: str(default).removesuffix(".0") for name, default in vars_of(ProxySettings())}
    assert {name: default.replace(" MiB", "*1048576") for name, default in rows} == told
    ours = {value for name, value in vars(attributes).items() if name.isupper() and str(value).startswith("agl.")}
    assert ours == set(re.findall(r"`(agl\.call\.\w+)`", page.partition("| attribute |")[2]))


def vars_of(settings: ProxySettings) -> list[tuple[str, Any]]:
    """The settings with their values, in the page's way of writing large numbers."""
    values = [(field.name, getattr(settings, field.name)) for field in fields(settings)]
    mebibyte = 1024 * 1024
    return [
        (name, f"{value // mebibyte}*{mebibyte}" if isinstance(value, int) and value >= mebibyte else value)
        for name, value in values
    ]


def test_a_way_to_run_that_does_not_exist_is_refused() -> None:
    wrong: Any = "mp"
    with pytest.raises(Invalid, match="neither 'thread' nor 'asyncio'"):
        LLMProxy(backends=[BACKEND], launch_mode=wrong)


async def test_call_waits_until_the_proxy_has_a_backend(
    new_proxy: NewProxy, new_client: NewClient, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy(backends=[])
    client = new_client(f"{proxy.endpoint}/v1")
    call = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES))

    async def waits() -> bool:
        async with http.get(f"{proxy.endpoint}/health") as response:
            return (await response.json())["waiting"] == 1

    await until(waits)
    proxy.update_backends([backend_of(model)])
    assert (await call).model == MODEL


async def test_call_to_a_proxy_that_gets_no_backend_is_refused(new_proxy: NewProxy, new_client: NewClient) -> None:
    proxy = await new_proxy(backends=[], wait_seconds=0.05)
    client = new_client(f"{proxy.endpoint}/v1")
    with pytest.raises(openai.InternalServerError, match="the proxy has no backend yet"):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)


async def test_block_stops_only_the_proxy_that_it_started(model: ModelServer) -> None:
    proxy = LLMProxy(backends=[backend_of(model)])
    async with proxy:
        async with proxy:
            assert proxy.is_running
        assert proxy.is_running
    assert not proxy.is_running
