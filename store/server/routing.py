"""From a method and a path to the function that answers.

FastAPI's router tries one regular expression after another, and its endpoints resolve dependencies, validate and
serialise: together several times what the store itself needs for a small call. Here a path is looked up, the endpoint
returns the bytes of its answer, and FastAPI keeps what it is good at: the other routers, the schema, the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar, cast
from urllib.parse import unquote

from fastapi import Path
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.types import ASGIApp, Receive, Scope, Send

from store.models.queries import PageQuery
from store.server.api_schema import declare
from store.server.call import Call, ClientLeft, checked
from store.server.errors import Headers, refusal
from store.server.response_spool import Spool, send_spooled
from store.sql.api_keys import Role

A = TypeVar("A", bound="Addressed")
E = TypeVar("E", bound=Callable[..., Any])

Id = Annotated[str, Path(min_length=1)]
"""An id in a path."""

_ID: Final = re.compile(r"\{(\w+)\}")
_NO_BODY: Final = frozenset({b"", b"null"})


@dataclass(frozen=True, slots=True)
class Created:
    """An answer that says where what was created is found."""

    body: bytes
    location: str
    """Its path."""


Endpoint = Callable[[Call], Awaitable[bytes | Spool | Created]]
JSON: Final = (b"content-type", b"application/json")
"""The header that tells of what kind all answers of the store are."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as it is served and as the schema declares it."""

    method: str
    path: str
    """A template: `/v1/agl/workers/{worker_id}`."""
    endpoint: Endpoint
    tag: str
    status: int = 200
    """Of a success."""
    body: Any = None
    """Type of the request body."""
    body_required: bool = True
    query: Any = None
    """Model of the query parameters."""
    answer: Any = None
    """Type of the answer."""
    own_statuses: bool = False
    """Whether each class of error has its own status, as `store.wire.errors.status_of` says."""
    locates: bool = False
    """Whether it answers `Created`."""


@dataclass(slots=True)
class Operations:
    """The operations of one module."""

    tag: str
    own_statuses: bool = False
    """Of what Agent-lightning's clients do not call."""
    items: list[Operation] = field(default_factory=list[Operation])

    def get(self, path: str, *, query: Any = None, answer: Any = None) -> Callable[[Endpoint], Endpoint]:
        """Declare what answers a GET."""

        def declare(endpoint: Endpoint) -> Endpoint:
            self._add(Operation("GET", path, endpoint, self.tag, query=query, answer=answer))
            return endpoint

        return declare

    def post(
        self,
        path: str,
        *,
        body: Any = None,
        body_required: bool = True,
        answer: Any = None,
        status: int = 200,
        locates: bool = False,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare what answers a POST."""

        def declare(endpoint: Endpoint) -> Endpoint:
            more: dict[str, Any] = {"answer": answer, "locates": locates}
            self._add(Operation("POST", path, endpoint, self.tag, status, body, body_required, **more))
            return endpoint

        return declare

    def _add(self, operation: Operation) -> None:
        self.items.append(replace(operation, own_statuses=self.own_statuses))


class StoreRoute(APIRoute):
    """A route of the store. FastAPI reads its signature for the schema; the endpoint returns the bytes of its answer.

    FastAPI's own handler resolves dependencies, validates and serialises, which takes several times what the store
    needs for a small call. This one validates the query and the body as `Call` does, and calls the endpoint.
    """

    own_statuses: ClassVar[bool] = False
    """Whether each class of error has its own status, as `store.wire.errors.status_of` says."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.role: Role = vars(endpoint)["role"]
        (self.method,) = settings["methods"]
        self.status: int = settings["status_code"] or 200
        summary = (endpoint.__doc__ or "").partition("\n")[0]
        settings["operation_id"] = endpoint.__name__
        settings = declare(settings, summary, self.role, self.status, own_statuses=self.own_statuses)
        super().__init__(path, endpoint, **settings)
        self.answer = self.response_model
        queries, bodies = self.dependant.query_params, self.dependant.body_params
        self.query: Any = queries[0].field_info.annotation if queries else None
        """Model of the query parameters."""
        self.body: Any = bodies[0].field_info.annotation if bodies else None
        """Type of the request body."""
        self._query_name = queries[0].name if queries else ""
        self._body_name = bodies[0].name if bodies else ""
        self._body_is_required = bool(bodies) and bodies[0].field_info.is_required()
        self._body_type = TypeAdapter(self.body).validator if bodies else None

    async def respond(self, call: Call) -> bytes | Spool | Created:
        """Validate what a call carries, and call the endpoint.

        Raises:
            Exception: whatever the endpoint raises, or a fault of the request.
        """
        arguments: dict[str, Any] = {**call.ids}
        if self.query is not None:
            query = call.query(self.query)
            arguments[self._query_name] = checked(query) if isinstance(query, PageQuery) else query
        if self.method != "GET":
            body = await call.read()
            if self._body_type is not None:
                is_absent = not self._body_is_required and body in _NO_BODY
                value = self.body() if is_absent else call.parsed(body, self._body_type)
                arguments[self._body_name] = checked(value) if isinstance(value, PageQuery) else value
        return await self.endpoint(call, **arguments)


class OwnStatusRoute(StoreRoute):
    """A route that Agent-lightning's clients do not call, whose errors have statuses of their own."""

    own_statuses = True


def needs(role: Role) -> Callable[[E], E]:
    """Declare the role that a route requires; the authentication layer enforces it before the body is read."""

    def mark(endpoint: E) -> E:
        vars(endpoint)["role"] = role
        return endpoint

    return mark


class Addressed(Protocol):
    """Anything that is reached by a method and a path template."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...


class RouteIndex(Generic[A]):
    """Routes by method and path: a table of paths without ids, and a regular expression per method for the others.

    A literal segment takes precedence over an id: `/attempts/latest` does not name an attempt.
    """

    def __init__(self, routes: Iterable[A]) -> None:
        self._methods: dict[str, tuple[re.Pattern[str], dict[int, tuple[A, list[str]]]]] = {}
        # The cheapest reads are page queries at literal paths, and a lookup takes a tenth of a match.
        self._literal: dict[tuple[str, str], A] = {}
        by_method: dict[str, list[A]] = {}
        for route in routes:
            with_ids = by_method.setdefault(route.method, [])
            if "{" in route.path:
                with_ids.append(route)
            else:
                self._literal[route.method, route.path] = route
        for method, several in by_method.items():
            several.sort(key=lambda route: [segment.startswith("{") for segment in route.path.split("/")])
            patterns, by_group, group = list[str](), dict[int, tuple[A, list[str]]](), 1
            for route in several:
                names = _ID.findall(route.path)
                literals = map(re.escape, _ID.sub("\0", route.path).split("\0"))
                patterns.append(f"({'([^/]+)'.join(literals)})")
                by_group[group] = route, names
                group += 1 + len(names)
            self._methods[method] = re.compile("|".join(patterns) or "(?!)"), by_group

    def find(self, method: str, path: str, ids: dict[str, str]) -> A | None:
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


class RouteTable:
    """An ASGI layer that answers what it has an operation for, and hands on the rest."""

    def __init__(self, app: ASGIApp, operations: Sequence[Operation | StoreRoute]) -> None:
        self._app = app
        self._routes = RouteIndex(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], path_within(scope, scope.get("root_path", ""))
        ids: dict[str, str] = {}
        operation = self._routes.find(method, path, ids)
        if operation is None:
            # As in Agent-lightning 0.3, whose dashboard lies behind every path and takes GET alone.
            others = [] if method == "GET" else self._routes.other_methods(method, path)
            if others:
                await answer(send, 405, b'{"detail":"Method Not Allowed"}', [(b"allow", ", ".join(others).encode())])
            else:
                await self._app(scope, receive, send)
            return
        scope["rollbook.path"] = path
        scope["rollbook.route"] = operation.path
        status, headers = operation.status, Headers()
        try:
            call = Call(scope, receive, ids)
            body = await (operation.respond(call) if isinstance(operation, StoreRoute) else operation.endpoint(call))
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001 - the last one who can answer; a bug is logged there
            status, body, headers = refusal(error, own_status=operation.own_statuses)
        if isinstance(body, Created):
            headers.append((b"location", body.location.encode("ascii")))
            body = body.body
        if isinstance(body, Spool):
            await _answer_spooled(scope, send, status, body)
            return
        await answer(send, status, body, headers)


def path_within(scope: Scope, root: str) -> str:
    """Return the path below a root, its ids still percent-encoded: a slash in an id is no separator."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%" in raw and raw.startswith(root.encode()):
        # Decoded and encoded paths are equally long exactly when nothing was encoded.
        return raw.decode("ascii", "replace")[len(root) :]
    return path[len(root) :] if root else path


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a JSON answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _answer_spooled(scope: Scope, send: Send, status: int, body: Spool) -> None:
    length = (b"content-length", b"%d" % body.size)
    try:
        await send({"type": "http.response.start", "status": status, "headers": [JSON, length]})
        await send_spooled(scope, send, body)
    except ClientLeft:
        return
    finally:
        body.close()
