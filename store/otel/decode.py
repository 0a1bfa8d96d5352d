"""Encodings of OTLP over HTTP: decoding of requests, encoding of responses, without I/O. See decision 35."""

from collections.abc import Callable
from dataclasses import dataclass

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from store.otel import json_format, protobuf
from store.otel.spans import Refusals, Traces, Undecodable

__all__ = ["JSON", "PROTOBUF", "Encoding", "Refusals", "Traces", "Undecodable", "encoding_of"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One of the two encodings of OTLP over HTTP."""

    media_type: str
    decode: Callable[[bytes], Traces]
    """Returns the spans of a request; raises `Undecodable`."""
    answer: Callable[[Refusals], bytes]
    """Returns the body of a successful response, which reports a partial success if spans were refused."""
    status: Callable[[str], bytes]
    """Returns the body of a failed response: a `google.rpc.Status` that contains only the message."""


def encoding_of(content_type: str) -> Encoding | None:
    """Return the encoding for a Content-Type; None if OTLP has no such encoding. Parameters are ignored."""
    return _ENCODINGS.get(content_type.partition(";")[0].strip().lower())


def _protobuf_answer(refused: Refusals) -> bytes:
    if not refused.reasons:
        return b""
    partial = ExportTracePartialSuccess(rejected_spans=refused.total, error_message=refused.message)
    return ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def _json_answer(refused: Refusals) -> bytes:
    if not refused.reasons:
        return b"{}"
    partial = {"rejectedSpans": str(refused.total), "errorMessage": refused.message}
    return orjson.dumps({"partialSuccess": partial})


def _protobuf_status(message: str) -> bytes:
    # The message is field 2 of google.rpc.Status. The Python class of that type would need another package.
    text = message.encode()
    return b"\x12" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


PROTOBUF = Encoding("application/x-protobuf", protobuf.decode, _protobuf_answer, _protobuf_status)
JSON = Encoding(
    "application/json", json_format.decode, _json_answer, lambda message: orjson.dumps({"message": message})
)

_ENCODINGS = {encoding.media_type: encoding for encoding in (PROTOBUF, JSON)}
