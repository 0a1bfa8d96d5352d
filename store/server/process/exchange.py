"""HTTP request and response on a connection. Head and body are sent in one write. See decision 18."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Header = tuple[bytes, bytes]

# Characters that are not allowed in headers, since they could start another header or the body.
_NO_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]").search
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
_BODILESS: Final = frozenset({204, 304})
_FRAMING: Final = frozenset({b"connection", b"transfer-encoding"})
# Headers that differ in each response.
_SINGULAR: Final = frozenset({b"content-length", b"x-request-id"})
MOST_LINES: Final = 256

DRAINED_BYTES: Final = 128 * 1024 * 1024
"""The maximum number of bytes of an unread request body that are discarded before the connection is closed."""
DRAIN_SECONDS: Final = 10.0
"""The time limit for reading and discarding the unread body."""


class _Lines(dict[Header, bytes]):
    """Cache of encoded header lines. Many responses share a line, for example the date of the current second."""

    def __missing__(self, header: Header) -> bytes:
        name, value = header
        if _NO_NAME(name) or _NO_VALUE(value):
            raise RuntimeError(f"not an HTTP header: {name!r}: {value!r}")
        line = b"%b: %b\r\n" % (name.lower(), value)
        if name not in _SINGULAR:
            if len(self) >= MOST_LINES:
                self.clear()
            self[header] = line
        return line


lines: Final = _Lines()
"""Encoded header lines by name and value."""


class Exchange(RequestResponseCycle):
    """Request cycle of uvicorn that sends head and body in one write, which halves the work of kernel and client.

    Responses in several parts or of unknown length are sent by the base class.

    If the connection must be closed while the client still sends a body that the application has not read, the rest of
    the body is read and discarded first. Otherwise the kernel would reset the connection, and most clients would report
    the reset instead of the response.
    """

    _head: bytes | None = None

    @classmethod
    def adopt(cls, cycle: RequestResponseCycle) -> None:
        """Change the class of a cycle that uvicorn has just created, before it calls the application."""
        # uvicorn creates the cycle during parsing, and the class of the cycle cannot be configured.
        cycle.__class__ = cls

    async def send(self, message: Any) -> None:
        """Handle an ASGI message of the response."""
        if self._head is not None:
            head, self._head = self._head, None
            if self._is_whole(message):
                self.transport.write(head + message.get("body", b""))
                self.response_complete = True
                self.message_event.set()
                if not self.keep_alive:
                    self.transport.close()
                self.on_response()
                return
            if not self.disconnected:
                self.transport.write(head)
        elif not self.response_started and message["type"] == "http.response.start":
            self._head = self._held(message["status"], message.get("headers", ()))
            if self._head is not None:
                return
        if message["type"] == "http.response.body" and self._closes_early and not message.get("more_body"):
            await super().send({"type": "http.response.body", "body": message.get("body", b""), "more_body": True})
            await self._drain()
            message = {"type": "http.response.body"}
        await super().send(message)

    @property
    def _closes_early(self) -> bool:
        """Whether the connection will be closed before the body of the request has arrived completely."""
        return self.more_body and not self.keep_alive and not self.disconnected

    async def _drain(self) -> None:
        remaining = DRAINED_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._closes_early and remaining > 0:
                    remaining -= len((await self.receive()).get("body", b""))

    def _held(self, status: int, headers: Sequence[Header]) -> bytes | None:
        """Return the head if it can be sent together with the body, else None."""
        if self.disconnected or self.access_log or status in _BODILESS or self.scope["method"] == "HEAD":
            return None
        if self._closes_early:
            return None
        named = dict(headers)
        length = named.get(b"content-length")
        if length is None or not length.isdigit() or not _FRAMING.isdisjoint(named):
            return None
        line_of = lines.__getitem__
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = b"".join([STATUS_LINE[status], *map(line_of, self.default_headers), *map(line_of, headers), end])
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = False
        self.expected_content_length = int(length)
        return head

    def _is_whole(self, message: Any) -> bool:
        return (
            not message.get("more_body")
            and len(message.get("body", b"")) == self.expected_content_length
            and message["type"] == "http.response.body"
            and not self.flow.write_paused
            and not self.disconnected
        )
