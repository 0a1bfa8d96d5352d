"""Spans from OTLP are recorded byte for byte as their models are, or refused with the same messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from store.domain.commands import RecordSpans
from store.errors import StoreError
from store.otel.decode import PROTOBUF, Traces
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID
from store.sql.commands import spans as span_commands
from tests.otel.otlp_messages import group, request, span
from tests.otel.test_otlp_encodings import requests
from tests.torture import rounds

OWNED: dict[str, Any] = {ROLLOUT_ID: "ro-1", ATTEMPT_ID: "at-1"}


def decoded(*spans: Span, **resource: Any) -> Traces:
    return PROTOBUF.decode(request(group(*spans, resource={**OWNED, **resource})).SerializeToString())


def outcome(traces: Traces, *, by_models: bool) -> str:
    """Return the command, or the refusal."""
    try:
        command: RecordSpans = (
            span_commands.record_spans(traces.spans, number=True)
            if by_models
            else span_commands.record_received(traces.received, number=True)
        )
    except StoreError as refused:
        return f"{type(refused).__name__}: {refused}"
    return repr((command.number, command.items))


@pytest.mark.torture
@pytest.mark.slow
@given(requests())
@settings(max_examples=rounds(100, few=25))
def test_any_request_becomes_the_command_that_its_models_become(message: ExportTraceServiceRequest) -> None:
    body = message.SerializeToString()
    assert outcome(PROTOBUF.decode(body), by_models=False) == outcome(PROTOBUF.decode(body), by_models=True)


@pytest.mark.parametrize(
    "unusual",
    [
        {"attributes": {"text": "null"}},
        {"attributes": {"number": float("nan")}},
        {"attributes": {"text": "\x00"}},
        {"attributes": {"large": 2**60}},
        {"attributes": {"agentlightning.reward.0.value": 1.0, "agentlightning.reward.0.name": "primary"}},
        {"attributes": {"gen_ai.response.id": "r" * 600}},
        {"attributes": {"gen_ai.response.model": "é", "gen_ai.usage.input_tokens": 3}},
        {"attributes": {"text": "long " * 2000}},
        {"attributes": {SPAN_SEQUENCE_ID: 2**53 + 1}},
        {"attributes": {ATTEMPT_ID: "\x00"}},
        {"name": "é" * 400},
        {"name": "n" * 1025},
        {"status": Status(code=Status.STATUS_CODE_ERROR, message="m" * 201)},
        {"status": Status(code=Status.STATUS_CODE_ERROR, message="m" * 200)},
        {"parent_span_id": b"\x01" * 8},
        {"events": [Span.Event(name="e", time_unix_nano=1_700_000_000_500_000_000)]},
        {"links": [Span.Link(trace_id=b"\x01" * 16, span_id=b"\x02" * 8)]},
    ],
)
def test_an_unusual_span_among_others_is_recorded_as_its_model_is(unusual: dict[str, Any]) -> None:
    attributes: dict[str, Any] = unusual.get("attributes", {})
    fields = {name: value for name, value in unusual.items() if name != "attributes"}
    traces = decoded(span({}), span(attributes, **fields), span({}))
    assert outcome(traces, by_models=False) == outcome(traces, by_models=True)
    alone = Traces(traces.received[1:2])
    assert outcome(alone, by_models=False) == outcome(alone, by_models=True)


def test_invalid_resource_attributes_are_refused_like_those_of_models() -> None:
    traces = decoded(span({}), **{"process.owner": "\x00"})
    assert outcome(traces, by_models=False) == outcome(traces, by_models=True)
    assert "U+0000" in outcome(traces, by_models=False)


def test_usual_spans_are_made_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("looked at closely")

    monkeypatch.setattr(span_commands, "new_span", refuse)
    said = {"gen_ai.usage.input_tokens": 3, "gen_ai.response.model": "m", "ok": True, "zero": 0, "prompt": "why? é"}
    command = span_commands.record_received(decoded(span(said), span({})).received)
    assert [item.fact.tokens_in for item in command.items] == [3, None]
