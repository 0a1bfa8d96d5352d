"""A store that is slow, unreachable or refuses: the response waits for its record, and for nothing else."""

from __future__ import annotations

import asyncio

import aiohttp
import openai
import pytest

from store.errors import Invalid, Unavailable
from store.interface.store import Store
from store.llm_proxy import LLMProxy
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, delta, events, streams
from tests.llm_proxy.proxied_agent import Agent, Gated, NewProxy
from tests.training.training_helpers import until

STREAM = events(delta("It is 42.", [1]), delta(finish="stop"))


@pytest.fixture
def store(memory: Store) -> Gated:
    return Gated(memory)


@pytest.fixture
async def proxy(new_proxy: NewProxy) -> LLMProxy:
    # In the loop of the test, like the gate.
    return await new_proxy(launch_mode="asyncio", grace_seconds=1)


async def test_an_answer_has_no_end_before_its_span_is_stored(
    agent: Agent, store: Gated, http: aiohttp.ClientSession
) -> None:
    store.gate.clear()
    async with http.post(f"{agent.url}/chat/completions", json={"model": MODEL, "messages": MESSAGES}) as response:
        body = asyncio.ensure_future(response.read())
        await store.came.wait()
        assert not body.done()
        store.gate.set()
        assert b"It is 42." in await body
    assert await agent.span()


async def test_c44_a_stream_has_its_text_at_once_and_its_end_when_its_span_is_stored(
    agent: Agent, model: ModelServer, store: Gated, http: aiohttp.ClientSession
) -> None:
    # What follows the end never comes: the span is written when the stream says that it is done.
    begun = asyncio.Event()
    model.will(streams(STREAM[:-14], begun, STREAM[-14:], asyncio.Event()))
    store.gate.clear()
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    async with http.post(f"{agent.url}/chat/completions", json=body) as response:
        content = response.content
        assert await content.readexactly(len(STREAM) - 14) == STREAM[:-14]
        begun.set()
        await store.came.wait()
        end = asyncio.ensure_future(content.readexactly(14))
        assert await agent.spans() == []
        assert not end.done()
        store.gate.set()
        assert await end == b"data: [DONE]\n\n"
        assert (await agent.span()).status.status_code == "OK"


async def test_a_span_is_written_again_when_the_store_is_back(agent: Agent, store: Gated) -> None:
    store.failures = [Unavailable("restarting"), Unavailable("restarting")]
    await agent.chat()
    assert (await agent.span()).sequence_id == 1


@pytest.mark.parametrize(
    "failure", [Invalid("attributes", "hold what is refused"), ZeroDivisionError()], ids=["refused", "broken"]
)
async def test_an_answer_whose_span_is_not_stored_reaches_the_client_and_is_logged(
    agent: Agent, store: Gated, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    store.failures = [failure]
    assert (await agent.chat()).choices[0].message.content == "It is 42."
    assert "is not recorded" in caplog.text
    assert type(failure).__name__ in caplog.text or str(failure) in caplog.text


async def test_call_for_an_attempt_gets_503_while_the_store_is_away(
    agent: Agent, model: ModelServer, store: Gated
) -> None:
    store.is_away = True
    with pytest.raises(openai.InternalServerError, match="does not answer") as failed:
        await agent.chat()
    assert (failed.value.response.status_code, failed.value.response.headers["retry-after"]) == (503, "1")
    assert model.asked == []


async def test_stopping_waits_for_spans_of_calls_that_it_cut_off(
    agent: Agent, model: ModelServer, store: Gated, proxy: LLMProxy
) -> None:
    model.will(model.waits_for_ever())
    store.gate.clear()
    call = asyncio.create_task(agent.chat())
    await model.was_asked()
    stopping = asyncio.create_task(proxy.stop())
    await store.came.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(stopping), 0.5)
    store.gate.set()
    await stopping
    assert (await agent.span()).attributes["error.type"] == "stopped"
    with pytest.raises(openai.APIError):
        await call


async def test_a_client_that_leaves_while_its_span_is_written_does_not_lose_it(
    agent: Agent, model: ModelServer, store: Gated
) -> None:
    store.gate.clear()
    call = asyncio.create_task(agent.chat())
    await store.came.wait()
    call.cancel()
    await asyncio.wait([call])
    store.gate.set()
    (span,) = await until(agent.spans)
    assert span.status.status_code == "OK"
