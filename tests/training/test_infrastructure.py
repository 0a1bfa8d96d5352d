"""Failures of attempts: those of store, proxy and model are distinguished from those of the agent."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from store.errors import NotFound, Unavailable
from store.interface.store import Store
from store.models import LLM, AttemptedRollout, NamedResources, ProxyLLM
from store.training.running.agent import LitAgent, rollout
from store.training.running.outages import unreachable_part
from store.training.running.runner import Runner
from tests.llm_proxy.model_server import ModelServer, model_server, replies
from tests.postgres import free_port
from tests.training.training_helpers import until

Call = Callable[[str], Awaitable[Any]]


async def with_openai(url: str) -> None:
    """Call with OpenAI's client."""
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        await client.chat.completions.create(model="tiny", messages=[])


async def with_httpx(url: str) -> None:
    """Call with httpx."""
    async with httpx.AsyncClient() as client:
        (await client.post(f"{url}/chat/completions")).raise_for_status()


async def with_aiohttp(url: str) -> None:
    """Call with aiohttp."""
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(f"{url}/chat/completions"):
        pass


async def with_urllib(url: str) -> None:
    """Call with the standard library."""
    await asyncio.to_thread(urllib.request.urlopen, f"{url}/chat/completions", b"{}", timeout=5)


async def wrapped(url: str) -> None:
    """Call, and wrap the error as a framework may do."""
    try:
        await with_openai(url)
    except openai.OpenAIError as error:
        raise RuntimeError("the model failed") from error


CALLS: list[Call] = [with_openai, with_httpx, with_aiohttp, with_urllib, wrapped]


def models(*endpoints: str, kind: type[LLM] = LLM) -> NamedResources:
    """Return resources with models at these addresses."""
    return {str(number): kind(endpoint=endpoint, model="tiny") for number, endpoint in enumerate(endpoints)}


async def error_of(call: Awaitable[Any]) -> Exception:
    """Return the error that a call raises."""
    try:
        await call
    except Exception as error:  # noqa: BLE001 - of any client
        return error
    raise AssertionError


def dead() -> str:
    """Return an address at which no program listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("call", CALLS)
async def test_client_that_cannot_reach_the_model_shows_a_failure_of_infrastructure(call: Call) -> None:
    url = dead()
    error = await error_of(call(url))
    for kind in (LLM, ProxyLLM):
        assert await unreachable_part(error, models(url, kind=kind)) == f"{url} cannot be reached"
    assert await unreachable_part(error, {}) is None


@pytest.mark.parametrize("call", CALLS)
async def test_status_of_the_model_decides_whether_the_infrastructure_failed(call: Call) -> None:
    async with model_server() as model:
        for status, part in ((503, f"{model.url} answered 503"), (400, None), (500, None)):
            model.will(replies({"error": {"message": "no"}}, status=status))
            error = await error_of(call(model.url))
            assert await unreachable_part(error, models(model.url)) == part


@pytest.mark.parametrize("call", CALLS)
async def test_unreachable_server_that_is_no_model_is_a_failure_of_the_agent(call: Call) -> None:
    error = await error_of(call(dead()))
    async with model_server() as model:
        for kind in (LLM, ProxyLLM):
            assert await unreachable_part(error, models(model.url, kind=kind)) is None


@pytest.mark.parametrize("error", [ConnectionResetError(), http.client.RemoteDisconnected("closed"), BrokenPipeError()])
async def test_broken_connection_counts_as_lost_if_the_attempt_uses_a_proxy(error: Exception) -> None:
    async with model_server() as model:
        assert await unreachable_part(error, models(model.url)) is None
        lost = f"the connection to {model.url} was lost"
        assert await unreachable_part(error, models(model.url, kind=ProxyLLM)) == lost


async def test_error_without_a_sign_of_the_cause_is_one_of_infrastructure_only_if_the_proxy_is_gone() -> None:
    url = dead()
    assert await unreachable_part(KeyError("x"), models(url)) is None
    assert await unreachable_part(KeyError("x"), models(url, kind=ProxyLLM)) == f"{url} cannot be reached"
    assert await unreachable_part(KeyError("x"), models("not a url", kind=ProxyLLM)) is None


async def test_store_that_is_away_is_a_failure_of_infrastructure() -> None:
    group = ExceptionGroup("work", [ValueError(), Unavailable("the server is gone")])
    assert "the store is not available" in str(await unreachable_part(group, {}))
    assert await unreachable_part(NotFound.rollout("ro-1"), {}) is None


@rollout
async def asking(task: Any, llm: LLM) -> float:
    """Ask the model."""
    await with_openai(llm.endpoint)
    return 1.0


async def attempts(store: Store) -> list[AttemptedRollout]:
    """Return the rollouts that have ended, with their attempts."""
    ended = await store.query_rollouts(status_in=["failed", "succeeded"])
    return [claimed for claimed in ended if isinstance(claimed, AttemptedRollout)]


async def serve(store: Store, agent: LitAgent[Any], **settings: Any) -> None:
    """Run the rollouts of the queue until cancelled."""
    runner: Runner[Any] = Runner(heartbeat_interval=0, **settings)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()


async def test_attempt_without_its_proxy_fails_with_the_reason_infrastructure(live: Store) -> None:
    url = dead()
    await live.add_resources(models(url, kind=ProxyLLM))
    rollout = await live.enqueue_rollout(1)
    await serve(live, asking, max_rollouts=1)
    (attempt,) = await live.query_attempts(rollout.rollout_id)
    assert (attempt.status, attempt.metadata) == ("failed", {"reason": "infrastructure"})
    events = [event async for event in live.log.tail(types=["attempt.status_changed"])]
    error = events[-1].data["error"]
    assert error["type"] == "infrastructure"


async def test_runner_claims_no_more_rollouts_while_its_model_is_gone(memory: Store) -> None:
    url = dead()
    update = await memory.update_resources("r", models(url, kind=ProxyLLM))
    for number in range(30):
        await memory.enqueue_rollout(number)
    serving = asyncio.create_task(serve(memory, asking))

    async def some() -> bool:
        return len(await attempts(memory)) >= 3

    await until(some)
    async with model_server() as model:
        assert isinstance(model, ModelServer)
        moved: NamedResources = {
            name: resource.model_copy(update={"endpoint": model.url})
            for name, resource in update.resources.items()
            if isinstance(resource, ProxyLLM)
        }
        # The model has another address now, as after a restart of the training.
        await memory.update_resources("r", moved)
        await memory.wait_for_rollouts([task.rollout_id for task in await memory.query_rollouts()])
        serving.cancel()
        await asyncio.wait({serving})
    ended = await attempts(memory)
    reasons = [(task.attempt.metadata or {}).get("reason") for task in ended]
    assert reasons.count("infrastructure") < 8
    assert reasons.count(None) == 30 - reasons.count("infrastructure")
