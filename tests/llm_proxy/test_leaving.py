"""A client that disconnects before the response."""

from __future__ import annotations

import asyncio

import aiohttp
import openai
import pytest

from store.llm_proxy import LLMProxy
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, delta, events
from tests.llm_proxy.proxied_agent import Agent, NewProxy
from tests.training.training_helpers import until


async def test_departure_of_a_client_cancels_the_backend_call_and_is_recorded(agent: Agent, model: ModelServer) -> None:
    model.will(model.waits_for_ever())
    call = asyncio.create_task(agent.chat())
    await model.was_asked()
    call.cancel()
    await model.left.wait()
    (span,) = await until(agent.spans)
    assert (span.status.status_code, span.attributes["error.type"]) == ("ERROR", "client_left")


async def test_received_part_of_a_stream_is_recorded(agent: Agent, model: ModelServer) -> None:
    model.will(model.waits_for_ever(events(delta("It ", [21]), delta("is", [22]))[:-14]))
    stream = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await model.left.wait()
    (span,) = await until(agent.spans)
    assert span.attributes["error.type"] == "client_left"
    assert span.attributes["gen_ai.completion.0.content"] == "It is"
    assert span.attributes["response_token_ids"] == [21, 22]


async def test_a_client_that_leaves_while_it_waits_for_a_paused_backend_is_never_sent_on(
    agent: Agent, proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy.pause()
    call = asyncio.create_task(agent.chat())
    await until(lambda: is_held_up(proxy, http))
    call.cancel()
    (span,) = await until(agent.spans)
    proxy.resume()
    assert span.attributes["error.type"] == "client_left"
    await agent.chat()
    assert len(model.asked) == 1


async def is_held_up(proxy: LLMProxy, http: aiohttp.ClientSession) -> bool:
    """Whether a call waits."""
    async with http.get(f"{proxy.endpoint}/health") as response:
        return (await response.json())["waiting"] > 0


async def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_call(
    agent: Agent, proxy: LLMProxy, model: ModelServer
) -> None:
    host, port = proxy.endpoint.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    path = f"{agent.url.removeprefix(proxy.endpoint)}/chat/completions"
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    writer.close()
    await writer.wait_closed()
    await agent.chat()
    assert len(model.asked) == len(await agent.spans()) == 1


async def test_stop_ends_calls_after_the_grace_period_and_records_them(
    new_proxy: NewProxy, agent: Agent, model: ModelServer
) -> None:
    proxy = await new_proxy(grace_seconds=1)
    other = Agent(agent.store, proxy, agent.rollout_id, agent.attempt_id)
    model.will(model.waits_for_ever())
    async with other.client:
        call = asyncio.create_task(other.chat())
        await model.was_asked()
        await proxy.stop()
        # The span is in the store as soon as the proxy has stopped.
        assert (await agent.span()).attributes["error.type"] == "stopped"
        await model.left.wait()
        with pytest.raises(openai.APIError):
            await call


async def test_stopping_sends_calls_away_that_wait_for_a_paused_backend(
    new_proxy: NewProxy, agent: Agent, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy()
    proxy.pause()
    other = Agent(agent.store, proxy, agent.rollout_id, agent.attempt_id)
    async with other.client:
        call = asyncio.create_task(other.chat())
        await until(lambda: is_held_up(proxy, http))
        await proxy.stop()
        with pytest.raises(openai.InternalServerError, match="stopping"):
            await call
    assert (await agent.span()).attributes["error.type"] == "stopping"
