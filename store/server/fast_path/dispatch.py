"""The fast path of the hot calls: from the parser to the writer and back, without a task or an ASGI layer in between.

Each layer, and each coroutine that waits for the store, costs a request about as much time as the store needs, and does
nothing for an ordinary request. The headers show whether a request is ordinary. Its response is written when the writer
has committed. Any other request goes to the application, which would send the same response. Decision 27.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, cast

from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from store.domain.idempotency import Repeat
from store.errors import StoreError
from store.server.auth.keyring import KeyRing
from store.server.authentication import admission
from store.server.call import Call, ClientLeft
from store.server.errors import refusal
from store.server.fast_path.handlers import HANDLERS, Handler
from store.server.middleware import SECURITY, count_answer, id_of
from store.server.process.connection import Connection
from store.server.process.exchange import Header, lines
from store.server.quotas import COUNTED, PartitionQuota
from store.server.request_ids import request_id
from store.server.routing import JSON, RouteIndex, StoreRoute
from store.sql.database import StoreDatabase

logger = logging.getLogger("store.server")

_PLAIN_URL: Final = re.compile(rb"(?:/[0-9A-Za-z_.~-]+)+")
_ORDINARY: Final = frozenset(
    {
        b"host",
        b"content-type",
        b"content-length",
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"user-agent",
        b"connection",
        b"idempotency-key",
        b"x-request-id",
        b"traceparent",
        b"tracestate",
        b"authorization",
        b"x-api-key",
    }
)
"""Headers that no layer uses, or that this module checks. A request with any other header is not ordinary."""
_SINGULAR: Final = frozenset({b"idempotency-key", b"x-request-id", b"traceparent", b"tracestate"})
"""Ordinary headers whose values differ in each request. The check of a request with such a header is not cached."""
_MOST_HEADS: Final = 1024
_LONGEST_LENGTH: Final = 9
_SECURITY_LINES: Final = b"".join(map(lines.__getitem__, SECURITY))


class FastPath:
    """The fast path of one application.

    Args:
        app: answers all other requests.
        database: the database of the root partition. Other partitions have no fast path.
        operations: all routes, so that a path is matched here as in the application.
        ring: the keys. A request that would wait until they are read, or would be refused, goes to the application.
        names: the host names under which requests may reach the server; None for all.
        max_body_bytes: the largest body that is read.
    """

    def __init__(
        self,
        app: FastAPI,
        database: StoreDatabase,
        operations: Sequence[StoreRoute],
        *,
        ring: KeyRing | None,
        names: set[bytes] | None,
        max_body_bytes: int,
    ) -> None:
        self.core = database.core
        self.metrics = app.state.metrics
        self._ring = ring
        self._root_name: str = app.state.partitions.root_name
        self._quota: PartitionQuota | None = app.state.partitions.quotas.of(self._root_name)
        self._names = names
        self._limit = min(max_body_bytes, HIGH_WATER_LIMIT)
        self._fixed = {
            operation.path.encode(): operation
            for operation in operations
            if operation.method == "POST" and operation.path in HANDLERS and "{" not in operation.path
        }
        self._routes = RouteIndex(operations)
        self._scope = {
            "app": app,
            "method": "POST",
            "query_string": b"",
            "rollbook.store": app.state.partitions.root,
            "rollbook.partition": self._root_name,
            COUNTED: True,
        }
        # Clients repeat the same headers, so their check is cached. Only the length varies, among a few hundred values.
        self._checked_heads: dict[tuple[Header, ...], dict[bytes, bytes]] = {}
        self._heads: dict[int, bytes] = {}
        self._heads_of: Sequence[Header] = ()

    def take(self, connection: Connection) -> FastRequest | None:
        """Return the request whose headers have arrived, or None if the application has to answer it."""
        parser: Any = connection.parser
        if parser.get_method() != b"POST":
            return None
        url, ids = connection.url, dict[str, str]()
        operation = self._fixed.get(url)
        if operation is None and _PLAIN_URL.fullmatch(url):
            operation = self._routes.find("POST", url.decode(), ids)
        if operation is None or operation.path not in HANDLERS:
            return None
        if connection.flow.write_paused or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return None
        # A key in a cookie is not ordinary. The application checks it, with the origin of the request.
        headers = self._ordinary(connection.headers)
        scope = cast("dict[str, Any]", connection.scope)
        if headers is None or not self._may(scope, operation):
            return None
        # The application refuses a call if the calls of the partition are used up.
        if self._quota is not None and self._quota.take_call():
            return None
        path = url.decode()
        scope.update(self._scope)
        scope["path"] = scope["rollbook.path"] = path
        scope["raw_path"] = url
        scope["rollbook.route"] = operation.path
        scope["rollbook.connection"] = connection
        scope["rollbook.headers"] = headers
        return FastRequest(self, connection, operation, Call(scope, _nothing_more, ids))

    def _may(self, scope: dict[str, Any], operation: StoreRoute) -> bool:
        ring = self._ring
        if ring is None or ring.is_idle:
            return True
        if not ring.is_fresh:
            return False
        try:
            admitted = admission(scope, ring, operation, self._root_name)
        except StoreError:
            return False
        if admitted is None:
            # Before keys become required, only the application adds the warning to responses to requests without a key.
            return ring.required_from is None
        scope["rollbook.admission"] = admitted
        return True

    def _ordinary(self, pairs: list[Header]) -> dict[bytes, bytes] | None:
        """Return the headers of a request by their names, if all of them are ordinary."""
        key = tuple(pairs)
        cached = self._checked_heads.get(key)
        if cached is not None:
            return cached
        headers = dict(pairs)
        length = headers.get(b"content-length", b"")
        if (
            not (headers.keys() <= _ORDINARY and len(headers) == len(pairs))
            or headers.get(b"content-type") != JSON[1]
            or not (length.isdigit() and len(length) <= _LONGEST_LENGTH and int(length) <= self._limit)
            or not (self._names is None or headers.get(b"host", b"") in self._names)
        ):
            return None
        if _SINGULAR.isdisjoint(headers):
            if len(self._checked_heads) >= _MOST_HEADS:
                self._checked_heads.clear()
            self._checked_heads[key] = headers
        return headers

    def head(self, status: int, length: int, own_id: bytes, headers: Sequence[Header], default: list[Header]) -> bytes:
        """Return the status line and the headers of a response, without the empty line.

        `Exchange` writes the same lines.
        """
        # uvicorn creates new default headers each second, because the date changes.
        if default is not self._heads_of:
            self._heads.clear()
            self._heads_of = default
        begin = self._heads.get(status)
        if begin is None:
            begin = b"".join([STATUS_LINE[status], *map(lines.__getitem__, (*default, JSON)), b"content-length: "])
            self._heads[status] = begin
        more = b"".join(map(lines.__getitem__, headers)) if headers else b""
        return b"%b%d\r\n%b%bx-request-id: %b\r\n" % (begin, length, more, _SECURITY_LINES, own_id)


class FastRequest:
    """One request on the fast path.

    Its connection uses it as uvicorn's request cycle, and the writer uses it as a future.
    """

    def __init__(self, fast_path: FastPath, connection: Connection, operation: StoreRoute, call: Call) -> None:
        self._fast_path = fast_path
        self._handler: Handler = HANDLERS[operation.path]
        self._connection = connection
        self._operation = operation
        self._call = call
        self._started = time.perf_counter()
        self._begun: Any = None
        self.body = b""
        """The part of the body that has arrived."""
        self.keep_alive = True
        """False when the server stops. The connection is then closed after the response."""
        self.disconnected = False
        self.response_complete = False

    @cached_property
    def message_event(self) -> asyncio.Event:
        """Set by uvicorn when the client disconnects; unused here."""
        return asyncio.Event()

    @property
    def scope(self) -> Any:
        """The ASGI scope of the request."""
        return self._call.scope

    def begin(self) -> None:
        """Submit the call, whose body is complete, or hand it to the application."""
        try:
            begun = self._handler.begin(self._call, self.body)
            if begun is not None:
                command, self._begun = begun
                command.idempotency = self._call.idempotency(self.body)
                if command.actor is None and (admitted := self._call.scope.get("rollbook.admission")) is not None:
                    command.actor = admitted.actor
                if self._fast_path.core.submit(command, self):
                    return
        except Exception:
            # The application meets the same error and responds with it.
            logger.debug("the application answers a request that the fast path cannot", exc_info=True)
        self._connection.hand_over(self)

    def leave(self) -> None:
        """Count a request whose client disconnected before the whole request had arrived."""
        self._count(0)

    def cancelled(self) -> bool:
        """Return False, for the writer: a call that was begun is completed even if its client disconnects."""
        return False

    def done(self) -> bool:
        """Return False, for the writer, which then sets the result."""
        return False

    def set_result(self, result: Any, /) -> None:
        """Send the response. The writer calls this in the connection's event loop."""
        try:
            self._identify()
            self._end(result)
        except Exception:
            # Other requests of the same commit must still be answered.
            logger.exception("a request could not be answered")
            self._connection.transport.close()

    def _end(self, result: Any) -> None:
        try:
            body = None if type(result) is Repeat else self._handler.end(self._call, self._begun, result)
        except ClientLeft:
            self._count(0)
        except Exception as error:  # noqa: BLE001 - nothing above can answer; `refusal` logs a bug
            self._answer(*refusal(error, own_status=self._operation.own_statuses))
        else:
            if body is None:
                self._connection.hand_over(self)
            else:
                self._answer(self._operation.status, body, ())

    def set_exception(self, exception: BaseException, /) -> None:
        """Send the response to a call that the store refused."""
        try:
            self._identify()
            self._answer(*refusal(cast("Exception", exception), own_status=self._operation.own_statuses))
        except Exception:
            logger.exception("a request could not be refused")
            self._connection.transport.close()

    def _identify(self) -> None:
        self._id = id_of(self.scope["rollbook.headers"])
        request_id.set(self._id.decode())

    def _answer(self, status: int, body: bytes, headers: Sequence[Header]) -> None:
        self._count(status)
        connection = self._connection
        transport = connection.transport
        if transport.is_closing():
            return
        head = self._fast_path.head(status, len(body), self._id, headers, connection.server_state.default_headers)
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        transport.write(b"%b%b%b" % (head, end, body))
        self.response_complete = True
        if not self.keep_alive:
            transport.close()
        connection.on_response_complete()

    def _count(self, status: int) -> None:
        count_answer(self._fast_path.metrics, self.scope, status, time.perf_counter() - self._started)


async def _nothing_more() -> Any:
    raise AssertionError("the body of a request on the fast path was read already")
