"""The outermost layers: each request gets an id, a limited body and safe headers, and is counted and logged.

One ASGI layer does all of this. Each further layer would cost each request another call and another copy of its
headers.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Awaitable
from itertools import count
from secrets import randbits
from typing import Any, Final, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from store.runtime import process
from store.server.call import headers_of
from store.server.errors import BodyTooLarge, refusal
from store.server.metrics.requests import Metrics
from store.server.request_ids import request_id
from store.server.routing import answer
from store.wire.paths import REQUEST_ID

access_logger = logging.getLogger("store.server.access")

MAX_BODY_BYTES: Final = 32 * 1024 * 1024

_REQUEST_ID: Final = REQUEST_ID.lower().encode()
_PLAIN_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    # A page of another origin cannot embed or load a response, and cannot see which page linked to it.
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
"""The security headers of every response."""
_SECURITY_OF_FILES: Final = tuple(header for header in SECURITY if header[0] != b"cache-control")


class ForwardedLayer:
    """An ASGI layer that accepts the client's address and scheme from a trusted proxy, as uvicorn does.

    uvicorn's layer searches the headers of every request. This layer calls uvicorn's layer only for requests with
    forwarding headers. The environment variable FORWARDED_ALLOW_IPS lists the trusted proxies; the default is this
    machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._forwarded: Any = ProxyHeadersMiddleware(
            cast("Any", app), os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass on a request."""
        if scope["type"] == "lifespan" or _FORWARDED.isdisjoint(headers_of(scope)):
            return self._app(scope, receive, send)
        return self._forwarded(scope, receive, send)


_FORWARDED: Final = frozenset({b"x-forwarded-proto", b"x-forwarded-for"})


class RequestLayer:
    """An ASGI layer that assigns an id to each request, limits its body, and counts it.

    Args:
        app: the next layer.
        metrics: counts requests.
        max_body_bytes: the largest body that is read.
        unbounded: the suffix of the paths whose route limits the size of bodies itself.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, max_body_bytes: int = MAX_BODY_BYTES, unbounded: str | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._unbounded = unbounded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = headers_of(scope)
        own_id = id_of(headers)
        request_id.set(own_id.decode())
        status = 0

        async def send_framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                safe = SECURITY if "rollbook.cacheable" not in scope else _SECURITY_OF_FILES
                message["headers"] = [*message["headers"], *safe, (_REQUEST_ID, own_id)]
                if (warning := scope.get("rollbook.warning")) is not None:
                    message["headers"].append((b"warning", warning))
            await send(message)

        try:
            # The length of a chunked body is unknown.
            is_chunked = b"transfer-encoding" in headers
            digits = headers.get(b"content-length", b"0")
            length = int(digits) if digits.isdigit() else 0
            is_unbounded = self._unbounded is not None and scope["path"].endswith(self._unbounded)
            if (is_chunked or length > self._max_body_bytes) and not is_unbounded:
                if not is_chunked:
                    await answer(send_framed, *refusal(BodyTooLarge(length, self._max_body_bytes)))
                    return
                receive = self._counted(receive)
            await self._app(scope, receive, send_framed)
        except Exception as error:
            if status:
                raise
            await answer(send_framed, *refusal(error))
        finally:
            count_answer(self._metrics, scope, status, time.perf_counter() - started)

    def _counted(self, receive: Receive) -> Receive:
        """Return a channel that raises an error when a body of unknown length becomes too long."""
        size, limit = 0, self._max_body_bytes

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > limit:
                    raise BodyTooLarge(size, limit)
            return message

        return receive_counted


def count_answer(metrics: Metrics, scope: Scope, status: int, seconds: float) -> None:
    """Count and log a response. A status of 0 means that the client disconnected."""
    route: str = scope.get("rollbook.route", "other")
    metrics.request(scope["method"], route, status, None if "rollbook.waited" in scope else seconds)
    level = logging.DEBUG if status < 400 else logging.INFO
    if not access_logger.isEnabledFor(level):
        return
    client = scope.get("client")
    fields = {
        "method": scope["method"],
        # The query is left out, because it may contain data of users.
        "path": scope["path"],
        "partition": scope.get("rollbook.partition"),
        "status": status,
        "ms": round(seconds * 1000, 3),
        "client": None if client is None else client[0],
        "key": scope.get("rollbook.key_id"),
    }
    access_logger.log(level, "%s %s %d", scope["method"], route, status, extra=fields)


def id_of(headers: dict[bytes, bytes]) -> bytes:
    """Return the id that the client sent, or a new id of 16 hex digits."""
    sent = headers.get(_REQUEST_ID)
    if sent is not None and _PLAIN_ID.fullmatch(sent):
        return sent
    # Random bytes would need a system call for each request, and the writer's thread would take the interpreter lock
    # meanwhile.
    return b"%08x%08x" % (_PROCESS ^ process.number, next(_numbers) & 0xFFFF_FFFF)


_PROCESS: Final = randbits(32)
_numbers: Final = count(randbits(32))
