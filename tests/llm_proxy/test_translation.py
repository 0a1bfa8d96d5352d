"""Backends of other protocols through LiteLLM: equal responses and equal records for all of them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import openai
import pytest
from aiohttp import web

from store.errors import Invalid
from store.interface.store import Store
from store.llm_proxy import Backend
from tests.llm_proxy.model_server import MODEL
from tests.llm_proxy.proxied_agent import Agent, NewProxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("litellm"),
    # Its models are not clean under the newest pydantic; that is no fault of the proxy.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        find_spec("litellm") is None and not os.environ.get("ROLLBOOK_REQUIRE_LITELLM"),
        reason="pip install 'rollbook[litellm]'",
    ),
]
KEY = "sk-provider-secret"
TEXT = "It is 42."


@dataclass
class Provider:
    """A model server with a protocol of its own.

    Attributes:
        requests: path, query, headers and body of each request.
        failure: the status and headers of the next answer, instead of an answer.
        silent: whether to never answer.
        came: set when a request has arrived.
        was_left: set when a client has disconnected before its answer.
    """

    url: str = ""
    requests: list[tuple[str, Mapping[str, str], Mapping[str, str], dict[str, Any]]] = field(default_factory=list[Any])
    failure: tuple[int, dict[str, str]] | None = None
    silent: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)
    was_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer in the protocol that the path belongs to."""
        body = await request.json()
        self.requests.append((request.path, dict(request.query), dict(request.headers), body))
        self.came.set()
        if self.silent:
            try:
                await asyncio.Event().wait()
            finally:
                self.was_left.set()
        if self.failure is not None:
            (status, headers), self.failure = self.failure, None
            kind = "invalid_request_error" if status == 400 else "rate_limit_error"
            error = {"type": "error", "error": {"type": kind, "message": "not this time"}}
            return web.json_response(error, status=status, headers=headers)
        path = request.path
        if path == "/v1/messages":
            return await self._anthropic(request, streams=bool(body.get("stream")))
        if path.startswith("/openai/deployments/"):
            return web.json_response(chat("azure-1"))
        if path.endswith(":generateContent"):
            return web.json_response(GEMINI)
        if path in {"/api/chat", "/api/generate"}:
            return web.json_response(OLLAMA)
        return web.json_response({"error": {"message": f"no {path}"}}, status=404)

    async def _anthropic(self, request: web.Request, *, streams: bool) -> web.StreamResponse:
        if not streams:
            return web.json_response(ANTHROPIC)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in ANTHROPIC_STREAM:
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response


def chat(answer_id: str) -> dict[str, Any]:
    """Return an answer in OpenAI's protocol."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 6},
}
ANTHROPIC_STREAM: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**ANTHROPIC, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It is "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "42."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 6}},
    {"type": "message_stop"},
]
GEMINI: dict[str, Any] = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": TEXT}]}, "finishReason": "STOP", "index": 0},
    ],
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 6, "totalTokenCount": 11},
    "modelVersion": "gemini",
}
OLLAMA: dict[str, Any] = {
    "model": "llama",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {"role": "assistant", "content": TEXT},
    "response": TEXT,
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 5,
    "eval_count": 6,
}


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """The model server."""
    provider = Provider()
    app = web.Application()
    app.router.add_post("/{path:.*}", provider.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield provider
    await runner.cleanup()


BACKENDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "anthropic": lambda url: {"base_url": url, "models": {MODEL: "claude-sonnet-4"}},
    "azure": lambda url: {"base_url": url, "models": {MODEL: "deployed"}, "options": {"api_version": "2025-01-01"}},
    "gemini": lambda url: {"base_url": f"{url}/v1beta", "models": {MODEL: "gemini-2.0-flash"}},
    "ollama": lambda url: {"base_url": url, "models": {MODEL: "llama3"}},
}


def backend(provider: Provider, name: str = "anthropic", **details: Any) -> Backend:
    """Return a backend that is this server."""
    options: dict[str, Any] = {"name": "main", "provider": name, "api_key": KEY, **BACKENDS[name](provider.url)}
    return Backend(**options, **details)


@pytest.fixture
async def agent(store: Store, new_proxy: NewProxy, provider: Provider) -> AsyncIterator[Agent]:
    """An agent whose model is Anthropic's."""
    async with Agent.at_work(store, await new_proxy(backends=[backend(provider)])) as agent:
        yield agent


@pytest.mark.parametrize("name", BACKENDS)
async def test_each_protocol_is_translated_and_recorded_alike(
    store: Store, new_proxy: NewProxy, provider: Provider, name: str
) -> None:
    proxy = await new_proxy(backends=[backend(provider, name)])
    async with Agent.at_work(store, proxy) as agent:
        answered = await agent.chat(temperature=0.5, max_tokens=20)
        span = await agent.span()
    assert answered.choices[0].message.content == TEXT
    assert answered.choices[0].finish_reason == "stop"
    ((path, query, headers, body),) = provider.requests
    assert "seven times six" in json.dumps(body)
    assert KEY in json.dumps([path, query, headers]) or name == "ollama"
    assert (span.name, span.status.status_code) == ("openai.chat.completion", "OK")
    assert (
        span.attributes.items()
        >= {
            "gen_ai.request.model": MODEL,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.prompt.0.content": "What is seven times six?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": TEXT,
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.usage.prompt_tokens": 5,
            "gen_ai.usage.completion_tokens": 6,
            "agl.call.backend": "main",
            "agl.call.status": 200,
            "agl.call.tries": 1,
        }.items()
    )
    assert KEY not in json.dumps(dict(span.attributes), default=str)


async def test_a_stream_is_translated_chunk_by_chunk(agent: Agent) -> None:
    stream = await agent.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "?"}], max_tokens=20, stream=True
    )
    texts = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    assert "".join(texts) == TEXT
    assert len([text for text in texts if text]) == 2
    assert (await agent.span()).attributes["gen_ai.completion.0.content"] == TEXT


async def test_a_failure_keeps_its_status_and_is_retried_by_the_proxy_alone(agent: Agent, provider: Provider) -> None:
    provider.failure = (429, {"retry-after": "0"})
    assert (await agent.chat(max_tokens=20)).choices[0].message.content == TEXT
    assert len(provider.requests) == 2
    provider.failure = (400, {})
    with pytest.raises(openai.BadRequestError, match="not this time"):
        await agent.chat(max_tokens=20)
    assert len(provider.requests) == 3
    first, second = await agent.spans()
    assert (first.attributes["agl.call.tries"], first.attributes["agl.call.status"]) == (2, 200)
    assert (second.attributes["agl.call.tries"], second.attributes["agl.call.status"]) == (1, 400)


@pytest.mark.parametrize("name", ["api_base", "base_url", "custom_llm_provider", "mock_response", "extra_headers"])
async def test_an_agent_cannot_choose_the_server_or_the_key(agent: Agent, provider: Provider, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"parameter '{name}' is not translated for anthropic"):
        await agent.chat(extra_body={name: "http://127.0.0.1:9"})
    assert provider.requests == []


async def test_a_client_that_disconnects_ends_the_call_of_the_model(agent: Agent, provider: Provider) -> None:
    provider.silent = True
    asking = asyncio.ensure_future(agent.chat(max_tokens=20))
    async with asyncio.timeout(60):
        await provider.came.wait()
        asking.cancel()
        await asyncio.wait({asking})
        await provider.was_left.wait()


async def test_a_model_list_of_litellm_names_any_provider(
    store: Store, new_proxy: NewProxy, provider: Provider
) -> None:
    entry = {
        "model_name": MODEL,
        "litellm_params": {
            "model": "azure/deployed",
            "api_base": provider.url,
            "api_key": KEY,
            "api_version": "2025-01-01",
        },
    }
    proxy = await new_proxy(backends=None, model_list=[entry])
    async with Agent.at_work(store, proxy) as agent:
        assert (await agent.chat()).choices[0].message.content == TEXT
    ((path, query, headers, _),) = provider.requests
    assert path == "/openai/deployments/deployed/chat/completions"
    assert query["api-version"] == "2025-01-01"
    assert headers["api-key"] == KEY


def test_options_need_a_provider() -> None:
    with pytest.raises(Invalid, match="they need a provider"):
        Backend("a", "http://host", options={"api_version": "1"})
