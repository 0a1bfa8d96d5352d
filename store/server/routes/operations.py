"""Routes for operators: liveness, readiness and metrics. They are the same in every partition."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from store.runtime.metrics_text import CONTENT_TYPE, Family, text_of
from store.runtime.process_metrics import process
from store.server.api_schema import refusals
from store.server.auth.keyring import KeyRing
from store.server.database_check import database_fault
from store.server.metrics.gauges import Measured, quotas, streams, writers
from store.server.metrics.requests import Metrics
from store.server.partitions import Partitions
from store.server.pending import Parked
from store.server.process.peers import Heads, Peers
from store.server.routing import RequestRoute, needs

logger = logging.getLogger("store.server")

operations = APIRouter(route_class=RequestRoute, tags=["Operations"])


class Status(BaseModel):
    """The state of a server."""

    status: str


class NotReady(Status):
    """The state of a server that cannot answer calls."""

    missing: dict[str, str]
    """The reason for each part that is not ready: `server` or `database`."""


class MetricsResponse(Response):
    """Metrics in Prometheus's text format."""

    media_type = CONTENT_TYPE


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _counted(request: Request, route: str) -> None:
    """Set the route under which the metrics count the request. `RouteLayer` does this for the routes of the store."""
    request.scope["rollbook.route"] = route


@operations.get("/livez", response_model=Status, response_description="Alive.")
@needs("open")
async def livez(request: Request) -> Response:
    """Report that the process answers."""
    _counted(request, "/livez")
    return _json({"status": "alive"})


@operations.get(
    "/readyz",
    response_model=Status,
    response_description="Ready.",
    responses={503: {"description": "Not ready.", "model": NotReady}},
)
@needs("open")
async def readyz(request: Request) -> Response:
    """Report whether calls would succeed, and if not, what is missing."""
    _counted(request, "/readyz")
    parked: Parked = request.app.state.parked
    partitions: Partitions = request.app.state.partitions
    missing: dict[str, str] = {}
    if parked.is_closing:
        missing["server"] = "is stopping"
    elif (fault := await database_fault(partitions.root)) is not None:
        missing["database"] = fault
    ring: KeyRing | None = request.app.state.ring
    if missing and ring is not None and ring.is_used:
        # The route is open to all, and a database's error contains its address, so the reason is only logged.
        logger.warning("not ready: %s", missing)
        missing = dict.fromkeys(missing, "see the server's log")
    if missing:
        return _json({"status": "not ready", "missing": missing}, 503)
    return _json({"status": "ready"})


@operations.get(
    "/metrics", response_class=MetricsResponse, response_description="The metrics.", responses=refusals(401, 403, 503)
)
@needs("reader")
async def metrics(request: Request) -> Response:
    """Return the metrics of all processes that share the port, as text for Prometheus."""
    _counted(request, "/metrics")
    peers: Peers | None = request.app.state.peers
    measured: Measured = request.app.state.measured
    database_families = await measured.families(request.app.state.partitions)
    families = own_metrics(request.app, measured.heads) if peers is None else await peers.families(measured.heads)
    return MetricsResponse(text_of([*families, *database_families]))


def own_metrics(app: FastAPI, heads: Heads) -> list[Family]:
    """Return the metrics of this process.

    Args:
        app: the application of this process.
        heads: the last known position of each partition's log.
    """
    partitions: Partitions = app.state.partitions
    counted: Metrics = app.state.metrics
    stores = partitions.open_stores()
    return [
        *counted.families(),
        Family("rollbook_parked_calls", "Calls that wait for a rollout, for the end of rollouts, or for events.").set(
            len(app.state.parked)
        ),
        Family("rollbook_open_partitions", "Open partitions, not counting the one that is served at /.").set(
            len(partitions)
        ),
        *writers(stores),
        *quotas(partitions.quotas.used),
        *streams(app.state.parked.streams, heads),
        Family("rollbook_refused_streams_total", "Streams that were refused because of a limit.", "counter").set(
            app.state.stream_slots.refused
        ),
        *process(),
    ]
