"""Conversion of a client's calls to models to span attributes, for all protocols."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from store.model_calls import Protocol, read_call, stream_reader
from store.model_calls.attributes import AttributeWriter, put_request, put_response
from store.model_calls.json_values import Json, plain


def request_attributes(protocol: Protocol) -> Callable[[Mapping[str, Any]], Json]:
    """Return a function that converts a call's arguments to span attributes."""

    def of_request(request: Mapping[str, Any]) -> Json:
        writer = AttributeWriter()
        put_request(writer, read_call(protocol, plain(request), {}))
        return writer.values

    return of_request


def response_attributes(protocol: Protocol) -> Callable[[Mapping[str, Any]], Json]:
    """Return a function that converts a response to span attributes."""

    def of_answer(response: Mapping[str, Any]) -> Json:
        writer = AttributeWriter()
        put_response(writer, read_call(protocol, {}, dict(response)))
        return writer.values

    return of_answer


def stream_assembly(protocol: Protocol) -> Callable[[Sequence[Any]], Json]:
    """Return a function that combines the events of a stream into one response."""

    def assembled(events: Sequence[Any]) -> Json:
        reader = stream_reader(protocol, sys.maxsize)
        for event in events:
            reader.add(plain(event))
        return reader.response()

    return assembled
