"""Responses to exporters have the encoding of the request and are short."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from store.otel.decode import JSON, PROTOBUF, Encoding, Refusals, encoding_of


@pytest.mark.parametrize(
    "content_type,expected",
    [
        ("application/x-protobuf", PROTOBUF),
        ("application/x-protobuf; charset=utf-8", PROTOBUF),
        ("Application/X-Protobuf ;q=1", PROTOBUF),
        ("application/json", JSON),
        ("application/json;charset=UTF-8", JSON),
        ("text/plain", None),
        ("", None),
    ],
)
def test_the_content_type_names_the_encoding(content_type: str, expected: Encoding | None) -> None:
    assert encoding_of(content_type) is expected


def test_without_refusals_an_answer_says_nothing() -> None:
    assert PROTOBUF.answer(Refusals()) == b""
    assert JSON.answer(Refusals()) == b"{}"


def test_refusals_are_a_partial_success() -> None:
    refused = Refusals()
    refused.add("one reason")
    refused.add("another", 2)
    partial = ExportTraceServiceResponse.FromString(PROTOBUF.answer(refused)).partial_success
    assert (partial.rejected_spans, partial.error_message) == (3, "one reason; 2 spans: another")
    assert orjson.loads(JSON.answer(refused)) == {
        "partialSuccess": {"rejectedSpans": "3", "errorMessage": "one reason; 2 spans: another"}
    }


def test_an_answer_stays_short_whatever_was_refused() -> None:
    refused = Refusals()
    for number in range(1000):
        refused.add(f"{number}" + "x" * 10_000)
    assert refused.total == 1000
    assert refused.message.endswith("and 992 more reasons")
    assert len(PROTOBUF.answer(refused)) < 4000


@pytest.mark.parametrize("message", ["", "short", "é" * 300], ids=len)
def test_a_failure_is_a_status_with_a_message(message: str) -> None:
    from google.rpc.status_pb2 import Status as RpcStatus

    read: Any = RpcStatus.FromString(PROTOBUF.status(message))
    assert (read.code, read.message) == (0, message)
    assert orjson.loads(JSON.status(message)) == {"message": message}
