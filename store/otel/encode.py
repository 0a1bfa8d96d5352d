"""Encoder of stored spans as OTLP in JSON. `protobuf.encode` converts this JSON. Decision 102."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import orjson

from store.models import AttributeValue
from store.models.flat_spans import EMPTY_LIST, FlatSpan, flat_span
from store.otel.exported import exported_fields
from store.otel.json_format import decode_object
from store.semconv import ATTEMPT_ID, EXPORTED, ROLLOUT_ID, SPAN_SEQUENCE_ID

Json = dict[str, Any]

_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_STATUSES: Final = {"OK": 1, "ERROR": 2}
_HEX: Final = frozenset("0123456789abcdef")
_TRACE_DIGITS, _SPAN_DIGITS = 32, 16
_NANOSECONDS: Final = 1_000_000_000
_COUNTS: Final = (
    ("dropped_attributes_count", "droppedAttributesCount"),
    ("dropped_events_count", "droppedEventsCount"),
    ("dropped_links_count", "droppedLinksCount"),
)


class OtlpSpan(NamedTuple):
    """A span as OTLP, in JSON objects."""

    resource: Json
    """The fields of `ResourceSpans` apart from its spans."""
    scope: Json
    """The fields of `ScopeSpans` apart from its spans."""
    span: Json


def otlp_span(row: FlatSpan, added: Mapping[str, AttributeValue | None] | None = None) -> OtlpSpan:
    """Return a span as OTLP. The decoders of this package read it as the same span.

    Args:
        row: the span.
        added: further attributes out of `EXPORT_ATTRIBUTES`; None values are left out. The ids are always added.
    """
    extra: Json = orjson.loads(row.extra) if row.extra is not None else {}
    ids = {ROLLOUT_ID: row.rollout_id, ATTEMPT_ID: row.attempt_id, SPAN_SEQUENCE_ID: row.sequence_id}
    further: Json = ids | {name: value for name, value in (added or {}).items() if value is not None}
    attributes: Json = orjson.loads(row.attributes) | further
    # If the span has an attribute with the name `EXPORTED`, the marker replaces it in the order of the attributes.
    place = [*attributes, EXPORTED].index(EXPORTED)
    attributes.pop(EXPORTED, None)
    resource, scope = orjson.loads(row.resource), _object(extra.get("instrumentation_scope"))
    names = _present(name=_text(scope.get("name")), version=_text(scope.get("version")))
    encoded = OtlpSpan(
        _present(resource=_part(resource), schemaUrl=_text(resource.get("schema_url"))),
        _present(scope=names | _part(scope), schemaUrl=_text(scope.get("schema_url"))),
        _span(row, extra, attributes),
    )
    (decoded,) = decode_object(request([encoded])).received
    marker = exported_fields(row, flat_span(decoded.span()), further)
    encoded.span["attributes"].insert(place, _pair(EXPORTED, {"stringValue": marker}))
    return encoded


def request(spans: Iterable[OtlpSpan]) -> Json:
    """Return an `ExportTraceServiceRequest`. Neighbours with equal resources and scopes share a group."""
    groups: list[Json] = []
    last: OtlpSpan | None = None
    for span in spans:
        if last is None or span.resource != last.resource:
            groups.append({**span.resource, "scopeSpans": []})
            last = None
        if last is None or span.scope != last.scope:
            groups[-1]["scopeSpans"].append({**span.scope, "spans": []})
        groups[-1]["scopeSpans"][-1]["spans"].append(span.span)
        last = span
    return {"resourceSpans": groups}


def as_json(spans: Iterable[OtlpSpan]) -> bytes:
    """Return a request in JSON."""
    return orjson.dumps(request(spans))


def _span(row: FlatSpan, extra: Json, attributes: Json) -> Json:
    context = _object(extra.get("context"))
    return _present(
        traceId=_id(row.trace_id, _TRACE_DIGITS),
        spanId=_id(row.span_id, _SPAN_DIGITS),
        traceState=_trace_state(context),
        parentSpanId=_id(row.parent_id, _SPAN_DIGITS) if row.parent_id else None,
        flags=_count(extra.get("flags")),
        name=row.name,
        kind=_KINDS.get(_text(extra.get("kind")) or ""),
        startTimeUnixNano=_time(row.start_time),
        endTimeUnixNano=_time(row.end_time),
        attributes=_pairs(attributes),
        **{name: _count(extra.get(key)) for key, name in _COUNTS},
        events=[_event(event) for event in orjson.loads(row.events)] if row.events != EMPTY_LIST else None,
        links=[_link(link) for link in orjson.loads(row.links)] if row.links != EMPTY_LIST else None,
        status=_present(message=row.status_message or None, code=_STATUSES.get(row.status_code)),
    )


def _event(event: Json) -> Json:
    return _present(timeUnixNano=_time(event.get("timestamp")), name=_text(event.get("name"))) | _part(event)


def _link(link: Json) -> Json:
    context = _object(link.get("context"))
    return _present(
        traceId=_id(_text(context.get("trace_id")) or "", _TRACE_DIGITS),
        spanId=_id(_text(context.get("span_id")) or "", _SPAN_DIGITS),
        traceState=_trace_state(context),
        flags=_count(link.get("flags")),
    ) | _part(link)


def _part(part: Json) -> Json:
    """Return the attributes of a part of a span, and the number of attributes that were dropped in recording."""
    return _present(
        attributes=_pairs(_object(part.get("attributes"))) or None,
        droppedAttributesCount=_count(part.get("dropped_attributes_count")),
    )


def _pairs(attributes: Json) -> list[Json]:
    return [_pair(name, encoded) for name, value in attributes.items() if (encoded := _any_value(value)) is not None]


def _pair(name: str, value: Json) -> Json:
    return {"key": name, "value": value}


def _any_value(value: Any) -> Json | None:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            items = [_any_value(item) for item in cast("list[Any]", value)]
            return {"arrayValue": {"values": [item for item in items if item is not None]}}
        case _:
            return None


# The functions below leave out or replace a value that OTLP cannot represent. `exported_fields` finds such a value by
# comparison.


def _id(text: str, digits: int) -> str:
    """Return an id in hex. An id that is not valid hex is replaced by its hash, so that equal ids stay equal."""
    if len(text) == digits and _HEX.issuperset(text) and text.strip("0"):
        return text
    return sha256(text.encode()).hexdigest()[:digits]


def _time(seconds: Any) -> str | None:
    """Return a time in nanoseconds as text; None for a time that OTLP cannot represent."""
    if not isinstance(seconds, float | int) or not 0 <= seconds < 2**64 // _NANOSECONDS:
        return None
    whole = int(seconds)
    return str(whole * _NANOSECONDS + round((seconds - whole) * _NANOSECONDS))


def _trace_state(context: Json) -> str | None:
    return ",".join(f"{key}={value}" for key, value in _object(context.get("trace_state")).items()) or None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**32 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _present(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
