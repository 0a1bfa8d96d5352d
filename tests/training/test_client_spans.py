"""Calls of the stock clients of OpenAI and Anthropic, in every protocol, become spans of the attempt."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider

from store.errors import Invalid
from store.interface.store import Store
from store.model_calls import call_of
from store.models import Span
from store.training import Tracer, TracerTraceToTriplet, TraceToMessages, instrument_anthropic, run_in_scope
from store.training.model_clients.anthropic_spans import uninstrument_anthropic
from store.training.model_clients.openai_spans import instrument_openai, uninstrument_openai
from tests.lazy_modules import lazy
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, breaks_off, model_server, replies
from tests.llm_proxy.model_server import streams as streaming
from tests.training.training_helpers import spans_of_attempt

pytestmark = pytest.mark.slow

anthropic: Any = lazy("anthropic")

QUESTION = "What is seven times six?"
USAGE = {"input_tokens": 4, "output_tokens": 3}
TEXT: dict[str, Any] = {"type": "output_text", "text": "It is 42.", "annotations": []}
CALLED = {"type": "function_call", "call_id": "call-1", "name": "search", "arguments": '{"q": 1}'}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": MODEL,
    "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [TEXT]}, CALLED],
    "usage": {**USAGE, "total_tokens": 7},
    "prompt_token_ids": [11, 12, 13, 14],
    "response_token_ids": [21, 22, 23],
}
EMBEDDING: dict[str, Any] = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}],
    "model": MODEL,
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
SEARCH: dict[str, Any] = {
    "name": "search",
    "description": "Search.",
    "input_schema": {"type": "object", "properties": {}},
}
USED = {"type": "tool_use", "id": "call-1", "name": "search", "input": {"q": 1}}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": "It is 42."}, USED],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
    "prompt_token_ids": [11, 12, 13, 14],
    "response_token_ids": [21, 22, 23],
}
REQUEST: Any = {"model": MODEL, "max_tokens": 9, "system": "Be brief.", "messages": MESSAGES, "tools": [SEARCH]}
ANSWERED = {
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "It is 42.",
    "gen_ai.completion.0.tool_calls.0.id": "call-1",
    "gen_ai.completion.0.tool_calls.0.name": "search",
    "gen_ai.response.model": MODEL,
    "gen_ai.usage.prompt_tokens": 4,
    "gen_ai.usage.completion_tokens": 3,
    "gen_ai.usage.total_tokens": 7,
    "prompt_token_ids": [11, 12, 13, 14],
    "response_token_ids": [21, 22, 23],
}


def named(*events: dict[str, Any]) -> bytes:
    """Server-sent events as both APIs send them, with the type as name."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)


RESPONSE_STREAM = named(
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {"type": "response.completed", "sequence_number": 1, "response": RESPONSE},
)
MESSAGE_STREAM = named(
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It is "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "42."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {**USED, "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"q": 1}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


@pytest.fixture
async def gpt(model: ModelServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="sk-secret", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(model: ModelServer) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=model.url, api_key="sk-secret", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    assert instrument_openai()
    assert instrument_anthropic()
    yield
    uninstrument_openai()
    uninstrument_anthropic()


async def traced(store: Store, work: Any, tracer: Tracer | None = None) -> list[Span]:
    """Return the spans of an attempt in which something is done, without its root. They lie directly below it."""
    *spans, root = await spans_of_attempt(store, work, tracer)
    assert {span.parent_id for span in spans} <= {root.span_id}
    return spans


def sync_gpt(model: ModelServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{model.url}/v1", api_key="k", max_retries=0)


def sync_claude(model: ModelServer) -> Any:
    return anthropic.Anthropic(base_url=model.url, api_key="k", max_retries=0)


def answer_of(call: Span) -> dict[str, Any]:
    """Return what a call's span holds of the answer; arguments of tools as data."""
    held = {name: value for name, value in call.attributes.items() if name in ANSWERED}
    assert json.loads(str(call.attributes["gen_ai.completion.0.tool_calls.0.arguments"])) == {"q": 1}
    return held


async def test_every_protocol_is_recorded_in_the_store(
    live: Store, model: ModelServer, gpt: openai.AsyncOpenAI, claude: Any
) -> None:
    model.will(replies(RESPONSE), replies(EMBEDDING), replies(MESSAGE))
    functions: Any = [
        {"type": "function", "name": "search", "description": "Search.", "parameters": {"type": "object"}}
    ]

    async def work() -> None:
        await gpt.responses.create(
            model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=9, tools=functions
        )
        vectors = await gpt.embeddings.create(model=MODEL, input=[QUESTION, "Why?"], encoding_format="float")
        assert vectors.data[0].embedding == [0.25, 0.5]
        await claude.messages.create(**REQUEST)

    spans = await traced(live, work)
    assert [asked.path for asked in model.asked] == ["/v1/responses", "/v1/embeddings", "/v1/messages"]
    assert [span.name for span in spans] == ["openai.chat.completion", "openai.embeddings", "openai.chat.completion"]
    assert {span.status.status_code for span in spans} == {"OK"}
    assert not any("sk-secret" in span.model_dump_json() for span in spans)
    response, embedding, message = spans
    asked = {
        "gen_ai.request.model": MODEL,
        "gen_ai.request.streaming": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.functions.0.name": "search",
        "gen_ai.request.functions.0.description": "Search.",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": QUESTION,
    }
    arguments = "gen_ai.completion.0.tool_calls.0.arguments"
    assert dict(response.attributes) == {
        **asked,
        **ANSWERED,
        "gen_ai.system": "openai",
        "gen_ai.operation.name": "responses",
        "gen_ai.request.type": "responses",
        "gen_ai.request.functions.0.parameters": '{"type":"object"}',
        "gen_ai.completion.0.finish_reason": "completed",
        "gen_ai.response.id": "resp_1",
        arguments: '{"q": 1}',
    }
    assert dict(message.attributes) == {
        **asked,
        **ANSWERED,
        "gen_ai.system": "anthropic",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.type": "chat",
        "gen_ai.request.functions.0.parameters": '{"type":"object","properties":{}}',
        "gen_ai.completion.0.finish_reason": "tool_use",
        "gen_ai.response.id": "msg_1",
        arguments: '{"q":1}',
    }
    assert dict(embedding.attributes) == {
        "gen_ai.system": "openai",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.type": "embeddings",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.streaming": False,
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": QUESTION,
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "Why?",
        "gen_ai.response.model": MODEL,
        "gen_ai.usage.prompt_tokens": 4,
        "gen_ai.usage.total_tokens": 4,
    }


async def test_adapters_read_every_protocol(
    memory: Store, model: ModelServer, gpt: openai.AsyncOpenAI, claude: Any
) -> None:
    model.will(replies(RESPONSE), replies(EMBEDDING), replies(MESSAGE))

    async def work() -> None:
        await gpt.responses.create(model=MODEL, input=QUESTION)
        await gpt.embeddings.create(model=MODEL, input=QUESTION)
        await claude.messages.create(**REQUEST)

    spans = await traced(memory, work)
    triplets = TracerTraceToTriplet().adapt(spans)
    assert [triplet.metadata["response_id"] for triplet in triplets] == ["resp_1", "msg_1"]
    assert all(triplet.prompt["token_ids"] == [11, 12, 13, 14] for triplet in triplets)
    assert all(triplet.response["token_ids"] == [21, 22, 23] for triplet in triplets)
    tool_call = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
    of_response, of_message = TraceToMessages().adapt(spans)
    assert of_response["messages"] == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "It is 42.", "tool_calls": [tool_call]},
    ]
    assert [message["role"] for message in of_message["messages"]] == ["system", "user", "assistant"]
    assert of_message["tools"] is not None
    assert of_message["tools"][0]["function"]["parameters"] == SEARCH["input_schema"]


async def test_the_results_of_tools_are_part_of_the_next_prompt(
    memory: Store, model: ModelServer, gpt: openai.AsyncOpenAI, claude: Any
) -> None:
    model.will(replies(RESPONSE), replies(RESPONSE), replies(MESSAGE), replies(MESSAGE))

    async def work() -> None:
        first = await gpt.responses.create(model=MODEL, input=QUESTION)
        output = {"type": "function_call_output", "call_id": "call-1", "output": "found"}
        history: Any = [*first.output, output]
        await gpt.responses.create(model=MODEL, input=history)
        answer = await claude.messages.create(**REQUEST)
        result = [{"type": "tool_result", "tool_use_id": "call-1", "content": "found"}]
        history = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": result}]
        await claude.messages.create(**{**REQUEST, "messages": history})

    _, response, _, message = (span.attributes for span in await traced(memory, work))
    assert response["gen_ai.prompt.1.tool_calls.0.name"] == "search"
    assert (response["gen_ai.prompt.2.role"], response["gen_ai.prompt.2.content"]) == ("tool", "found")
    assert response["gen_ai.prompt.2.tool_call_id"] == "call-1"
    assert message["gen_ai.prompt.2.content"] == "It is 42."
    assert message["gen_ai.prompt.2.tool_calls.0.arguments"] == '{"q":1}'
    assert json.loads(str(message["gen_ai.prompt.3.content"]))[0]["content"] == "found"


async def test_prompt_above_the_limit_keeps_its_other_parts(
    memory: Store, model: ModelServer, gpt: openai.AsyncOpenAI
) -> None:
    model.will(replies(RESPONSE))
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 13_000_000}
    text = {"type": "input_text", "text": QUESTION}

    async def work() -> None:
        prompt: Any = [{"role": "user", "content": [text, image]}, {"role": "user", "content": "Quick!"}]
        await gpt.responses.create(model=MODEL, input=prompt)

    (span,) = await traced(memory, work)
    first, second = call_of(span.attributes).messages
    assert (first.text, [part.kind for part in first.media], second.text) == (QUESTION, ["image"], "Quick!")
    assert span.attributes["agl.call.truncated"] == "prompt"
    assert span.attributes["gen_ai.completion.0.content"]


async def test_the_sync_clients_are_recorded_too(memory: Store, model: ModelServer) -> None:
    model.will(replies(RESPONSE), replies(EMBEDDING), replies(MESSAGE), replies(MESSAGE))

    def calling() -> None:
        with sync_gpt(model) as gpt, sync_claude(model) as claude:
            gpt.responses.create(model=MODEL, input=QUESTION)
            gpt.embeddings.create(model=MODEL, input=QUESTION)
            claude.messages.create(**REQUEST)
            claude.beta.messages.create(**REQUEST)

    response, embedding, message, beta = await traced(memory, lambda: asyncio.to_thread(calling))
    assert answer_of(response) == answer_of(message) == answer_of(beta) == ANSWERED
    assert embedding.attributes["gen_ai.usage.prompt_tokens"] == 4


async def test_streams_are_recorded_whole(
    memory: Store, model: ModelServer, gpt: openai.AsyncOpenAI, claude: Any
) -> None:
    model.will(*[streaming(RESPONSE_STREAM)] * 2, *[streaming(MESSAGE_STREAM)] * 3)
    texts: list[str] = []

    async def work() -> None:
        async for _ in await gpt.responses.create(model=MODEL, input=QUESTION, stream=True):
            pass
        async with gpt.responses.stream(model=MODEL, input=QUESTION) as responding:
            texts.append((await responding.get_final_response()).output_text)
        async for _ in await claude.messages.create(**REQUEST, stream=True):
            pass
        async with claude.messages.stream(**REQUEST) as stream:
            texts.append("".join([text async for text in stream.text_stream]))
        async with claude.beta.messages.stream(**REQUEST) as stream:
            texts.append((await stream.get_final_message()).content[0].text)

    calls = await traced(memory, work)
    assert texts == ["It is 42."] * 3
    assert len(calls) == 5
    for call in calls:
        assert answer_of(call) == ANSWERED
        assert call.attributes["gen_ai.request.streaming"] is True
        assert call.status.status_code == "OK"


async def test_streams_of_the_sync_clients_are_recorded_whole(memory: Store, model: ModelServer) -> None:
    model.will(*[streaming(RESPONSE_STREAM)] * 2, *[streaming(MESSAGE_STREAM)] * 2)

    def calling() -> None:
        with sync_gpt(model) as gpt, sync_claude(model) as claude:
            assert len(list(gpt.responses.create(model=MODEL, input=QUESTION, stream=True))) == 2
            with gpt.responses.stream(model=MODEL, input=QUESTION) as responding:
                responding.until_done()
            assert len(list(claude.messages.create(**REQUEST, stream=True))) == 10
            with claude.messages.stream(**REQUEST) as stream:
                assert stream.get_final_message().id == "msg_1"

    calls = await traced(memory, lambda: asyncio.to_thread(calling))
    assert [answer_of(call) for call in calls] == [ANSWERED] * 4


async def test_received_part_of_an_interrupted_stream_is_recorded(
    memory: Store, model: ModelServer, claude: Any
) -> None:
    begun = MESSAGE_STREAM[: MESSAGE_STREAM.index(b'"42."')].rsplit(b"\n\n", 1)[0] + b"\n\n"
    model.will(streaming(MESSAGE_STREAM), breaks_off(begun))

    async def work() -> None:
        async with claude.messages.stream(**REQUEST) as stream:
            assert await anext(aiter(stream.text_stream)) == "It is "
        with pytest.raises(Exception, match=r"peer closed|incomplete|onnection"):
            async for _ in await claude.messages.create(**REQUEST, stream=True):
                pass

    left, broken = await traced(memory, work)
    assert left.attributes["gen_ai.completion.0.content"] == "It is "
    assert (left.status.status_code, broken.status.status_code) == ("OK", "ERROR")


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "responses": lambda gpt, _: gpt.responses.create(model=MODEL, input=QUESTION),
    "embeddings": lambda gpt, _: gpt.embeddings.create(model=MODEL, input=QUESTION),
    "messages": lambda _, claude: claude.messages.create(**REQUEST),
    "messages stream": lambda _, claude: claude.messages.stream(**REQUEST).__aenter__(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_fails_is_recorded_as_failed_and_raises_as_before(
    memory: Store, model: ModelServer, gpt: Any, claude: Any, name: str
) -> None:
    model.will(replies({"error": {"message": "too many"}}, 429))

    async def work() -> None:
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError), match="too many"):
            await CALLS[name](gpt, claude)

    (call,) = await traced(memory, work)
    assert call.status.status_code == "ERROR"
    assert str(call.events[0].attributes["exception.type"]).endswith(".RateLimitError")
    assert QUESTION in [call.attributes.get(f"gen_ai.prompt.{index}.content") for index in (0, 1)]


async def test_raw_responses_are_recorded(
    memory: Store, model: ModelServer, gpt: openai.AsyncOpenAI, claude: Any
) -> None:
    model.will(replies(EMBEDDING), replies(MESSAGE), replies(MESSAGE), replies(MESSAGE))

    async def work() -> None:
        vectors = await gpt.embeddings.with_raw_response.create(model=MODEL, input=QUESTION)
        assert vectors.parse().data[0].embedding == [0.25, 0.5]
        answer = await claude.messages.with_raw_response.create(**REQUEST)
        assert (await answer.parse()).id == "msg_1"
        async with claude.messages.with_streaming_response.create(**REQUEST) as raw:
            assert orjson.loads(b"".join([part async for part in raw.iter_bytes()])) == MESSAGE
        await asyncio.to_thread(in_thread)

    def in_thread() -> None:
        with sync_claude(model) as client:
            assert client.messages.with_raw_response.create(**REQUEST).parse().id == "msg_1"

    embedding, message, read, of_thread = await traced(memory, work)
    assert embedding.attributes["gen_ai.usage.prompt_tokens"] == 4
    assert answer_of(message) == answer_of(of_thread) == ANSWERED
    assert answer_of(read) == ANSWERED


async def test_attempts_side_by_side_are_not_mixed(memory: Store, model: ModelServer, claude: Any) -> None:
    model.will(replies(MESSAGE))

    def request(text: str) -> Any:
        return {**REQUEST, "messages": [{"role": "user", "content": text}]}

    async def one(number: int) -> list[Span]:
        def in_thread() -> None:
            with sync_claude(model) as client:
                client.messages.create(**request(f"thread {number}"))

        async def work() -> None:
            # A thread that Python starts itself has no context.
            alone = asyncio.get_running_loop().run_in_executor(None, run_in_scope(in_thread))
            await asyncio.gather(claude.messages.create(**request(f"task {number}")), alone)

        return await traced(memory, work)

    for number, calls in enumerate(await asyncio.gather(*map(one, range(4)))):
        contents = [str(call.attributes["gen_ai.prompt.1.content"]) for call in calls]
        assert sorted(contents) == [f"task {number}", f"thread {number}"]


async def test_the_clients_own_span_of_a_call_is_not_stored_beside_ours(memory: Store, model: ModelServer) -> None:
    model.will(replies(MESSAGE))
    provider = TracerProvider()
    options: Any = {"tracer_provider": provider}

    async def work() -> None:
        async with anthropic.AsyncAnthropic(base_url=model.url, api_key="k", open_telemetry=options) as client:
            await client.messages.create(**REQUEST)

    (call,) = await traced(memory, work, Tracer(provider=provider))
    assert call.name == "openai.chat.completion"
    uninstrument_anthropic()
    (span,) = await traced(memory, work, Tracer(provider=provider, anthropic=False))
    assert span.name == "anthropic.messages.create"


async def test_calls_outside_of_an_attempt_or_after_undoing_are_unchanged(
    memory: Store, model: ModelServer, claude: Any
) -> None:
    model.will(replies(MESSAGE), streaming(MESSAGE_STREAM), replies(MESSAGE))
    assert (await claude.messages.create(**REQUEST)).id == "msg_1"
    async with claude.messages.stream(**REQUEST) as stream:
        assert (await stream.get_final_message()).id == "msg_1"
    uninstrument_anthropic()
    tracer = Tracer(anthropic=False)
    assert await traced(memory, lambda: claude.messages.create(**REQUEST), tracer) == []


async def test_a_tracer_records_the_clients_that_it_is_given(memory: Store, model: ModelServer, claude: Any) -> None:
    model.will(replies(MESSAGE))
    uninstrument_anthropic()
    (copied,) = [pickle.loads(pickle.dumps(Tracer(anthropic=False)))]
    assert await traced(memory, lambda: claude.messages.create(**REQUEST), copied) == []
    assert len(await traced(memory, lambda: claude.messages.create(**REQUEST), Tracer(anthropic=True))) == 1


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_a_client_that_is_not_installed_is_an_error_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    clients: dict[str, Any] = {client: True}
    with pytest.raises(Invalid, match=rf"{client}.*pip install 'rollbook\[{client}\]'") as raised:
        Tracer(**clients)
    assert raised.value.field == client
    with Tracer().lifespan():
        pass
    assert {client} <= extras()


def test_a_handler_without_langchain_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(Invalid, match=r"langchain_core.*pip install 'rollbook\[langchain\]'"):
        Tracer().get_langchain_handler()
    assert {"langchain"} <= extras()


def extras() -> set[str]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
