"""One request and its answer on a connection. An answer is sent in one write, and lines of its head are cached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Header = tuple[bytes, bytes]

# Characters that could split a header in two, or begin the body in it.
_NO_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]").search
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
_BODILESS: Final = frozenset({204, 304})
_FRAMING: Final = frozenset({b"connection", b"transfer-encoding"})
# Headers that differ in each answer.
_SINGULAR: Final = frozenset({b"content-length", b"x-request-id"})
MOST_LINES: Final = 256


class _Lines(dict[Header, bytes]):
    """The lines of headers that are equal in many answers; the date is equal for a second."""

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
"""The lines by name and value."""


class Exchange(RequestResponseCycle):
    """Request cycle of uvicorn that sends head and body in one write, which halves the work of kernel and client.

    Answers in several parts, or without a known length, are sent by uvicorn.
    """

    _head: bytes | None = None

    @classmethod
    def adopt(cls, cycle: RequestResponseCycle) -> None:
        """Replace the cycle of a request that uvicorn has just accepted, before its application begins."""
        # uvicorn creates its cycle during parsing, and its class cannot be configured.
        cycle.__class__ = cls

    async def send(self, message: Any) -> None:
        """Accept an ASGI message of the answer."""
        if self._head is not None:
            head, self._head = self._head, None
            if self._is_whole(message):
                self._finish(head + message.get("body", b""))
                return
            if not self.disconnected:
                self.transport.write(head)
        elif not self.response_started and message["type"] == "http.response.start":
            self._head = self._held(message["status"], message.get("headers", ()))
            if self._head is not None:
                return
        await super().send(message)

    def _held(self, status: int, headers: Sequence[Header]) -> bytes | None:
        """Return the head, to be sent with the body, if this is an answer of known length."""
        if self.disconnected or self.access_log or status in _BODILESS or self.scope["method"] == "HEAD":
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

    def _finish(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
