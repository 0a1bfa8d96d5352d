"""Decoder and encoder of OTLP traces in protobuf: the protobuf library parses and writes the messages."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from store.models import AttributeValue
from store.models.spans import in_seconds, scope_fields
from store.otel import spans as otlp_spans
from store.otel.spans import Attributes, Malformed, Origin, Received, Traces, Undecodable, carried

_HEX_TRACE, _HEX_SPAN = 32, 16
_PLAIN: Final = frozenset({"string_value", "bool_value", "int_value", "double_value"})


def decode(body: bytes) -> Traces:
    """Return the spans of an `ExportTraceServiceRequest` in protobuf.

    Raises:
        Undecodable: the body is not such a request.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise Undecodable(error) from None
    traces = Traces()
    for group in request.resource_spans:
        resource = group.resource
        origin = Origin.of(_attributes(resource.attributes), group.schema_url, resource.dropped_attributes_count)
        for spans in group.scope_spans:
            scope_message = spans.scope
            attributes = _attributes(scope_message.attributes)
            scope = scope_fields(
                scope_message.name,
                scope_message.version,
                spans.schema_url,
                attributes,
                scope_message.dropped_attributes_count,
            )
            for span in spans.spans:
                _take(traces, origin, scope, span)
    return traces


def _take(traces: Traces, origin: Origin, scope: otlp_spans.Json, span: trace_pb2.Span) -> None:
    status, events, links = span.status, span.events, span.links
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    try:
        otlp_spans.check_ids(trace_id, span_id)
    except Malformed as error:
        traces.refused.add(str(error))
        return
    traces.add(
        Received(
            origin,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent.hex().zfill(_HEX_SPAN) if (parent := span.parent_span_id) else None,
            name=span.name,
            status_code=otlp_spans.status_code(status.code),
            message=status.message or None,
            attributes=_attributes(span.attributes),
            events=[_event(event) for event in events] if events else [],
            links=[_link(link) for link in links] if links else [],
            start_time=in_seconds(span.start_time_unix_nano),
            end_time=in_seconds(span.end_time_unix_nano),
            trace_state=otlp_spans.trace_state(state) if (state := span.trace_state) else {},
            extras=otlp_spans.extras(
                span.kind,
                scope,
                span.flags,
                span.dropped_attributes_count,
                span.dropped_events_count,
                span.dropped_links_count,
            ),
        )
    )


def _event(event: trace_pb2.Span.Event) -> otlp_spans.Json:
    time, dropped = in_seconds(event.time_unix_nano), event.dropped_attributes_count
    return otlp_spans.event(event.name, _attributes(event.attributes), time, dropped)


def _link(link: trace_pb2.Span.Link) -> otlp_spans.Json:
    trace_id, span_id = link.trace_id.hex().zfill(_HEX_TRACE), link.span_id.hex().zfill(_HEX_SPAN)
    attributes, dropped = _attributes(link.attributes), link.dropped_attributes_count
    return otlp_spans.link(trace_id, span_id, link.trace_state, attributes, dropped, link.flags)


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    attributes: Attributes = {}
    for pair in pairs:
        value = pair.value
        # At most one of the four fields is set; unset fields are falsy. Reading all four is faster than `WhichOneof`.
        plain = value.string_value or value.int_value or value.double_value or value.bool_value or _attribute(value)
        if plain is not None:
            attributes[pair.key] = plain
    return attributes


def _attribute(value: AnyValue) -> AttributeValue | None:
    kind = value.WhichOneof("value")
    if kind in _PLAIN:
        return getattr(value, kind)
    plain = _plain(value)
    return carried(plain) if isinstance(plain, list | dict) else plain


def _plain(value: AnyValue) -> Any:
    match kind := value.WhichOneof("value"):
        case "bytes_value":
            return value.bytes_value.hex()
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
        case None | "string_value_strindex":
            return None
        case _:
            return getattr(value, kind)


def encode(request: otlp_spans.Json) -> bytes:
    """Return a request that `store.otel.encode.request` has made, in protobuf."""
    return ExportTraceServiceRequest(**_fields(request)).SerializeToString()


def _fields(value: otlp_spans.Json) -> otlp_spans.Json:
    """Return a message in JSON as the arguments of its class."""
    return {_snake(name): _CONVERTED.get(name, _argument)(item) for name, item in value.items()}


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(item) for item in cast("list[Any]", value)]
    return _fields(cast("otlp_spans.Json", value)) if isinstance(value, dict) else value


@cache
def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


_CONVERTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("traceId", "spanId", "parentSpanId"), bytes.fromhex),
    **dict.fromkeys(("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue"), int),
}
