"""Calls of the openai client become spans of the attempt with the transferred data."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions, Completions
from pydantic import BaseModel

from store.interface.store import Store
from store.models import Span
from store.training import emit_reward
from store.training.model_clients.openai_spans import instrument_openai, uninstrument_openai
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, chats, delta, events, model_server, replies
from tests.llm_proxy.model_server import streams as streaming
from tests.training.training_helpers import spans_of_attempt

TOOL: Any = {
    "type": "function",
    "function": {"name": "search", "description": "Search.", "parameters": {"type": "object", "properties": {}}},
}
LOGPROBS: dict[str, Any] = {
    "content": [{"token": "It", "logprob": -0.5, "bytes": None, "top_logprobs": []}],
    "refusal": None,
}


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


@pytest.fixture
async def client(model: ModelServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="sk-secret", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    assert instrument_openai()
    yield
    uninstrument_openai()


async def traced(store: Store, work: Any) -> list[Span]:
    """Return the spans of an attempt in which something is done, without its root. They lie directly below it."""
    *spans, root = await spans_of_attempt(store, work)
    assert {span.parent_id for span in spans} <= {root.span_id}
    return spans


async def test_a_call_is_a_span_with_prompt_answer_and_token_ids(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI
) -> None:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "It is 42."},
        "finish_reason": "stop",
        "token_ids": [21, 22, 23],
        "logprobs": LOGPROBS,
    }
    model.will(chats(choices=[choice]))
    answers: list[Any] = []

    async def work() -> None:
        answers.append(
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0.5, logprobs=True)
        )
        emit_reward(1.0)

    call, reward = await traced(memory, work)
    assert answers[0].choices[0].message.content == "It is 42."
    assert call.name == "openai.chat.completion"
    assert call.status.status_code == "OK"
    attributes: dict[str, Any] = dict(call.attributes)
    assert json.loads(attributes.pop("logprobs.content"))[0]["logprob"] == -0.5
    assert attributes == {
        "gen_ai.system": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.type": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.logprobs": True,
        "gen_ai.request.streaming": False,
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
        "prompt_token_ids": [11, 12, 13, 14],
        "response_token_ids": [21, 22, 23],
    }
    assert reward.sequence_id > call.sequence_id


async def test_neither_keys_nor_headers_are_recorded(memory: Store, client: openai.AsyncOpenAI) -> None:
    async def work() -> None:
        headers = {"X-Secret": "sk-header"}
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_headers=headers, user="sk-user")

    (call,) = await traced(memory, work)
    assert "sk-" not in call.model_dump_json()


async def test_the_sync_client_is_recorded_too(memory: Store, model: ModelServer) -> None:
    def calling() -> None:
        with openai.OpenAI(base_url=f"{model.url}/v1", api_key="k") as client:
            client.chat.completions.create(model=MODEL, messages=MESSAGES)

    (call,) = await traced(memory, lambda: asyncio.to_thread(calling))
    assert call.attributes["response_token_ids"] == [21, 22, 23]


async def test_tools_their_calls_and_their_results_are_recorded(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI
) -> None:
    asked = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [asked]}
    model.will(chats(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}]), chats())

    async def work() -> None:
        first = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[TOOL])
        result = {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": "found"}]}
        history: Any = [*MESSAGES, first.choices[0].message, result]
        await client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL])

    first, second = (span.attributes for span in await traced(memory, work))
    assert first["gen_ai.request.functions.0.name"] == "search"
    assert json.loads(str(first["gen_ai.request.functions.0.parameters"])) == TOOL["function"]["parameters"]
    tool_call = {"id": "call-1", "name": "search", "arguments": '{"q": 1}'}
    for name, value in tool_call.items():
        assert first[f"gen_ai.completion.0.tool_calls.0.{name}"] == value
        assert second[f"gen_ai.prompt.1.tool_calls.0.{name}"] == value
    assert "gen_ai.completion.0.content" not in first
    assert (second["gen_ai.prompt.2.role"], second["gen_ai.prompt.2.tool_call_id"]) == ("tool", "call-1")
    assert json.loads(str(second["gen_ai.prompt.2.content"])) == [{"type": "text", "text": "found"}]


STREAM = events(
    {**delta("It ", [21], role="assistant"), "prompt_token_ids": [11, 12]},
    delta("is ", [22]),
    delta(tool_calls=[{"index": 0, "id": "call-1", "function": {"name": "search", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"q":'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": " 1}"}}]),
    delta("42.", [23], finish="stop"),
    {
        **delta(),
        "choices": [],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    },
)
STREAMED = {
    "gen_ai.request.streaming": True,
    "gen_ai.response.id": "chatcmpl-2",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "It is 42.",
    "gen_ai.completion.0.finish_reason": "stop",
    "gen_ai.completion.0.tool_calls.0.id": "call-1",
    "gen_ai.completion.0.tool_calls.0.name": "search",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"q": 1}',
    "gen_ai.usage.total_tokens": 5,
    "prompt_token_ids": [11, 12],
    "response_token_ids": [21, 22, 23],
}


async def test_a_stream_is_handed_on_as_it_comes_and_recorded_whole(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI
) -> None:
    go_on = asyncio.Event()
    first, rest = STREAM.split(b"\n\n", 1)
    model.will(streaming(first + b"\n\n", go_on, rest))
    said: list[str] = []

    async def work() -> None:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        async for chunk in stream:
            said.extend(choice.delta.content or "" for choice in chunk.choices)
            go_on.set()

    (call,) = await traced(memory, work)
    assert "".join(said) == "It is 42."
    assert {name: call.attributes.get(name) for name in STREAMED} == STREAMED


async def test_a_stream_of_the_sync_client_is_recorded_whole(memory: Store, model: ModelServer) -> None:
    model.will(streaming(STREAM))

    def calling() -> None:
        with (
            openai.OpenAI(base_url=f"{model.url}/v1", api_key="k") as client,
            client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream,
        ):
            assert stream.response.status_code == 200
            assert len(list(stream)) == 7

    (call,) = await traced(memory, lambda: asyncio.to_thread(calling))
    assert {name: call.attributes.get(name) for name in STREAMED} == STREAMED


@pytest.mark.parametrize("how", ["closed", "forgotten"])
@pytest.mark.slow
async def test_received_part_of_an_abandoned_stream_is_recorded(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI, how: str
) -> None:
    model.will(streaming(STREAM))

    async def work() -> None:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        await anext(stream)
        if how == "closed":
            await stream.close()
        else:
            await stream.response.aclose()
            del stream
            gc.collect()

    (call,) = await traced(memory, work)
    assert call.attributes["gen_ai.completion.0.content"] == "It "
    assert call.attributes["response_token_ids"] == [21]


async def test_the_clients_own_helpers_are_recorded_once(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI
) -> None:
    class Result(BaseModel):
        value: int

    answer = {"role": "assistant", "content": '{"value": 42}'}
    model.will(
        chats(choices=[{"index": 0, "message": answer, "finish_reason": "stop"}], id="chatcmpl-parsed"),
        chats(id="chatcmpl-raw"),
        streaming(STREAM),
    )

    async def work() -> None:
        parsed = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Result)
        assert parsed.choices[0].message.parsed == Result(value=42)
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
        assert raw.parse().id == "chatcmpl-raw"
        async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == "It is 42."

    calls = await traced(memory, work)
    assert [call.attributes.get("gen_ai.response.id") for call in calls] == [
        "chatcmpl-parsed",
        "chatcmpl-raw",
        "chatcmpl-2",
    ]


async def test_a_call_that_fails_is_recorded_as_failed_and_raises_as_before(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI
) -> None:
    model.will(replies({"error": {"message": "too many"}}, 429))

    async def work() -> None:
        with pytest.raises(openai.RateLimitError, match="too many"):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)

    (call,) = await traced(memory, work)
    assert call.status.status_code == "ERROR"
    assert call.events[0].attributes["exception.type"] == "openai.RateLimitError"
    assert call.attributes["gen_ai.prompt.0.role"] == "user"


async def test_unreadable_parts_of_a_call_do_not_fail_the_agent(
    memory: Store, model: ModelServer, client: openai.AsyncOpenAI, caplog: Any
) -> None:
    model.will(chats(choices=[{"index": 0, "message": {"role": "assistant", "content": "x"}}], prompt_token_ids="no"))

    async def work() -> None:
        answer = await client.chat.completions.create(model=MODEL, messages=iter(MESSAGES))
        assert answer.choices[0].message.content == "x"

    (call,) = await traced(memory, work)
    assert call.attributes["gen_ai.completion.0.content"] == "x"
    assert "gen_ai.prompt.0.role" not in call.attributes


async def test_calls_side_by_side_are_each_in_their_own_attempt(memory: Store, client: openai.AsyncOpenAI) -> None:
    async def one(number: int) -> list[Span]:
        message: Any = {"role": "user", "content": str(number)}
        return await traced(memory, lambda: client.chat.completions.create(model=MODEL, messages=[message]))

    for number, (call,) in enumerate(await asyncio.gather(*map(one, range(6)))):
        assert call.attributes["gen_ai.prompt.0.content"] == str(number)


async def test_call_outside_of_an_attempt_is_unchanged(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.id == "chatcmpl-1"


def test_instrumenting_can_be_undone_and_done_twice() -> None:
    uninstrument_openai()
    before = (Completions.create, AsyncCompletions.create, AsyncCompletions.parse)
    assert instrument_openai()
    assert instrument_openai()
    assert Completions.create is not before[0]
    uninstrument_openai()
    uninstrument_openai()
    assert (Completions.create, AsyncCompletions.create, AsyncCompletions.parse) == before
