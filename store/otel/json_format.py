"""Decoder of OTLP traces in JSON: ids are hex, keys are in camelCase, and 64-bit integers are text.

Unknown keys are ignored, and null counts as absent. Like protobuf's own JSON parsers, the decoder also accepts keys
with underscores, and integers as JSON numbers.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import orjson

from store.models import AttributeValue
from store.models.spans import in_seconds, scope_fields
from store.otel import spans as otlp_spans
from store.otel.spans import Attributes, Malformed, Origin, Received, Traces, Undecodable, carried
from store.runtime import lenient_json

Json = dict[str, Any]
T = TypeVar("T")

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}")
_HEX_TRACE, _HEX_SPAN = 32, 16
# Spans with more deeply nested attributes are refused. The limit is far below Python's recursion limit, and agents nest
# less deeply.
_MAX_DEPTH: Final = 32
_CODES: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_KINDS: Final = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
_NONE: Final[Json] = {}


def decode(body: bytes) -> Traces:
    """Return the spans of an `ExportTraceServiceRequest` in JSON. If one span is malformed, only that span is refused.

    Raises:
        Undecodable: the body is not JSON, or a part of the request that contains spans is malformed.
    """
    try:
        return decode_object(lenient_json.loads(body))
    except orjson.JSONDecodeError as error:
        raise Undecodable(error) from None


def decode_object(request: Any, *, accepts_foreign: bool = False) -> Traces:
    """Return the spans of a request, as `decode` does, from its parsed JSON.

    Args:
        request: the JSON.
        accepts_foreign: whether spans that do not state their attempt are accepted.

    Raises:
        Undecodable: a part of the request that contains spans is malformed.
    """
    try:
        traces = Traces(accepts_foreign=accepts_foreign)
        for group in _objects(_object(request, "the request"), "resourceSpans", "resource_spans"):
            resource = _object(group.get("resource") or {}, "resource")
            schema_url = _text(_either(group, "schemaUrl", "schema_url"), "schemaUrl")
            origin = Origin.of(_attributes(resource), schema_url, _dropped(resource))
            for spans in _objects(group, "scopeSpans", "scope_spans"):
                scope = _scope(spans)
                for span in _list(_either(spans, "spans", "spans"), "spans"):
                    _take(traces, origin, scope, span)
    except Malformed as error:
        raise Undecodable(error) from None
    return traces


def _scope(spans: Json) -> Json:
    scope = spans.get("scope")
    if type(scope) is not dict:
        scope = _NONE
    fields = cast("Json", scope)
    name, version = (_lenient(_text, fields.get(key), key) or "" for key in ("name", "version"))
    schema_url = _lenient(_text, _either(spans, "schemaUrl", "schema_url"), "schemaUrl")
    return scope_fields(name, version, schema_url, _lenient(_attributes, fields) or {}, _dropped(fields))


def _take(traces: Traces, origin: Origin, scope: Json, item: Any) -> None:
    try:
        span = _object(item, "a span")
        trace_id, span_id = _ids(span)
        otlp_spans.check_ids(trace_id, span_id)
        parent_id = _hex(_either(span, "parentSpanId", "parent_span_id"), "parentSpanId")
        state = _object(span.get("status") or {}, "status")
        received = Received(
            origin,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id.zfill(_HEX_SPAN) if parent_id else None,
            name=_text(span.get("name"), "name"),
            status_code=otlp_spans.status_code(_code(state.get("code"), "status.code", _CODES)),
            message=_text(state.get("message"), "status.message") or None,
            attributes=_attributes(span),
            events=[_event(event) for event in _objects(span, "events", "events")],
            links=[_link(link) for link in _objects(span, "links", "links")],
            start_time=_time(span, "startTimeUnixNano", "start_time_unix_nano"),
            end_time=_time(span, "endTimeUnixNano", "end_time_unix_nano"),
            trace_state=otlp_spans.trace_state(_state(span)),
            extras=otlp_spans.extras(
                _lenient(_code, span.get("kind"), "kind", _KINDS) or 0,
                scope,
                _count(span.get("flags"), "flags"),
                _dropped(span),
                _count(_either(span, "droppedEventsCount", "dropped_events_count"), "droppedEventsCount"),
                _count(_either(span, "droppedLinksCount", "dropped_links_count"), "droppedLinksCount"),
            ),
        )
    except Malformed as error:
        traces.refused.add(str(error))
    else:
        traces.add(received)


def _event(event: Json) -> Json:
    time = _time(event, "timeUnixNano", "time_unix_nano")
    return otlp_spans.event(_text(event.get("name"), "events.name"), _attributes(event), time, _dropped(event))


def _link(link: Json) -> Json:
    trace_id, span_id = _ids(link)
    trace_id, span_id = trace_id.zfill(_HEX_TRACE), span_id.zfill(_HEX_SPAN)
    flags = _count(link.get("flags"), "links.flags")
    return otlp_spans.link(trace_id, span_id, _state(link), _attributes(link), _dropped(link), flags)


def _ids(holder: Json) -> tuple[str, str]:
    trace_id = _hex(_either(holder, "traceId", "trace_id"), "traceId")
    return trace_id, _hex(_either(holder, "spanId", "span_id"), "spanId")


def _attributes(holder: Json) -> Attributes:
    attributes: Attributes = {}
    for pair in _objects(holder, "attributes", "attributes"):
        plain = _plain(pair.get("value"), 0)
        value = carried(plain) if isinstance(plain, list | dict) else plain
        if value is not None:
            attributes[_text(pair.get("key"), "attributes.key")] = value
    return attributes


def _plain(value: Any, depth: int) -> Any:
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        raise Malformed(f"an attribute is nested deeper than {_MAX_DEPTH} levels; flatten it")
    for name, content in _object(value, "an attribute's value").items():
        if content is None:
            continue
        if (reader := _SCALARS.get(name)) is not None:
            return reader(content, name)
        if name in {"arrayValue", "array_value"}:
            return [_plain(item, depth + 1) for item in _values(content, name)]
        if name in {"kvlistValue", "kvlist_value"}:
            pairs = [_object(pair, name) for pair in _values(content, name)]
            return {_text(pair.get("key"), f"{name}.key"): _plain(pair.get("value"), depth + 1) for pair in pairs}
    return None


def _values(holder: Any, name: str) -> list[Any]:
    return _list(_object(holder, name).get("values"), f"{name}.values")


def _string(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _not(value, name, "text")
    return value


def _bool(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise _not(value, name, "true or false")
    return value


def _int64(value: Any, name: str) -> int:
    return _integer(value, name, -(2**63), 2**63)


def _double(value: Any, name: str) -> float:
    if type(value) in {int, float}:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    try:
        return float(_string(value, name))
    except ValueError:
        raise _not(value, name, "a number") from None


def _bytes(value: Any, name: str) -> str:
    text = _string(value, name).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).hex()
    except binascii.Error:
        raise _not(value, name, "base64") from None


_SCALARS: Final[dict[str, Callable[[Any, str], AttributeValue]]] = {
    "stringValue": _string,
    "string_value": _string,
    "boolValue": _bool,
    "bool_value": _bool,
    "intValue": _int64,
    "int_value": _int64,
    "doubleValue": _double,
    "double_value": _double,
    "bytesValue": _bytes,
    "bytes_value": _bytes,
}


def _either(holder: Json, name: str, underscored: str) -> Any:
    value = holder.get(name)
    return holder.get(underscored) if value is None else value


def _object(value: Any, name: str) -> Json:
    if type(value) is not dict:
        raise _not(value, name, "an object")
    return cast("Json", value)


def _list(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    if type(value) is not list:
        raise _not(value, name, "an array")
    return cast("list[Any]", value)


def _objects(holder: Json, name: str, underscored: str) -> list[Json]:
    return [_object(item, name) for item in _list(_either(holder, name, underscored), name)]


def _text(value: Any, name: str) -> str:
    return "" if value is None else _string(value, name)


def _hex(value: Any, name: str) -> str:
    text = _text(value, name)
    if _HEX.fullmatch(text) is None:
        raise _not(value, name, "an id in hex")
    return text.lower()


def _integer(value: Any, name: str, minimum: int, end: int) -> int:
    if (type(value) is str and _DECIMAL.fullmatch(value)) or (type(value) is float and value.is_integer()):
        value = int(value)
    if type(value) is not int or not minimum <= value < end:
        raise _not(value, name, "an integer of 64 bits")
    return value


def _time(holder: Json, name: str, underscored: str) -> float | None:
    value = _either(holder, name, underscored)
    return None if value is None else in_seconds(_integer(value, name, 0, 2**64))


def _code(value: Any, name: str, codes: Mapping[str, int]) -> int:
    if value is None:
        return 0
    return codes[value] if type(value) is str and value in codes else _integer(value, name, -(2**31), 2**31)


# The following functions ignore a malformed value, so that no span is refused because of this value.


def _state(holder: Json) -> str:
    return _lenient(_text, _either(holder, "traceState", "trace_state"), "traceState") or ""


def _dropped(holder: Json) -> int:
    return _count(_either(holder, "droppedAttributesCount", "dropped_attributes_count"), "droppedAttributesCount")


def _count(value: Any, name: str) -> int:
    return 0 if value is None else _lenient(_integer, value, name, 0, 2**32) or 0


def _lenient(read: Callable[..., T], *args: Any) -> T | None:
    try:
        return read(*args)
    except Malformed:
        return None


def _not(value: Any, name: str, expected: str) -> Malformed:
    text = repr(value)
    return Malformed(f"{name}: {text if len(text) <= 80 else f'{text[:79]}…'} is not {expected}")
