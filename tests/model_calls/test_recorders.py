"""The proxy and the instrumented clients record equal calls from the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from store.model_calls import ModelCall, Protocol, attributes_of, call_of
from tests.model_calls.facts import call_of_response, call_of_stream, differences, reader_of, unequal
from tests.model_calls.recorders import (
    CLIENT_DIFFERENCES,
    LANGCHAIN_DIFFERENCES,
    Recording,
    record_corpus,
    record_with_langchain,
)

# One process records the corpus.
pytestmark = [pytest.mark.http, pytest.mark.xdist_group("model-calls"), pytest.mark.torture]


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return record_corpus()


@pytest.mark.parametrize("protocol", Protocol)
def test_proxy_records_the_call_that_the_reader_returns(recordings: list[Recording], protocol: Protocol) -> None:
    wrong: list[str] = []
    for recording in of_protocol(recordings, protocol):
        call = recording.call_by(proxy=True)
        wrong += [f"{recording.name}: {line}" for line in differences(call, recording.entry)]
        wrong += unequal(recording.name, call, call_of(attributes_of(call_read(recording))))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("protocol", Protocol)
def test_client_and_proxy_record_equal_calls(recordings: list[Recording], protocol: Protocol) -> None:
    exceptions = {name for names in CLIENT_DIFFERENCES.values() for name in names}
    wrong: list[str] = []
    for recording in of_protocol(recordings, protocol):
        lines = unequal(recording.name, recording.call_by(proxy=False), recording.call_by(proxy=True))
        if recording.name in exceptions:
            wrong += [] if lines else [f"{recording.name}: equal, so it is no exception"]
        else:
            wrong += lines
    assert not wrong, "\n".join(wrong)


def test_langchain_handler_records_the_call_that_langchain_returns() -> None:
    pytest.importorskip("langchain_openai")
    exceptions = {name for names in LANGCHAIN_DIFFERENCES.values() for name in names}
    wrong: list[str] = []
    for entry, call in record_with_langchain():
        # LangChain has one form for all protocols.
        lines = differences(replace(call, protocol=Protocol(entry.protocol)), entry)
        if entry.name in exceptions:
            wrong += [] if lines else [f"{entry.name}: equal, so it is no exception"]
        else:
            wrong += lines
    assert not wrong, "\n".join(wrong)


def of_protocol(recordings: list[Recording], protocol: Protocol) -> list[Recording]:
    return [recording for recording in recordings if recording.entry.protocol == protocol]


def call_read(recording: Recording) -> ModelCall:
    """Return the call that the reader reads from the bytes of a recording."""
    if recording.is_stream:
        return call_of_stream(recording.entry, reader_of(recording.entry, recording.entry.stream))
    return call_of_response(recording.entry)
