"""The application: every route of every partition, as one ASGI callable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final, cast

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from store.errors import StoreError
from store.server import otlp
from store.server.auth.keyring import KeyRing
from store.server.auth.middleware import AuthLayer
from store.server.auth.origins import OriginLayer
from store.server.errors import BodyTooLarge, refusal
from store.server.fast_path.dispatch import FastPath
from store.server.metrics.gauges import Measured
from store.server.metrics.requests import Metrics
from store.server.middleware import MAX_BODY_BYTES, ForwardedLayer, RequestLayer
from store.server.openapi import TITLE, document
from store.server.partitions import PartitionLayer, Partitions
from store.server.pending import Parked
from store.server.routes import annotations as routes_annotations
from store.server.routes import dashboard, data, viewer
from store.server.routes import following as routes_following
from store.server.routes import log as routes_log
from store.server.routes import operations as routes_operations
from store.server.routes import queue as routes_queue
from store.server.routes import runs as routes_runs
from store.server.routes.dashboard import DashboardLayer
from store.server.routing import Operation, RouteTable, StoreRoute
from store.server.streaming.streams import StreamLayer
from store.sql.store import SQLStore
from store.wire.paths import NOT_TAKEN, OTLP_TRACES

_DECLARED: Final[tuple[Operation, ...]] = tuple(
    operation
    for module in (
        routes_queue.queue,
        routes_queue.rollouts,
        routes_queue.attempts,
        data.spans,
        data.resources,
        routes_log.about,
        routes_log.log,
        routes_runs.events,
        routes_following.following,
        routes_runs.leavings,
        routes_runs.forks,
        routes_annotations.annotations,
        viewer.runs,
    )
    for operation in module.items
)


OPERATIONS: Final[tuple[Operation | StoreRoute, ...]] = (
    *_DECLARED,
    *(cast("StoreRoute", route) for route in data.workers.routes),
)


FAST_PATH: Final = "ROLLBOOK_FAST_PATH"
"""The environment variable that switches the fast path off, if it is 0."""


class Application(FastAPI):
    """FastAPI with our layers around all of its own.

    What our routes answer never enters it. Nor is it ever traced, as FastAPI would have it: in a process that exports
    its spans to this very server, every export would be a request to be traced and exported.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Return our layers around FastAPI's."""
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
) -> FastAPI:
    """Return the application.

    Args:
        partitions: the stores it serves; whoever made them closes them.
        cors_origins: origins whose pages may call it; `*` for all of them. Blank ones are dropped.
        max_body_bytes: the largest request body; a larger one is refused with 413.
        max_otlp_bytes: the largest body of traces, as sent and decompressed.
        ring: the keys of its clients; whoever made it closes it. None asks for none.
        is_local: whether it is reached from this machine alone; then names that are not this machine's are refused.
        is_read_only: whether its pages offer no actions.
        has_fast_path: whether hot calls are answered without the application's layers. The answers are the same.
            `ROLLBOOK_FAST_PATH=0` in the environment switches it off as well.
    """
    app = Application(title=TITLE, version=metadata.version("rollbook"), redirect_slashes=False)
    app.state.partitions = partitions
    app.state.ring = ring
    app.state.parked = Parked()
    app.state.metrics = Metrics()
    app.state.measured = Measured()
    # Set by whoever runs several processes on one port.
    app.state.peers = None
    # The names of this machine by which it was called.
    app.state.names = set[bytes]()
    is_fast = has_fast_path and os.environ.get(FAST_PATH) != "0"
    app.state.fast_path = _fast_path(app, partitions, max_body_bytes, ring, is_local=is_local) if is_fast else None
    _add_routes(app)
    app.router.routes.extend(otlp.otlp_routes(max_body_bytes=max_otlp_bytes))
    origins = [origin for each in cors_origins if (origin := each.strip())]
    _add_layers(app, partitions, origins, max_body_bytes, ring, is_local=is_local, is_read_only=is_read_only)
    _tell_errors(app)
    _declare(app)
    return app


def _fast_path(
    app: FastAPI, partitions: Partitions, max_body_bytes: int, ring: KeyRing | None, *, is_local: bool
) -> FastPath | None:
    store = partitions.root
    # What is derived of it may do otherwise.
    if type(store) is not SQLStore:
        return None
    names = app.state.names if is_local else None
    return FastPath(app, store, OPERATIONS, ring=ring, names=names, max_body_bytes=max_body_bytes)


def _add_routes(app: FastAPI) -> None:
    for path in NOT_TAKEN:
        app.add_route(path, routes_operations.not_taken, ["POST"], include_in_schema=False)
    app.add_route("/livez", routes_operations.livez, ["GET"])
    app.add_route("/readyz", routes_operations.readyz, ["GET"])
    app.add_route("/metrics", routes_operations.metrics, ["GET"])


def _add_layers(
    app: FastAPI,
    partitions: Partitions,
    origins: list[str],
    max_body_bytes: int,
    ring: KeyRing | None,
    *,
    is_local: bool,
    is_read_only: bool,
) -> None:
    # The last one added is the outermost.
    app.add_middleware(RouteTable, operations=OPERATIONS)
    app.add_middleware(
        DashboardLayer, parked=app.state.parked, partitions=partitions, ring=ring, is_read_only=is_read_only
    )
    app.add_middleware(StreamLayer, parked=app.state.parked, origins=origins)
    app.add_middleware(PartitionLayer, partitions=partitions)
    if ring is not None:
        known = (*OPERATIONS, *dashboard.OPERATIONS)
        app.add_middleware(AuthLayer, ring=ring, root_name=partitions.root_name, operations=known)
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


def _tell_errors(app: FastAPI) -> None:
    """Give the routers that are FastAPI's own the same answers to the same errors."""

    async def told(request: Request, error: Exception) -> Response:
        del request
        status, body, headers = refusal(error)
        texts = {name.decode(): value.decode() for name, value in headers}
        return Response(body, status, texts, media_type="application/json")

    async def nothing_there(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # what it is registered for
        # As in Agent-lightning 0.3, whose dashboard lies behind every path and takes GET alone.
        if error.status_code == 404 and request.method not in {"GET", "HEAD"}:
            return Response(b'{"detail":"Method Not Allowed"}', 405, media_type="application/json")
        body = orjson.dumps({"detail": error.detail})
        return Response(body, error.status_code, dict(error.headers or {}), media_type="application/json")

    app.add_exception_handler(StoreError, told)
    app.add_exception_handler(BodyTooLarge, told)
    app.add_exception_handler(Exception, told)
    app.add_exception_handler(HTTPException, nothing_there)


def _declare(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(OPERATIONS)
        return app.openapi_schema

    app.openapi = openapi
