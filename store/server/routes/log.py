"""Routes of the log, of its verification, and of the description of the store."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel

from store.errors import Unavailable
from store.models import (
    HistoryEvent,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    LoggedEvent,
    LogPosition,
    RebuildReport,
    Seal,
    VerifyReport,
)
from store.models.queries import PastQuery, SearchQuery, UsageQuery
from store.models.search import SearchPage
from store.models.trainer_metrics import Metric, MetricsQuery
from store.models.usage import UsageReport
from store.server.api_schema import STREAMED
from store.server.auth.keyring import KeyRing
from store.server.call import Call
from store.server.database_check import database_fault
from store.server.routing import Id, StoreRoute, needs
from store.sql.database import database_of
from store.wire import paths
from store.wire.bodies import HistoryQuery, LogQuery, VerifyBody
from store.wire.encoding import LogPage, StoreInfo, dumps

logger = logging.getLogger("store.server")

about = APIRouter(route_class=StoreRoute, tags=["Store"])
log = APIRouter(route_class=StoreRoute, tags=["Log"])


class Health(BaseModel):
    """The response to GET /health."""

    status: str


@about.get(paths.HEALTH, response_model=Health)
@needs("open")
async def health(call: Call) -> bytes:
    """Report that the server and its database answer."""
    fault = await database_fault(call.store)
    if fault is None:
        return b'{"status":"ok"}'
    ring: KeyRing | None = call.scope["app"].state.ring
    if ring is not None and len(ring) > 0:
        # The route is open to all, and a database's error contains its address, so the reason is only logged.
        logger.warning("the database does not answer: %s", fault)
        fault = "see the server's log"
    raise Unavailable(f"the database does not answer: {fault}")


@about.get(paths.STATISTICS, response_model=LightningStoreStatistics)
@needs("reader")
async def statistics(call: Call, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the numbers of objects in the store."""
    return dumps(await call.store.statistics(as_at=query.as_at))


@about.get(paths.CAPABILITIES, response_model=LightningStoreCapabilities)
@needs("reader")
async def capabilities(call: Call) -> bytes:
    """Return the capabilities of the store."""
    values: LightningStoreCapabilities = {**call.store.capabilities, "otlp_traces": True}
    return dumps(values)


@about.get(paths.STORE, response_model=StoreInfo)
@needs("reader")
async def store_info(call: Call) -> bytes:
    """Return the id, the partition and the version of the store."""
    database = database_of(call.store)
    return dumps(
        {
            "store_id": getattr(call.store, "store_id", ""),
            "partition": call.scope["rollbook.partition"],
            "version": call.app.version,
            "kind": type(call.store).__name__,
            "read_only": database is not None and database.core.read_only,
        }
    )


@about.put(paths.STORE, response_model=StoreInfo)
@needs("admin")
async def create_partition(call: Call) -> bytes:
    """Create the partition in the path unless it exists, and return what GET returns.

    No other request creates a partition.
    """
    return await store_info(call)


@log.get(paths.HISTORY, response_model=list[HistoryEvent], responses={200: STREAMED})
@needs("reader")
async def history(call: Call, rollout_id: Id, query: Annotated[HistoryQuery, Query()]) -> bytes:
    """Return the events of a rollout, its attempts and its spans, oldest first, that follow the event `after`."""
    return dumps(await call.store.log.history(rollout_id, **vars(query)))


@log.get(paths.LOG, response_model=LogPage, responses={200: STREAMED})
@needs("reader")
async def read_log(call: Call, query: Annotated[LogQuery, Query()]) -> bytes:
    """Return the events of the log that follow a cursor, in the order in which they were committed."""
    following = call.store.log.tail(query.after, types=query.type, rollout_id=query.rollout)
    events: list[LoggedEvent] = []
    async with aclosing(cast("Any", following)):
        async for event in following:
            events.append(event)
            if len(events) == query.limit:
                break
    return dumps({"events": events, "cursor": events[-1].cursor if events else query.after})


@log.get(paths.LOG_POSITION, response_model=LogPosition)
@needs("reader")
async def log_position(call: Call, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the position of the last event up to a moment, by default of the last event of the log."""
    return dumps(await call.store.log.position(query.as_at))


@log.post(paths.SEARCH, response_model=SearchPage)
@needs("reader")
async def search_texts(call: Call, query: SearchQuery) -> bytes:
    """Search the texts of rollouts, and return a page of rollouts with excerpts."""
    return dumps(await call.store.log.search_texts(query))


@log.post(paths.USAGE_SEARCH, response_model=UsageReport)
@needs("reader")
async def search_usage(call: Call, query: UsageQuery) -> bytes:
    """Return the calls of models, their tokens and their reported costs, summed over the matching rollouts."""
    return dumps(await call.store.log.usage(query))


@log.post(paths.METRICS_SEARCH, response_model=list[Metric])
@needs("reader")
async def search_metrics(call: Call, query: MetricsQuery) -> bytes:
    """Return the metrics of trainers, by name and step."""
    return dumps(await call.store.log.metrics(query))


@log.post(paths.VERIFY, response_model=VerifyReport)
@needs("admin")
async def verify(call: Call, body: Annotated[VerifyBody, Body(default_factory=VerifyBody)]) -> bytes:
    """Verify that the log is complete and that every table matches the log."""
    return dumps((await call.store.log.verify(body.seal)).model_dump())


@log.post(paths.REBUILD, response_model=RebuildReport)
@needs("admin")
async def rebuild(call: Call) -> bytes:
    """Replay the whole log and write the rows that differ."""
    return dumps(await call.store.log.rebuild())


@log.post(paths.SEAL, response_model=Seal)
@needs("admin")
async def seal(call: Call) -> bytes:
    """Return a seal of the end of the log, to be kept outside the database."""
    # A store writes the seal into a file. The file is temporary, because the client keeps the seal.
    with await asyncio.to_thread(TemporaryDirectory) as directory:
        return dumps(await call.store.log.seal(Path(directory) / "seal.json"))
