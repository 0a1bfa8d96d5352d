"""Spans, resources and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Protocol, runtime_checkable

from fastapi import APIRouter, Body, Query
from pydantic import TypeAdapter

from store.interface.store import Store
from store.models import NamedResources, PaginatedResult, ResourcesUpdate, Span, Worker
from store.models.queries import PastQuery, ResourcesQuery, SpanQuery, WorkerQuery
from store.runtime import context
from store.server import cached_pages
from store.server.call import Call, checked, refuse_null
from store.server.response_spool import Spool
from store.server.routing import Id, Operations, StoreRoute, needs
from store.wire import paths
from store.wire.bodies import (
    NextSpanBody,
    NextSpansBody,
    SpansBatchBody,
    UpdateWorkerBody,
)
from store.wire.encoding import NextSpan, NextSpans, Recorded, dumps

spans = Operations("Spans")
resources = Operations("Resources")
workers = APIRouter(route_class=StoreRoute, tags=["Workers"])


@runtime_checkable
class RecordsSpans(Protocol):
    """A store that numbers and records spans in one write."""

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Record spans; return index and sequence_id of those that were new.

        Args:
            spans: what to record; as `add_many_spans`.
            number: draw their sequence numbers, instead of taking those they carry.
        """
        ...


_SPAN: Final[Any] = Span.__pydantic_validator__
_NEXT_SPAN: Final[Any] = NextSpanBody.__pydantic_validator__
_NAMED_RESOURCES: Final[TypeAdapter[NamedResources]] = TypeAdapter(NamedResources)

# -- spans -----------------------------------------------------------------------------------------------------------


@spans.post(paths.SPANS, body=Span, answer=Span | None, status=201)
async def add_span(call: Call) -> bytes:
    """Store a span; null if its attempt has one of that span_id already."""
    return dumps(await call.store.add_span(await call.body(Span)))


@spans.post(paths.NEXT_SPAN, body=NextSpanBody, answer=NextSpan)
async def next_span(call: Call) -> bytes:
    """Draw the next number for a span of a rollout."""
    body = await call.body(NextSpanBody)
    return b'{"sequence_id":%d}' % await call.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)


@spans.post(paths.NEXT_SPANS, body=NextSpansBody, answer=NextSpans)
async def next_spans(call: Call) -> bytes:
    """Draw a number for each pair of a rollout and an attempt, in the order given."""
    body = await call.body(NextSpansBody)
    return dumps({"sequence_ids": await call.store.get_many_span_sequence_ids(body.rollout_attempt_ids)})


@spans.post(paths.SPANS_BATCH, body=SpansBatchBody, answer=Recorded, status=201)
async def add_spans(call: Call) -> bytes:
    """Store spans; answers which of them were new, and under which numbers."""
    body = await call.body(SpansBatchBody)
    return dumps({"recorded": await _record(call.store, body.spans, number=body.number)})


async def _record(store: Store, given: list[Span], *, number: bool) -> list[tuple[int, int]]:
    if isinstance(store, RecordsSpans):
        return await store.record_spans(given, number=number)
    spans = await _numbered(store, given) if number else given
    # Of two with one key the first counts.
    indices = {_key(span): index for index, span in reversed(list(enumerate(spans)))}
    return [(indices[_key(span)], span.sequence_id) for span in await store.add_many_spans(spans)]


async def _numbered(store: Store, spans: list[Span]) -> list[Span]:
    asked = context.idempotency_key.get()
    # Numbers are drawn in a write of their own, and so under a key of their own, which no client can send.
    token = context.idempotency_key.set(None if asked is None else replace(asked, key=f"{asked.key}.numbers"))
    try:
        numbers = await store.get_many_span_sequence_ids([(span.rollout_id, span.attempt_id) for span in spans])
    finally:
        context.idempotency_key.reset(token)
    return [span.model_copy(update={"sequence_id": own}) for span, own in zip(spans, numbers, strict=True)]


def _key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


@spans.get(paths.SPANS, query=SpanQuery, answer=PaginatedResult[Span])
async def query_spans(call: Call) -> bytes | Spool:
    """Find spans of a rollout, or of one of its attempts."""
    return await cached_pages.spans(call.store, call.page_query(SpanQuery))


@spans.post(paths.SPANS_SEARCH, body=SpanQuery, answer=PaginatedResult[Span])
async def search_spans(call: Call) -> bytes | Spool:
    """Find spans of a rollout, or of one of its attempts."""
    return await cached_pages.spans(call.store, checked(await call.body(SpanQuery)))


# -- resources -------------------------------------------------------------------------------------------------------


@resources.get(paths.RESOURCES, query=ResourcesQuery, answer=PaginatedResult[ResourcesUpdate])
async def query_resources(call: Call) -> bytes:
    """Find resources, the current version of each id."""
    return dumps(await call.store.find_resources(call.page_query(ResourcesQuery)))


@resources.post(paths.RESOURCES, body=NamedResources, answer=ResourcesUpdate, status=201)
async def add_resources(call: Call) -> bytes:
    """Publish resources under a new id."""
    return dumps(await call.store.add_resources(await _named_resources(call)))


@resources.get(paths.LATEST_RESOURCES, query=PastQuery, answer=ResourcesUpdate | None)
async def get_latest_resources(call: Call) -> bytes:
    """Return what was published last, or null."""
    return dumps(await call.store.get_latest_resources(as_at=call.query(PastQuery).as_at))


@resources.get(paths.RESOURCES_BY_ID, query=PastQuery, answer=ResourcesUpdate | None)
async def get_resources(call: Call) -> bytes:
    """Return the current version of an id, or null."""
    as_at = call.query(PastQuery).as_at
    return dumps(await call.store.get_resources_by_id(call.ids["resources_id"], as_at=as_at))


@resources.post(paths.RESOURCES_BY_ID, body=NamedResources, answer=ResourcesUpdate)
async def update_resources(call: Call) -> bytes:
    """Publish the next version of an id, or its first."""
    return dumps(await call.store.update_resources(call.ids["resources_id"], await _named_resources(call)))


async def _named_resources(call: Call) -> Any:
    return call.parsed(await call.read(), _NAMED_RESOURCES)


# -- workers ---------------------------------------------------------------------------------------------------------


@workers.get(paths.WORKERS, response_model=PaginatedResult[Worker])
@needs("reader")
async def query_workers(call: Call, query: Annotated[WorkerQuery, Query()]) -> bytes:
    """Find workers."""
    return dumps(await call.store.find_workers(query))


@workers.post(paths.WORKERS_SEARCH, response_model=PaginatedResult[Worker])
@needs("reader")
async def search_workers(call: Call, query: WorkerQuery) -> bytes:
    """Find workers."""
    return dumps(await call.store.find_workers(query))


@workers.get(paths.WORKER, response_model=Worker | None)
@needs("reader")
async def get_worker(call: Call, worker_id: Id, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return a worker, or null."""
    return dumps(await call.store.get_worker_by_id(worker_id, as_at=query.as_at))


@workers.post(paths.WORKER, response_model=Worker)
@needs("runner")
async def update_worker(
    call: Call, worker_id: Id, body: Annotated[UpdateWorkerBody, Body(default_factory=UpdateWorkerBody)]
) -> bytes:
    """Record a heartbeat of a worker, with statistics if they are given."""
    refuse_null(body, "heartbeat_stats")
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return dumps(await call.store.update_worker(worker_id, **given))
