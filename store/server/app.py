"""The application: every route of every partition, as one ASGI callable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, partial
from importlib import metadata
from typing import Final, cast

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from store.errors import StoreError
from store.models.prices import PriceTable
from store.server import otlp
from store.server.api_schema import TITLE, Json, document
from store.server.auth.keyring import KeyRing
from store.server.auth.origins import OriginLayer
from store.server.authentication import AuthLayer
from store.server.errors import BodyTooLarge, refusal
from store.server.fast_path.dispatch import FastPath
from store.server.metrics.gauges import Measured
from store.server.metrics.requests import Metrics
from store.server.middleware import MAX_BODY_BYTES, ForwardedLayer, RequestLayer
from store.server.partitions import PartitionLayer, Partitions
from store.server.pending import Parked
from store.server.process.scheduler import Scheduler
from store.server.quotas import QuotaLayer
from store.server.routes import (
    annotations,
    calls,
    data,
    following,
    log,
    operations,
    queue,
    runs,
    scanners,
    scores,
    webhooks,
)
from store.server.routes.dashboard import DASHBOARD_ROUTES, DashboardLayer
from store.server.routing import LayerRoute, Protected, RequestRoute, RouteLayer, StoreRoute
from store.server.streaming.front_end import FrontEnd
from store.server.streaming.paths import SOCKETS
from store.server.streaming.slots import StreamSlots
from store.server.streaming.streams import StreamLayer
from store.sql.database import database_of
from store.webhooks.management import WebhookService
from store.wire.paths import OTLP_TRACES, RUN_SOCKET

_ROUTERS: Final = (
    *calls.ROUTERS,
    queue.queue,
    queue.rollouts,
    queue.attempts,
    data.spans,
    data.resources,
    data.workers,
    log.about,
    log.log,
    runs.events,
    following.following,
    runs.outputs,
    runs.forks,
    annotations.annotations,
    scores.scores,
    scanners.scanners,
    webhooks.webhooks,
)

ROUTES: Final = tuple(cast("StoreRoute", route) for router in _ROUTERS for route in router.routes)
"""The routes of the store."""
BESIDE: Final = tuple(
    cast("RequestRoute", route) for router in (otlp.opentelemetry, operations.operations) for route in router.routes
)
"""The other routes, which FastAPI's router finds."""
# The schema and its pages are the same for every server of this version, and a browser that opens them sends no key.
_DOCUMENTATION: Final = tuple(
    LayerRoute("GET", path, "open") for path in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
)
PROTECTED: Final[tuple[Protected, ...]] = (*ROUTES, *BESIDE, *_DOCUMENTATION, *DASHBOARD_ROUTES, *SOCKETS)
"""All routes of a server without a front end, with the roles that they require."""

FAST_PATH: Final = "ROLLBOOK_FAST_PATH"
"""The environment variable that switches the fast path off when its value is 0."""


class Application(FastAPI):
    """FastAPI with the server's ASGI layers around FastAPI's own layers.

    Requests for the store's routes never reach FastAPI's layers. No request is traced: in a process that exports its
    spans to this server, every export would be a request that is traced and exported.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Return FastAPI's layers, wrapped in the server's layers."""
        layers, self.user_middleware = self.user_middleware, []
        app = super().build_middleware_stack()
        self.user_middleware = layers
        for layer, arguments, settings in reversed(layers):
            app = layer(app, *arguments, **settings)
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["app"] = self
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self.middleware_stack(scope, receive, send)


def build_app(
    partitions: Partitions,
    *,
    cors_origins: Sequence[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    max_otlp_bytes: int = otlp.MAX_BODY_BYTES,
    ring: KeyRing | None = None,
    is_local: bool = False,
    is_read_only: bool = False,
    has_fast_path: bool = True,
    front_end: FrontEnd | None = None,
    stream_slots: StreamSlots | None = None,
    scheduler: Scheduler | None = None,
    prices: PriceTable | None = None,
    webhook_service: WebhookService | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        partitions: the stores to serve; the caller closes them.
        cors_origins: origins whose pages may call the server; `*` for all. Blank entries are ignored.
        max_body_bytes: the largest request body; a larger one is refused with 413.
        max_otlp_bytes: the largest body of traces, as sent and decompressed.
        ring: the keys of the clients; the caller closes it. None if no keys are required.
        is_local: whether only this machine reaches the server. Requests with host names of other machines are then
            refused.
        is_read_only: whether the stores refuse changes. The dashboard then offers no actions.
        has_fast_path: whether hot calls are answered without the application's layers. The responses are the same.
            `ROLLBOOK_FAST_PATH=0` in the environment switches it off as well.
        front_end: a web front end whose requests are answered as well; None for no front end.
        stream_slots: the limits on the number of open streams; None for `StreamSlots()`.
        scheduler: the scheduled operations, which the admin page shows; the caller runs and closes it.
        prices: the prices from which pages compute costs; None for none.
        webhook_service: adds, tests and removes webhooks; None if the server sends no webhooks.
    """
    # The store imports the code of these parts when they are first used. No request should wait for that.
    _ = partitions.root.log, partitions.root.runs, partitions.root.annotations, partitions.root.threads
    _ = partitions.root.scanners
    app = Application(title=TITLE, version=metadata.version("rollbook"), redirect_slashes=False)
    app.state.partitions = partitions
    app.state.ring = ring
    app.state.front_end = front_end = front_end or FrontEnd()
    app.state.parked = Parked()
    app.state.stream_slots = stream_slots or StreamSlots()
    app.state.metrics = Metrics()
    app.state.measured = Measured()
    # This is set if several processes share the port.
    app.state.peers = None
    # The host names that accepted requests have used for this machine so far.
    app.state.names = set[bytes]()
    app.state.max_otlp_bytes = max_otlp_bytes
    app.state.fast_path = None
    database = database_of(partitions.root)
    is_fast = has_fast_path and os.environ.get(FAST_PATH) != "0"
    if is_fast and database is not None and database.accepts_commands:
        names = app.state.names if is_local else None
        app.state.fast_path = FastPath(app, database, ROUTES, ring=ring, names=names, max_body_bytes=max_body_bytes)
    app.router.routes.extend(BESIDE)
    origins = [origin for entry in cors_origins if (origin := entry.strip())]
    app.state.scheduler = scheduler
    app.state.prices = prices or PriceTable()
    app.state.webhooks = webhook_service
    _add_layers(app, origins, max_body_bytes, is_local=is_local, is_read_only=is_read_only)
    _add_error_handlers(app)
    app.openapi = partial(openapi, type(front_end))
    return app


def _add_layers(app: FastAPI, origins: list[str], max_body_bytes: int, *, is_local: bool, is_read_only: bool) -> None:
    partitions: Partitions = app.state.partitions
    ring: KeyRing | None = app.state.ring
    front_end: FrontEnd = app.state.front_end
    protected = (*PROTECTED, *front_end.protected())
    # The layer that is added last is the outermost.
    app.add_middleware(RouteLayer, routes=(*ROUTES, *front_end.routes))
    app.add_middleware(
        DashboardLayer,
        parked=app.state.parked,
        partitions=partitions,
        ring=ring,
        scheduler=app.state.scheduler,
        prices=app.state.prices,
        webhook_service=app.state.webhooks,
        is_read_only=is_read_only,
    )
    app.add_middleware(
        StreamLayer,
        parked=app.state.parked,
        sockets=front_end.sockets,
        origins=origins,
        slots=app.state.stream_slots,
    )
    if partitions.quotas.has_call_limit:
        app.add_middleware(QuotaLayer, quotas=partitions.quotas, routes=protected)
    app.add_middleware(PartitionLayer, partitions=partitions)
    if ring is not None:
        app.add_middleware(AuthLayer, ring=ring, root_name=partitions.root_name, routes=protected)
    app.add_middleware(OriginLayer, origins=origins, is_local=is_local, ring=ring, names=app.state.names)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"] if "*" in origins else origins,
            allow_credentials=True,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    app.add_middleware(RequestLayer, metrics=app.state.metrics, max_body_bytes=max_body_bytes, unbounded=OTLP_TRACES)
    app.add_middleware(ForwardedLayer)


def _add_error_handlers(app: FastAPI) -> None:
    """Make FastAPI's router respond to errors as the store's routes do."""

    async def refused(request: Request, error: Exception) -> Response:
        del request
        status, body, headers = refusal(error)
        texts = {name.decode(): value.decode() for name, value in headers}
        return Response(body, status, texts, media_type="application/json")

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # the handler is registered for this class
        # Agent-lightning 0.3 responds in this way, because its dashboard is mounted at every path and accepts only GET.
        if error.status_code == 404 and request.method not in {"GET", "HEAD"}:
            return Response(b'{"detail":"Method Not Allowed"}', 405, media_type="application/json")
        body = orjson.dumps({"detail": error.detail})
        return Response(body, error.status_code, dict(error.headers or {}), media_type="application/json")

    app.add_exception_handler(StoreError, refused)
    app.add_exception_handler(BodyTooLarge, refused)
    app.add_exception_handler(Exception, refused)
    app.add_exception_handler(HTTPException, not_found)


@cache
def openapi(front_end: type[FrontEnd] = FrontEnd) -> Json:
    """Return the OpenAPI document, which is the same for every application of this version with this front end."""
    return document([*ROUTES, *front_end.routes, *BESIDE], otlp.SCHEMAS, [RUN_SOCKET, *front_end.sockets])
