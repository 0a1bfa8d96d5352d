"""Routes of scanners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from store.models.queries import PastQuery
from store.models.scanners import Scan, Scanner, UnscannedAttempt
from store.server.call import Call
from store.server.routing import OwnStatusRoute, needs
from store.wire import paths
from store.wire.encoding import dumps
from store.wire.scan_bodies import ScansQuery, UnscannedQuery

scanners = APIRouter(route_class=OwnStatusRoute, tags=["Scanners"])


@scanners.get(paths.SCANNERS, response_model=list[Scanner])
@needs("reader")
async def query_scanners(call: Call, query: Annotated[PastQuery, Query()]) -> bytes:
    """Return the versions of scanners, with the numbers of their results."""
    return dumps(await call.store.scanners.query(as_at=query.as_at))


@scanners.post(paths.SCANS_SEARCH, response_model=list[Scan])
@needs("reader")
async def search_scans(call: Call, query: ScansQuery) -> bytes:
    """Return the last result of each attempt, scanner and version."""
    return dumps(await call.store.scanners.query_scans(query.rollout_id, scanner=query.scanner, as_at=query.as_at))


@scanners.post(paths.UNSCANNED, response_model=list[UnscannedAttempt])
@needs("reader")
async def query_unscanned(call: Call, query: UnscannedQuery) -> bytes:
    """Return the latest attempts of ended rollouts without a result of a scanner, in order of creation."""
    return dumps(await call.store.scanners.unscanned(**vars(query)))
