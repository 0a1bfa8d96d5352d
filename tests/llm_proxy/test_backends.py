"""Routing of calls: by model, around failing backends, and after a change of the backends."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy
from store.llm_proxy.refusals import Refusal
from store.llm_proxy.routes import Routes
from store.runtime.rates import TokenBucket
from tests.llm_proxy.model_server import (
    MESSAGES,
    MODEL,
    ModelServer,
    breaks_off,
    chats,
    delta,
    events,
    replies,
    streams,
    waits,
)
from tests.llm_proxy.proxied_agent import Agent, NewClient, NewProxy, backend_of
from tests.server.test_metrics import families, table
from tests.server.test_monitoring import promtool
from tests.training.training_helpers import until

BUSY = {"error": {"message": "busy"}}
MINIMAL: dict[str, Any] = {"name": "a", "base_url": "http://host"}


async def test_c47_backends_are_exchanged_at_once_while_a_stream_finishes_on_the_old_one(
    agent: Agent, proxy: LLMProxy, model: ModelServer, other_model: ModelServer
) -> None:
    gate = asyncio.Event()
    model.will(streams(events(delta("old", [1]))[:-14], gate, b"data: [DONE]\n\n"))
    other_model.will(chats(id="chatcmpl-new"))
    stream = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    proxy.update_backends([backend_of(other_model, "new", version="2")])
    assert (await agent.chat()).id == "chatcmpl-new"
    assert proxy.in_flight() == 1
    gate.set()
    assert [chunk.choices[0].delta.content async for chunk in stream] == ["old"]
    assert await proxy.drained(longest=30)
    first, second = await agent.spans()
    assert (first.attributes["agl.call.backend"], first.attributes["response_token_ids"]) == ("main", [1])
    assert second.attributes.items() >= {"agl.call.backend": "new", "agl.call.model_version": "2"}.items()


async def test_c47_a_model_that_is_new_answers_without_a_restart(
    proxy: LLMProxy, model: ModelServer, new_client: NewClient
) -> None:
    client = new_client(proxy.endpoint)
    with pytest.raises(openai.NotFoundError, match=r"no backend serves the model 'next'; there is \['tiny'\]"):
        await client.chat.completions.create(model="next", messages=MESSAGES)
    proxy.update_backends([backend_of(model, models=["next"])])
    assert await client.chat.completions.create(model="next", messages=MESSAGES)
    assert [entry.id async for entry in client.models.list()] == ["next"]


async def test_calls_go_to_the_backend_of_their_model_under_its_own_name(
    new_proxy: NewProxy, model: ModelServer, other_model: ModelServer, new_client: NewClient
) -> None:
    proxy = await new_proxy(
        backends=[backend_of(model, "a"), backend_of(other_model, "b", models={"policy": "/checkpoints/7"})]
    )
    client = new_client(proxy.endpoint)
    for name in (MODEL, "policy"):
        await client.chat.completions.create(model=name, messages=MESSAGES)
    assert [asked.json["model"] for asked in model.asked] == [MODEL]
    assert [asked.json["model"] for asked in other_model.asked] == ["/checkpoints/7"]
    assert [(entry.id, entry.owned_by) async for entry in client.models.list()] == [(MODEL, "a"), ("policy", "b")]
    assert (await client.models.retrieve("policy")).id == "policy"


async def test_backend_without_models_takes_undeclared_models(
    new_proxy: NewProxy, model: ModelServer, other_model: ModelServer, new_client: NewClient
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, "any", models=()), backend_of(other_model, "one")])
    client = new_client(proxy.endpoint)
    for name in (MODEL, "whatever"):
        await client.chat.completions.create(model=name, messages=MESSAGES)
    assert [asked.json["model"] for asked in model.asked] == ["whatever"]
    assert [asked.json["model"] for asked in other_model.asked] == [MODEL]


async def test_two_backends_of_one_model_share_the_calls(
    new_proxy: NewProxy, store: Store, model: ModelServer, other_model: ModelServer
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, "a"), backend_of(other_model, "b")])
    gate = asyncio.Event()
    for server in (model, other_model):
        server.will(waits(gate))
    async with Agent.at_work(store, proxy) as agent:
        calls = [asyncio.create_task(agent.chat()) for _ in range(6)]
        await asyncio.gather(model.was_asked(3), other_model.was_asked(3))
        gate.set()
        await asyncio.gather(*calls)


async def test_the_models_of_a_single_backend_that_declares_none_are_its_own_answer(
    new_proxy: NewProxy, model: ModelServer, new_client: NewClient
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, models=())])
    model.will(replies({"object": "list", "data": [{"id": "x", "object": "model", "created": 1, "owned_by": "vllm"}]}))
    assert [entry.id async for entry in new_client(proxy.endpoint).models.list()] == ["x"]
    assert (model.asked[0].method, model.asked[0].path) == ("GET", "/v1/models")


async def test_calls_wait_while_their_backend_is_paused(agent: Agent, proxy: LLMProxy, model: ModelServer) -> None:
    gate = asyncio.Event()
    model.will(waits(gate), chats())
    running = asyncio.create_task(agent.chat())
    await model.was_asked()
    proxy.pause("main")
    assert not await proxy.drained("main", longest=0)
    waiting = asyncio.create_task(agent.chat())
    gate.set()
    assert await running
    # With its last call answered the backend is at rest, and stays so: its weights may be changed now.
    assert await proxy.drained("main", longest=30)
    assert (len(model.asked), waiting.done()) == (1, False)
    proxy.update_backends([backend_of(model, version="2")])
    proxy.resume("main")
    assert await waiting
    assert [span.attributes.get("agl.call.model_version") for span in await agent.spans()] == [None, "2"]


async def test_call_that_waits_too_long_gets_503_with_retry_after(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    proxy = await new_proxy(wait_seconds=0)
    proxy.pause()
    async with Agent.at_work(store, proxy) as agent:
        with pytest.raises(openai.InternalServerError, match="paused") as refused:
            await agent.chat()
        span = await agent.span()
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["retry-after"] == "1"
    assert (span.attributes["error.type"], span.attributes["agl.call.status"]) == ("paused", 503)
    assert model.asked == []


async def test_while_one_backend_is_paused_another_of_the_model_answers(
    new_proxy: NewProxy, store: Store, model: ModelServer, other_model: ModelServer
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, "a"), backend_of(other_model, "b")])
    proxy.pause("a")
    async with Agent.at_work(store, proxy) as agent:
        for _ in range(3):
            await agent.chat()
    assert (len(model.asked), len(other_model.asked)) == (0, 3)


async def test_a_pause_of_all_ends_with_a_resume_of_all(agent: Agent, proxy: LLMProxy) -> None:
    proxy.pause()
    proxy.pause("main")
    waiting = asyncio.create_task(agent.chat())
    proxy.resume()
    assert await waiting


async def test_backends_are_paused_by_their_names_alone(proxy: LLMProxy) -> None:
    for change in (proxy.pause, proxy.resume):
        with pytest.raises(NotFound, match=r"no backend is named 'other'; the backends are \['main'\]"):
            change("other")


@pytest.mark.parametrize(
    "failure",
    [breaks_off(), replies(BUSY, 500), replies(BUSY, 503), replies(BUSY, 429, retry_after="0")],
    ids=["no answer", "500", "503", "429 with Retry-After"],
)
async def test_a_call_is_tried_three_times(agent: Agent, model: ModelServer, failure: Any) -> None:
    model.will(failure, failure, chats())
    assert (await agent.chat()).id == "chatcmpl-1"
    span = await agent.span()
    assert len(model.asked) == span.attributes["agl.call.tries"] == 3


async def test_after_three_tries_the_backends_own_answer_is_passed_on(agent: Agent, model: ModelServer) -> None:
    model.will(replies(BUSY, 503, x_reason="load"))
    with pytest.raises(openai.InternalServerError, match="busy") as failed:
        await agent.chat()
    assert failed.value.response.headers["x-reason"] == "load"
    span = await agent.span()
    assert (len(model.asked), span.status.description) == (3, "503: busy")


@pytest.mark.parametrize(
    "failure",
    [replies(BUSY, 400), replies(BUSY, 401), replies(BUSY, 429), replies(BUSY, 429, retry_after="3600")],
    ids=["400", "401", "429", "429 for an hour"],
)
async def test_permanent_error_of_a_backend_is_passed_on_without_retries(
    agent: Agent, model: ModelServer, failure: Any
) -> None:
    model.will(failure)
    with pytest.raises(openai.APIStatusError):
        await agent.chat()
    assert len(model.asked) == 1


async def test_an_answer_that_has_begun_is_not_asked_for_again(agent: Agent, model: ModelServer) -> None:
    model.will(breaks_off(b": hello\n\n"), chats())
    stream = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    assert len(model.asked) == 1


async def test_a_backend_that_is_not_there_is_a_502_that_names_it_and_is_recorded(
    new_proxy: NewProxy, store: Store
) -> None:
    with socket.socket() as nobody:
        # Bound and not listening: nobody else gets the port, and connecting to it is refused.
        nobody.bind(("127.0.0.1", 0))
        backend = Backend("gone", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        proxy = await new_proxy(backends=[backend], num_retries=1)
        async with Agent.at_work(store, proxy) as agent:
            with pytest.raises(openai.InternalServerError, match="backend gone cannot be reached") as failed:
                await agent.chat()
            span = await agent.span()
    assert failed.value.response.status_code == 502
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert span.attributes.items() >= {"error.type": "backend_unreachable", "agl.call.tries": 2}.items()


async def test_a_retry_goes_to_another_backend_of_the_model(
    new_proxy: NewProxy, store: Store, model: ModelServer, other_model: ModelServer
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, "a"), backend_of(other_model, "b")])
    model.will(breaks_off())
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        assert (await agent.span()).attributes["agl.call.backend"] == "b"
    assert (len(model.asked), len(other_model.asked)) == (1, 1)


async def test_a_silent_backend_is_a_504(new_proxy: NewProxy, store: Store, model: ModelServer) -> None:
    proxy = await new_proxy(silence_seconds=0.2)
    model.will(model.waits_for_ever())
    async with Agent.at_work(store, proxy) as agent:
        with pytest.raises(openai.InternalServerError, match=r"said nothing for 0\.2 s") as failed:
            await agent.chat()
    assert failed.value.response.status_code == 504
    await model.left.wait()
    assert len(model.asked) == 1


def test_a_bucket_gives_its_burst_at_once_and_then_one_place_after_the_other() -> None:
    now = 0.0
    bucket = TokenBucket(2, 3, now=lambda: now)
    assert [bucket.take(10) for _ in range(5)] == [(True, 0), (True, 0), (True, 0), (True, 0.5), (True, 1.0)]
    assert bucket.take(1.25) == (False, 1.5)
    now = 10.0
    assert [bucket.take(0) for _ in range(4)] == [(True, 0)] * 3 + [(False, 0.5)]
    bucket.give_back()
    assert bucket.take(0) == (True, 0)


async def test_calls_beyond_the_rate_get_429_with_retry_after(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    limited = backend_of(model, requests_per_second=0.01, burst=2)
    proxy = await new_proxy(backends=[limited], wait_seconds=1)
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        # An exchange is no way around the rate.
        proxy.update_backends([backend_of(model, requests_per_second=0.01, burst=2, version="2")])
        await agent.chat()
        with pytest.raises(openai.RateLimitError, match=r"takes 0\.01 calls a second") as refused:
            await agent.chat()
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 100
    assert len(model.asked) == 2


async def test_calls_within_the_wait_get_their_turn(new_proxy: NewProxy, store: Store, model: ModelServer) -> None:
    proxy = await new_proxy(backends=[backend_of(model, requests_per_second=50)])
    async with Agent.at_work(store, proxy) as agent:
        await asyncio.gather(*(agent.chat() for _ in range(5)))
    assert len(model.asked) == 5


async def test_a_pause_also_holds_a_call_that_waits_for_its_turn() -> None:
    routes = Routes([Backend("a", "http://host", requests_per_second=1)])
    routes.leave(await routes.enter(MODEL, longest=0))
    turn = asyncio.create_task(routes.enter(MODEL, longest=1.2))
    await until(lambda: asyncio.sleep(0, routes.waiting_calls))
    routes.pause("a")
    with pytest.raises(Refusal, match="paused"):
        await turn
    assert routes.in_flight("a") == routes.waiting_calls == 0


async def test_an_equal_request_at_temperature_zero_is_answered_from_the_cache_and_recorded_as_such(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    proxy = await new_proxy(cache_bytes=100_000)
    async with Agent.at_work(store, proxy) as agent:
        answers = [await agent.chat(temperature=0) for _ in range(2)]
        spans = await agent.spans()
        assert answers[0] == answers[1]
        assert len(model.asked) == 1
        assert [span.attributes["agl.call.cached"] for span in spans] == [False, True]
        assert spans[0].attributes["response_token_ids"] == spans[1].attributes["response_token_ids"] == [21, 22, 23]
        # Other weights, another request, and what may differ every time are asked for anew.
        proxy.update_backends([backend_of(model, version="2")])
        await agent.chat(temperature=0)
        await agent.chat(temperature=0, seed=1)
        await agent.chat(temperature=0.1)
        await agent.chat(temperature=0.1)
    assert len(model.asked) == 5


async def test_the_cache_keeps_the_latest_answers_within_its_size(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    size = 4 * 430
    proxy = await new_proxy(cache_bytes=size)
    async with Agent.at_work(store, proxy) as agent:
        for seed in (1, 2, 3, 4, 5, 6, 6, 5, 1):
            await agent.chat(temperature=0, seed=seed)
    assert [asked.json["seed"] for asked in model.asked] == [1, 2, 3, 4, 5, 6, 1]


async def test_without_a_cache_every_request_is_asked(agent: Agent, model: ModelServer) -> None:
    await agent.chat(temperature=0)
    await agent.chat(temperature=0)
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://host/v1"},
        {"requests_per_second": 0},
        {"requests_per_second": float("nan")},
        {"burst": 0},
    ],
    ids=str,
)
def test_a_backend_that_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="backend"):
        Backend(**{**MINIMAL, **arguments})


@pytest.mark.parametrize(
    "base_url, root",
    [
        ("http://host:1", "http://host:1/v1"),
        ("http://host:1/", "http://host:1/v1"),
        ("http://host/v1/", "http://host/v1"),
        ("https://host/v1beta/openai", "https://host/v1beta/openai"),
    ],
)
def test_paths_go_behind_the_base_url(base_url: str, root: str) -> None:
    assert Backend("a", base_url).root == root


def test_the_key_of_a_backend_is_not_in_its_repr() -> None:
    assert "sk-" not in repr(Backend("a", "http://host", "sk-backend-secret"))


def test_two_backends_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="two backends have the name 'a'"):
        LLMProxy(backends=[Backend("a", "http://x"), Backend("a", "http://y")])


def test_a_model_list_of_litellm_is_understood_where_nothing_has_to_be_translated() -> None:
    def entry(model: str) -> dict[str, Any]:
        parameters = {"model": model, "api_base": "http://host:8000/v1", "api_key": "k"}
        return {"model_name": "policy", "litellm_params": parameters}

    proxy = LLMProxy(model_list=[entry("hosted_vllm/org/model"), entry("openai/gpt")])
    assert [backend.own_name("policy") for backend in proxy.backends] == ["org/model", "gpt"]
    assert [backend.supports_token_ids for backend in proxy.backends] == [True, False]
    proxy.update_model_list([entry("openai/gpt")])
    assert len(proxy.backends) == 1
    with pytest.raises(Invalid, match="model 'gpt' has no provider; write for example openai/gpt"):
        proxy.update_model_list([entry("gpt")])
    with pytest.raises(Invalid, match="pass backends="):
        proxy.update_model_list([{"model_name": "x"}])


def test_a_provider_of_another_protocol_needs_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spec(_: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", no_spec)
    with pytest.raises(Invalid, match=r"pip install 'rollbook\[litellm\]'"):
        Backend("a", provider="anthropic")


async def test_metrics_count_calls_by_backend_and_status(
    agent: Agent, proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    model.will(chats())
    await agent.chat()
    async with http.get(f"{proxy.endpoint}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    assert 'rollbook_proxy_calls_total{backend="main",status="200"} 1' in text
    assert "rollbook_proxy_call_seconds_count 1" in text
    assert 'rollbook_proxy_calls_in_flight{backend="main"} 0' in text
    assert "process_resident_memory_bytes" in text
    described = table(
        (Path(__file__).parents[2] / "docs" / "server.md").read_text().partition("### Metrics of proxies")[2]
    )
    measured = {name: family for name, family in families(text).items() if not name.startswith("process_")}
    assert measured == {name: family for name, family in described.items() if "_proxy_" in name}
    assert promtool("check", "metrics", stdin=text) == ""


async def test_health_is_answered_without_asking_the_model(
    proxy: LLMProxy, store: Store, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy.pause("main")
    async with http.get(f"{proxy.endpoint}/health") as response:
        backend = {"name": "main", "version": None, "models": [MODEL], "in_flight": 0, "paused": True}
        about = {"status": "ok", "store": getattr(store, "store_id"), "waiting": 0, "backends": [backend]}  # noqa: B009
        assert await response.json() == about
    assert model.asked == []
    assert await until(lambda: proxy.drained("main", longest=0))
