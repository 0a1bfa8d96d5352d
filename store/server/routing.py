"""Routes, which map a method and a path to an endpoint. See decision 34.

FastAPI's router tries one regular expression after another, and its endpoints resolve dependencies, validate and
serialise. Together this takes several times as long as the store needs for a small call. This module looks up a path in
an index, and an endpoint returns the bytes of its response. FastAPI declares the routes and generates the schema.
FastAPI's router finds only the few routes that do not belong to the store.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, cast
from urllib.parse import unquote

from fastapi import Path
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from store.models.queries import PageQuery
from store.server.api_schema import declare
from store.server.call import Call, ClientLeft, checked
from store.server.errors import Headers, refusal
from store.server.response_spool import Spool, send_spooled
from store.sql.api_keys import Role
from store.wire.paths import HEALTH

logger = logging.getLogger("store.server")

P = TypeVar("P", bound="Protected")
E = TypeVar("E", bound=Callable[..., Any])

Access = Role | Literal["open"]
"""The role that a route requires; `open` if it requires no key."""

Id = Annotated[str, Path(min_length=1)]
"""An id in a path."""

JSON: Final = (b"content-type", b"application/json")
"""The content type of every response of the store."""

_ID: Final = re.compile(r"\{(\w+)\}")
_NO_BODY: Final = frozenset({b"", b"null"})


@dataclass(frozen=True, slots=True)
class Created:
    """A response with the path of the created object."""

    body: bytes
    location: str


def needs(role: Access) -> Callable[[E], E]:
    """Declare the role that a route requires. The authentication layer checks the role before the body is read."""

    def mark(endpoint: E) -> E:
        vars(endpoint)["role"] = role
        return endpoint

    return mark


class DeclaredRoute(APIRoute):
    """A route with one method and a role. FastAPI reads the signature of its endpoint for the schema."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.role: Access = vars(endpoint)["role"]
        (self.method,) = settings["methods"]
        settings["operation_id"] = settings["operation_id"] or endpoint.__name__
        settings["summary"] = settings["summary"] or (endpoint.__doc__ or "").partition("\n")[0]
        super().__init__(path, endpoint, **settings)


class RequestRoute(DeclaredRoute):
    """A route that does not belong to the store. FastAPI's router finds it, and its endpoint returns a response."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self.description = ""
        # Starlette's own routes accept HEAD as well.
        if self.method == "GET":
            self.methods = {"GET", "HEAD"}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Any]]:
        """Return the endpoint itself, without FastAPI's validation and serialisation."""
        return self.endpoint


class StoreRoute(DeclaredRoute):
    """A route of the store. Its endpoint returns the bytes of the response.

    FastAPI's own handler resolves dependencies, validates and serialises, which takes several times as long as the
    store needs for a small call. This class validates the query and the body with `Call`, and calls the endpoint.
    """

    own_statuses: ClassVar[bool] = False
    """Whether each class of error has its own status; see `store.wire.errors.status_of`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.status: int = settings["status_code"] or 200
        role: Access = vars(endpoint)["role"]
        super().__init__(path, endpoint, **declare(settings, role, self.status, own_statuses=self.own_statuses))
        queries, bodies = self.dependant.query_params, self.dependant.body_params
        self.query: Any = queries[0].field_info.annotation if queries else None
        """Model of the query parameters."""
        self.body: Any = bodies[0].field_info.annotation if bodies else None
        """Type of the request body."""
        self._query_name = queries[0].name if queries else ""
        self._body_name = bodies[0].name if bodies else ""
        self._body_is_required = bool(bodies) and bodies[0].field_info.is_required()
        self._body_type = TypeAdapter(self.body).validator if bodies else None

    def respond(self, call: Call) -> Awaitable[bytes | Spool | Created]:
        """Validate the query, and return the endpoint's coroutine.

        If there is a body, the coroutine first validates the body.

        Raises:
            MalformedRequest: the query does not match its model.
            StoreError: the query is refused.
        """
        arguments: dict[str, Any] = call.ids
        if self.query is not None:
            query = call.query(self.query)
            arguments = {**arguments, self._query_name: checked(query) if isinstance(query, PageQuery) else query}
        # A GET has no coroutine around the endpoint, because a further coroutine would take more time than the lookup
        # of the route.
        return self.endpoint(call, **arguments) if self.method == "GET" else self._respond_to_body(call, arguments)

    async def _respond_to_body(self, call: Call, arguments: dict[str, Any]) -> bytes | Spool | Created:
        body = await call.read()
        if self._body_type is not None:
            is_absent = not self._body_is_required and body in _NO_BODY
            value = self.body() if is_absent else call.parsed(body, self._body_type)
            arguments = {**arguments, self._body_name: checked(value) if isinstance(value, PageQuery) else value}
        return await self.endpoint(call, **arguments)


class OwnStatusRoute(StoreRoute):
    """A route that Agent-lightning's clients do not call. Each class of its errors has its own status."""

    own_statuses = True


WEBSOCKET: Final = "WEBSOCKET"
"""The method of a route at which a WebSocket is opened."""


class Protected(Protocol):
    """A route with a method, a path template and the role that it requires."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def role(self) -> Access: ...


@dataclass(frozen=True, slots=True)
class LayerRoute:
    """A route that an ASGI layer answers."""

    method: str
    path: str
    role: Access


class RouteIndex(Generic[P]):
    """Routes by method and path: a table for paths without ids, and a regular expression per method for other paths.

    A literal segment takes precedence over an id: `/attempts/latest` does not name an attempt.
    """

    def __init__(self, routes: Iterable[P]) -> None:
        self._methods: dict[str, tuple[re.Pattern[str], dict[int, tuple[P, list[str]]]]] = {}
        # The fastest reads are page queries at paths without ids. A lookup in the table takes a tenth of the time of a
        # match.
        self._literal: dict[tuple[str, str], P] = {}
        by_method: dict[str, list[P]] = {}
        for route in routes:
            with_ids = by_method.setdefault(route.method, [])
            if "{" in route.path:
                with_ids.append(route)
            else:
                self._literal[route.method, route.path] = route
        for method, matching in by_method.items():
            matching.sort(key=lambda route: [segment.startswith("{") for segment in route.path.split("/")])
            patterns, by_group, group = list[str](), dict[int, tuple[P, list[str]]](), 1
            for route in matching:
                names = _ID.findall(route.path)
                literals = map(re.escape, _ID.sub("\0", route.path).split("\0"))
                patterns.append(f"({'([^/]+)'.join(literals)})")
                by_group[group] = route, names
                group += 1 + len(names)
            self._methods[method] = re.compile("|".join(patterns) or "(?!)"), by_group

    def find(self, method: str, path: str, ids: dict[str, str]) -> P | None:
        """Return the route of a path that `path_within` returned, and add the ids in the path to `ids`."""
        literal = self._literal.get((method, path))
        if literal is not None:
            return literal
        index = self._methods.get(method)
        match = index and index[0].fullmatch(path)
        if not index or not match:
            return None
        # `lastindex` is the group that closes last, which is the group around the whole path.
        group = cast("int", match.lastindex)
        route, names = index[1][group]
        for inner, name in enumerate(names, group + 1):
            ids[name] = unquote(match[inner])
        return route

    def other_methods(self, method: str, path: str) -> list[str]:
        """Return the other methods that a path has."""
        return sorted(other for other in self._methods if other != method and self.find(other, path, {}))


class RouteLayer:
    """An ASGI layer that answers requests for the store's routes, and passes on all other requests."""

    def __init__(self, app: ASGIApp, routes: Iterable[StoreRoute]) -> None:
        self._app = app
        self._routes = RouteIndex(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], path_within(scope, scope.get("root_path", ""))
        ids: dict[str, str] = {}
        # Load balancers check the health with HEAD. All other paths refuse HEAD, as Agent-lightning 0.3 does.
        route = self._routes.find("GET" if method == "HEAD" and path == HEALTH else method, path, ids)
        if route is None:
            # Agent-lightning 0.3 responds in this way, because its dashboard is mounted at every path and accepts only
            # GET.
            others = [] if method == "GET" else self._routes.other_methods(method, path)
            if others:
                await answer(send, 405, b'{"detail":"Method Not Allowed"}', [(b"allow", ", ".join(others).encode())])
            else:
                await self._app(scope, receive, send)
            return
        scope["rollbook.path"] = path
        scope["rollbook.route"] = route.path
        status, headers = route.status, Headers()
        try:
            body = await route.respond(Call(scope, receive, ids))
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 - no other layer can answer; `refusal` logs a bug
            status, body, headers = refusal(error, own_status=route.own_statuses)
        if isinstance(body, Created):
            headers.append((b"location", body.location.encode("ascii")))
            body = body.body
        if isinstance(body, Spool):
            await _answer_spooled(scope, send, status, body)
            return
        await answer(send, status, body, headers)


def path_within(scope: Scope, root: str) -> str:
    """Return the path below a root.

    Ids in the path stay percent-encoded, so that a slash in an id does not separate segments.
    """
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%" in raw and raw.startswith(root.encode()):
        # The encoded path starts with the decoded root only if the root contains no encoded characters. So the encoded
        # root has the same length as the decoded root.
        return raw.decode("ascii", "replace")[len(root) :]
    return path[len(root) :] if root else path


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a JSON response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(scope: Scope, receive: Receive, send: Send, refused: tuple[int, bytes, Headers]) -> None:
    """Refuse a request, or the handshake of a WebSocket."""
    status, body, headers = refused
    if scope["type"] == "http":
        # The unread body would precede the next request on this connection, so the connection is closed.
        unread = any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])
        await answer(send, status, body, [*headers, (b"connection", b"close")] if unread else headers)
        return
    key_id = scope.get("rollbook.key_id")
    logger.info("refused to open a WebSocket: %d %s", status, body.decode(), extra={"key": key_id})
    await receive()  # "websocket.connect"
    # The WebSocket was not accepted, so the response to the handshake is 403, whatever the status is.
    await send({"type": "websocket.close", "code": 1008})


async def _answer_spooled(scope: Scope, send: Send, status: int, body: Spool) -> None:
    length = (b"content-length", b"%d" % body.size)
    try:
        await send({"type": "http.response.start", "status": status, "headers": [JSON, length]})
        await send_spooled(scope, send, body)
    except ClientLeft:
        return
    finally:
        body.close()
