"""What happens to every request: it gets an id, a bounded body and safe headers, and is counted and logged.

One ASGI layer rather than five: each would cost every request another frame and another copy of its headers.
"""

from __future__ import annotations

import logging
import re
import time
from contextvars import ContextVar
from secrets import token_hex
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.server.call import headers_of
from store.server.metrics import Metrics
from store.server.refusals import BodyTooLarge, refusal
from store.server.routing import answer
from store.wire.paths import REQUEST_ID

access_logger = logging.getLogger("store.server.access")

MAX_BODY_BYTES: Final = 32 * 1024 * 1024

request_id: ContextVar[str | None] = ContextVar("rollbook_request_id", default=None)
"""The id of the request this task answers, for logs."""

_REQUEST_ID: Final = REQUEST_ID.lower().encode()
_PLAIN_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_SECURITY: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class RequestLayer:
    """The outermost layer of ours.

    Args:
        app: what answers.
        metrics: where requests are counted.
        max_body_bytes: the largest body that is read.
        unbounded: the end of a path whose route bounds its bodies itself.
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
        own_id, length, is_chunked = _told(scope)
        request_id.set(own_id)
        status = 0
        extra = (*_SECURITY, (_REQUEST_ID, own_id.encode()))

        async def send_framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            if (is_chunked or length > self._max_body_bytes) and not self._is_unbounded(scope):
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
            self._told_all(scope, status, time.perf_counter() - started)

    def _is_unbounded(self, scope: Scope) -> bool:
        return self._unbounded is not None and scope["path"].endswith(self._unbounded)

    def _counted(self, receive: Receive) -> Receive:
        """Return a channel that breaks off once a body whose length was not announced is too long."""
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

    def _told_all(self, scope: Scope, status: int, seconds: float) -> None:
        route: str = scope.get("rollbook.route", "other")
        self._metrics.request(scope["method"], route, status, seconds)
        level = logging.DEBUG if status < 400 else logging.INFO
        if access_logger.isEnabledFor(level):
            access_logger.log(level, "%s %s %d", scope["method"], route, status, extra=_fields(scope, status, seconds))


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "method": scope["method"],
        # Without the query, which may hold what users wrote.
        "path": scope["path"],
        "partition": scope.get("rollbook.partition"),
        "status": status,
        "ms": round(seconds * 1000, 3),
        "client": None if client is None else client[0],
    }


def _told(scope: Scope) -> tuple[str, int, bool]:
    """Return what the headers say: the request's id, the length of its body, and whether that is not announced."""
    headers = headers_of(scope)
    own_id = headers.get(_REQUEST_ID)
    if own_id is None or not _PLAIN_ID.fullmatch(own_id):
        own_id = token_hex(8).encode()
    length = headers.get(b"content-length", b"0")
    return own_id.decode(), int(length) if length.isdigit() else 0, b"transfer-encoding" in headers
