"""One client's connection: the limits of its requests, and the detection of responses that the client did not read."""

from __future__ import annotations

import asyncio
import math
import re
import select
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from store.server.process.exchange import DRAIN_SECONDS, DRAINED_BYTES, Exchange
from store.wire import paths

READ_SECONDS: Final = 60.0
"""The time limit for a request to arrive, from its first byte to the end of its body."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""The largest size of the request line and the headers together."""

# The paths whose query parameters can also be sent as the body of a POST.
_SEARCHED: Final = re.compile(
    rb"(?:/p/[^/]+)?(?:%b|%b|%b|%b)"
    % tuple(
        re.sub(r"\\\{.*?\\\}", "[^/]+", re.escape(path)).encode()
        for path in (paths.ROLLOUTS, paths.ATTEMPTS, paths.WORKERS, paths.SPANS)
    )
)
# Linux reports at once that the peer has closed its end of the connection. Other systems report it a little later.
_PEER_CLOSED: Final[int] = getattr(select, "POLLRDHUP", 0)
_RESET: Final = select.POLLERR | select.POLLHUP
# A client that disconnects later is assumed to have read its response.
_UNREAD_SECONDS: Final = 1.0


class DirectRequest(Protocol):
    """A request that is answered without the application. uvicorn uses it as the request cycle of the connection."""

    body: bytes
    keep_alive: bool
    disconnected: bool

    @property
    def scope(self) -> Any:
        """The ASGI scope of the request."""
        ...

    def begin(self) -> None:
        """Answer the request. Its body is complete."""
        ...

    def leave(self) -> None:
        """Record that the client disconnected before the body was complete."""
        ...


class DirectPath(Protocol):
    """Answers some requests without the application."""

    def take(self, connection: Connection) -> DirectRequest | None:
        """Return the request whose headers have arrived, or None if the application has to answer it."""
        ...


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on requests, and detection of clients that disconnect without reading."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_arriving = False
        self._head_bytes: int | None = 0
        self._discarded: int | None = None
        """The number of bytes of a refused request that were discarded; None if no request was refused."""
        self._is_in_body = False
        self._unsent: float = math.inf
        # The fast path answers some requests without the application. Only Rollbook's application has one, and it can
        # be switched off.
        self._fast_path: DirectPath | None = getattr(getattr(self._application, "state", None), "fast_path", None)
        self._direct: DirectRequest | None = None
        self._unread: tuple[float, Callable[[], None]] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's own
        super().connection_made(transport)
        self._deadline = self.loop.call_later(READ_SECONDS, self._close_late)

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > DRAINED_BYTES:
                self.transport.close()
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # The parser knows whether these bytes contain the end of the headers. If they do, the limit does not apply,
        # because a large body may follow.
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()
            return
        # Most requests arrive in one piece and need no timer.
        if self._is_arriving and self._deadline is None:
            self._deadline = self.loop.call_later(READ_SECONDS, self._close_late)

    def _refuse_head(self) -> None:
        """Answer a request whose head is too long, and discard the rest of it.

        If the connection were closed at once, the kernel would reset it, and most clients would report the reset
        instead of the response.
        """
        self._discarded = 0
        text = f"The request line and headers are longer than {MAX_HEAD_BYTES:,} bytes."
        path, mark, _ = self.url.partition(b"?")
        if mark and _SEARCHED.fullmatch(path):
            text += f" Send the parameters as JSON in the body of POST {path.decode('ascii')}/search."
        body = text.encode("ascii")
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        self.transport.write(
            b"".join([STATUS_LINE[400], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", body])
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_deadline()
        self._deadline = self.loop.call_later(DRAIN_SECONDS, self._close_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # A client that sends another request has read the previous response.
        self._unread = None
        self._unsent = math.inf
        self._is_arriving = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers may follow a chunked body. Trailers are ignored, and their size has no limit.
        if self._is_in_body:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._is_in_body = True
        cycle = cast("RequestResponseCycle | None", self.cycle)
        # The fast path has no queue for requests that arrive before the previous response is sent.
        if self._fast_path is not None and (cycle is None or cycle.response_complete):
            direct = self._direct = self._fast_path.take(self)
            if direct is not None:
                self.cycle = cast("RequestResponseCycle", direct)
                return
        self.scope["rollbook.connection"] = self  # pyright: ignore[reportGeneralTypeIssues] - servers may add keys
        before = self.cycle
        super().on_headers_complete()
        # An upgrade of the connection creates no cycle.
        if self.cycle is not before:
            Exchange.adopt(self.cycle)

    def on_body(self, body: bytes) -> None:
        if self._direct is not None:
            self._direct.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        direct, self._direct = self._direct, None
        if direct is None:
            super().on_message_complete()
        self._head_bytes = 0
        self._is_in_body = False
        self._end_deadline()
        if direct is not None:
            direct.begin()

    @property
    def _application(self) -> Any:
        return self.app  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType] - uvicorn declares no type

    def hand_over(self, direct: DirectRequest) -> None:
        """Let the application answer a request that the fast path has accepted."""
        cycle = RequestResponseCycle(
            scope=direct.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=direct.keep_alive,
            on_response=self.on_response_complete,
        )
        Exchange.adopt(cycle)
        cycle.disconnected = direct.disconnected
        cycle.body += direct.body
        cycle.more_body = False
        cycle.message_event.set()
        # If the next request has begun to arrive, `self.cycle` belongs to that request.
        if self.cycle is cast("RequestResponseCycle", direct):
            self.cycle = cycle
        self._start_asgi_task(cycle, self._application)

    def shutdown(self) -> None:
        # A request that has not arrived completely by now gets no response.
        if self._deadline is not None:
            self.transport.close()
        else:
            super().shutdown()

    def _end_deadline(self) -> None:
        self._is_arriving = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection: its client sends no request, or does not read the response."""
        unsent: int = self.transport.get_write_buffer_size()
        if unsent == 0:
            super().timeout_keep_alive_handler()
        elif unsent < self._unsent:
            self._unsent = unsent
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            # A normal close would wait until the client has read everything.
            self.transport.abort()

    def if_unread(self, undo: Callable[[], None]) -> bool:
        """Undo the effect of a response if the client disconnects without reading it.

        Return whether the client has already disconnected.

        Args:
            undo: reverses the effect; called at most once, in the server's event loop.
        """
        # The event loop may not have noticed yet that the client closed its end.
        if self.transport.is_closing() or self._socket_events() & _PEER_CLOSED:
            self.cycle.disconnected = True
            self.transport.close()
            undo()
            return True
        self._unread = (self.loop.time() + _UNREAD_SECONDS, undo)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        if self._direct is not None:
            self._direct.leave()
            self._direct = None
        super().connection_lost(exc)
        # The peer resets the connection if it closes the connection with unread data, or receives data after closing.
        if exc is not None:
            self._undo_unread()

    def eof_received(self) -> None:
        super().eof_received()
        # A peer that receives data after closing sends a reset. The reset has already arrived, even if a read reports
        # only the end of the stream.
        if self._unread is not None and self._socket_events() & _RESET:
            self._undo_unread()

    def _undo_unread(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None and self.loop.time() < unread[0]:
            unread[1]()

    def _socket_events(self) -> int:
        """Return the current events of the socket."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _PEER_CLOSED)
        return sum(events for _, events in poll.poll(0))
