"""Recorder of the attributes of a call that a client or a framework makes to a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from store.model_calls import Protocol, StreamReader, read_call, stream_reader
from store.model_calls.attributes import (
    RAW_ANSWER,
    TRUNCATED,
    AttributeWriter,
    put_request,
    put_response,
    put_truncated,
)  # fmt: skip
from store.model_calls.json_values import Json, as_object, parse, plain, received
from store.semconv import CHANGED

_REQUEST_BYTES: Final = 12 * 1024 * 1024
"""The maximum size of a request's attributes in bytes. A span may have 16 MiB, so the response has room."""


class CallRecord:
    """The attributes of one call.

    Args:
        protocol: the protocol of the call.
        request: the arguments of the call.
    """

    def __init__(self, protocol: Protocol, request: Mapping[str, Any]) -> None:
        self._protocol = protocol
        self._writer = AttributeWriter(limit=_REQUEST_BYTES)
        put_request(self._writer, read_call(protocol, as_object(plain(request)), {}))

    @property
    def values(self) -> Json:
        """The attributes so far."""
        changes: Json = {CHANGED: self._writer.changes} if self._writer.changes else {}
        return {**self._writer.values, **changes}

    def mark_incomplete(self) -> None:
        """Mark the response as not recorded completely."""
        self._writer.put(TRUNCATED, "answer")

    def add_response(self, response: Any, *, is_incomplete: bool = False) -> None:
        """Add a response, as an object of the client or as JSON.

        Args:
            response: the response.
            is_incomplete: whether a part of the response is missing or could not be read.
        """
        call = read_call(self._protocol, {}, received(response), is_incomplete=is_incomplete)
        put_response(self._writer, call)
        put_truncated(self._writer, call)

    def add_body(self, body: bytes) -> None:
        """Add the body of a response that was not streamed."""
        value, is_exact = parse(body)
        if not isinstance(value, dict):
            self._writer.put_long(RAW_ANSWER, body.decode(errors="replace"))
        self.add_response(value, is_incomplete=not is_exact or not isinstance(value, dict))

    def add_events(self, events: Iterable[Any], *, has_end_mark: bool) -> str | None:
        """Add the events of a stream. Return the message of the server's error, or None."""
        reader = stream_reader(self._protocol, sys.maxsize)
        for event in events:
            reader.add(received(event))
        return self._add_stream(reader, has_end_mark=has_end_mark)

    def add_event_body(self, body: bytes, *, has_end_mark: bool) -> str | None:
        """Add the body of a stream. Return the message of the server's error, or None."""
        reader = stream_reader(self._protocol, sys.maxsize)
        reader.feed(body)
        return self._add_stream(reader, has_end_mark=has_end_mark)

    def _add_stream(self, reader: StreamReader, *, has_end_mark: bool) -> str | None:
        if has_end_mark:
            reader.mark_end()
        self.add_response(reader.response(), is_incomplete=reader.is_truncated or not reader.is_complete)
        return None if reader.error is None else str(reader.error.get("message") or reader.error)
