"""OTLP requests yield the same spans from protobuf and from JSON."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from store import models
from store.otel.decode import JSON, PROTOBUF, Encoding, Traces, Undecodable
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID
from tests.otel.otlp_messages import as_json, group, pairs, request, span

OWNED: dict[str, Any] = {ROLLOUT_ID: "ro-1", ATTEMPT_ID: "at-1"}


@pytest.fixture(params=[PROTOBUF, JSON], ids=["protobuf", "json"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    """Each of the two."""
    return request.param


def decoded(encoding: Encoding, *groups: ResourceSpans) -> Traces:
    message = request(*groups)
    return encoding.decode(message.SerializeToString() if encoding is PROTOBUF else as_json(message))


def only(traces: Traces) -> models.Span:
    (decoded_span,) = traces.spans
    # What was made unchecked would also have passed the check.
    assert models.Span.model_validate(decoded_span.model_dump()) == decoded_span
    return decoded_span


def test_every_field_has_its_place(encoding: Encoding) -> None:
    decoded_span = only(
        decoded(
            encoding,
            group(
                span(
                    {
                        "text": "é",
                        "yes": True,
                        "no": False,
                        "count": -3,
                        "ratio": 0.5,
                        "none": "",
                        "zero": 0,
                        "nil": 0.0,
                    },
                    trace_id=bytes.fromhex("00112233445566778899aabbccddeeff"),
                    span_id=bytes.fromhex("0123456789abcdef"),
                    parent_span_id=bytes.fromhex("fedcba9876543210"),
                    status=Status(code=Status.STATUS_CODE_ERROR, message="boom"),
                    events=[
                        Span.Event(name="retry", time_unix_nano=1_700_000_000_500_000_000, attributes=pairs({"n": 1})),
                        Span.Event(name="mark", dropped_attributes_count=4),
                    ],
                    links=[
                        Span.Link(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, trace_state="a=1"),
                        Span.Link(
                            trace_id=b"\x03" * 16,
                            span_id=b"\x04" * 8,
                            attributes=pairs({"why": "cause"}),
                            dropped_attributes_count=5,
                            flags=0x301,
                        ),
                    ],
                    trace_state="vendor=1",
                    kind=Span.SPAN_KIND_CLIENT,
                    flags=0x100,
                    dropped_attributes_count=1,
                    dropped_events_count=2,
                    dropped_links_count=3,
                ),
                resource={**OWNED, "service.name": "agent"},
            ),
        )
    )
    assert decoded_span.model_dump() == {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": 0,
        "trace_id": "00112233445566778899aabbccddeeff",
        "span_id": "0123456789abcdef",
        "parent_id": "fedcba9876543210",
        "name": "chat",
        "status": {"status_code": "ERROR", "description": "boom"},
        "attributes": {
            "text": "é",
            "yes": True,
            "no": False,
            "count": -3,
            "ratio": 0.5,
            "none": "",
            "zero": 0,
            "nil": 0.0,
        },
        "events": [
            {"name": "retry", "attributes": {"n": 1}, "timestamp": 1_700_000_000.5},
            {"name": "mark", "attributes": {}, "timestamp": None, "dropped_attributes_count": 4},
        ],
        "links": [
            {
                "context": {"trace_id": "01" * 16, "span_id": "02" * 8, "is_remote": False, "trace_state": {"a": "1"}},
                "attributes": None,
            },
            {
                "context": {"trace_id": "03" * 16, "span_id": "04" * 8, "is_remote": False, "trace_state": {}},
                "attributes": {"why": "cause"},
                "flags": 0x301,
                "dropped_attributes_count": 5,
            },
        ],
        "start_time": 1_700_000_000.1234567,
        "end_time": 1_700_000_001.1234567,
        "context": {
            "trace_id": "00112233445566778899aabbccddeeff",
            "span_id": "0123456789abcdef",
            "is_remote": False,
            "trace_state": {"vendor": "1"},
        },
        "parent": None,
        "resource": {"attributes": {**OWNED, "service.name": "agent"}, "schema_url": "http://schema"},
        "kind": "CLIENT",
        "flags": 0x100,
        "dropped_attributes_count": 1,
        "dropped_events_count": 2,
        "dropped_links_count": 3,
    }


def test_the_kinds_of_values_survive(encoding: Encoding) -> None:
    values: dict[str, Any] = {
        "text": "1",
        "bool": True,
        "int": 1,
        "float": 1.0,
        "largest": 2**63 - 1,
        "least": -(2**63),
    }
    attributes = only(decoded(encoding, group(span(values), resource=OWNED))).attributes
    assert attributes == values
    assert [type(held) for held in attributes.values()] == [type(held) for held in values.values()]


@pytest.mark.parametrize(
    "value,expected",
    [
        (b"\xab\x01", "ab01"),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [1, 2]),
        ([True, False], [True, False]),
        ([1, 2.5], [1.0, 2.5]),
        ([b"\x01", b"\xff"], ["01", "ff"]),
        ([], []),
        ([1, "a"], '[1, "a"]'),
        ([True, 1], "[true, 1]"),
        ([[1], [2]], "[[1], [2]]"),
        ([None, "a"], '[null, "a"]'),
        (
            {"role": "user", "parts": [{"text": "é", "n": None}]},
            '{"role": "user", "parts": [{"text": "é", "n": null}]}',
        ),
        ({}, "{}"),
    ],
    ids=repr,
)
def test_a_value_no_span_can_hold_is_kept_as_text(encoding: Encoding, value: Any, expected: Any) -> None:
    attributes = only(decoded(encoding, group(span({"key": value, "other": 1}), resource=OWNED))).attributes
    assert attributes == {"key": expected, "other": 1}
    assert repr(attributes["key"]) == repr(expected)


def test_an_attribute_without_a_value_is_left_out(encoding: Encoding) -> None:
    decoded_span = only(decoded(encoding, group(span({"empty": None, "other": 1}), resource=OWNED)))
    assert decoded_span.attributes == {"other": 1}


@pytest.mark.parametrize(
    "trace_id,span_id",
    [
        (b"", b"\x01" * 8),
        (bytes(16), b"\x01" * 8),
        (b"\x01" * 16, b""),
        (b"\x01" * 16, bytes(8)),
        (b"\x01" * 17, b"\x01" * 8),
        (b"\x01" * 16, b"\x0a\xbc"),
    ],
)
def test_empty_zero_and_short_ids_refuse_their_span(encoding: Encoding, trace_id: bytes, span_id: bytes) -> None:
    traces = decoded(encoding, group(span(trace_id=trace_id, span_id=span_id), span(), resource=OWNED))
    assert len(traces.received) == 1
    (reason,) = traces.refused.reasons
    assert "hex digits other than zero" in reason


def test_an_empty_parent_is_none_and_a_short_one_is_filled_with_zeros(encoding: Encoding) -> None:
    for parent, parent_id in ((b"", None), (b"\x0a\xbc", "0abc".zfill(16))):
        decoded_span = only(decoded(encoding, group(span(parent_span_id=parent), resource=OWNED)))
        assert decoded_span.parent_id == parent_id


def test_absent_times_and_messages_are_none(encoding: Encoding) -> None:
    bare = Span(trace_id=b"\x01" * 16, span_id=b"\x02" * 8)
    decoded_span = only(decoded(encoding, group(bare, resource=OWNED, schema_url="")))
    assert (decoded_span.start_time, decoded_span.end_time, decoded_span.name, decoded_span.resource.schema_url) == (
        None,
        None,
        "",
        "",
    )
    assert decoded_span.status == models.TraceStatus(status_code="UNSET", description=None)


@pytest.mark.parametrize(
    "code,expected",
    [
        (0, {}),
        (1, {"kind": "INTERNAL"}),
        (2, {"kind": "SERVER"}),
        (4, {"kind": "PRODUCER"}),
        (5, {"kind": "CONSUMER"}),
        (6, {}),
        (-1, {}),
    ],
)
def test_kinds_become_names(encoding: Encoding, code: Any, expected: dict[str, str]) -> None:
    assert only(decoded(encoding, group(span(kind=code), resource=OWNED))).model_extra == expected


@pytest.mark.parametrize("code,name", [(0, "UNSET"), (1, "OK"), (2, "ERROR"), (7, "UNSET"), (-1, "UNSET")])
def test_status_codes_become_names(code: int, name: str) -> None:
    decoded_span = only(decoded(PROTOBUF, group(span(status=Status(code=code)), resource=OWNED)))  # pyright: ignore[reportArgumentType] (an open enumeration)
    assert decoded_span.status.status_code == name
    body = orjson.loads(as_json(request(group(span(), resource=OWNED))))
    body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["status"] = {"code": code}
    assert only(JSON.decode(orjson.dumps(body))).status.status_code == name


def test_each_id_of_a_span_wins_over_that_of_its_resource(encoding: Encoding) -> None:
    traces = decoded(
        encoding,
        group(
            span(),
            span({ROLLOUT_ID: "ro-2"}),
            span({ATTEMPT_ID: "at-2"}),
            span({SPAN_SEQUENCE_ID: 9}),
            resource={**OWNED, SPAN_SEQUENCE_ID: 5},
        ),
    )
    ids = [
        (decoded_span.rollout_id, decoded_span.attempt_id, decoded_span.sequence_id) for decoded_span in traces.spans
    ]
    assert ids == [("ro-1", "at-1", 5), ("ro-2", "at-1", 5), ("ro-1", "at-2", 5), ("ro-1", "at-1", 9)]
    assert traces.unnumbered == []


def test_ids_stay_in_the_attributes(encoding: Encoding) -> None:
    decoded_span = only(decoded(encoding, group(span({SPAN_SEQUENCE_ID: 3}), resource=OWNED)))
    assert decoded_span.attributes == {SPAN_SEQUENCE_ID: 3}
    assert decoded_span.resource.attributes == OWNED


def test_an_id_that_is_a_number_becomes_text(encoding: Encoding) -> None:
    decoded_span = only(decoded(encoding, group(span(), resource={ROLLOUT_ID: 12, ATTEMPT_ID: 0})))
    assert (decoded_span.rollout_id, decoded_span.attempt_id) == ("12", "0")


@pytest.mark.parametrize("said,number", [(0, 0), (7, 7), ("7", 7), (" 8 ", 8), ("007", 7)])
def test_a_number_is_an_integer_or_its_text(encoding: Encoding, said: Any, number: int) -> None:
    traces = decoded(encoding, group(span({SPAN_SEQUENCE_ID: said}), resource=OWNED))
    assert (traces.spans[0].sequence_id, traces.unnumbered) == (number, [])


@pytest.mark.parametrize("said", [-1, "-1", 4.0, "4.0", True, "", "x", [1], "9" * 5000])
def test_invalid_sequence_number_of_a_span_is_replaced_by_a_new_one(encoding: Encoding, said: Any) -> None:
    owned = {**OWNED, SPAN_SEQUENCE_ID: 3}
    traces = decoded(encoding, group(span({SPAN_SEQUENCE_ID: said}), span(), resource=owned))
    assert traces.unnumbered == [0]
    assert traces.spans[1].sequence_id == 3


@pytest.mark.parametrize(
    "ids,reason",
    [
        ({}, "agentlightning.rollout_id is missing on the span and its resource"),
        ({ROLLOUT_ID: "ro-1"}, "agentlightning.attempt_id is missing on the span and its resource"),
        ({ATTEMPT_ID: "at-1"}, "agentlightning.rollout_id is missing on the span and its resource"),
        ({ROLLOUT_ID: "", ATTEMPT_ID: ""}, "agentlightning.rollout_id is empty"),
        ({ROLLOUT_ID: "ro-1", ATTEMPT_ID: ""}, "agentlightning.attempt_id is empty"),
        ({ROLLOUT_ID: ["ro-1"], ATTEMPT_ID: ""}, "agentlightning.attempt_id is empty"),
    ],
)
def test_span_without_rollout_is_refused_and_its_neighbours_accepted(
    encoding: Encoding, ids: dict[str, Any], reason: str
) -> None:
    traces = decoded(encoding, group(span(), span(OWNED), resource=ids), group(span(), resource=OWNED))
    assert len(traces.spans) == 2
    assert traces.refused.reasons == {reason: 1}


IN_OTHER_WORDS: list[dict[str, Any]] = [
    {"kind": "SPAN_KIND_CLIENT", "flags": 257, "invented": [1, {"a": None}]},
    {"traceId": "0A" * 16, "status": {"code": "STATUS_CODE_OK"}},
    {"startTimeUnixNano": 1_700_000_000_000_000_000, "endTimeUnixNano": "1700000000000000001"},
    {"start_time_unix_nano": "1700000000000000000", "trace_id": "0c" * 16, "traceId": None},
    {"attributes": None, "events": None, "status": None, "parentSpanId": None, "name": None},
    {
        "attributes": [
            {"key": "a", "value": {"intValue": 5}},
            {"key": "b", "value": {"intValue": "5"}},
            {"key": "c"},
        ]
    },
    {"attributes": [{"key": "a", "value": {"stringValue": None}}, {"key": "b", "value": None}, {"value": {}}]},
    {"attributes": [{"key": "a", "value": {"bytesValue": "q80"}}, {"key": "b", "value": {"bytesValue": "-_8="}}]},
    {"attributes": [{"key": "a", "value": {"doubleValue": 1}}, {"key": "b", "value": {"doubleValue": "1.5"}}]},
    {"attributes": [{"key": "a", "value": {"later": 1}}, {"key": "b", "value": {"arrayValue": {}}}]},
]


def in_json(**fields: Any) -> bytes:
    attributes = [{"key": key, "value": {"stringValue": held}} for key, held in OWNED.items()]
    resource: dict[str, Any] = {"attributes": attributes, "droppedAttributesCount": 2, "unknown": {}}
    spans = [
        {"traceId": "0a" * 16, "spanId": "0b" * 8, "name": "bad", **fields},
        {"traceId": "0a" * 16, "spanId": "0c" * 8, "name": "good"},
    ]
    groups: list[Any] = [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": spans, "later": 1}]}]
    return json.dumps({"resourceSpans": groups, "more": [1]}).encode()


@pytest.mark.parametrize("fields", IN_OTHER_WORDS)
def test_json_may_say_it_in_other_words(fields: dict[str, Any]) -> None:
    traces = JSON.decode(in_json(**fields))
    assert len(traces.spans) == 2
    assert not traces.refused.reasons
    only(Traces(traces.received[:1]))


@pytest.mark.parametrize(
    "fields,reason",
    [
        ({"traceId": "xyz"}, "traceId: 'xyz' is not an id in hex"),
        ({"traceId": "abc"}, "traceId: 'abc' is not an id in hex"),
        ({"spanId": 5}, "spanId: 5 is not text"),
        ({"name": ["n"]}, "name: ['n'] is not text"),
        ({"startTimeUnixNano": "soon"}, "startTimeUnixNano: 'soon' is not an integer of 64 bits"),
        ({"startTimeUnixNano": -1}, "startTimeUnixNano: -1 is not an integer of 64 bits"),
        ({"startTimeUnixNano": str(2**64)}, f"startTimeUnixNano: {2**64} is not an integer of 64 bits"),
        ({"endTimeUnixNano": True}, "endTimeUnixNano: True is not an integer of 64 bits"),
        ({"status": {"code": "FINE"}}, "status.code: 'FINE' is not an integer of 64 bits"),
        ({"status": 2}, "status: 2 is not an object"),
        ({"attributes": {"a": 1}}, "attributes: {'a': 1} is not an array"),
        ({"attributes": ["a"]}, "attributes: 'a' is not an object"),
        ({"attributes": [{"key": 1, "value": {"intValue": 1}}]}, "attributes.key: 1 is not text"),
        ({"attributes": [{"key": "a", "value": "b"}]}, "an attribute's value: 'b' is not an object"),
        ({"attributes": [{"key": "a", "value": {"intValue": 1.5}}]}, "intValue: 1.5 is not an integer of 64 bits"),
        ({"attributes": [{"key": "a", "value": {"boolValue": "true"}}]}, "boolValue: 'true' is not true or false"),
        ({"attributes": [{"key": "a", "value": {"doubleValue": "x"}}]}, "doubleValue: 'x' is not a number"),
        ({"attributes": [{"key": "a", "value": {"bytesValue": "*"}}]}, "bytesValue: '*' is not base64"),
        ({"attributes": [{"key": "a", "value": {"arrayValue": [1]}}]}, "arrayValue: [1] is not an object"),
        ({"events": [{"timeUnixNano": "x"}]}, "timeUnixNano: 'x' is not an integer of 64 bits"),
        ({"links": "none"}, "links: 'none' is not an array"),
    ],
)
def test_a_malformed_span_is_refused_alone(fields: dict[str, Any], reason: str) -> None:
    traces = JSON.decode(in_json(**fields))
    assert [decoded_span.name for decoded_span in traces.spans] == ["good"]
    assert traces.refused.reasons == {reason: 1}


def test_an_attribute_nested_without_end_is_refused_alone() -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(100):
        value = {"arrayValue": {"values": [value]}}
    traces = JSON.decode(in_json(attributes=[{"key": "deep", "value": value}]))
    assert [decoded_span.name for decoded_span in traces.spans] == ["good"]
    assert "nested deeper" in traces.refused.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"resourceSpans": {}}',
        b'{"resourceSpans": [1]}',
        b'{"resourceSpans": [{"scopeSpans": 5}]}',
        b'{"resourceSpans": [{"resource": [1]}]}',
        b'{"resourceSpans": [{"schemaUrl": 1}]}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_json_that_is_not_otlp_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable, match="Unable to parse OTLP traces payload: "):
        JSON.decode(body)


@pytest.mark.parametrize("body", [b"\xff", b"not protobuf", b"\x0a\x05\x01"], ids=repr)
def test_bytes_that_are_not_protobuf_are_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable, match="Unable to parse OTLP traces payload: "):
        PROTOBUF.decode(body)


def test_every_cut_of_a_request_is_undecodable_or_a_shorter_request() -> None:
    body = request(group(span({"a": 1}), resource=OWNED), group(span({"b": "x"}), resource=OWNED)).SerializeToString()
    complete = 0
    for end in range(len(body)):
        try:
            complete += len(PROTOBUF.decode(body[:end]).spans) == 1
        except Undecodable:
            continue
    assert complete == 1


@pytest.mark.parametrize("depth", [20, 200])
def test_values_nested_without_end_are_undecodable(depth: int) -> None:
    nested = b"\x0a\x01x"
    for _ in range(depth):
        array = b"\x0a" + _length(nested) + nested
        nested = b"\x2a" + _length(array) + array
    # A value of an attribute of a span of a scope of a resource.
    for tag in (b"\x12", b"\x4a", b"\x12", b"\x12", b"\x0a"):
        nested = tag + _length(nested) + nested
    if depth < 100:
        assert PROTOBUF.decode(nested).refused.total == 1
        return
    with pytest.raises(Undecodable):
        PROTOBUF.decode(nested)


def _length(held: bytes) -> bytes:
    size, written = len(held), bytearray()
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*written, size])


def test_an_empty_body_is_an_empty_request() -> None:
    assert PROTOBUF.decode(b"") == Traces()
    assert JSON.decode(b"{}") == Traces()


def test_a_request_of_another_kind_of_message_never_becomes_spans() -> None:
    # Field numbers that traces do not have are skipped, as protobuf demands.
    assert PROTOBUF.decode(b"\x52\x03abc") == Traces()
    assert ExportTraceServiceRequest.FromString(b"\x52\x03abc").resource_spans == []
