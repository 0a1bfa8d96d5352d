"""OTLP requests for tests, built with OpenTelemetry's own messages, and the same in JSON."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from store.models import Attempt
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID

NANOS = 1_700_000_000_123_456_700


def value(content: Any) -> AnyValue:
    """Return a Python value as OTLP has it; None is the empty value."""
    match content:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=content)
        case int():
            return AnyValue(int_value=content)
        case float():
            return AnyValue(double_value=content)
        case str():
            return AnyValue(string_value=content)
        case bytes():
            return AnyValue(bytes_value=content)
        case list():
            items: list[Any] = content  # pyright: ignore[reportUnknownVariableType] (a list of anything)
            return AnyValue(array_value=ArrayValue(values=[value(item) for item in items]))
        case _:
            return AnyValue(kvlist_value=KeyValueList(values=pairs(content)))


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes as OTLP has them."""
    return [KeyValue(key=key, value=value(content)) for key, content in attributes.items()]


def ids_of(attempt: Attempt, number: Any = None) -> dict[str, Any]:
    """Return the attributes that say whose span it is."""
    ids = {ROLLOUT_ID: attempt.rollout_id, ATTEMPT_ID: attempt.attempt_id}
    return ids if number is None else {**ids, SPAN_SEQUENCE_ID: number}


def span(attributes: Mapping[str, Any] | None = None, **fields: Any) -> Span:
    """Return a span with random ids."""
    values: dict[str, Any] = {
        "trace_id": os.urandom(16),
        "span_id": os.urandom(8),
        "name": "chat",
        "start_time_unix_nano": NANOS,
        "end_time_unix_nano": NANOS + 1_000_000_000,
        **fields,
    }
    return Span(**values, attributes=pairs(attributes or {}))


def group(*spans: Span, resource: Mapping[str, Any] | None = None, schema_url: str = "http://schema") -> ResourceSpans:
    """Return spans of one resource."""
    return ResourceSpans(
        resource=Resource(attributes=pairs(resource or {})),
        schema_url=schema_url,
        scope_spans=[ScopeSpans(spans=spans)],
    )


def request(*groups: ResourceSpans) -> ExportTraceServiceRequest:
    """Return what an exporter sends."""
    return ExportTraceServiceRequest(resource_spans=groups)


def as_json(message: ExportTraceServiceRequest) -> bytes:
    """Return a request in OTLP's JSON: protobuf's own, but with ids in hex."""
    return orjson.dumps(_with_hex_ids(MessageToDict(message)))


def _with_hex_ids(content: Any) -> Any:
    if isinstance(content, list):
        items: list[Any] = content  # pyright: ignore[reportUnknownVariableType] (JSON)
        return [_with_hex_ids(item) for item in items]
    if not isinstance(content, dict):
        return content
    fields: dict[str, Any] = content  # pyright: ignore[reportUnknownVariableType] (JSON)
    return {
        name: base64.b64decode(held).hex() if name in {"traceId", "spanId", "parentSpanId"} else _with_hex_ids(held)
        for name, held in fields.items()
    }
