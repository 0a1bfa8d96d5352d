"""Any request of an exporter means the same in protobuf and in JSON, and yields only valid spans."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from store import models
from store.otel.decode import JSON, PROTOBUF, Traces
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID
from tests.otel.otlp_messages import as_json, group, pairs, request, value
from tests.torture import rounds

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), TEXTS, st.binary(max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
IDS = st.dictionaries(
    st.sampled_from([ROLLOUT_ID, ATTEMPT_ID, SPAN_SEQUENCE_ID]),
    st.one_of(TEXTS, st.integers(-2, 9), st.sampled_from(["ro-1", "7", "-7"]), VALUES),
    max_size=3,
)
TIMES = st.one_of(st.just(0), st.integers(0, 2**64 - 1), st.integers(1_700_000_000 * 10**9, 1_800_000_000 * 10**9))


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    return {**draw(st.dictionaries(TEXTS, VALUES, max_size=3)), **draw(IDS)}


@st.composite
def events(draw: st.DrawFn) -> OtlpSpan.Event:
    return OtlpSpan.Event(name=draw(TEXTS), time_unix_nano=draw(TIMES), attributes=pairs(draw(attributes())))


@st.composite
def links(draw: st.DrawFn) -> OtlpSpan.Link:
    trace_id, span_id = draw(st.binary(max_size=17)), draw(st.binary(max_size=9))
    return OtlpSpan.Link(trace_id=trace_id, span_id=span_id, attributes=pairs(draw(attributes())), flags=1)


@st.composite
def spans(draw: st.DrawFn) -> OtlpSpan:
    return OtlpSpan(
        trace_id=draw(st.binary(max_size=17)),
        span_id=draw(st.binary(max_size=9)),
        parent_span_id=draw(st.binary(max_size=9)),
        name=draw(TEXTS),
        kind=draw(st.sampled_from(list(OtlpSpan.SpanKind.values()))),
        status=draw(st.one_of(st.none(), st.builds(Status, code=st.sampled_from([0, 1, 2]), message=TEXTS))),
        start_time_unix_nano=draw(TIMES),
        end_time_unix_nano=draw(TIMES),
        attributes=pairs(draw(attributes())),
        events=draw(st.lists(events(), max_size=2)),
        links=draw(st.lists(links(), max_size=2)),
        dropped_attributes_count=draw(st.integers(0, 3)),
        trace_state=draw(TEXTS),
    )


@st.composite
def groups(draw: st.DrawFn) -> ResourceSpans:
    some = draw(st.lists(spans(), max_size=3))
    return group(*some, resource=draw(attributes()), schema_url=draw(TEXTS))


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    return request(*draw(st.lists(groups(), max_size=3)))


def comparable(traces: Traces) -> Any:
    """Return what can be compared: NaN is not equal to itself, and 1 is equal to True."""
    return repr(([vars(span) for span in traces.spans], traces.unnumbered, traces.refused))


@pytest.mark.torture
@pytest.mark.slow
@given(requests())
@settings(max_examples=rounds(100, few=25))
def test_both_encodings_say_the_same(message: ExportTraceServiceRequest) -> None:
    from_protobuf, from_json = PROTOBUF.decode(message.SerializeToString()), JSON.decode(as_json(message))
    assert comparable(from_protobuf) == comparable(from_json)
    sent = sum(len(scope.spans) for spans in message.resource_spans for scope in spans.scope_spans)
    assert len(from_protobuf.spans) + from_protobuf.refused.total == sent


@pytest.mark.torture
@pytest.mark.slow
@given(requests())
@settings(max_examples=rounds(100, few=25))
def test_unchecked_decoded_spans_pass_validation(message: ExportTraceServiceRequest) -> None:
    for span in PROTOBUF.decode(message.SerializeToString()).spans:
        checked = models.Span.model_validate(span.model_dump())
        assert repr(checked) == repr(span)
        assert list(vars(span)) == list(vars(checked))


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_noise_is_undecodable_or_a_request(noise: bytes) -> None:
    for encoding in (PROTOBUF, JSON):
        try:
            encoding.decode(noise)
        except ValueError as refused:
            assert str(refused).startswith("Unable to parse OTLP traces payload: ")  # noqa: PT017 (either is right)


@given(VALUES)
@settings(max_examples=100)
def test_every_value_is_kept_but_the_empty_one(content: Any) -> None:
    said = pairs({ROLLOUT_ID: "ro-1", ATTEMPT_ID: "at-1", "key": content})
    (span,) = PROTOBUF.decode(
        request(group(OtlpSpan(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, attributes=said))).SerializeToString()
    ).spans
    assert ("key" in span.attributes) == (value(content).WhichOneof("value") is not None)
    if isinstance(content, (str, bool, int, float)):
        held = span.attributes["key"]
        assert type(held) is type(content)
        assert held == content or (isinstance(content, float) and math.isnan(content))
