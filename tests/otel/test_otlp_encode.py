"""Spans as OTLP: what a store exports is read again as the same span, in both encodings."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from store.models import Span
from store.models.flat_spans import flat_span
from store.otel import json_format, protobuf
from store.otel.encode import OtlpSpan, as_json, otlp_span, request
from store.otel.spans import Received
from store.semconv import ATTEMPT_ID, EXPORTED, GROUP_KEY, ROLLOUT_ID, SPAN_SEQUENCE_ID
from store.sql.commands.spans import new_span, record_received
from tests.torture import rounds

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
CONTEXT: dict[str, Any] = {"trace_id": TRACE, "span_id": SPAN, "is_remote": False, "trace_state": {}}
PLAIN: dict[str, Any] = {
    "rollout_id": "ro-1",
    "attempt_id": "at-1",
    "sequence_id": 4,
    "trace_id": TRACE,
    "span_id": SPAN,
    "parent_id": PARENT,
    "name": "chat",
    "status": {"status_code": "ERROR", "description": "late"},
    "attributes": {"text": "é", "flag": True, "count": -7, "share": 1.0, "list": [1, 2], "none": [], "floats": [1.5]},
    "events": [{"name": "retry", "attributes": {"n": 1}, "timestamp": 1_790_000_000.25, "dropped_attributes_count": 2}],
    "links": [{"context": {**CONTEXT, "trace_state": {"a": "1", "b": "2"}}, "attributes": {"k": "v"}, "flags": 1}],
    "start_time": 1_790_000_000.123456,
    "end_time": 1_790_000_000.5,
    "context": {**CONTEXT, "trace_state": {"vendor": "x"}},
    "parent": None,
    "resource": {"attributes": {"service.name": "agent"}, "schema_url": "http://schema", "dropped_attributes_count": 1},
    "kind": "CLIENT",
    "instrumentation_scope": {"name": "lib", "version": "1", "schema_url": "http://s", "attributes": {"x": 1.5}},
    "flags": 257,
    "dropped_attributes_count": 3,
    "dropped_events_count": 4,
    "dropped_links_count": 5,
}
"""The fields of a span with a value in every field of OTLP, and in no other."""


def as_protobuf(spans: list[OtlpSpan]) -> bytes:
    return protobuf.encode(request(spans))


def span(**changes: Any) -> Span:
    return Span.model_validate({**PLAIN, **changes})


def both(original: Span, added: dict[str, Any] | None = None) -> list[Received]:
    """Return the span as both decoders read it."""
    encoded = [otlp_span(flat_span(original), added)]
    traces = [json_format.decode(as_json(encoded)), protobuf.decode(as_protobuf(encoded))]
    assert not any(trace.refused.reasons or trace.unnumbered for trace in traces)
    return [received for trace in traces for received in trace.received]


def check_equal(original: Span, added: dict[str, Any] | None = None) -> None:
    """Check that a store would recognise both decoded spans as the original."""
    for received in both(original, added):
        assert flat_span(received.span()) == flat_span(original)
        (item,) = record_received([received]).items
        expected = new_span(original, "")
        assert (item.rollout_id, item.fact, item.content) == (original.rollout_id, expected.fact, expected.content)
        assert received.added == {
            ROLLOUT_ID: original.rollout_id,
            ATTEMPT_ID: original.attempt_id,
            SPAN_SEQUENCE_ID: original.sequence_id,
            **(added or {}),
        }


def test_span_has_every_field_in_the_words_of_otlp() -> None:
    (message,) = ExportTraceServiceRequest.FromString(as_protobuf([otlp_span(flat_span(span()))])).resource_spans
    (scope,) = message.scope_spans
    (exported,) = scope.spans
    assert (exported.trace_id.hex(), exported.span_id.hex(), exported.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (exported.start_time_unix_nano, exported.end_time_unix_nano) == (
        pytest.approx(1_790_000_000_123_456_000, abs=120),
        1_790_000_000_500_000_000,
    )
    assert (exported.kind, exported.flags, exported.status.code, exported.status.message) == (3, 257, 2, "late")
    assert (exported.trace_state, exported.links[0].trace_state) == ("vendor=x", "a=1,b=2")
    assert [pair.value.WhichOneof("value") for pair in exported.attributes][:4] == [
        "string_value",
        "bool_value",
        "int_value",
        "double_value",
    ]
    assert (scope.scope.name, scope.schema_url, message.schema_url) == ("lib", "http://s", "http://schema")
    # A span in which OTLP has a place for everything needs no further fields.
    assert exported.attributes[-1].key == EXPORTED
    assert exported.attributes[-1].value.string_value == "{}"


def test_both_encodings_are_the_same_request() -> None:
    other = span(resource={"attributes": {}, "schema_url": ""}, span_id=PARENT, instrumentation_scope={})
    encoded = [otlp_span(flat_span(item)) for item in (span(), span(span_id="1" * 16), other)]
    ours = orjson.loads(as_json(encoded))
    message = ExportTraceServiceRequest.FromString(as_protobuf(encoded))
    assert [[len(scope.spans) for scope in group.scope_spans] for group in message.resource_spans] == [[2], [1]]
    assert ParseDict(_with_base64(ours), ExportTraceServiceRequest()) == message


def _with_base64(value: Any) -> Any:
    """Return JSON of OTLP with the ids in base64, as in all other JSON of protobuf messages."""
    if isinstance(value, list):
        return [_with_base64(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {
            name: base64.b64encode(bytes.fromhex(item)).decode() if name.endswith(("raceId", "panId")) else item
            for name, item in ((name, _with_base64(item)) for name, item in fields.items())
        }
    return value


STRANGE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "ids": {"trace_id": "t", "span_id": "AB", "parent_id": "", "context": None},
    "zero ids": {"trace_id": "0" * 32, "span_id": "0" * 16, "parent_id": None},
    "times": {"start_time": 5.0, "end_time": -1.0},
    "no times": {"start_time": 0.0, "end_time": None},
    "late": {"start_time": 1e300},
    "number": {"sequence_id": -3},
    "parent": {"parent": {**CONTEXT, "trace_flags": 1}, "context": {**CONTEXT, "trace_flags": 1}},
    "state": {"context": {**CONTEXT, "trace_state": {"a": "1,b=2", "": ""}}},
    "status": {"status": {"status_code": "OK", "description": "", "code": 2}},
    "long status": {"status": {"status_code": "ERROR", "description": "long " * 100}},
    "unknown": {"kind": "OTHER", "flags": "x", "more": [{"a": None}], "dropped_links_count": -1},
    "scope": {"instrumentation_scope": {"name": "n", "other": 1}},
    "scope of another kind": {"instrumentation_scope": "text", "kind": None},
    "event": {"events": [{"name": "", "attributes": {}, "timestamp": 3.0, "other": 1}]},
    "link": {"links": [{"context": {**CONTEXT, "span_id": "x", "is_remote": True}, "attributes": {}}]},
    "resource": {"resource": {"attributes": {}, "schema_url": "", "other": {"a": 1}}},
    "our attributes": {"attributes": {"a": 1, ROLLOUT_ID: "ro-1", GROUP_KEY: True, EXPORTED: '{"name":"x"}', "z": ""}},
    "empty attribute": {"attributes": {"": 2**63 - 1, "tiny": 5e-324, "zero": -0.0}},
}


@pytest.mark.parametrize("changes", STRANGE.values(), ids=STRANGE)
def test_fields_without_a_place_in_otlp_are_restored(changes: dict[str, Any]) -> None:
    check_equal(span(**changes))
    check_equal(span(**changes), {GROUP_KEY: "g", "rollbook.reward": 0.5})


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.one_of(
    _TEXTS, st.booleans(), _NUMBERS, _FLOATS, st.lists(_TEXTS, max_size=2), st.lists(_NUMBERS, max_size=2)
)
_ATTRIBUTES = st.dictionaries(
    st.one_of(_TEXTS, st.sampled_from([ROLLOUT_ID, GROUP_KEY, EXPORTED])), _VALUES, max_size=4
)
_TIMES = st.one_of(st.none(), st.floats(-1e18, 1e18), st.floats(1.6e9, 2e9))
_JSON = st.recursive(st.one_of(st.none(), _TEXTS, st.integers(-9, 9)), lambda item: st.lists(item, max_size=2))


@settings(max_examples=rounds(3000, few=60))
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "trace_id": _TEXTS,
            "span_id": _TEXTS,
            "parent_id": st.one_of(st.none(), _TEXTS),
            "name": _TEXTS,
            "sequence_id": st.integers(-(2**53), 2**53),
            "attributes": _ATTRIBUTES,
            "start_time": _TIMES,
            "end_time": _TIMES,
            "events": st.lists(
                st.fixed_dictionaries({"name": _TEXTS, "attributes": _ATTRIBUTES, "timestamp": _TIMES}), max_size=2
            ),
            "kind": _JSON,
            "instrumentation_scope": _JSON,
            "flags": _JSON,
            "unknown": _JSON,
        },
    )
)
def test_every_span_is_read_as_it_was(changes: dict[str, Any]) -> None:
    check_equal(span(**changes))


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "[]",
        '{"other":1}',
        '{"trace_id":5}',
        '{"extra":{"name":"x"}}',
        '{"extra":{"context":1}}',
        '{"events":[{"name":1}]}',
        7,
    ],
)
def test_the_attribute_of_another_program_stays(value: object) -> None:
    (message,) = ExportTraceServiceRequest.FromString(as_protobuf([otlp_span(flat_span(span()))])).resource_spans
    (marker,) = [pair for pair in message.scope_spans[0].spans[0].attributes if pair.key == EXPORTED]
    if isinstance(value, str):
        marker.value.string_value = value
    else:
        marker.value.int_value = 7
    (received,) = protobuf.decode(ExportTraceServiceRequest(resource_spans=[message]).SerializeToString()).received
    assert (received.exported, received.attributes[EXPORTED]) == (None, value)
    assert (received.rollout_id, received.sequence_id, received.attributes[ROLLOUT_ID]) == ("ro-1", 4, "ro-1")
    assert received.span().name == "chat"
