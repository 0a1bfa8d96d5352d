"""Routes: from a method and a path to the endpoint that answers.

FastAPI's router tries one regular expression after another, and its endpoints resolve dependencies, validate and
serialise, which together takes several times what the store needs for a small call. Here a path is looked up in an
index, and an endpoint returns the bytes of its answer. FastAPI declares the routes and generates the schema, and its
router finds the few routes beside the store's.
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

logger = logging.getLogger("store.server")

P = TypeVar("P", bound="Protected")
E = TypeVar("E", bound=Callable[..., Any])

Access = Role | Literal["open"]
"""The role that a route requires; `open` for none."""

Id = Annotated[str, Path(min_length=1)]
"""An id in a path."""

JSON: Final = (b"content-type", b"application/json")
"""The header of every answer of the store."""

_ID: Final = re.compile(r"\{(\w+)\}")
_NO_BODY: Final = frozenset({b"", b"null"})


# -- declaring routes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Created:
    """An answer with the path of the created object."""

    body: bytes
    location: str


def needs(role: Access) -> Callable[[E], E]:
    """Declare the role that a route requires; the authentication layer enforces it before the body is read."""

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
    """A route beside those of the store. FastAPI's router finds it; its endpoint makes a response of a request."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self.description = ""
        # As Starlette's own routes do.
        if self.method == "GET":
            self.methods = {"GET", "HEAD"}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Any]]:
        """Return the endpoint itself, without FastAPI's validation and serialisation."""
        return self.endpoint


class StoreRoute(DeclaredRoute):
    """A route of the store, whose endpoint returns the bytes of its answer.

    FastAPI's own handler resolves dependencies, validates and serialises, which takes several times what the store
    needs for a small call. This one validates the query and the body as `Call` does, and calls the endpoint.
    """

    own_statuses: ClassVar[bool] = False
    """Whether each class of error has its own status, as `store.wire.errors.status_of` says."""

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
        """Validate the query, and return the endpoint's coroutine; it validates the body first.

        Raises:
            MalformedRequest: the query does not match its model.
            StoreError: the query is refused.
        """
        arguments: dict[str, Any] = call.ids
        if self.query is not None:
            query = call.query(self.query)
            arguments = {**arguments, self._query_name: checked(query) if isinstance(query, PageQuery) else query}
        # A coroutine of its own would cost a read more than the lookup of its route.
        return self.endpoint(call, **arguments) if self.method == "GET" else self._respond_to_body(call, arguments)

    async def _respond_to_body(self, call: Call, arguments: dict[str, Any]) -> bytes | Spool | Created:
        body = await call.read()
        if self._body_type is not None:
            is_absent = not self._body_is_required and body in _NO_BODY
            value = self.body() if is_absent else call.parsed(body, self._body_type)
            arguments = {**arguments, self._body_name: checked(value) if isinstance(value, PageQuery) else value}
        return await self.endpoint(call, **arguments)


class OwnStatusRoute(StoreRoute):
    """A route that Agent-lightning's clients do not call, whose errors have statuses of their own."""

    own_statuses = True


# -- finding routes --------------------------------------------------------------------------------------------------


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
    """Routes by method and path: a table of paths without ids, and a regular expression per method for the others.

    A literal segment takes precedence over an id: `/attempts/latest` does not name an attempt.
    """

    def __init__(self, routes: Iterable[P]) -> None:
        self._methods: dict[str, tuple[re.Pattern[str], dict[int, tuple[P, list[str]]]]] = {}
        # The cheapest reads are page queries at literal paths, and a lookup takes a tenth of a match.
        self._literal: dict[tuple[str, str], P] = {}
        by_method: dict[str, list[P]] = {}
        for route in routes:
            with_ids = by_method.setdefault(route.method, [])
            if "{" in route.path:
                with_ids.append(route)
            else:
                self._literal[route.method, route.path] = route
        for method, several in by_method.items():
            several.sort(key=lambda route: [segment.startswith("{") for segment in route.path.split("/")])
            patterns, by_group, group = list[str](), dict[int, tuple[P, list[str]]](), 1
            for route in several:
                names = _ID.findall(route.path)
                literals = map(re.escape, _ID.sub("\0", route.path).split("\0"))
                patterns.append(f"({'([^/]+)'.join(literals)})")
                by_group[group] = route, names
                group += 1 + len(names)
            self._methods[method] = re.compile("|".join(patterns) or "(?!)"), by_group

    def find(self, method: str, path: str, ids: dict[str, str]) -> P | None:
        """Return the route of a path, as `path_within` gives it, and add the ids in it."""
        literal = self._literal.get((method, path))
        if literal is not None:
            return literal
        known = self._methods.get(method)
        match = known and known[0].fullmatch(path)
        if not known or not match:
            return None
        # The last group to close is the one around the path.
        group = cast("int", match.lastindex)
        route, names = known[1][group]
        for inner, name in enumerate(names, group + 1):
            ids[name] = unquote(match[inner])
        return route

    def other_methods(self, method: str, path: str) -> list[str]:
        """Return the other methods that a path has."""
        return sorted(other for other in self._methods if other != method and self.find(other, path, {}))


class RouteLayer:
    """An ASGI layer that answers the routes of the store, and passes on all other requests."""

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
        route = self._routes.find(method, path, ids)
        if route is None:
            # As in Agent-lightning 0.3, whose dashboard is behind every path and accepts only GET.
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
        except Exception as error:  # noqa: BLE001 - nothing above can answer; `refusal` logs a bug
            status, body, headers = refusal(error, own_status=route.own_statuses)
        if isinstance(body, Created):
            headers.append((b"location", body.location.encode("ascii")))
            body = body.body
        if isinstance(body, Spool):
            await _answer_spooled(scope, send, status, body)
            return
        await answer(send, status, body, headers)


def path_within(scope: Scope, root: str) -> str:
    """Return the path below a root, its ids still percent-encoded: a slash in an id does not separate segments."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%" in raw and raw.startswith(root.encode()):
        # Decoded and encoded paths are equally long exactly when nothing was encoded.
        return raw.decode("ascii", "replace")[len(root) :]
    return path[len(root) :] if root else path


# -- sending answers -------------------------------------------------------------------------------------------------


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a JSON answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(scope: Scope, receive: Receive, send: Send, refused: tuple[int, bytes, Headers]) -> None:
    """Refuse a request, or the handshake of a WebSocket."""
    status, body, headers = refused
    if scope["type"] == "http":
        # The unread body would precede the next request on this connection.
        unread = any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])
        await answer(send, status, body, [*headers, (b"connection", b"close")] if unread else headers)
        return
    logger.info("refused to open a WebSocket: %d %s", status, body.decode())
    await receive()  # "websocket.connect"
    # The WebSocket was not accepted, so the handshake is answered with 403, whatever the status.
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
