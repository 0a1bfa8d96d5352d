"""One call of an agent through the proxy: the request, the response, and the span that records the call."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import orjson
from starlette.datastructures import Headers

from store.llm_proxy.addresses import CallAddress, Endpoint
from store.llm_proxy.backends import Backend
from store.llm_proxy.headers import keys_of, secrets
from store.llm_proxy.recorder import Recording
from store.llm_proxy.refusals import Refusal
from store.model_calls import Protocol, StreamReader, read_call, stream_reader
from store.model_calls import attributes as names
from store.model_calls.attributes import AttributeWriter
from store.model_calls.json_values import Json, as_object, as_text, parse
from store.models import TraceStatus
from store.semconv import CHANGED

_DESCRIPTION: Final = 200
_MAX_CHANGES: Final = 16


class BodyReader:
    """Reader of a response that is not a stream. A response of more than `limit` bytes is discarded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self.has_end_mark = False
        self.is_complete = True
        self.error: Json | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether the response was longer than the limit."""
        return self._size > self._limit

    @property
    def body(self) -> bytes:
        """The collected bytes."""
        return b"".join(self._chunks)

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the response."""
        self._size += len(chunk)
        if self.is_truncated:
            self._chunks.clear()
        else:
            self._chunks.append(chunk)

    @cached_property
    def value(self) -> tuple[Any, bool]:
        """The parsed response, and whether all of its text could be read."""
        return parse(self.body)

    @property
    def is_empty(self) -> bool:
        """Whether the response contains nothing, or is not JSON."""
        return not self.is_truncated and self.value[0] in (None, {})

    def response(self) -> Json:
        """Return the parsed response; empty if the response is not a JSON object."""
        return as_object(self.value[0])


class ProxiedCall:
    """The state of one call."""

    def __init__(
        self,
        address: CallAddress,
        query: bytes,
        headers: Headers,
        body: bytes,
        recording: Recording | None,
    ) -> None:
        self.endpoint = address.endpoint
        self.path = address.path + (f"?{query.decode('latin-1')}" if query else "")
        self.headers = headers
        self.body = body
        value, self._is_exact = parse(body)
        self._is_object = isinstance(value, dict)
        self.request = as_object(value)
        self.model = as_text(self.request.get("model"))
        self.recording = recording
        if recording is not None and self.request.get("stream") is True:
            recording.begin_stream()
        self.backend: Backend | None = None
        self.tries = 0
        self.status: int | None = None
        self.is_cached = False
        self.reader: StreamReader | BodyReader | None = None
        self._error: tuple[str, str] | None = None
        self._is_unreadable = False
        self.is_recorded = False
        self._start_time = time.time()
        self._started = time.perf_counter()
        self._first_byte: float | None = None

    def check_request(self) -> None:
        """Check that the request can be routed by its model.

        Raises:
            Refusal: 400 if the body is not a JSON object, or its model is not text.
        """
        if self.endpoint is Endpoint.MODELS:
            return
        if not self._is_exact or not self._is_object:
            raise Refusal(
                400, "the body is not a JSON object in UTF-8; send a JSON object with the field 'model'", "invalid_body"
            )
        model = self.request.get("model")
        if model is not None and not isinstance(model, str):
            raise Refusal(400, "the field 'model' is not text; send the name of a model", "invalid_model")

    def body_for(self, backend: Backend) -> bytes:
        """Return the body for a backend.

        The result is the client's body. If the backend has another name for the model, this name is inserted. If the
        call is recorded, fields that request token ids and log probabilities are added, unless the client has set these
        fields.
        """
        extra: Json = {}
        if self.model is not None and backend.own_name(self.model) != self.model:
            extra["model"] = backend.own_name(self.model)
        if self.recording is not None and self.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS}:
            if backend.supports_token_ids and "return_token_ids" not in self.request:
                extra["return_token_ids"] = True
            if backend.supports_logprobs and "logprobs" not in self.request:
                extra["logprobs"] = True if self.endpoint is Endpoint.CHAT else 1
        if not extra or not self.request:
            return self.body
        if "model" in extra:
            try:
                return orjson.dumps({**orjson.loads(self.body), **extra})
            except (orjson.JSONDecodeError, TypeError):
                # The body contains NaN or surrogates. Python's parser and writer keep both.
                return json.dumps({**json.loads(self.body), **extra}).encode()
        # The fields are inserted at the front, so that the client's bytes stay unchanged. If orjson wrote the body
        # again, it could shorten the client's numbers.
        return b"{" + orjson.dumps(extra)[1:-1] + b"," + self.body[self.body.index(b"{") + 1 :]

    def begin_answer(self, status: int, content_type: str, content_encoding: str, limit: int) -> None:
        """Process the status and the headers of the response.

        Args:
            status: the HTTP status.
            content_type: the media type, which determines whether the body is read as a stream.
            content_encoding: the encoding of the body. The proxy asks for a body without encoding. If the body is
                encoded anyway, it is forwarded but not recorded.
            limit: the maximum number of bytes of the response to keep.
        """
        self.status = status
        if content_encoding not in {"", "identity"}:
            self._is_unreadable = True
            return
        protocol = self.endpoint.protocol
        if content_type == "text/event-stream" and protocol is not None and protocol is not Protocol.EMBEDDINGS:
            self.reader = stream_reader(protocol, limit)
        else:
            self.reader = BodyReader(limit)

    def received(self, chunk: bytes) -> bool:
        """Process the next bytes of the response, and return whether the response is now known to be complete."""
        if self._first_byte is None:
            self._first_byte = time.perf_counter()
        if self.reader is None:
            return False
        self.reader.feed(chunk)
        return self.reader.has_end_mark

    def failed(self, kind: str, message: str) -> None:
        """Record a failure. Only the first failure is kept."""
        self._error = self._error or (kind, message)

    async def record(self, keys: Sequence[str | None], limit: int) -> None:
        """Write the span of the call, if the call is recorded and the span has not been written yet.

        Args:
            keys: API keys to remove from the span, in addition to the client's keys.
            limit: the maximum size of the prompt in bytes.
        """
        if self.recording is None or self.is_recorded:
            return
        self.is_recorded = True
        try:
            await self._write_span(self.recording, AttributeWriter(secrets(*keys, *keys_of(self.headers)), limit))
        finally:
            self.recording.close()

    async def _write_span(self, recording: Recording, writer: AttributeWriter) -> None:
        ended = time.perf_counter()
        answer = self.reader.response() if self.reader is not None else {}
        protocol = self.endpoint.protocol
        assert protocol is not None  # only calls with a protocol are recorded
        is_answered = self.status is not None and self.status < 400
        is_incomplete = is_answered and (self.reader is None or not self.reader.is_complete)
        call = read_call(protocol, self.request, answer if is_answered else {}, is_incomplete=is_incomplete)
        names.put_call(writer, call)
        if not self._is_exact:
            writer.put_long(names.RAW_REQUEST, self.body.decode(errors="replace"))
            writer.is_truncated = True
        if isinstance(self.reader, BodyReader) and not self.reader.is_truncated and self.reader.value[0] is None:
            writer.put_long(names.RAW_ANSWER, self.reader.body.decode(errors="replace"))
        names.put_truncated(writer, call, is_cut=self._is_cut())
        self._note_failure(answer)
        self._put_call_attributes(writer, ended)
        await recording.write(
            names.EMBEDDINGS_SPAN if self.endpoint is Endpoint.EMBEDDINGS else names.CALL_SPAN,
            writer.values,
            self._start_time,
            self._start_time + (ended - self._started),
            self._trace_status(writer),
        )

    def _note_failure(self, answer: Json) -> None:
        stream_error = self.reader.error if self.reader is not None else None
        if stream_error is not None:
            self.failed(
                "stream_error", as_text(stream_error.get("message")) or "the backend ended the stream with an error"
            )
        if self.status is not None and self.status >= 400:
            error = answer.get("error")
            message = as_text(as_object(error).get("message")) or as_text(error) or as_text(answer.get("message"))
            self.failed(str(self.status), f"{self.status}: {message or 'the backend refused the call'}")
        elif self.reader is not None and self.reader.is_empty:
            self.failed("invalid_answer", f"{self.status}: the answer of the backend is empty or not JSON")

    def _put_call_attributes(self, writer: AttributeWriter, ended: float) -> None:
        if self.backend is not None:
            writer.put(names.BACKEND, self.backend.name)
            writer.put(names.VERSION, self.backend.version)
        writer.put(names.LATENCY, ended - self._started)
        writer.put(names.FIRST_BYTE, None if self._first_byte is None else self._first_byte - self._started)
        writer.put(names.STATUS, self.status)
        writer.put(names.TRIES, self.tries)
        writer.put(names.CACHED, self.is_cached)
        writer.put(names.ERROR, self._error[0] if self._error else None)
        if writer.changes:
            writer.values[CHANGED] = writer.changes[:_MAX_CHANGES]

    def _is_cut(self) -> bool:
        if self.reader is None:
            return self._is_unreadable
        if isinstance(self.reader, BodyReader) and not self.reader.is_truncated:
            value, is_exact = self.reader.value
            return not is_exact or not isinstance(value, dict)
        return self.reader.is_truncated

    def _trace_status(self, writer: AttributeWriter) -> TraceStatus:
        if self._error is None:
            return TraceStatus(status_code="OK")
        return TraceStatus(status_code="ERROR", description=writer.clean(self._error[1])[:_DESCRIPTION])
