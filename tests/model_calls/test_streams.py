"""Streams are read the same however their bytes are divided, and whatever they contain."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.model_calls import Protocol, attributes_of, call_of, read_call, stream_reader
from store.model_calls.attributes import AttributeWriter, put_call
from store.models import Span
from store.wire.sse import EventReader
from tests.llm_proxy.model_server import delta, events
from tests.torture import rounds

EXAMPLES = settings(max_examples=rounds(100, few=25))
LINE_END = st.sampled_from([b"\n", b"\r", b"\r\n"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TYPES = ["message_start", "content_block_start", "content_block_delta", "message_delta", "response.completed"]
NAMES = st.sampled_from([
    *("id", "type", "index", "delta", "content", "role", "choices", "tool_calls", "function", "name", "arguments"),
    *("token_ids", "logprobs", "message", "usage", "content_block", "partial_json", "text", "response", "output"),
    *("error", "finish_reason", "provider_specific_fields", "prompt_token_ids"),
])  # fmt: skip
LIKE_EVENTS = st.recursive(
    JSON | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at these places, as far as they lie inside."""
    edges = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[start:end] for start, end in pairwise(edges)]


@pytest.mark.torture
@EXAMPLES
@given(
    st.lists(st.lists(st.text("aé:\N{SNOWMAN} ", min_size=1), min_size=1, max_size=2), max_size=5),
    st.lists(LINE_END, min_size=1, max_size=5),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_events_do_not_depend_on_the_division_into_chunks(
    given_events: list[list[str]], ends: list[bytes], places: list[int]
) -> None:
    # One kind of end for each event: an LF after a CR would be its second half.
    raw = b": comment\n\n"
    for number, lines in enumerate(given_events):
        end = ends[number % len(ends)]
        raw += b"".join(b"data: " + line.encode() + end for line in lines) + b"id: 1" + end + end
    raw = raw.replace(b"\r\rdata", b"\r\r\ndata") if b"\r\n" not in raw else raw
    reader = EventReader(10_000)
    received = [event for piece in cut(raw, places) for event in reader.feed(piece)]
    assert received == ["\n".join(lines).encode() for lines in given_events]


@pytest.mark.torture
@EXAMPLES
@given(st.lists(st.integers(0, 500), max_size=8))
def test_an_event_that_is_too_long_is_skipped_and_the_next_one_read(places: list[int]) -> None:
    raw = b"data: " + b"x" * 200 + b"\ndata: y\n\ndata: next\n\n"
    reader = EventReader(100)
    assert [event for piece in cut(raw, places) for event in reader.feed(piece)] == [b"next"]
    assert reader.skipped == 1


def test_reader_of_a_long_stream_stays_within_its_limit() -> None:
    reader = stream_reader(Protocol.CHAT, 10_000)
    chunk = events(delta("x" * 50, [1, 2, 3]))[:-14]
    for _ in range(1000):
        reader.feed(chunk)
    reader.feed(events(delta(finish="stop")))
    answer = reader.response()
    assert reader.is_complete
    assert reader.is_truncated
    assert 0 < len(orjson.dumps(answer)) < 10_000
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_choices_of_a_stream_stay_separate() -> None:
    def chunk(index: int, text: str, token: int) -> Any:
        piece = delta(text, [token])
        piece["choices"][0]["index"] = index
        return piece

    reader = stream_reader(Protocol.CHAT, 10_000)
    reader.feed(events(chunk(1, "b", 1), chunk(0, "a", 2), chunk(1, "d", 3), chunk(0, "c", 4)))
    call = read_call(Protocol.CHAT, {}, reader.response())
    assert [(choice.message.text, choice.token_ids) for choice in call.choices] == [
        ("ac", [2, 4]),
        ("bd", [1, 3]),
    ]


def test_tool_call_without_an_index_continues_until_the_next_id() -> None:
    pieces: list[dict[str, Any]] = [
        {"id": "a", "function": {"name": "f", "arguments": "{"}},
        {"function": {"name": "f", "arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "[]"}},
    ]
    reader = stream_reader(Protocol.CHAT, 10_000)
    reader.feed(events(*(delta(tool_calls=[piece]) for piece in pieces)))
    (message,) = read_call(Protocol.CHAT, {}, reader.response()).answers
    assert [(call.call_id, call.name, call.text) for call in message.tool_calls] == [("a", "f", "{}"), ("b", "g", "[]")]


TOKENS = {"index": 0, "message": {"content": "x"}}
AS_TEXT = {"content": [{"token": "token_id:5"}, {"token": "token_id:6"}]}


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{**TOKENS, "token_ids": [5, 6]}]},
        {"choices": [{**TOKENS, "provider_specific_fields": {"token_ids": [5, 6]}}]},
        {"choices": [TOKENS], "response_token_ids": [[5, 6]]},
        {"choices": [{**TOKENS, "logprobs": AS_TEXT}]},
    ],
    ids=["choice", "provider", "answer", "text"],
)
def test_token_ids_are_read_from_the_fields_of_every_engine(answer: Any) -> None:
    assert read_call(Protocol.CHAT, {}, answer).choices[0].token_ids == [5, 6]


STREAMED = sorted(set(Protocol) - {Protocol.EMBEDDINGS})
REQUEST_NAMES = st.sampled_from(
    ["messages", "tools", "input", "prompt", "system", "instructions", "model", "seed", "n"]
)


@pytest.mark.torture
@EXAMPLES
@given(st.sampled_from(STREAMED), st.lists(LIKE_EVENTS, max_size=6))
def test_any_stream_gives_a_call(protocol: Protocol, stream: list[Any]) -> None:
    reader = stream_reader(protocol, 10_000)
    reader.feed(events(*stream))
    assert read_call(protocol, {}, reader.response()).protocol is protocol


@pytest.mark.torture
@EXAMPLES
@given(
    st.sampled_from(sorted(Protocol)),
    st.dictionaries(REQUEST_NAMES, LIKE_EVENTS, max_size=5),
    st.dictionaries(NAMES, LIKE_EVENTS, max_size=5),
)
@pytest.mark.slow
def test_call_is_read_back_from_its_attributes(
    protocol: Protocol, request: dict[str, Any], response: dict[str, Any]
) -> None:
    call = read_call(protocol, request, response)
    assert call_of(attributes_of(call)) == call


@pytest.mark.torture
@EXAMPLES
@given(st.sampled_from(sorted(Protocol)), st.dictionaries(REQUEST_NAMES, LIKE_EVENTS, max_size=5))
def test_any_request_gives_attributes_that_a_span_accepts(protocol: Protocol, request: dict[str, Any]) -> None:
    writer = AttributeWriter(("secret",), 1000)
    put_call(writer, read_call(protocol, request, {}))
    assert Span.from_attributes(attributes=writer.values)
