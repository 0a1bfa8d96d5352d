"""The log and its proof, and what the store says of itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict, cast

from store.models import (
    HistoryEvent,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    LoggedEvent,
    RebuildReport,
    Seal,
    VerifyReport,
)
from store.models.queries import PastQuery
from store.server.call import Call
from store.server.routing import Operations
from store.wire import paths
from store.wire.bodies import HistoryQuery, LogQuery, VerifyBody
from store.wire.encoding import LogPage, StoreInfo, dumps

about = Operations("Store")
log = Operations("Log")


class Health(TypedDict):
    """The answer to GET /health."""

    status: str


@about.get(paths.HEALTH, answer=Health)
async def health(call: Call) -> bytes:
    """Say that the server answers."""
    del call
    return b'{"status":"ok"}'


@about.get(paths.STATISTICS, query=PastQuery, answer=LightningStoreStatistics)
async def statistics(call: Call) -> bytes:
    """Return how much the store holds."""
    return dumps(await call.store.statistics(as_at=call.query(PastQuery).as_at))


@about.get(paths.CAPABILITIES, answer=LightningStoreCapabilities)
async def capabilities(call: Call) -> bytes:
    """Return what callers may rely on."""
    known: LightningStoreCapabilities = {**call.store.capabilities, "otlp_traces": True}
    return dumps(known)


@about.get(paths.STORE, answer=StoreInfo)
async def store_info(call: Call) -> bytes:
    """Return which store this is."""
    return dumps(
        {
            "store_id": getattr(call.store, "store_id", ""),
            "partition": call.scope["rollbook.partition"],
            "version": _version(),
            "kind": type(call.store).__name__,
        }
    )


@cache
def _version() -> str:
    return metadata.version("rollbook")


@log.get(paths.HISTORY, query=HistoryQuery, answer=list[HistoryEvent])
async def history(call: Call) -> bytes:
    """Return facts of a rollout, its attempts and spans, oldest first, after a number."""
    return dumps(await call.store.log.history(call.ids["rollout_id"], **vars(call.query(HistoryQuery))))


@log.get(paths.LOG, query=LogQuery, answer=LogPage)
async def read_log(call: Call) -> bytes:
    """Return facts of the log in the order they were committed, after a cursor."""
    query = call.query(LogQuery)
    facts = call.store.log.tail(query.after, types=query.type, rollout_id=query.rollout)
    events: list[LoggedEvent] = []
    async with aclosing(cast("Any", facts)):
        async for event in facts:
            events.append(event)
            if len(events) == query.limit:
                break
    return dumps({"events": events, "cursor": events[-1].cursor if events else query.after})


@log.post(paths.VERIFY, body=VerifyBody, body_required=False, answer=VerifyReport)
async def verify(call: Call) -> bytes:
    """Prove that the log is whole and that every table is what the log says."""
    body = await call.body_or_default(VerifyBody)
    return dumps((await call.store.log.verify(body.seal)).model_dump())


@log.post(paths.REBUILD, answer=RebuildReport)
async def rebuild(call: Call) -> bytes:
    """Fold the whole log anew and write the rows that differ."""
    await call.read()
    return dumps(await call.store.log.rebuild())


@log.post(paths.SEAL, answer=Seal)
async def seal(call: Call) -> bytes:
    """Return the head of the log, to be kept where the database is not."""
    await call.read()
    # A store seals into a file; the one that is kept is the client's.
    with await asyncio.to_thread(TemporaryDirectory) as directory:
        return dumps(await call.store.log.seal(Path(directory) / "seal.json"))
