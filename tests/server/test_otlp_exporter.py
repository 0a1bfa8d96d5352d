"""OpenTelemetry's exporter, unmodified, with our server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode
from starlette.types import Message, Receive, Scope, Send

from store.interface.store import Store
from store.journal import writer
from store.models import Attempt, Span
from store.server.app import build_app
from store.server.partitions import Partitions
from tests.otel.otlp_messages import ids_of
from tests.server.loopback_server import served as server
from tests.server.otlp_exporter import Exporter, exporting


class Remembering(SpanExporter):
    """Hands on to the real exporter, and keeps what it was given and what became of it."""

    def __init__(self, url: str, compression: Compression = Compression.NoCompression) -> None:
        self.exporter = OTLPSpanExporter(endpoint=url, compression=compression, timeout=60)
        self.spans: list[ReadableSpan] = []
        self.results: list[SpanExportResult] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        self.results.append(self.exporter.export(spans))
        return self.results[-1]

    def shutdown(self) -> None:
        self.exporter.shutdown()


@pytest.fixture
async def served(store: Store) -> AsyncIterator[Exporter]:
    async with exporting(store) as ready:
        yield ready


@pytest.fixture
async def attempt(store: Store) -> Attempt:
    return (await store.start_rollout({"question": 1})).attempt


def work(provider: TracerProvider, steps: int) -> None:
    """Trace an agent that takes some steps, the second of which fails."""
    tracer = provider.get_tracer("agent")
    with tracer.start_as_current_span("run", attributes={"question": "é", "steps": steps}) as root:
        for step in range(steps):
            with tracer.start_as_current_span("step", attributes={"n": step, "share": 0.5, "tags": ["a", "b"]}) as span:
                span.add_event("thought", {"length": 12})
                span.add_link(root.get_span_context())
                if step == 1:
                    span.set_status(Status(StatusCode.ERROR, "no answer"))


def as_stored(span: ReadableSpan, attempt: Attempt, number: int) -> Span:
    """Return what the SDK's span looks like when OTLP brought it: its parent is known by id alone, flags lie apart."""
    fields = Span.from_opentelemetry(span, attempt.rollout_id, attempt.attempt_id, number).model_dump()
    sent = encode_spans([span]).resource_spans[0].scope_spans[0].spans[0]
    for part, there in ((fields, sent), *zip(fields["links"], sent.links, strict=True)):
        del part["context"]["trace_flags"]
        part.update({"flags": there.flags} if there.flags else {})
    return Span.model_validate({**fields, "parent": None})


@pytest.mark.parametrize("compression", list(Compression), ids=lambda compression: compression.value)
async def test_a_batch_of_spans_arrives_as_the_sdk_made_it(
    store: Store, served: Exporter, attempt: Attempt, compression: Compression
) -> None:
    exporter = Remembering(served.url, compression)
    provider = TracerProvider(resource=Resource(ids_of(attempt)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    await asyncio.to_thread(work, provider, 5)
    await asyncio.to_thread(provider.shutdown)
    assert set(exporter.results) == {SpanExportResult.SUCCESS}
    spans = (await store.query_spans(attempt.rollout_id)).items
    assert list(spans) == [as_stored(span, attempt, number) for number, span in enumerate(exporter.spans, 1)]
    assert [span.name for span in spans] == ["step"] * 5 + ["run"]


async def test_spans_that_are_sent_one_by_one_are_numbered_in_their_order(
    store: Store, served: Exporter, attempt: Attempt
) -> None:
    exporter = Remembering(served.url)
    provider = TracerProvider(resource=Resource(ids_of(attempt)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await asyncio.to_thread(work, provider, 3)
    await asyncio.to_thread(provider.shutdown)
    spans = (await store.query_spans(attempt.rollout_id)).items
    assert [(span.sequence_id, span.name) for span in spans] == [(1, "step"), (2, "step"), (3, "step"), (4, "run")]


async def test_exporter_succeeds_when_its_spans_have_no_rollout(
    store: Store, served: Exporter, attempt: Attempt
) -> None:
    exporter = Remembering(served.url)
    provider = TracerProvider(resource=Resource({"service.name": "someone"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    await asyncio.to_thread(work, provider, 2)
    await asyncio.to_thread(provider.shutdown)
    assert set(exporter.results) == {SpanExportResult.SUCCESS}
    assert (await store.query_spans(attempt.rollout_id)).total == 0


async def test_the_exporter_comes_again_when_the_store_was_busy(
    store: Store, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    app = build_app(Partitions(store))

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def watching(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                monkeypatch.undo()
            await send(message)

        await app(scope, receive, watching)

    async with server(watched) as url:
        exporter = Remembering(f"{url}/v1/traces")
        provider = TracerProvider(resource=Resource(ids_of(attempt)), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        monkeypatch.setattr(writer, "MAX_WAITING_CALLS", 0)
        await asyncio.to_thread(work, provider, 2)
        await asyncio.to_thread(provider.shutdown)
    assert statuses == [503, 200]
    assert (await store.query_spans(attempt.rollout_id)).total == 3
