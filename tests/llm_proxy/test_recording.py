"""The spans in the store when the client receives its response."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from store.interface.store import Store
from store.llm_proxy import LLMProxy
from store.models import Span
from store.training import TracerTraceToTriplet
from tests.llm_proxy.model_server import (
    MESSAGES,
    MODEL,
    ModelServer,
    chats,
    completion,
    delta,
    events,
    replies,
    streams,
)
from tests.llm_proxy.proxied_agent import CLIENT_KEY, Agent, NewClient, NewProxy, backend_of

BACKEND_KEY = "sk-backend-secret"
TOOL = {"name": "multiply", "description": "a times b", "parameters": {"type": "object"}}


ON_ALL_STORES = pytest.mark.usefixtures("live")
"""With a store on each database, and with one behind a server. The other tests use a store in memory."""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue("live" if "live" in request.fixturenames else "memory")
    return store


@ON_ALL_STORES
async def test_call_is_one_span_with_its_request_and_response(agent: Agent) -> None:
    answered = await agent.chat(temperature=0.5, max_tokens=20, tools=[{"type": "function", "function": TOOL}])
    span = await agent.span()
    assert answered.choices[0].message.content == "It is 42."
    assert (span.name, span.status.status_code, span.sequence_id) == ("openai.chat.completion", "OK", 1)
    assert (
        span.attributes.items()
        >= {
            "gen_ai.system": "openai",
            "gen_ai.request.type": "chat",
            "gen_ai.request.model": MODEL,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 20,
            "gen_ai.request.streaming": False,
            "gen_ai.request.functions.0.name": "multiply",
            "gen_ai.request.functions.0.description": "a times b",
            "gen_ai.request.functions.0.parameters": '{"type":"object"}',
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "What is seven times six?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "It is 42.",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.response.model": MODEL,
            "gen_ai.usage.prompt_tokens": 4,
            "gen_ai.usage.completion_tokens": 3,
            "gen_ai.usage.total_tokens": 7,
            "agl.call.backend": "main",
            "agl.call.status": 200,
            "agl.call.tries": 1,
        }.items()
    )
    assert span.attributes["prompt_token_ids"] == [11, 12, 13, 14]
    assert span.attributes["response_token_ids"] == [21, 22, 23]
    assert duration(span) == pytest.approx(latency(span), abs=1e-3)


def latency(span: Span) -> float:
    value = span.attributes["agl.call.latency"]
    assert isinstance(value, float)
    return value


def duration(span: Span) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.end_time - span.start_time


async def test_c43_three_calls_are_numbered_one_two_three(agent: Agent) -> None:
    for _ in range(3):
        await agent.chat()
    assert [span.sequence_id for span in await agent.spans()] == [1, 2, 3]


@ON_ALL_STORES
async def test_c43_ten_calls_at_once_have_ten_numbers(agent: Agent) -> None:
    await asyncio.gather(*(agent.chat() for _ in range(10)))
    assert sorted(span.sequence_id for span in await agent.spans()) == list(range(1, 11))


async def test_a_reward_given_after_an_answer_has_the_greater_number(agent: Agent) -> None:
    await agent.chat()
    assert await agent.store.get_next_span_sequence_id(agent.rollout_id, agent.attempt_id) == 2
    assert len(await agent.spans()) == 1


async def test_the_number_is_that_of_the_beginning_of_a_call(agent: Agent, model: ModelServer) -> None:
    gate = asyncio.Event()
    model.will(streams(events(delta("4"))[:-14], gate, b"data: [DONE]\n\n"), chats())
    slow = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    await agent.chat()
    gate.set()
    assert [chunk async for chunk in slow]
    assert [span.attributes["gen_ai.request.streaming"] for span in await agent.spans()] == [True, False]


@ON_ALL_STORES
async def test_c44_a_stream_is_recorded_like_an_answer_in_one_piece(agent: Agent, model: ModelServer) -> None:
    first = delta("", [])
    first["prompt_token_ids"] = [11, 12, 13, 14]
    usage: Any = {"id": "chatcmpl-2", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
    stream = events(first, delta("It ", [21]), delta("is 4", [22]), delta("2.", [23]), delta(finish="stop"), usage)
    # Pieces of seven bytes end in the middle of lines, of words and of escapes.
    model.will(streams(*(stream[at : at + 7] for at in range(0, len(stream), 7))))
    chunks = await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
    # Nothing is waited for here: the client had the end only once this was stored.
    span = await agent.span()
    assert text == span.attributes["gen_ai.completion.0.content"] == "It is 42."
    assert span.attributes["prompt_token_ids"] == [11, 12, 13, 14]
    assert span.attributes["response_token_ids"] == [21, 22, 23]
    assert span.attributes["gen_ai.completion.0.finish_reason"] == "stop"
    assert span.attributes["gen_ai.usage.completion_tokens"] == 3
    assert span.attributes["gen_ai.response.id"] == "chatcmpl-2"


async def test_c44_tool_calls_of_a_stream_are_put_together_with_their_ids(agent: Agent, model: ModelServer) -> None:
    def tool(index: int, **said: Any) -> Any:
        return delta(tool_calls=[{"index": index, **said}])

    model.will(
        streams(
            events(
                tool(0, id="call-a", type="function", function={"name": "multiply", "arguments": ""}),
                tool(0, function={"arguments": '{"a": 7,'}),
                tool(1, id="call-b", type="function", function={"name": "add", "arguments": "{}"}),
                tool(0, function={"arguments": ' "b": 6}'}),
                delta(ids=[31, 32], finish="tool_calls"),
            )
        )
    )
    async with agent.client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    attributes = (await agent.span()).attributes
    calls = final.choices[0].message.tool_calls or []
    recorded = [
        tuple(attributes[f"gen_ai.completion.0.tool_calls.{index}.{name}"] for name in ("id", "name", "arguments"))
        for index in range(2)
    ]
    assert recorded == [("call-a", "multiply", '{"a": 7, "b": 6}'), ("call-b", "add", "{}")]
    assert recorded == [(call.id, call.function.name, call.function.arguments) for call in calls]
    assert attributes["response_token_ids"] == [31, 32]
    assert attributes["gen_ai.completion.0.finish_reason"] == "tool_calls"


async def test_adapters_read_the_calls_of_the_proxy(agent: Agent, model: ModelServer) -> None:
    model.will(chats(id="chatcmpl-1"), chats(id="chatcmpl-2"))
    await agent.chat()
    await agent.chat(messages=[{"role": "user", "content": "And eight?"}])
    (first, second) = TracerTraceToTriplet().adapt(await agent.spans())
    assert first.prompt["token_ids"] == second.prompt["token_ids"] == [11, 12, 13, 14]
    assert first.response["token_ids"] == [21, 22, 23]


async def test_log_probabilities_are_recorded(new_proxy: NewProxy, store: Store, model: ModelServer) -> None:
    proxy = await new_proxy(backends=[backend_of(model, supports_logprobs=True)])
    said: list[dict[str, Any]] = [{"token": "42", "logprob": -0.25, "bytes": None, "top_logprobs": []}]
    answer = completion()
    answer["choices"][0]["logprobs"] = {"content": said, "refusal": None}
    model.will(replies(answer))
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        span = await agent.span()
    assert model.asked[0].json["logprobs"] is True
    assert json.loads(str(span.attributes["logprobs.content"])) == said
    assert "logprobs.refusal" not in span.attributes


async def test_c45_an_error_passes_through_and_is_recorded(agent: Agent, model: ModelServer) -> None:
    error = {"error": {"message": "the prompt is too long", "type": "invalid_request_error", "code": "too_long"}}
    model.will(replies(error, 400))
    with pytest.raises(openai.BadRequestError) as refused:
        await agent.chat()
    span = await agent.span()
    assert refused.value.body == error["error"]
    assert (span.status.status_code, span.status.description) == ("ERROR", "400: the prompt is too long")
    assert span.attributes.items() >= {"agl.call.status": 400, "agl.call.tries": 1, "error.type": "400"}.items()
    assert span.attributes["gen_ai.prompt.0.content"] == "What is seven times six?"


async def test_an_error_in_the_middle_of_a_stream_is_recorded(agent: Agent, model: ModelServer) -> None:
    model.will(streams(events(delta("It "), {"error": {"message": "out of memory"}})))
    with pytest.raises(openai.APIError, match="out of memory"):
        async for _ in await agent.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pass
    span = await agent.span()
    assert (span.status.status_code, span.status.description) == ("ERROR", "out of memory")
    assert span.attributes["gen_ai.completion.0.content"] == "It "


async def test_c46_a_call_without_ids_is_passed_on_and_not_recorded(
    agent: Agent, proxy: LLMProxy, model: ModelServer, new_client: NewClient
) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
    create: Any = new_client(proxy.endpoint).chat.completions.create
    assert (await create(**body)).choices[0].message.content == "It is 42."
    # It is the client's own request, without a wish for token ids that nobody would keep.
    assert model.asked[0].json == body
    assert await agent.spans() == []
    assert await agent.store.get_next_span_sequence_id(agent.rollout_id, agent.attempt_id) == 1


async def test_the_ids_may_come_in_headers(agent: Agent, proxy: LLMProxy, new_client: NewClient) -> None:
    ids = {"x-rollout-id": agent.rollout_id, "x-attempt-id": agent.attempt_id}
    client = new_client(f"{proxy.endpoint}/v1", default_headers=ids)
    await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (await agent.span()).attempt_id == agent.attempt_id


@pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
async def test_an_attempt_that_has_ended_gets_no_answer(agent: Agent, model: ModelServer, status: Any) -> None:
    await agent.store.update_attempt(agent.rollout_id, agent.attempt_id, status=status)
    with pytest.raises(openai.ConflictError, match=f"has ended .{status}."):
        await agent.chat()
    assert model.asked == []
    assert await agent.spans() == []


@ON_ALL_STORES
async def test_a_rollout_that_was_cancelled_gets_no_answer(agent: Agent, model: ModelServer) -> None:
    await agent.store.update_rollout(agent.rollout_id, status="cancelled")
    with pytest.raises(openai.ConflictError, match=r"has ended .cancelled."):
        await agent.chat()
    assert model.asked == []


async def test_an_earlier_attempt_that_still_runs_is_recorded(agent: Agent) -> None:
    await agent.store.start_attempt(agent.rollout_id)
    await agent.chat()
    assert (await agent.span()).attempt_id == agent.attempt_id


@ON_ALL_STORES
@pytest.mark.parametrize("path", ["rollout/ro-none/attempt/at-none", "rollout/{rollout}/attempt/at-none"])
async def test_an_unknown_attempt_gets_no_answer(
    agent: Agent, proxy: LLMProxy, model: ModelServer, new_client: NewClient, path: str
) -> None:
    client = new_client(f"{proxy.endpoint}/{path.format(rollout=agent.rollout_id)}/v1")
    with pytest.raises(openai.ConflictError, match=r"rollout ro-none of this call|has no attempt at-none"):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert model.asked == []


async def test_an_attempt_that_has_ended_gets_unrecorded_answers_if_so_configured(
    new_proxy: NewProxy, store: Store
) -> None:
    proxy = await new_proxy(on_ended="forward")
    async with Agent.at_work(store, proxy) as agent:
        await store.update_attempt(agent.rollout_id, agent.attempt_id, status="succeeded")
        assert (await agent.chat()).choices[0].message.content == "It is 42."
        assert await agent.spans() == []


async def test_no_key_is_in_any_span(
    new_proxy: NewProxy, store: Store, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    proxy = await new_proxy(backends=[backend_of(model, api_key=BACKEND_KEY)])
    leak = f"wrong key {BACKEND_KEY}, not {CLIENT_KEY}"
    model.will(replies({"error": {"message": leak}}, 401), chats(id=leak))
    async with Agent.at_work(store, proxy) as agent:
        with pytest.raises(openai.AuthenticationError, match=BACKEND_KEY):
            await agent.chat()
        await agent.chat(messages=[{"role": "user", "content": f"is {CLIENT_KEY} a good key?"}])
        spans = await agent.spans()
    told = json.dumps([span.model_dump() for span in spans])
    assert "[key removed]" in told
    assert "secret" not in told
    assert "x-stainless" not in told.lower()


@ON_ALL_STORES
async def test_text_that_no_database_takes_is_recorded_as_far_as_possible(agent: Agent, model: ModelServer) -> None:
    answer = completion()
    answer["choices"][0]["message"]["content"] = "a\0b"
    model.will(replies(answer))
    assert (await agent.chat(seed=2**62)).choices[0].message.content == "a\0b"
    span = await agent.span()
    assert span.attributes["gen_ai.completion.0.content"] == "a\N{REPLACEMENT CHARACTER}b"
    assert span.attributes["gen_ai.request.seed"] == 2**62


async def test_an_answer_in_no_known_form_passes_and_is_recorded_as_far_as_it_goes(
    agent: Agent, model: ModelServer, http: aiohttp.ClientSession
) -> None:
    forms: list[Any] = [[], 7, {"choices": "none"}, {"choices": [{"message": [1]}], "usage": 3, "id": 5}]
    model.will(*map(replies, forms))
    for form in forms:
        async with http.post(f"{agent.url}/chat/completions", json={"messages": 3}) as response:
            assert await response.json() == form
    assert [span.status.status_code for span in await agent.spans()] == ["OK"] * 4


async def test_the_version_of_the_weights_is_recorded(new_proxy: NewProxy, store: Store, model: ModelServer) -> None:
    proxy = await new_proxy(backends=[backend_of(model, version="step-1")])
    async with Agent.at_work(store, proxy) as agent:
        await agent.chat()
        proxy.update_backends([backend_of(model, version="step-2")])
        await agent.chat()
        assert [span.attributes["agl.call.model_version"] for span in await agent.spans()] == ["step-1", "step-2"]
