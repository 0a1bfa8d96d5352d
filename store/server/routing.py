"""From a method and a path to the function that answers.

FastAPI's router tries one regular expression after another, and its endpoints resolve dependencies, validate and
serialise: together several times what the store itself needs for a small call. Here a path is looked up, the endpoint
returns the bytes of its answer, and FastAPI keeps what it is good at: the other routers, the schema, the documentation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from store.domain.commands import Command
from store.server.call import Call, ClientLeft
from store.server.errors import Headers, refusal
from store.server.response_spool import Spool, send_spooled


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
class Direct:
    """An operation on a SQL store that is answered without a coroutine, see `store.server.process.fast_path`."""

    begin: Callable[[Call, bytes], tuple[Command, Any] | None]
    """Returns the command of a call, made of its body, and what `end` needs besides; None, or an error, where it is
    more than a command: then the endpoint is asked."""
    end: Callable[[Call, Any, Any], bytes | None]
    """Returns the answer to a call, made of that and of what the writer told; None to ask the endpoint."""


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
    direct: Direct | None = None
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
        direct: Direct | None = None,
        locates: bool = False,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare what answers a POST."""

        def declare(endpoint: Endpoint) -> Endpoint:
            more: dict[str, Any] = {"answer": answer, "direct": direct, "locates": locates}
            self._add(Operation("POST", path, endpoint, self.tag, status, body, body_required, **more))
            return endpoint

        return declare

    def _add(self, operation: Operation) -> None:
        self.items.append(replace(operation, own_statuses=self.own_statuses))


@dataclass(slots=True)
class _Node:
    """A place in the tree of path segments, of one method."""

    literal: dict[str, _Node] = field(default_factory=dict[str, "_Node"])
    any: tuple[str, _Node] | None = None
    """The name of the id that may stand here, and what follows it."""
    operation: Operation | None = None

    def add(self, segments: list[str], operation: Operation) -> None:
        if not segments:
            self.operation = operation
            return
        first, rest = segments[0], segments[1:]
        if first.startswith("{"):
            self.any = self.any or (first[1:-1], _Node())
            self.any[1].add(rest, operation)
        else:
            self.literal.setdefault(first, _Node()).add(rest, operation)

    def find(self, segments: list[str], at: int, ids: dict[str, str]) -> Operation | None:
        if at == len(segments):
            return self.operation
        segment = segments[at]
        # Words before ids: /attempts/latest is no attempt's id. But where the words lead nowhere, it is one.
        if (node := self.literal.get(segment)) and (found := node.find(segments, at + 1, ids)):
            return found
        if self.any is None or not segment:
            return None
        name, node = self.any
        found = node.find(segments, at + 1, ids)
        if found is not None:
            ids[name] = unquote(segment)
        return found


class Routes:
    """Operations, by method and path."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._fixed: dict[tuple[str, str], Operation] = {}
        self._trees: dict[str, _Node] = {}
        for operation in operations:
            if "{" not in operation.path:
                self._fixed[operation.method, operation.path] = operation
            self._trees.setdefault(operation.method, _Node()).add(operation.path.split("/"), operation)

    def find(self, method: str, path: str, ids: dict[str, str]) -> Operation | None:
        """Return what answers a path, as `path_within` gives it, and add the ids in it."""
        operation = self._fixed.get((method, path))
        if operation is not None:
            return operation
        tree = self._trees.get(method)
        return None if tree is None else tree.find(path.split("/"), 0, ids)

    def other_methods(self, method: str, path: str) -> list[str]:
        """Return the other methods that a path has."""
        return sorted(other for other in self._trees if other != method and self.find(other, path, {}))


class RouteTable:
    """An ASGI layer that answers what it has an operation for, and hands on the rest."""

    def __init__(self, app: ASGIApp, operations: Sequence[Operation]) -> None:
        self._app = app
        self._routes = Routes(operations)

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
            body = await operation.endpoint(Call(scope, receive, ids))
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
