"""Routes of spans, resources and workers."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from store.errors import SpanConflict
from store.interface.store import Store
from store.models import PaginatedResult, ResourcesUpdate, Span, Worker
from store.models.queries import PastQuery, ResourcesQuery, SpanQuery, WorkerQuery
from store.models.rollouts import ObservedWorker
from store.runtime import context
from store.semconv import ORIGINAL_SPAN_ID
from store.server import cached_pages
from store.server.call import Call
from store.server.otlp import spans_of
from store.server.response_spool import Spool
from store.server.routing import Id, StoreRoute, needs
from store.sql.commands.spans import record_spans
from store.wire import paths
from store.wire.bodies import SpansBatchBody
from store.wire.encoding import Recorded, dumps, recorded_body

logger = logging.getLogger("store.spans")

spans = APIRouter(route_class=StoreRoute, tags=["Spans"])
resources = APIRouter(route_class=StoreRoute, tags=["Resources"])
workers = APIRouter(route_class=StoreRoute, tags=["Workers"])


@spans.post(paths.SPANS, response_model=Span | None, status_code=201)
@needs("runner")
async def add_span(call: Call, span: Span) -> bytes:
    """Store a span and return it; return null if the span is stored already.

    A stored span with the same span_id and other content is a conflict. Requests without an Idempotency-Key, as
    Agent-lightning's clients send them, then get null too.
    """
    try:
        return dumps(await call.store.add_span(span))
    except SpanConflict as error:
        if context.idempotency_key.get() is not None:
            raise
        logger.warning("Duplicated span added: %s", error)
        return dumps(None)


@spans.post(paths.SPANS_BATCH, response_model=Recorded, status_code=201)
@needs("runner")
async def add_spans(call: Call, body: SpansBatchBody) -> bytes:
    """Store spans; return the index and the sequence_id of each new span, and the ids that the store derived."""
    spans = body.spans
    recorder = spans_of(call.store)
    if recorder is not None:
        command = record_spans(spans, number=body.number)
        recorded = await recorder.record(command)
        facts = ((index, command.items[index].fact) for index, _ in recorded)
        ids = {index: (fact.span_id, fact.parent_id) for index, fact in facts}
    else:
        numbered = await _numbered(call.store, spans) if body.number else spans
        # Of two spans with the same key, the first is recorded.
        indices = {_key(span): index for index, span in reversed(list(enumerate(numbered)))}
        stored = {indices[_key(span)]: span for span in await call.store.add_many_spans(numbered)}
        recorded = [(index, span.sequence_id) for index, span in stored.items()]
        ids = {index: (span.span_id, span.parent_id) for index, span in stored.items()}
    return recorded_body(spans, recorded, ids)


async def _numbered(store: Store, spans: list[Span]) -> list[Span]:
    call_key = context.idempotency_key.get()
    # The numbers are assigned in a separate write, which needs a separate idempotency key. Clients cannot send this
    # key.
    token = context.idempotency_key.set(None if call_key is None else replace(call_key, key=f"{call_key.key}.numbers"))
    try:
        numbers = await store.get_many_span_sequence_ids([(span.rollout_id, span.attempt_id) for span in spans])
    finally:
        context.idempotency_key.reset(token)
    return [span.model_copy(update={"sequence_id": number}) for span, number in zip(spans, numbers, strict=True)]


def _key(span: Span) -> tuple[str, str, str, object]:
    # A span that is stored under a derived id has its original id in an attribute.
    span_id = span.attributes.get(ORIGINAL_SPAN_ID, span.span_id)
    return span.rollout_id, span.attempt_id, span.trace_id, str(span_id)


@spans.get(paths.SPANS, response_model=PaginatedResult[Span])
@needs("reader")
async def query_spans(call: Call, query: Annotated[SpanQuery, Query()]) -> bytes | Spool:
    """Find spans of a rollout, or of one of its attempts."""
    return await cached_pages.spans(call.store, query)


@spans.post(paths.SPANS_SEARCH, response_model=PaginatedResult[Span])
@needs("reader")
async def search_spans(call: Call, query: SpanQuery) -> bytes | Spool:
    """Find spans of a rollout, or of one of its attempts."""
    return await cached_pages.spans(call.store, query)


@resources.get(paths.RESOURCES, response_model=PaginatedResult[ResourcesUpdate])
@needs("reader")
async def query_resources(call: Call, query: Annotated[ResourcesQuery, Query()]) -> bytes:
    """Find resources, the current version of each id."""
    return dumps(await call.store.find_resources(query))


@resources.get(paths.LATEST_RESOURCES, response_model=ResourcesUpdate | None)
@needs("reader")
async def get_latest_resources(call: Call, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the resources that were published last, or null."""
    return dumps(await call.store.get_latest_resources(as_at=query.as_at))


@resources.get(paths.RESOURCES_BY_ID, response_model=ResourcesUpdate | None)
@needs("reader")
async def get_resources(call: Call, resources_id: Id, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the current version of an id, or null."""
    return dumps(await call.store.get_resources_by_id(resources_id, as_at=query.as_at))


def _observed(page: PaginatedResult[Worker]) -> PaginatedResult[ObservedWorker]:
    now = time.time()
    items = [ObservedWorker.of(worker, now) for worker in page.items]
    return PaginatedResult(items=items, limit=page.limit, offset=page.offset, total=page.total)


@workers.get(paths.WORKERS, response_model=PaginatedResult[ObservedWorker])
@needs("reader")
async def query_workers(call: Call, query: Annotated[WorkerQuery, Query()]) -> bytes:
    """Find workers."""
    return dumps(_observed(await call.store.find_workers(query)))


@workers.post(paths.WORKERS_SEARCH, response_model=PaginatedResult[ObservedWorker])
@needs("reader")
async def search_workers(call: Call, query: WorkerQuery) -> bytes:
    """Find workers."""
    return dumps(_observed(await call.store.find_workers(query)))


@workers.get(paths.WORKER, response_model=ObservedWorker | None)
@needs("reader")
async def get_worker(call: Call, worker_id: Id, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return a worker, or null."""
    worker = await call.store.get_worker_by_id(worker_id, as_at=query.as_at)
    return dumps(None if worker is None else ObservedWorker.of(worker, time.time()))
