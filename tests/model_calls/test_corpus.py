"""The reader of model calls returns all facts of the responses and streams of the corpus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from openai._streaming import SSEDecoder

from store.model_calls import Protocol, attributes_of, call_of
from store.runtime.lenient_json import storable_text
from tests.model_calls.corpus import CORPUS
from tests.model_calls.entries import Entry, Json
from tests.model_calls.facts import call_of_response, call_of_stream, differences, dumped, reader_of

STREAMING = [protocol for protocol in Protocol if protocol is not Protocol.EMBEDDINGS]


def entries_of(protocol: Protocol) -> list[Entry]:
    return [entry for entry in CORPUS if entry.protocol == protocol]


def streams_of(protocol: Protocol) -> list[Entry]:
    return [entry for entry in entries_of(protocol) if entry.frames]


def test_corpus_has_a_response_or_a_stream_for_each_entry() -> None:
    names = [entry.name for entry in CORPUS]
    assert len(names) == len(set(names))
    assert all(entry.response is not None or entry.frames for entry in CORPUS)
    assert len(CORPUS) >= 150


@pytest.mark.parametrize("protocol", Protocol)
def test_response_is_read_completely(protocol: Protocol) -> None:
    wrong = [
        line
        for entry in entries_of(protocol)
        if entry.response is not None
        for line in differences(call_of_response(entry), entry)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", STREAMING)
def test_stream_is_read_completely(protocol: Protocol) -> None:
    wrong: list[str] = []
    for entry in streams_of(protocol):
        reader = reader_of(entry, *entry.frames)
        wrong += differences(call_of_stream(entry, reader), entry)
        if (entry.error or "") not in json.dumps(reader.error) or (reader.error is None) != (entry.error is None):
            wrong.append(f"{entry.name}: error {reader.error!r}, right {entry.error!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", STREAMING)
def test_reader_returns_a_response_after_each_event(protocol: Protocol) -> None:
    wrong: list[str] = []
    for entry in streams_of(protocol):
        reader = reader_of(entry)
        for frame in entry.frames:
            reader.feed(frame)
            reader.response()
        if call_of_stream(entry, reader) != call_of_stream(entry, reader_of(entry, *entry.frames)):
            wrong.append(entry.name)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", STREAMING)
def test_stream_in_pieces_of_any_size_is_read_alike(protocol: Protocol) -> None:
    wrong: list[str] = []
    for number, entry in enumerate(streams_of(protocol)):
        call = call_of_stream(entry, reader_of(entry, entry.stream))
        # Only some streams are read byte by byte, because this is slow.
        for size in (1, 7) if number % 4 == 0 else (23,):
            pieces = [entry.stream[start : start + size] for start in range(0, len(entry.stream), size)]
            if call_of_stream(entry, reader_of(entry, *pieces)) != call:
                wrong.append(f"{entry.name}: in pieces of {size}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", STREAMING)
def test_cut_stream_keeps_its_beginning(protocol: Protocol) -> None:
    wrong: list[str] = []
    for entry in streams_of(protocol):
        final = reader_of(entry, *entry.frames)
        for cut in range(len(entry.frames)):
            reader = reader_of(entry, *entry.frames[:cut], entry.frames[cut][: len(entry.frames[cut]) // 2])
            call = call_of_stream(entry, reader)
            record = without_spaces("\n".join(dumped(part) for message in call.answers for part in message.parts))
            lost = [text for text in texts_in(entry.frames[:cut]) if without_spaces(text) not in record]
            if lost:
                wrong.append(f"{entry.name}: cut before event {cut}: {lost} lost of {call.answers}")
            if call != call_of_stream(entry, reader_of(entry, *entry.frames[:cut])):
                wrong.append(f"{entry.name}: half of event {cut} changes the call")
            if reader.is_complete and not final.is_complete:
                wrong.append(f"{entry.name}: cut before event {cut} is complete")
            if entry.is_storable and call_of(attributes_of(call)) != call:
                wrong.append(f"{entry.name}: cut before event {cut}: attributes differ")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", Protocol)
def test_call_is_equal_after_reading_its_attributes(protocol: Protocol) -> None:
    wrong: list[str] = []
    for entry in entries_of(protocol):
        calls = [call_of_response(entry)] if entry.response is not None else []
        calls += [call_of_stream(entry, reader_of(entry, entry.stream))] if entry.frames else []
        for call in calls:
            again = call_of(attributes_of(call))
            wrong += differences(again, entry)
            if again != (call if entry.is_storable else call_of(attributes_of(again))):
                wrong.append(f"{entry.name}:\n  {call}\n  {again}")
    assert not wrong, "\n".join(wrong)


_PIECES = {
    "content", "text", "reasoning", "reasoning_content", "refusal", "arguments", "transcript",
    "delta", "partial_json", "thinking", "signature", "input",
}  # fmt: skip
"""The fields of an event whose texts are pieces of the response."""


def texts_in(frames: tuple[bytes, ...]) -> Iterator[str]:
    """Yield the pieces of text in the deltas of a stream."""
    for value in parsed_events(b"".join(frames)):
        pieces = value.get("delta") if value.get("type") else value.get("choices")
        yield from _texts(pieces, is_delta=isinstance(pieces, str))


def without_spaces(text: str) -> str:
    """Return a text without spaces. The reader writes arguments that are JSON without spaces."""
    return re.sub(r"\s", "", text)


def parsed_events(stream: bytes) -> Iterator[Json]:
    """Yield the events of a stream that are objects, as the SDK's parser reads them."""
    for event in SSEDecoder().iter_bytes(iter([stream.decode(errors="replace").encode()])):
        try:
            value = json.loads(event.data)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield cast("Json", value)


def _texts(value: Any, *, is_delta: bool) -> Iterator[str]:
    if isinstance(value, str):
        # The reader repairs texts that no database stores.
        yield from [value] if is_delta and storable_text(value) == value else []
    elif isinstance(value, dict):
        for name, inner in cast("Json", value).items():
            yield from _texts(inner, is_delta=name in _PIECES)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _texts(inner, is_delta=is_delta)
