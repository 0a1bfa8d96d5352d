"""Requests through the proxy: bytes unchanged, headers by the rules of HTTP, and keys only to their backend."""

from __future__ import annotations

import asyncio

import aiohttp
import openai
import pytest
from starlette.responses import Response
from yarl import URL

from store.interface.store import Store
from store.llm_proxy import LLMProxy
from store.llm_proxy.addresses import Endpoint
from tests.llm_proxy.model_server import (
    MESSAGES,
    MODEL,
    Asked,
    ModelServer,
    breaks_off,
    completion,
    delta,
    events,
    replies,
    streams,
)
from tests.llm_proxy.proxied_agent import CLIENT_KEY, Agent, NewClient, NewProxy, backend_of
from tests.training.training_helpers import until

STREAM = events(delta("Café ", [1]), delta("\N{SNOWMAN}", [2]), delta(finish="stop"))


async def test_c44_a_stream_reaches_the_client_byte_for_byte(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    raw = b": ping\r\n\r\nretry: 5\nevent: x\n" + STREAM + b"data: trailing without an end"
    model.will(streams(*(raw[at : at + 5] for at in range(0, len(raw), 5))))
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    async with http.post(f"{agent.url}/chat/completions", json=body) as response:
        assert await response.read() == raw
        assert response.content_type == "text/event-stream"
    assert (await agent.span()).attributes["gen_ai.completion.0.content"] == "Café \N{SNOWMAN}"


async def test_a_stream_reaches_the_client_while_the_backend_is_still_writing(agent: Agent, model: ModelServer) -> None:
    gate = asyncio.Event()
    model.will(streams(STREAM[:-14], gate, b"data: [DONE]\n\n"))
    chunks = aiter(await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert (await anext(chunks)).choices[0].delta.content == "Café "
    assert await agent.spans() == []
    gate.set()
    assert len([chunk async for chunk in chunks]) == 2


async def test_an_answer_reaches_the_client_byte_for_byte(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    raw = b'{ "id" :"x",\n "choices":[ ], "big":123456789012345678901234567890, "\\ud83d\\ude00":1.0 }'

    async def answer(_: Asked) -> Response:
        return Response(raw, 203, {"content-type": "application/json"})

    model.will(answer)
    async with http.post(f"{agent.url}/chat/completions", data=b"{}") as response:
        assert (response.status, await response.read()) == (203, raw)


async def test_a_request_reaches_the_backend_byte_for_byte(
    proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    raw = b'{ "model":"tiny", "messages":[], "seed": 123456789012345678901234567890 }'
    url = URL(f"{proxy.endpoint}/v1/chat/completions?api-version=1%2F2", encoded=True)
    async with http.post(url, data=raw) as response:
        assert response.status == 200
    assert model.asked[0].body == raw
    assert (model.asked[0].path, model.asked[0].query) == ("/v1/chat/completions", "api-version=1%2F2")


async def test_token_ids_are_asked_for_where_the_backend_has_them_and_the_client_says_nothing(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    proxy = await new_proxy()
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        await agent.chat(extra_body={"return_token_ids": False})
        proxy.update_backends([backend_of(model, supports_token_ids=False)])
        await agent.chat()
    assert [asked.json.get("return_token_ids") for asked in model.asked] == [True, False, None]


async def test_added_fields_leave_the_bytes_of_the_request_unchanged(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    body = b'"model" : "tiny","seed":123456789012345678901234567890,"messages":' + b"[" * 400 + b"]" * 400 + b"}"
    async with http.post(f"{agent.url}/chat/completions", data=b" \n{ " + body) as response:
        await response.read()
    assert model.asked[0].body == b'{"return_token_ids":true, ' + body
    assert (await agent.span()).attributes["gen_ai.request.model"] == MODEL


async def test_a_prompt_nested_too_deeply_is_recorded_as_such(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    deep = b'{"messages":[{"role":"user","content":' + b"[" * 400 + b"]" * 400 + b"}]}"
    async with http.post(f"{agent.url}/chat/completions", data=deep) as response:
        await response.read()
    attributes = (await agent.span()).attributes
    assert attributes["gen_ai.prompt.0.content"] == "[nested too deeply]"
    assert attributes["rollbook.changed"] == ["gen_ai.prompt.0.content: nested too deeply to be recorded"]


async def test_a_page_in_a_browser_needs_the_key(
    new_proxy: NewProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    body = {"model": MODEL, "messages": MESSAGES}
    page = {"Origin": "http://localhost:3000", "Authorization": "Bearer sk-proxy-key"}
    for key, status in ((None, 403), ("sk-proxy-key", 200)):
        proxy = await new_proxy(api_key=key)
        async with http.post(f"{proxy.endpoint}/v1/chat/completions", json=body, headers=page) as response:
            assert response.status == status
    assert len(model.asked) == 1


async def test_headers_of_one_connection_stay_on_it(
    proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    model.will(replies(completion(), connection="x-inner", x_inner="1", keep_alive="timeout=5", x_request_id="abc"))
    sent = {
        "Connection": "x-mine, keep-alive",
        "X-Mine": "1",
        "TE": "trailers",
        "Proxy-Authorization": "Basic eDp5",
        "X-Forwarded-For": "10.0.0.1",
        "OpenAI-Organization": "org",
        "Cookie": "session=1",
        "X-Sequence-Id": "9",
    }
    async with http.post(f"{proxy.endpoint}/v1/chat/completions", json={"model": MODEL}, headers=sent) as response:
        received = {name.lower() for name in response.headers}
    came = model.asked[0].headers
    assert {"openai-organization", "x-forwarded-for", "user-agent"} <= set(came)
    assert not {"x-mine", "te", "proxy-authorization", "cookie", "x-sequence-id"} & set(came)
    assert came["host"] == model.url.removeprefix("http://")
    assert "x-request-id" in received
    assert not {"x-inner", "keep-alive"} & received


@pytest.mark.parametrize(
    "backend_key, proxy_key, arrives",
    [
        (None, None, f"Bearer {CLIENT_KEY}"),
        ("sk-backend", None, "Bearer sk-backend"),
        ("sk-backend", CLIENT_KEY, "Bearer sk-backend"),
        (None, CLIENT_KEY, None),
    ],
)
async def test_a_key_goes_only_to_whom_it_is_meant_for(
    new_proxy: NewProxy,
    model: ModelServer,
    new_client: NewClient,
    backend_key: str | None,
    proxy_key: str | None,
    arrives: str | None,
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, api_key=backend_key)], api_key=proxy_key)
    await new_client(proxy.endpoint).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert model.asked[0].headers.get("authorization") == arrives


async def test_proxy_with_a_key_requires_the_key(
    new_proxy: NewProxy, model: ModelServer, new_client: NewClient
) -> None:
    proxy = await new_proxy(api_key="sk-proxy-key")
    with pytest.raises(openai.AuthenticationError, match="requires its key"):
        await new_client(proxy.endpoint).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert model.asked == []
    assert await new_client(proxy.endpoint, api_key="sk-proxy-key").models.list()


async def test_other_paths_are_not_passed_on(proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession) -> None:
    for path in ("/v1/files", "/sleep", "/v1/update_weights", "/rollout/ro/v1/chat/completions", "/v1/../v1/chat", "/"):
        async with http.post(f"{proxy.endpoint}{path}", json={}) as response:
            error = (await response.json())["error"]
            assert (response.status, error["type"]) == (404, "not_found_error")
            assert "/v1/chat/completions" in error["message"]
    async with http.get(f"{proxy.endpoint}/v1/chat/completions") as response:
        assert response.status == 405
    assert model.asked == []


async def test_one_id_without_the_other_is_refused(proxy: LLMProxy, model: ModelServer, new_client: NewClient) -> None:
    client = new_client(proxy.endpoint, default_headers={"x-rollout-id": "ro-1"})
    with pytest.raises(openai.BadRequestError, match="together"):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert model.asked == []


async def test_every_path_works_with_and_without_v1(
    proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    paths = [endpoint for endpoint in Endpoint if endpoint is not Endpoint.MODELS]
    for path in paths:
        for prefix in ("", "/v1"):
            async with http.post(f"{proxy.endpoint}{prefix}/{path}", json={"model": MODEL}) as response:
                assert response.status == 200
    assert [asked.path for asked in model.asked] == [f"/v1/{path}" for path in paths for _ in range(2)]


async def test_a_request_that_is_too_long_is_refused(
    new_proxy: NewProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy(max_request_bytes=1000)
    async with http.post(f"{proxy.endpoint}/v1/chat/completions", data=b"x" * 1001) as response:
        assert response.status == 413
    assert model.asked == []


async def test_an_answer_that_breaks_off_breaks_off_for_the_client_and_is_recorded(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    first = events(delta("It ", [1]))[:-14]
    gate = asyncio.Event()
    model.will(breaks_off(first, gate))
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    async with http.post(f"{agent.url}/chat/completions", json=body) as response:
        assert await response.content.readexactly(len(first)) == first
        gate.set()
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()
    span = await agent.span()
    assert (span.status.status_code, span.attributes["error.type"]) == ("ERROR", "backend_error")
    assert span.attributes["gen_ai.completion.0.content"] == "It "
    assert span.attributes["response_token_ids"] == [1]


async def test_a_backend_that_falls_silent_in_the_middle_breaks_the_stream_off(
    new_proxy: NewProxy, store: Store, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy(silence_seconds=0.2)
    model.will(model.waits_for_ever(events(delta("It ", [1]))[:-14]))
    async with Agent.at_work(store, proxy) as agent:
        async with http.post(f"{agent.url}/chat/completions", json={"model": MODEL, "stream": True}) as response:
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        span = await agent.span()
    assert (span.attributes["error.type"], span.attributes["response_token_ids"]) == ("backend_timeout", [1])
    await model.left.wait()


async def test_a_client_that_does_not_read_holds_the_backend_up_and_fills_no_memory(
    proxy: LLMProxy, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    piece, pieces = b": " + b"x" * 65_534, 1024
    sent: list[int] = []

    async def endless(asked: Asked) -> None:
        fields = [(b"content-type", b"text/event-stream")]
        await asked.send({"type": "http.response.start", "status": 200, "headers": fields})
        for number in range(pieces):
            await asked.send({"type": "http.response.body", "body": piece, "more_body": True})
            sent.append(number)
        await asked.send({"type": "http.response.body"})

    async def has_stopped() -> bool:
        before = len(sent)
        await asyncio.sleep(0.1)
        return 0 < before == len(sent)

    model.will(endless)
    async with http.post(f"{proxy.endpoint}/v1/chat/completions", json={"stream": True}) as response:
        await until(has_stopped)
        # What the sockets between them hold is a few MiB, of 64.
        assert len(sent) < pieces / 2
        assert len(await response.read()) == len(piece) * pieces


async def test_an_answer_too_long_to_be_kept_passes_whole_and_says_so_in_its_span(
    new_proxy: NewProxy, store: Store, model: ModelServer
) -> None:
    proxy = await new_proxy(max_recorded_bytes=2000)
    word = "x" * 100
    answer = completion()
    answer["choices"][0]["message"]["content"] = word * 30
    model.will(streams(events(*[delta(word, [1])] * 100, delta(finish="length"))), replies(answer))
    async with Agent.at_work(store, proxy) as agent:
        stream = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert len([chunk async for chunk in stream]) == 101
        assert (await agent.chat()).choices[0].message.content == word * 30
        await agent.chat(messages=[{"role": "user", "content": word * 30}])
        streamed, plain, asked = [span.attributes for span in await agent.spans()]
    assert streamed["agl.call.truncated"] == plain["agl.call.truncated"] == "answer"
    assert 0 < len(str(streamed["gen_ai.completion.0.content"])) < 2000
    assert streamed["gen_ai.completion.0.finish_reason"] == "length"
    assert "gen_ai.completion.0.content" not in plain
    assert asked["agl.call.truncated"] == "prompt, answer"
    assert asked["gen_ai.prompt.0.role"] == "user"
    assert "gen_ai.prompt.0.content" not in asked
