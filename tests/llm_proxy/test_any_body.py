"""Bodies that common JSON libraries accept, and bodies that are not JSON: routed, recorded, and marked."""

from __future__ import annotations

from typing import Any

import aiohttp
import openai
import orjson
import pytest

from store.interface.store import Store
from tests.llm_proxy.model_server import (
    MESSAGES,
    MODEL,
    ModelServer,
    completion,
    delta,
    events,
    replies,
    sends,
    streams,
)
from tests.llm_proxy.proxied_agent import Agent, NewProxy, backend_of


async def post(http: aiohttp.ClientSession, agent: Agent, body: bytes) -> tuple[int, bytes]:
    async with http.post(f"{agent.url}/chat/completions", data=body) as response:
        return response.status, await response.read()


def request(**more: str) -> bytes:
    """Return a request with the texts of fields as they are written in JSON."""
    fields = {"model": f'"{MODEL}"', "messages": orjson.dumps(MESSAGES).decode(), **more}
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


@pytest.fixture
async def renamed(new_proxy: NewProxy, store: Store, model: ModelServer, other_model: ModelServer) -> Any:
    """A proxy whose first backend has another model."""
    return await new_proxy(
        backends=[
            backend_of(other_model, "wrong", models=["other"], supports_token_ids=False),
            backend_of(model, "right", models={MODEL: "own"}, supports_token_ids=False),
        ]
    )


async def test_a_request_with_surrogates_and_nan_reaches_its_model_and_is_recorded(
    renamed: Any, store: Store, model: ModelServer, other_model: ModelServer, http: aiohttp.ClientSession
) -> None:
    said = r'[{"role":"user","content":"half \ud83d, whole \ud83d\ude00"}]'
    async with Agent.at_work(store, renamed) as agent:
        status, _ = await post(http, agent, request(messages=said, temperature="NaN", logit_bias='{"1":-Infinity}'))
        span = await agent.span()
    assert (status, len(model.asked), len(other_model.asked)) == (200, 1, 0)
    sent = model.asked[0].body
    assert b'"model": "own"' in sent
    assert b'"temperature": NaN' in sent
    assert b"-Infinity" in sent
    assert rb"half \ud83d, whole \ud83d\ude00" in sent
    assert span.attributes["gen_ai.prompt.0.content"] == "half \ufffd, whole \U0001f600"
    assert span.attributes["gen_ai.request.temperature"] == "NaN"
    assert span.attributes["rollbook.changed"] == ["gen_ai.prompt.0.content: U+0000 or a lone surrogate became U+FFFD"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 5}', b'{"model": "tiny", "x": "\xff"}'], ids=repr)
async def test_a_body_that_cannot_be_routed_is_refused_and_recorded(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession, body: bytes
) -> None:
    status, answer = await post(http, agent, body)
    assert (status, model.asked) == (400, [])
    error = orjson.loads(answer)["error"]
    assert "; send " in error["message"]
    span = await agent.span()
    assert (span.status.status_code, span.attributes["error.type"]) == ("ERROR", error["code"])
    if error["code"] == "invalid_body" and body not in {b"", b"[]"}:
        assert span.attributes["agl.call.truncated"] == "prompt"
        assert span.attributes["agl.call.raw_request"] == body.decode(errors="replace")


async def test_an_answer_with_surrogates_and_infinity_is_recorded(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    answer = completion()
    answer["choices"][0]["message"]["content"] = "HALF"
    answer["choices"][0]["logprobs"] = {"content": [{"token": "HALF", "logprob": "LEAST"}]}
    body = orjson.dumps(answer).replace(b"HALF", rb"\ude00").replace(b'"LEAST"', b"-Infinity")
    model.will(sends(body))
    assert await post(http, agent, request()) == (200, body)
    attributes = (await agent.span()).attributes
    assert attributes["gen_ai.completion.0.content"] == "\ufffd"
    assert attributes["response_token_ids"] == [21, 22, 23]
    assert attributes["logprobs.content"] == '[{"token":"\ufffd","logprob":"-Infinity"}]'
    assert "gen_ai.completion.0.content: U+0000" in str(attributes["rollbook.changed"])


async def test_a_pair_of_surrogates_that_a_stream_splits_is_joined(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    stream = events(delta("a HIGH", [1]), delta("LOW b", [2]), delta(finish="stop"))
    model.will(sends(stream.replace(b"HIGH", rb"\ud83d").replace(b"LOW", rb"\ude00"), "text/event-stream"))
    await post(http, agent, request(stream="true"))
    attributes = (await agent.span()).attributes
    assert attributes["gen_ai.completion.0.content"] == "a \U0001f600 b"
    assert attributes["response_token_ids"] == [1, 2]
    assert attributes.keys().isdisjoint({"rollbook.changed", "agl.call.truncated"})


async def test_a_stream_with_a_broken_event_is_marked(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    stream = b'data: {"choices": [\n\n' + events(delta("rest", [2]), delta(finish="stop"))
    model.will(sends(stream, "text/event-stream"))
    assert await post(http, agent, request(stream="true")) == (200, stream)
    span = await agent.span()
    assert span.attributes["agl.call.truncated"] == "answer"
    assert span.attributes["gen_ai.completion.0.content"] == "rest"


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("body", [b"", b'{"choices": [{"mess', b"{}"], ids=repr)
async def test_a_broken_or_empty_answer_passes_and_is_a_failed_call(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession, body: bytes, content_type: str
) -> None:
    model.will(streams(body) if content_type == "text/event-stream" else sends(body))
    assert await post(http, agent, request()) == (200, body)
    span = await agent.span()
    assert (span.status.status_code, span.attributes["error.type"]) == ("ERROR", "invalid_answer")
    if content_type == "application/json" and body != b"{}":
        assert span.attributes["agl.call.truncated"] == "answer"
        assert span.attributes["agl.call.raw_answer"] == body.decode()


async def test_a_broken_answer_is_not_cached(
    new_proxy: NewProxy, store: Store, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy(cache_bytes=1024)
    model.will(sends(b"{"))
    async with Agent.at_work(store, proxy) as agent:
        for _ in range(2):
            await post(http, agent, request(temperature="0"))
    assert len(model.asked) == 2


async def test_a_long_id_of_an_answer_does_not_lose_the_call(agent: Agent, model: ModelServer) -> None:
    model.will(replies(completion(id="i" * 600)))
    await agent.chat()
    attributes = (await agent.span()).attributes
    assert (attributes["gen_ai.response.id"], attributes["rollbook.full.gen_ai.response.id"]) == ("i" * 512, "i" * 600)


@pytest.mark.parametrize("num_retries,asked", [(2, 3), (0, 3)])
async def test_retries_of_client_and_proxy_do_not_multiply(
    new_proxy: NewProxy, store: Store, model: ModelServer, num_retries: int, asked: int
) -> None:
    proxy = await new_proxy(num_retries=num_retries)
    model.will(replies({"error": {"message": "busy"}}, 503, retry_after_ms="1"))
    async with Agent.at_work(store, proxy) as agent:
        agent.client.max_retries = 2
        with pytest.raises(openai.InternalServerError):
            await agent.chat()
    assert len(model.asked) == asked
