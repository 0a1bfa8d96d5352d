"""The exporter of the OpenTelemetry SDK, as a program uses it, and the server at `--url`."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
from typing import Any

from agentlightning import LightningStoreClient as Store
from agentlightning.types import AttemptedRollout, Span
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine

ROLLOUT, ATTEMPT = "agentlightning.rollout_id", "agentlightning.attempt_id"
SEQUENCE = "agentlightning.span_sequence_id"


async def a_batching_provider_delivers_every_span_in_order(store: Store) -> None:
    rollout = await store.start_rollout("task")
    provider = TracerProvider(resource=Resource.create(_ids(rollout)))
    provider.add_span_processor(BatchSpanProcessor(_exporter(store), max_export_batch_size=64))
    tracer = provider.get_tracer("program")
    for number in range(300):
        with tracer.start_as_current_span("step") as span:
            span.set_attribute("n", number)
    assert await asyncio.to_thread(provider.force_flush)
    spans = await _spans(store, rollout)
    assert [span.sequence_id for span in spans] == list(range(1, 301))
    assert [span.attributes["n"] for span in spans] == list(range(300))
    await asyncio.to_thread(provider.shutdown)


async def an_export_starts_the_attempt_and_is_a_sign_of_life(store: Store) -> None:
    rollout = await store.start_rollout("task")
    await _export(store, _finished(_ids(rollout), "only"))
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.status == "running"
    assert attempt.last_heartbeat_time is not None
    now = await store.get_rollout_by_id(rollout.rollout_id)
    assert now is not None
    assert now.status == "running"


async def a_body_may_come_as_it_is_or_in_gzip(store: Store) -> None:
    await _delivers(store, Compression.NoCompression)
    await _delivers(store, Compression.Gzip)


async def a_body_may_come_in_deflate(store: Store) -> None:
    await _delivers(store, Compression.Deflate)


async def attributes_of_a_span_go_before_those_of_its_resource(store: Store) -> None:
    one, other = await store.start_rollout("a"), await store.start_rollout("b")
    await _export(store, _finished(_ids(one), "of one", "of other", attributes={"of other": _ids(other)}))
    assert [span.name for span in await _spans(store, one)] == ["of one"]
    assert [span.name for span in await _spans(store, other)] == ["of other"]


async def spans_keep_numbers_they_bring(store: Store) -> None:
    rollout = await store.start_rollout("task")
    shared = {**_ids(rollout), SEQUENCE: 7}
    await _export(store, _finished(shared, "a", "b", "c", attributes={"c": {SEQUENCE: "9"}}))
    assert {span.name: span.sequence_id for span in await _spans(store, rollout)} == {"a": 7, "b": 7, "c": 9}
    assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 10


async def spans_without_ids_are_left_out_without_harm(store: Store) -> None:
    rollout = await store.start_rollout("task")
    await _export(store, [*_finished({}, "nobody's"), *_finished(_ids(rollout), "somebody's")])
    assert [span.name for span in await _spans(store, rollout)] == ["somebody's"]


async def spans_of_a_missing_rollout_do_no_harm(store: Store) -> None:
    rollout = await store.start_rollout("task")
    lost = _finished({ROLLOUT: "ro-none", ATTEMPT: "at-none"}, "lost")
    await asyncio.to_thread(_exporter(store).export, [*lost, *_finished(_ids(rollout), "kept")])
    assert [span.name for span in await _spans(store, rollout)] == ["kept"]


async def a_batch_sent_twice_is_stored_once(store: Store) -> None:
    rollout = await store.start_rollout("task")
    batch = _finished(_ids(rollout), "a", "b")
    await _export(store, batch)
    await _export(store, batch)
    assert [span.name for span in await _spans(store, rollout)] == ["a", "b"]


async def eight_exporters_at_once_get_a_number_for_every_span(store: Store) -> None:
    rollout = await store.start_rollout("task")
    batches = [_finished(_ids(rollout), *(f"{batch}.{number}" for number in range(25))) for batch in range(8)]
    await asyncio.gather(*(_export(store, batch) for batch in batches))
    spans = await _spans(store, rollout)
    assert [span.sequence_id for span in spans] == list(range(1, 201))
    assert len({span.name for span in spans}) == 200


async def all_that_a_span_holds_arrives(store: Store) -> None:
    rollout = await store.start_rollout("task")
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(_ids(rollout), schema_url="https://example.org/schema"))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("program")
    linked = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    above = tracer.start_span("above")
    span = tracer.start_span(
        "below",
        context=set_span_in_context(above),
        attributes={"s": "é", "i": 2**53 + 1, "f": 1.0, "b": True, "ss": ["a", "b"], "is": [1, 2], "fs": [0.5, 1.0]},
        links=[Link(linked, {"why": "because"})],
        start_time=1_700_000_000_123_456_789,
    )
    span.add_event("happened", {"n": 1}, timestamp=1_700_000_000_500_000_000)
    span.set_status(Status(StatusCode.ERROR, "boom"))
    span.end(1_700_000_001_000_000_000)
    await _export(store, memory.get_finished_spans())
    (stored,) = await _spans(store, rollout)
    sent = memory.get_finished_spans()[0]
    assert sent.context is not None
    assert (stored.trace_id, stored.span_id) == (f"{sent.context.trace_id:032x}", f"{sent.context.span_id:016x}")
    assert stored.parent_id == f"{above.get_span_context().span_id:016x}"
    assert (stored.status.status_code, stored.status.description) == ("ERROR", "boom")
    assert {name: _plain(value) for name, value in stored.attributes.items()} == {
        name: _plain(value) for name, value in (sent.attributes or {}).items()
    }
    assert [type(stored.attributes[name]) for name in ("i", "f", "b")] == [int, float, bool]
    assert (stored.start_time, stored.end_time) == (1_700_000_000_123_456_789 / 1e9, 1_700_000_001.0)
    (event,), (link,) = stored.events, stored.links
    assert (event.name, event.attributes, event.timestamp) == ("happened", {"n": 1}, 1_700_000_000.5)
    assert (link.context.trace_id, link.context.span_id) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert link.attributes == {"why": "because"}
    assert stored.resource.schema_url == "https://example.org/schema"


async def _delivers(store: Store, compression: Compression) -> None:
    rollout = await store.start_rollout("task")
    await _export(store, _finished(_ids(rollout), "a", "b"), compression)
    assert [(span.name, span.sequence_id) for span in await _spans(store, rollout)] == [("a", 1), ("b", 2)]


def _ids(rollout: AttemptedRollout) -> dict[str, Any]:
    return {ROLLOUT: rollout.rollout_id, ATTEMPT: rollout.attempt.attempt_id}


def _exporter(store: Store, compression: Compression = Compression.NoCompression) -> OTLPSpanExporter:
    return OTLPSpanExporter(endpoint=store.otlp_traces_endpoint(), compression=compression, timeout=20)


async def _export(store: Store, spans: Any, compression: Compression = Compression.NoCompression) -> None:
    result = await asyncio.to_thread(_exporter(store, compression).export, spans)
    assert result is SpanExportResult.SUCCESS


def _finished(
    resource: dict[str, Any], *names: str, attributes: dict[str, dict[str, Any]] | None = None
) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create(resource))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for name in names:
        with provider.get_tracer("program").start_as_current_span(name) as span:
            span.set_attributes((attributes or {}).get(name, {}))
    return list(memory.get_finished_spans())


async def _spans(store: Store, rollout: AttemptedRollout) -> list[Span]:
    return list(await store.query_spans(rollout.rollout_id))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


async def _main() -> None:
    options = arguments()
    store = Store(options.url)
    try:
        await hold(claims_of(__name__), store, options)
    finally:
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
