"""Every field of OpenTelemetry's spans survives the SDK's conversion, OTLP in both encodings, and every read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, TraceFlags, TraceState
from opentelemetry.trace import SpanContext as SdkContext
from opentelemetry.trace.status import Status, StatusCode

from store.client import HTTPStore
from store.interface.store import Store
from store.models import Attempt, Span
from store.semconv import ATTEMPT_ID, ROLLOUT_ID
from store.server.partitions import Partitions
from tests.conftest import SQLITE
from tests.journal.database_helpers import run_sql
from tests.otel.otlp_messages import as_json, pairs
from tests.server.api import Api, speaking_to

ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For a claim about the conversion of a span; the database stores all further fields as one text."""

SCOPE = {"name": "lib", "version": "1.2", "schema_url": "http://lib", "attributes": {"beta": True}}
STATE = {"vendor": "a", "other@tenant": "2"}
DROPPED = {"dropped_attributes_count": 2, "dropped_events_count": 1, "dropped_links_count": 1}
CALLER = SdkContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState(list(STATE.items())))


@pytest.fixture
async def attempt(store: Store) -> Attempt:
    return (await store.start_rollout({"question": 1})).attempt


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    async with speaking_to(Partitions(store)) as api:
        yield api


def finished(attempt: Attempt) -> ReadableSpan:
    """Return a span of the SDK with every field, some of which its limits cut."""
    exporter = InMemorySpanExporter()
    limits = SpanLimits(max_span_attributes=1, max_events=1, max_links=1, max_event_attributes=1, max_link_attributes=1)
    resource = Resource({ROLLOUT_ID: attempt.rollout_id, ATTEMPT_ID: attempt.attempt_id}, "http://resource")
    provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("lib", "1.2", schema_url="http://lib", attributes={"beta": True})
    span = tracer.start_span(
        "call",
        trace.set_span_in_context(NonRecordingSpan(CALLER)),
        SpanKind.CLIENT,
        attributes={"a": 1, "b": 2, "c": 3},
        links=[Link(CALLER), Link(CALLER, {"a": 1, "b": 2})],
    )
    span.add_event("first")
    span.add_event("second", {"a": 1, "b": 2})
    span.set_status(Status(StatusCode.ERROR, "boom"))
    span.end()
    (done,) = exporter.get_finished_spans()
    return done


async def reads(store: Store, api: Api, attempt: Attempt) -> dict[str, dict[str, Any]]:
    """Return the only span of an attempt as every read returns it."""
    rollout_id = attempt.rollout_id
    (last,) = [event.number for event in await store.log.history(rollout_id) if event.type == "span.recorded"]
    pages = {
        "in process": await store.query_spans(rollout_id),
        "as of its event": await store.query_spans(rollout_id, at=last),
    }
    async with HTTPStore(api.url) as client:
        pages["HTTP client"] = await client.query_spans(rollout_id)
    answers = {
        "GET": (await api.get(f"/spans?rollout_id={rollout_id}")).ok(),
        "search": (await api.post("/spans/search", {"rollout_id": rollout_id})).ok(),
    }
    (one,) = pages["in process"].items
    twin = (await api.get(f"//ui/rollouts/{rollout_id}/spans/{one.span_id}.json")).ok()
    return {
        **{name: page.items[0].model_dump() for name, page in pages.items()},
        **{name: answer["items"][0] for name, answer in answers.items()},
        "dashboard": _of_twin(twin),
    }


def _of_twin(twin: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a span that the dashboard shows as text."""
    span = {**twin["span"], **_fields(twin["further"]), "attributes": _fields(twin["attributes"])}
    span["resource"] = {"attributes": _fields(twin["resource"]), **span["resource"]}
    span["events"] = [
        {"name": event["name"], "timestamp": event["timestamp"], "attributes": _fields(event["attributes"])}
        | _fields(event["further"])
        for event in twin["events"]
    ]
    span["links"] = []
    for link in twin["links"]:
        further = _fields(link["further"])
        ids = {"trace_id": link["trace_id"], "span_id": link["span_id"]}
        span["links"].append({**further, "context": {**ids, "is_remote": False, **further.get("context", {})}})
    return {"parent": None, **span}


def _fields(rows: list[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in rows:
        try:
            values[field["name"]] = orjson.loads(field["text"])
        except orjson.JSONDecodeError:
            values[field["name"]] = field["text"]
    return values


async def check_every_read(store: Store, api: Api, attempt: Attempt, url: str, expected: dict[str, Any]) -> None:
    """Check that every read returns a span, also after its row was lost and the tables were rebuilt."""
    for moment in ("recorded", "rebuilt"):
        for name, span in (await reads(store, api, attempt)).items():
            assert span == expected, f"{name}, {moment}"
        await run_sql(url, "DELETE FROM spans")
        assert (await store.log.rebuild()).written == {"spans": 1}
    assert (await store.log.verify()).differences == []


def of_sdk(span: Span) -> dict[str, Any]:
    """Return the fields of OpenTelemetry that a span has besides those of Agent-lightning."""
    assert span.context is not None
    assert span.parent is not None
    return {
        **(span.model_extra or {}),
        "trace_states": [span.context.trace_state, span.parent.trace_state, span.links[0].context.trace_state],
        "event": span.events[0].model_extra,
        "link": span.links[0].model_extra,
    }


def test_a_span_of_the_sdk_keeps_every_field() -> None:
    readable = finished(Attempt.model_construct(rollout_id="ro-1", attempt_id="at-1"))
    span = Span.from_opentelemetry(readable, "ro-1", "at-1", 1)
    assert of_sdk(span) == {
        "kind": "CLIENT",
        "instrumentation_scope": SCOPE,
        **DROPPED,
        "trace_states": [STATE] * 3,
        "event": {"dropped_attributes_count": 1},
        "link": {"dropped_attributes_count": 1},
    }
    assert list(span.links[0].context.trace_state) == list(STATE)
    assert span.context is not None
    assert span.parent is not None
    flags = [context.model_extra for context in (span.context, span.parent, span.links[0].context)]
    span_context = readable.get_span_context()
    assert span_context is not None
    assert flags == [{"trace_flags": int(span_context.trace_flags)}, {"trace_flags": 1}, {"trace_flags": 1}]


def test_the_fields_that_a_producer_added_survive_if_they_are_json() -> None:
    readable: Any = ReadableSpan("s", SdkContext(1, 2, is_remote=False), status=Status(StatusCode.OK))
    readable.cost = {"usd": [0.5, None]}
    readable.lock = object()
    readable.ratio = float("nan")
    readable.rollout_id = "another"
    readable.status.retries = 3
    span = Span.from_opentelemetry(readable, "ro-1", "at-1", 1)
    assert span.model_extra == {"cost": {"usd": [0.5, None]}, "kind": "INTERNAL"}
    assert span.rollout_id == "ro-1"
    assert span.status.model_extra == {"retries": 3}


@ON_SQLITE
async def test_a_double_of_a_span_is_not_lost_because_of_its_other_fields(store: Store, attempt: Attempt) -> None:
    context = Mock(trace_id=1, span_id=2, is_remote=False, trace_state={})
    double = Mock(
        attributes={"a": 1},
        events=[Mock(attributes={}, timestamp=None)],
        links=[],
        start_time=1,
        end_time=2,
        status=Status(StatusCode.OK),
        resource=Resource({}),
        get_span_context=Mock(return_value=context),
    )
    double.parent = None
    double.name = double.events[0].name = "double"
    stored = await store.add_otel_span(attempt.rollout_id, attempt.attempt_id, double)
    assert stored is not None
    (read,) = (await store.query_spans(attempt.rollout_id)).items
    assert (read.name, read.attributes) == ("double", {"a": 1})
    assert not {"kind", "instrumentation_scope", *DROPPED} & {*(read.model_extra or {})}


async def test_a_span_of_the_sdk_is_the_same_in_every_read(
    store: Store, api: Api, attempt: Attempt, store_url: str
) -> None:
    readable: Any = finished(attempt)
    readable.cost = {"usd": 0.5}
    stored = await store.add_otel_span(attempt.rollout_id, attempt.attempt_id, readable)
    assert stored == Span.from_opentelemetry(readable, attempt.rollout_id, attempt.attempt_id, 1)
    assert stored is not None
    assert (stored.model_extra or {})["cost"] == {"usd": 0.5}
    await check_every_read(store, api, attempt, store_url, stored.model_dump())


@ON_SQLITE
async def test_the_http_client_sends_every_field_of_the_sdk(store: Store, api: Api, attempt: Attempt) -> None:
    readable = finished(attempt)
    async with HTTPStore(api.url) as client:
        stored = await client.add_otel_span(attempt.rollout_id, attempt.attempt_id, readable)
    assert stored == Span.from_opentelemetry(readable, attempt.rollout_id, attempt.attempt_id, 1)
    assert list(await store.query_spans(attempt.rollout_id)) == [stored]


@pytest.mark.parametrize(
    "durable_url,media_type",
    [
        ("sqlite", "application/x-protobuf"),
        ("sqlite", "application/json"),
        ("postgres", "application/x-protobuf"),
    ],
    indirect=["durable_url"],
)
async def test_a_span_by_otlp_has_every_field_in_every_read(
    store: Store, api: Api, attempt: Attempt, store_url: str, media_type: str
) -> None:
    readable = finished(attempt)
    request = ExportTraceServiceRequest.FromString(encode_spans([readable]).SerializeToString())
    # OpenTelemetry's exporter for Python leaves these out.
    group = request.resource_spans[0]
    group.resource.dropped_attributes_count = 3
    spans = group.scope_spans[0]
    spans.scope.dropped_attributes_count = 4
    spans.spans[0].links[0].trace_state = ",".join(f"{key}={value}" for key, value in STATE.items())
    spans.spans[0].links[0].dropped_attributes_count = 1
    spans.spans[0].events[0].dropped_attributes_count = 1
    spans.spans[0].flags = 0x301
    body = request.SerializeToString() if media_type.endswith("protobuf") else as_json(request)
    await api.post("//v1/traces", body, headers={"Content-Type": media_type})
    expected = Span.from_opentelemetry(readable, attempt.rollout_id, attempt.attempt_id, 1).model_dump()
    # OTLP has the flags beside the contexts, and of the parent only the id.
    expected["parent"] = None
    del expected["context"]["trace_flags"], expected["links"][0]["context"]["trace_flags"]
    expected["flags"] = 0x301
    expected["instrumentation_scope"] = {**SCOPE, "dropped_attributes_count": 4}
    expected["resource"]["dropped_attributes_count"] = 3
    expected["links"][0]["context"]["is_remote"] = False
    expected["links"][0]["flags"] = spans.spans[0].links[0].flags
    await check_every_read(store, api, attempt, store_url, expected)


@ON_SQLITE
@pytest.mark.parametrize("media_type", ["application/x-protobuf", "application/json"])
async def test_a_bare_span_by_otlp_has_no_further_fields(
    store: Store, api: Api, attempt: Attempt, media_type: str
) -> None:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(pairs({ROLLOUT_ID: attempt.rollout_id, ATTEMPT_ID: attempt.attempt_id}))
    span = group.scope_spans.add().spans.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, name="bare")
    span.events.add(name="event")
    span.links.add(trace_id=b"\x03" * 16, span_id=b"\x04" * 8)
    body = request.SerializeToString() if media_type.endswith("protobuf") else as_json(request)
    await api.post("//v1/traces", body, headers={"Content-Type": media_type})
    (stored,) = (await store.query_spans(attempt.rollout_id)).items
    parts = [stored, stored.context, stored.resource, stored.events[0], stored.links[0], stored.links[0].context]
    assert [part.model_extra if part is not None else None for part in parts] == [{}] * 6


@ON_SQLITE
async def test_fields_of_otlp_json_that_are_malformed_refuse_no_span(store: Store, api: Api, attempt: Attempt) -> None:
    span: dict[str, Any] = {
        "traceId": "01" * 16,
        "spanId": "02" * 8,
        "kind": "SPAN_KIND_UNHEARD_OF",
        "flags": -1,
        "traceState": 7,
        "droppedEventsCount": "many",
        "droppedLinksCount": 2,
        "links": [{"traceId": "03" * 16, "spanId": "04" * 8, "flags": {}, "traceState": " a=1 ,, a=2, b "}],
    }
    ids = [{"key": ROLLOUT_ID, "value": {"stringValue": attempt.rollout_id}}]
    ids.append({"key": ATTEMPT_ID, "value": {"stringValue": attempt.attempt_id}})
    groups: list[Any] = [{"scope": {"name": 1, "version": "2"}, "spans": [span]}, {"scope": [], "spans": []}]
    body = {"resourceSpans": [{"resource": {"attributes": ids}, "scopeSpans": groups}]}
    assert (await api.post("//v1/traces", body)).ok() == {}
    (stored,) = (await store.query_spans(attempt.rollout_id)).items
    assert stored.model_extra == {"instrumentation_scope": {"name": "", "version": "2"}, "dropped_links_count": 2}
    assert stored.context is not None
    assert (stored.context.trace_state, stored.links[0].context.trace_state) == ({}, {"a": "1", "b": ""})
