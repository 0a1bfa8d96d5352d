"""A program that calls a model sees the same types, values and exceptions with and without recording."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import openai
import orjson
import pytest
from pydantic import BaseModel, model_serializer
from starlette.responses import Response

from store.interface.store import Store
from store.model_calls.attributes import TRUNCATED
from store.models import Span
from store.training import emit_reward, instrument_anthropic
from store.training.model_clients import client_attributes
from store.training.model_clients.anthropic_spans import uninstrument_anthropic
from store.training.model_clients.openai_spans import instrument_openai, uninstrument_openai
from tests.lazy_modules import lazy
from tests.llm_proxy.model_server import (
    MESSAGES,
    MODEL,
    Answer,
    ModelServer,
    breaks_off,
    completion,
    delta,
    events,
    model_server,
    replies,
    streams,
)
from tests.training.test_client_spans import MESSAGE, QUESTION, RESPONSE, USAGE, named
from tests.training.training_helpers import spans_of_attempt

pytestmark = [
    pytest.mark.slow,
    # Some programs drop a stream that they have not read to its end. When the garbage collector ends the generators of
    # such a stream, which belong to httpx, one of them may report that another is running.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <async_generator object (AsyncResponseStream|BoundAsyncStream|Response)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]

anthropic: Any = lazy("anthropic")

TEXT: Final = "It is 42."
PART: Final = "It "
CUT: Final = "answer"


class Result(BaseModel):
    """The form of a structured output."""

    value: int


def text_chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": [choice]}


def response_event(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": number, **fields}


PLACE: Final = {"item_id": "m", "output_index": 0, "content_index": 0}
OUTPUT: Final[dict[str, Any]] = {"type": "output_text", "text": "", "annotations": []}
ITEM: Final[dict[str, Any]] = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "in_progress",
    "content": [],
}
BEGUN: Final[dict[str, Any]] = {**RESPONSE, "status": "in_progress", "output": []}
ERROR: Final = {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}


@dataclass(frozen=True)
class Protocol:
    """One API of a client, and the responses of a server."""

    api: Callable[[Any], Any]
    request: dict[str, Any]
    answer: dict[str, Any]
    begin: bytes = b""
    """The beginning of a stream, with the first words of the text."""
    end: bytes = b""
    error: bytes = b""
    """The event of an error in the middle of a stream."""
    words: int = 1
    """The number of events until the first words."""
    is_anthropic: bool = False


APIS: Final[dict[str, Callable[[Any], Any]]] = {
    "messages": lambda client: client.messages,
    "beta messages": lambda client: client.beta.messages,
}
PROTOCOLS: Final[dict[str, Protocol]] = {
    "chat": Protocol(
        lambda client: client.chat.completions,
        {"messages": MESSAGES},
        completion(),
        events(delta(PART, role="assistant")).removesuffix(b"data: [DONE]\n\n"),
        events(delta("is 42.", finish="stop")),
        events({"error": {"message": "overloaded"}}),
    ),
    "completions": Protocol(
        lambda client: client.completions,
        {"prompt": QUESTION},
        text_chunk(TEXT, "stop"),
        events(text_chunk(PART)).removesuffix(b"data: [DONE]\n\n"),
        events(text_chunk("is 42.", "stop")),
        events({"error": {"message": "overloaded"}}),
    ),
    "responses": Protocol(
        lambda client: client.responses,
        {"input": QUESTION},
        RESPONSE,
        named(
            response_event(0, "created", response=BEGUN),
            response_event(1, "output_item.added", output_index=0, item=ITEM),
            response_event(2, "content_part.added", **PLACE, part=OUTPUT),
            response_event(3, "output_text.delta", **PLACE, delta=PART, logprobs=[]),
        ),
        named(
            response_event(4, "output_text.delta", **PLACE, delta="is 42.", logprobs=[]),
            response_event(5, "completed", response=RESPONSE),
        ),
        b'event: error\ndata: {"error": {"message": "overloaded"}}\n\n',
        words=4,
    ),
    "embeddings": Protocol(
        lambda client: client.embeddings,
        {"input": QUESTION, "encoding_format": "float"},
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}],
            "model": MODEL,
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        },
    ),
    **{
        name: Protocol(
            api,
            {"messages": MESSAGES, "max_tokens": 9},
            MESSAGE,
            named(
                {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": PART}},
            ),
            named(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "is 42."}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
                {"type": "message_stop"},
            ),
            named(ERROR),
            words=3,
            is_anthropic=True,
        )
        for name, api in APIS.items()
    },
}
STREAMED: Final = {name: protocol for name, protocol in PROTOCOLS.items() if protocol.begin}
HELPED: Final = {name: protocol for name, protocol in STREAMED.items() if name != "completions"}


class Log:
    """The types and values that a program sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, value: Any) -> Any:
        self.seen.append((f"{type(value).__module__}.{type(value).__qualname__}", plain(value)))
        return value


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, type):
        return value.__mro__
    if hasattr(value, "http_response"):
        return value.status_code, value.headers["x-sent"], value.retries_taken
    if hasattr(value, "response") and not isinstance(value, BaseException):
        return value.response.status_code, value.response.headers["x-sent"]
    return str(value)


async def of(value: Any) -> Any:
    """Return a value of a sync client, or await that of an async client."""
    return await value if inspect.isawaitable(value) else value


async def iterate(items: Any) -> AsyncIterator[Any]:
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def take(stream: Any, count: int) -> list[Any]:
    return [await anext(stream) if hasattr(stream, "__anext__") else next(stream) for _ in range(count)]


@asynccontextmanager
async def inside(manager: Any) -> AsyncGenerator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


Program = Callable[[Any, Protocol, Log], Awaitable[Any]]


async def plain_call(api: Any, p: Protocol, log: Log) -> None:
    log(await of(api.create(model=MODEL, **p.request)))


async def raw_call(api: Any, p: Protocol, log: Log) -> None:
    raw = log(await of(api.with_raw_response.create(model=MODEL, **p.request)))
    log(orjson.loads(raw.http_response.content))
    log(raw.http_response.is_closed)
    parsed = log(await of(raw.parse()))
    log(await of(raw.parse()) is parsed)


async def streaming_lines(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.with_streaming_response.create(model=MODEL, **p.request)) as raw:
        log(raw)
        log([line async for line in iterate(raw.iter_lines())])
    log(raw.http_response.is_closed)


async def streaming_json(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.with_streaming_response.create(model=MODEL, **p.request)) as raw:
        log(await of(raw.json()))
        log(await of(raw.text()))
        log(await of(raw.parse()))
        log(raw.http_response.num_bytes_downloaded)


async def streaming_unread(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.with_streaming_response.create(model=MODEL, **p.request)) as raw:
        log(raw.is_closed)
    log(raw.is_closed)


async def complete_stream(api: Any, p: Protocol, log: Log) -> None:
    stream = log(await of(api.create(model=MODEL, **p.request, stream=True)))
    log(type(stream))
    log([name for name in dir(stream) if not name.startswith("__")])
    async for event in iterate(stream):
        log(event)
    log(stream.response.is_closed)


async def stream_next(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True))
    log(await take(stream, p.words))
    async for event in iterate(stream):
        log(event)
    with pytest.raises((StopIteration, StopAsyncIteration)):
        await take(stream, 1)


async def stream_break(api: Any, p: Protocol, log: Log) -> None:
    async with inside(await of(api.create(model=MODEL, **p.request, stream=True))) as stream:
        log(stream)
        log(await take(stream, p.words))
    log(stream.response.is_closed)


async def stream_close(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True))
    log(await take(stream, p.words))
    log(await of(stream.close()))
    log(stream.response.is_closed)


async def stream_drop(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True))
    response = stream.response
    log(await take(stream, p.words))
    del stream
    log(response.is_closed)
    await of(response.aclose() if hasattr(api, "_client") and "Async" in type(api).__name__ else response.close())


async def stream_unread(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True))
    await of(stream.close())
    log(stream.response.is_closed)


async def raw_stream(api: Any, p: Protocol, log: Log) -> None:
    raw = log(await of(api.with_raw_response.create(model=MODEL, **p.request, stream=True)))
    stream = log(await of(raw.parse()))
    log(await of(raw.parse()) is stream)
    async for event in iterate(stream):
        log(event)
    log(raw.http_response.is_closed)


async def raw_stream_break(api: Any, p: Protocol, log: Log) -> None:
    raw = await of(api.with_raw_response.create(model=MODEL, **p.request, stream=True))
    stream = await of(raw.parse())
    del raw
    log(await take(stream, p.words))
    await of(stream.close())


async def streaming_stream(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.with_streaming_response.create(model=MODEL, **p.request, stream=True)) as raw:
        log(raw)
        async for event in iterate(await of(raw.parse())):
            log(event)


async def streaming_stream_lines(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.with_streaming_response.create(model=MODEL, **p.request, stream=True)) as raw:
        log([line async for line in iterate(raw.iter_lines())])


async def helper(api: Any, p: Protocol, log: Log) -> None:
    manager = api.stream(model=MODEL, **p.request)
    log(type(manager))
    async with inside(manager) as stream:
        log(type(stream))
        log([name for name in dir(stream) if not name.startswith("__")])
        async for event in iterate(stream):
            log(event)
        final = next(name for name in dir(stream) if name.startswith("get_final_"))
        log(await of(getattr(stream, final)()))


async def helper_done(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.stream(model=MODEL, **p.request)) as stream:
        if p.is_anthropic:
            log([text async for text in iterate(stream.text_stream)])
        log(await of(stream.until_done()) is stream)


async def helper_break(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.stream(model=MODEL, **p.request)) as stream:
        log(await take(stream, p.words))


def structured(p: Protocol) -> dict[str, Any]:
    """Return the arguments of a call with a model class."""
    if p.is_anthropic:
        return {**p.request, "output_format": Result}
    name = "text_format" if "input" in p.request else "response_format"
    return {**p.request, name: Result, "tools": [openai.pydantic_function_tool(Result)]}


async def parse(api: Any, p: Protocol, log: Log) -> None:
    answer = log(await of(api.parse(model=MODEL, **structured(p))))
    content: Any = answer.choices[0].message if hasattr(answer, "choices") else answer
    log(next(getattr(content, name) for name in ("parsed", "output_parsed", "parsed_output") if hasattr(content, name)))


async def raw_parse(api: Any, p: Protocol, log: Log) -> None:
    del p
    raw = await of(api.with_raw_response.parse(model=MODEL, messages=MESSAGES, response_format=Result))
    log(await of(raw.parse()))


async def structured_stream(api: Any, p: Protocol, log: Log) -> None:
    async with inside(api.stream(model=MODEL, **structured(p))) as stream:
        async for event in iterate(stream):
            log(event)


async def wrong_arguments(api: Any, p: Protocol, log: Log) -> None:
    del p, log
    call = api.create(no_such_argument=1)
    await of(call)


async def cancelled_request(api: Any, p: Protocol, log: Log) -> None:
    await cancelled(api.create(model=MODEL, **p.request), log)


async def cancelled_stream(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True))
    log(await take(stream, p.words))
    await cancelled(anext(stream), log)


async def timed_out_stream(api: Any, p: Protocol, log: Log) -> None:
    stream = await of(api.create(model=MODEL, **p.request, stream=True, timeout=1))
    log(await take(stream, p.words))
    await take(stream, 1)


async def cancelled(waiting: Awaitable[Any], log: Log) -> None:
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0.05)
    task.cancel("stop")
    try:
        await task
    except asyncio.CancelledError as error:
        log(error)


async def failing_body(api: Any, p: Protocol, log: Log) -> None:
    async with inside(await of(api.create(model=MODEL, **p.request, stream=True))) as stream:
        log(await take(stream, p.words))
        raise ZeroDivisionError("an error of the agent")


@dataclass(frozen=True)
class Recorded:
    """The record of a call."""

    status: str = "OK"
    content: str | None = TEXT
    cut: Any = None


Table = dict[str, tuple[Program, Callable[[Protocol], list[Answer]], Recorded]]
COMPLETE: Final = Recorded()
PARTLY: Final = Recorded(content=PART, cut=CUT)
EMPTY: Final = Recorded(content=None, cut=CUT)
FAILED: Final = Recorded("ERROR", PART, CUT)
REFUSED: Final = Recorded("ERROR", None)


def complete(p: Protocol) -> list[Answer]:
    return [adding_header(replies(p.answer, x_sent="yes"))]


def stream(p: Protocol) -> list[Answer]:
    return [adding_header(streams(p.begin, p.end))]


def adding_header(answer: Answer) -> Answer:
    """Add a header to an answer."""

    async def with_header(asked: Any) -> Any:
        response: Any = await answer(asked)
        response.headers["x-sent"] = "yes"
        return response

    return with_header


CALLS: Final[Table] = {
    "plain": (plain_call, complete, COMPLETE),
    "raw": (raw_call, complete, COMPLETE),
    "streaming response, lines": (streaming_lines, complete, COMPLETE),
    "streaming response, json": (streaming_json, complete, COMPLETE),
    "streaming response, unread": (streaming_unread, complete, EMPTY),
    "refused": (plain_call, lambda _: [replies({"error": {"message": "too many"}}, 429)], REFUSED),
    "refused, raw": (raw_call, lambda _: [replies({"error": {"message": "too many"}}, 400)], REFUSED),
    "no JSON": (plain_call, lambda _: [replies("<html>", 200, content_type="text/html")], EMPTY),
    "cut before the answer": (plain_call, lambda _: [breaks_off()], REFUSED),
    "wrong arguments": (wrong_arguments, complete, REFUSED),
}
STREAMS: Final[Table] = {
    "whole": (complete_stream, stream, COMPLETE),
    "next": (stream_next, stream, COMPLETE),
    "break": (stream_break, stream, PARTLY),
    "close": (stream_close, stream, PARTLY),
    "drop": (stream_drop, stream, PARTLY),
    "unread": (stream_unread, stream, EMPTY),
    "raw": (raw_stream, stream, COMPLETE),
    "raw, break": (raw_stream_break, stream, PARTLY),
    "streaming response": (streaming_stream, stream, COMPLETE),
    "streaming response, lines": (streaming_stream_lines, stream, COMPLETE),
    "streaming response, error event": (
        streaming_stream_lines,
        lambda p: [adding_header(streams(p.begin, p.error))],
        FAILED,
    ),
    "error of the agent": (failing_body, stream, PARTLY),
    "refused": (complete_stream, lambda _: [replies({"error": {"message": "too many"}}, 429)], REFUSED),
    "error event": (stream_next, lambda p: [adding_header(streams(p.begin, p.error))], FAILED),
    "cut": (stream_next, lambda p: [breaks_off(p.begin)], FAILED),
    "no end": (stream_next, lambda p: [adding_header(streams(p.begin))], PARTLY),
    "empty": (complete_stream, lambda _: [adding_header(streams(b""))], EMPTY),
}
HELPERS: Final[Table] = {
    "events": (helper, stream, COMPLETE),
    "until done": (helper_done, stream, COMPLETE),
    "break": (helper_break, stream, PARTLY),
    "error event": (helper_done, lambda p: [adding_header(streams(p.begin, p.error))], FAILED),
    "refused": (helper_done, lambda _: [replies({"error": {"message": "too many"}}, 429)], REFUSED),
}


VALUE: Final = '{"value": 42}'


def valued(p: Protocol, **changes: str) -> list[Answer]:
    """Answer with a value of the model class."""
    text = orjson.dumps(VALUE).decode()[1:-1]
    body = orjson.dumps(p.answer).decode().replace(TEXT, text)
    for old, new in changes.items():
        body = body.replace(old, new)
    return [adding_header(replies(orjson.loads(body)))]


def valued_stream(p: Protocol) -> list[Answer]:
    text = orjson.dumps(VALUE)[1:-1]
    parts = (p.begin + p.end).replace(TEXT.encode(), text).replace(PART.encode(), b"").replace(b"is 42.", text)
    return [adding_header(streams(parts))]


STRUCTURED: Final[Table] = {
    "parse": (parse, valued, Recorded(content=VALUE)),
    "parse, other text": (parse, complete, Recorded("ERROR")),
    "stream": (structured_stream, valued_stream, Recorded(content=VALUE)),
}


@asynccontextmanager
async def opened_client(model: ModelServer, name: str, p: Protocol) -> AsyncGenerator[Any]:
    client = new_client(model, name, p)
    try:
        yield client
    finally:
        await of(client.close())


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


def new_client(model: ModelServer, name: str, p: Protocol) -> Any:
    kind = "Anthropic" if p.is_anthropic else "OpenAI"
    module: Any = anthropic if p.is_anthropic else openai
    options: Any = {"base_url": model.url if p.is_anthropic else f"{model.url}/v1", "api_key": "k", "max_retries": 0}
    return getattr(module, f"Async{kind}" if name == "async" else kind)(**options)


async def observed(client: Any, p: Protocol, program: Program) -> list[Any]:
    """Return the types, values and the exception that a program sees."""
    log = Log()

    async def run() -> None:
        try:
            await program(p.api(client), p, log)
        except Exception as error:  # noqa: BLE001 - any exception is compared
            log(error)

    # The server runs in this thread, so a sync client needs another.
    await (run() if type(client).__name__.startswith("Async") else asyncio.to_thread(asyncio.run, run()))
    return log.seen


async def compare(store: Store, model: ModelServer, name: str, p: Protocol, table: Table) -> None:
    """Run programs without and with recording, and compare the observations, and the spans with the table."""
    before: dict[str, list[Any]] = {}
    client = new_client(model, name, p)
    for case, (program, answers, _) in table.items():
        model.will(*answers(p))
        before[case] = await observed(client, p, program)
    await of(client.close())
    instrument_openai()
    instrument_anthropic()
    client = new_client(model, name, p)
    try:
        for case, (program, answers, expected) in table.items():
            after: list[Any] = []

            async def work(program: Program = program, after: list[Any] = after) -> None:
                after.extend(await observed(client, p, program))

            model.will(*answers(p))
            *spans, _ = await spans_of_attempt(store, work)
            assert after == before[case], case
            assert [record(span, expected) for span in spans] == [expected], case
            assert case == "wrong arguments" or spans[0].attributes["gen_ai.prompt.0.content"] == QUESTION, case
    finally:
        uninstrument_openai()
        uninstrument_anthropic()
        await of(client.close())


def record(call: Span, expected: Recorded) -> Recorded:
    content: Any = call.attributes.get("gen_ai.completion.0.content")
    if call.name == "openai.embeddings":
        content = expected.content
    return Recorded(call.status.status_code, content, call.attributes.get(TRUNCATED))


@pytest.mark.parametrize("client", ["async", "sync"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_recorded_call_gives_the_program_equal_results(
    memory: Store, model: ModelServer, client: str, protocol: str
) -> None:
    await compare(memory, model, client, PROTOCOLS[protocol], CALLS)


@pytest.mark.parametrize("client", ["async", "sync"])
@pytest.mark.parametrize("protocol", STREAMED)
async def test_recorded_stream_gives_the_program_equal_results(
    memory: Store, model: ModelServer, client: str, protocol: str
) -> None:
    await compare(memory, model, client, PROTOCOLS[protocol], STREAMS)


@pytest.mark.parametrize("client", ["async", "sync"])
@pytest.mark.parametrize("protocol", HELPED)
async def test_recorded_helper_gives_the_program_equal_results(
    memory: Store, model: ModelServer, client: str, protocol: str
) -> None:
    await compare(memory, model, client, PROTOCOLS[protocol], HELPERS)


@pytest.mark.parametrize("client", ["async", "sync"])
@pytest.mark.parametrize("protocol", HELPED)
async def test_recorded_structured_output_gives_the_program_equal_results(
    memory: Store, model: ModelServer, client: str, protocol: str
) -> None:
    p = PROTOCOLS[protocol]
    await compare(memory, model, client, p, STRUCTURED)
    if protocol == "chat":
        table: Table = {
            "raw": (raw_parse, valued, Recorded(content=VALUE)),
            "raw, no valid answer": (raw_parse, lambda p: valued(p, stop="length"), Recorded(content=VALUE)),
        }
        await compare(memory, model, client, p, table)


@pytest.mark.parametrize("protocol", STREAMED)
async def test_cancelled_call_keeps_the_received_part(memory: Store, model: ModelServer, protocol: str) -> None:
    table: Table = {
        "request": (cancelled_request, lambda _: [model.waits_for_ever()], REFUSED),
        "stream": (cancelled_stream, lambda p: [model.waits_for_ever(p.begin)], FAILED),
        "timeout": (timed_out_stream, lambda p: [model.waits_for_ever(p.begin)], FAILED),
    }
    await compare(memory, model, "async", PROTOCOLS[protocol], table)


@pytest.fixture
def instrumented() -> Iterator[None]:
    instrument_openai()
    instrument_anthropic()
    yield
    uninstrument_openai()
    uninstrument_anthropic()


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("client", ["async", "sync"])
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_dropped_stream_is_recorded_when_it_is_dropped(
    memory: Store, model: ModelServer, client: str, protocol: str
) -> None:
    p = PROTOCOLS[protocol]
    model.will(*stream(p))

    async def program(api: Any, p: Protocol, log: Log) -> None:
        await stream_drop(api, p, log)
        emit_reward(1.0)

    async with opened_client(model, client, p) as api:
        call, reward, _ = await spans_of_attempt(memory, lambda: observed(api, p, program))
    assert record(call, PARTLY) == PARTLY
    assert reward.name != call.name


@pytest.mark.usefixtures("instrumented")
async def test_open_stream_is_recorded_at_the_end_of_the_attempt(memory: Store, model: ModelServer) -> None:
    p, held = PROTOCOLS["chat"], list[Any]()
    model.will(*stream(p))
    async with opened_client(model, "async", p) as client:

        async def work() -> None:
            held.append(await p.api(client).create(model=MODEL, **p.request, stream=True))
            held.append(await p.api(client).create(model=MODEL, **p.request, stream=True))
            await take(held[0], 1)

        read, unread, _ = await spans_of_attempt(memory, work)
        assert (record(read, PARTLY), record(unread, EMPTY)) == (PARTLY, EMPTY)
        assert [event.choices[0].delta.content async for event in held[0]] == ["is 42."]


@pytest.mark.usefixtures("instrumented")
async def test_stream_read_in_a_thread_without_context_belongs_to_its_attempt(
    memory: Store, model: ModelServer
) -> None:
    p, texts = PROTOCOLS["chat"], list[Any]()
    model.will(*stream(p))
    client = new_client(model, "sync", p)

    def read(events: Any) -> None:
        texts.extend(event.choices[0].delta.content for event in events)

    async def work() -> None:
        events = await asyncio.to_thread(p.api(client).create, model=MODEL, **p.request, stream=True)
        thread = threading.Thread(target=read, args=(events,))
        thread.start()
        await asyncio.to_thread(thread.join)

    call, _ = await spans_of_attempt(memory, work)
    client.close()
    assert "".join(texts) == TEXT
    assert record(call, COMPLETE) == COMPLETE


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_retries_of_a_client_are_one_call(memory: Store, model: ModelServer, protocol: str) -> None:
    p = PROTOCOLS[protocol]
    model.will(replies({"error": {"message": "try again"}}, 500, retry_after_ms="1"), *complete(p))
    async with opened_client(model, "async", p) as client:
        api = p.api(client.with_options(max_retries=1))
        call, _ = await spans_of_attempt(memory, lambda: api.create(model=MODEL, **p.request))
    assert len(model.asked) == 2
    assert record(call, COMPLETE) == COMPLETE


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_iterator_of_an_argument_is_left_to_the_client(memory: Store, model: ModelServer, protocol: str) -> None:
    p = PROTOCOLS[protocol]
    model.will(*complete(p))
    async with opened_client(model, "async", p) as client:
        request = {**p.request, "messages": iter(MESSAGES)}
        call, _ = await spans_of_attempt(memory, lambda: p.api(client).create(model=MODEL, **request))
    assert model.asked[0].json["messages"] == MESSAGES
    assert call.attributes["gen_ai.request.model"] == MODEL


@pytest.mark.usefixtures("instrumented")
async def test_compressed_body_is_recorded_as_its_text(memory: Store, model: ModelServer) -> None:
    p = PROTOCOLS["chat"]

    async def compressed(_: Any) -> Response:
        return Response(gzip.compress(p.begin + p.end), headers={"content-encoding": "gzip", "x-sent": "yes"})

    model.will(compressed)
    async with opened_client(model, "async", p) as client:
        work = lambda: observed(client, p, streaming_stream_lines)  # noqa: E731
        call, _ = await spans_of_attempt(memory, work)
    assert record(call, COMPLETE) == COMPLETE


class Stubborn(BaseModel):
    """A model class whose values cannot be converted."""

    value: int

    @model_serializer
    def refuse(self) -> Any:
        """Raise an exception."""
        raise ZeroDivisionError


@pytest.mark.usefixtures("instrumented")
async def test_failing_conversion_costs_neither_the_program_nor_the_record(
    memory: Store, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, values = PROTOCOLS["chat"], list[Any]()
    model.will(*valued(p), *stream(p))

    def refuse(*_: Any) -> Any:
        raise ZeroDivisionError

    async with opened_client(model, "async", p) as client:

        async def work() -> None:
            answer = await p.api(client).parse(model=MODEL, messages=MESSAGES, response_format=Stubborn)
            values.append(answer.choices[0].message.parsed)
            # No response can be converted from here on.
            monkeypatch.setattr(client_attributes, "received", refuse)
            values.extend([event async for event in await p.api(client).create(model=MODEL, **p.request, stream=True)])

        parsed, streamed, _ = await spans_of_attempt(memory, work)
    assert values[0].value == 42
    assert len(values) == 3
    assert record(parsed, COMPLETE) == Recorded(content=VALUE)
    assert record(streamed, COMPLETE) == EMPTY
