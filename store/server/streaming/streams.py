"""Streams of the log over HTTP: server-sent events and WebSockets, with the frames of `store.server.streaming.feed`.

`GET /log`, `GET /rollouts/{id}/history` and `GET /rollouts/{id}/events/stream` become streams when the client accepts
`text/event-stream`; `/log/ws` and `/rollouts/{id}/events/ws` are WebSockets. There is no separate channel for new
events. A stream reads the log and waits at the end of the log, so past and new events come from one source. A reader
that reads nothing for too long is disconnected. It can resume from its cursor. The server keeps no events for
disconnected readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.errors import NotFound, StoreError, Unavailable
from store.planning.follow import FutureCursor
from store.server.auth.admission import Admission, protocol_chosen, while_admitted
from store.server.auth.origins import may_come_from
from store.server.call import Call, ClientLeft
from store.server.errors import MalformedRequest, refusal
from store.server.pending import Parked
from store.server.routing import answer
from store.server.streaming.feed import Feed, Feeding, Frame, TailQuery, begin, frame
from store.server.streaming.front_end import OpenStream
from store.server.streaming.hub import Hubs
from store.server.streaming.output import FRAGMENTS, EventsOutput, Output, SocketOutput, Turns, as_event
from store.server.streaming.paths import SOCKETS, Followed, StreamPaths
from store.server.streaming.run_feed import RunStreamQuery, resumed, run_feed
from store.server.streaming.run_pages import SharedRuns
from store.server.streaming.slots import StreamSlots
from store.wire import paths
from store.wire.bodies import LogQuery
from store.wire.errors import error_body

HEARTBEAT_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 30.0
FAREWELL_SECONDS: Final = 2.0
"""The time limit for writing the last frame to a slow reader."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Without this header, proxies such as nginx would buffer frames.
    (b"x-accel-buffering", b"no"),
]
# A browser waits this many milliseconds before it reconnects.
_RETRY: Final = b"retry: 1000\n"
_DONE, _GOING_AWAY, _REFUSED, _FAILED, _LATER = 1000, 1001, 1008, 1011, 1013


class StreamLayer:
    """An ASGI layer that answers requests for streams, and passes on all other requests.

    `PartitionLayer` must be an outer layer.

    Args:
        app: the next layer.
        parked: the waiting calls, which include the streams.
        slots: the limits on the number of open streams; None for `StreamSlots()`.
        heartbeat_seconds: the longest time without a frame.
        write_seconds: the time after which a reader that reads nothing is disconnected.
        sockets: the WebSockets of a front end, by path template.
        origins: origins whose pages may open a WebSocket, besides the server's own; `*` for all.
    """

    def __init__(
        self,
        app: ASGIApp,
        parked: Parked,
        *,
        sockets: Mapping[str, OpenStream] | None = None,
        origins: Sequence[str] = (),
        slots: StreamSlots | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._app = app
        self._parked = parked
        self._hubs = Hubs()
        self._runs = SharedRuns(self._hubs)
        self._front_end_sockets = sockets or {}
        self._sockets = StreamPaths([*(route.path for route in SOCKETS), *self._front_end_sockets])
        self._event_streams = StreamPaths((paths.LOG, paths.HISTORY, paths.RUN_STREAM))
        self._origins = frozenset(origin.lower() for origin in origins)
        self._slots = slots or StreamSlots()
        self._turns = Turns()
        self._heartbeat_seconds = heartbeat_seconds
        self._write_seconds = write_seconds

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Follow the log or a run, or pass on the request."""
        if scope["type"] == "websocket":
            followed = self._sockets.find(_path_of(scope))
            if followed is not None:
                return self._socket(scope, receive, send, followed)
        elif scope["type"] == "http" and scope["path"].endswith(("/log", "/history", "/events/stream")):
            followed = self._event_streams.find(_path_of(scope))
            if followed is not None and _wants_events(scope):
                return self._events(scope, receive, send, followed)
        return self._app(scope, receive, send)

    async def _events(self, scope: Scope, receive: Receive, send: Send, followed: Followed) -> None:
        scope["rollbook.route"] = followed.template
        scope["rollbook.waited"] = True
        async with AsyncExitStack() as stack:
            try:
                feed = await stack.enter_async_context(self._feed(Call(scope, receive, {}), followed, together=True))
            except Exception as error:  # noqa: BLE001 - no other layer can answer; `refusal` logs a bug
                await answer(send, *refusal(error, own_status=followed.template == paths.RUN_STREAM))
                return
            await self._write_events(scope, receive, send, feed)

    async def _write_events(self, scope: Scope, receive: Receive, send: Send, feed: Feeding) -> None:
        output = EventsOutput(send, self._write_seconds, self._turns)
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
        with self._parked.streaming(feed):
            try:
                await self._parked.run(receive, while_admitted(scope, lambda: feed.run(output.write)))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except ClientLeft:
                return
            except Exception as error:  # noqa: BLE001 - the last frame reports the error
                last = b"" if output.is_within_frame else as_event(feed.farewell(error))
                try:
                    async with asyncio.timeout(FAREWELL_SECONDS):
                        await send({"type": "http.response.body", "body": last, "more_body": False})
                except TimeoutError:
                    await _abort(scope, receive)

    @asynccontextmanager
    async def _feed(self, call: Call, followed: Followed, *, together: bool) -> AsyncGenerator[Feeding]:
        admission: Admission | None = call.scope.get("rollbook.admission")
        with self._slots.take(None if admission is None else admission.key.key_id):
            async with self._opened(call, followed, together=together) as feed:
                yield feed

    @asynccontextmanager
    async def _opened(self, call: Call, followed: Followed, *, together: bool) -> AsyncGenerator[Feeding]:
        options: dict[str, Any] = {"heartbeat_seconds": self._heartbeat_seconds, "together": together}
        if followed.template in {paths.RUN_STREAM, paths.RUN_SOCKET}:
            async with run_feed(
                self._runs, call, followed.id or "", resumed(call, call.query(RunStreamQuery)), **options
            ) as feed:
                yield feed
        elif (open_stream := self._front_end_sockets.get(followed.template)) is not None:
            async with open_stream(self._runs, call, followed.id or "", **options) as feed:
                yield feed
        else:
            query = await _tail_query(call, followed.id)
            follow = partial(self._hubs.follow, call.store, query)
            yield Feed(call.store, query, follow, call.scope["rollbook.partition"], **options)

    async def _socket(self, scope: Scope, receive: Receive, send: Send, followed: Followed) -> None:
        await receive()  # "websocket.connect"
        # Browsers do not restrict WebSockets to the same origin.
        if not may_come_from(scope, self._origins):
            # The WebSocket was not accepted, so the handshake is answered with 403.
            await send({"type": "websocket.close", "code": _REFUSED})
            return
        await send({"type": "websocket.accept", "subprotocol": protocol_chosen(scope)})

        async with AsyncExitStack() as stack:
            try:
                feed = await stack.enter_async_context(self._feed(Call(scope, receive, {}), followed, together=False))
            except Exception as error:  # noqa: BLE001 - the last frame reports the error
                await self._end_socket(send, _refusal_frame(error), error)
                return
            has_fragments = FRAGMENTS in scope.get("extensions", {})
            output = SocketOutput(send, self._write_seconds, self._turns, has_fragments=has_fragments)
            with self._parked.streaming(feed):
                try:
                    await self._parked.run(
                        _until_closed(receive), while_admitted(scope, lambda: feed.run(output.write))
                    )
                    await send({"type": "websocket.close", "code": _DONE})
                except (ClientLeft, OSError) as left:
                    if isinstance(left, StoreError):
                        await self._end_socket(send, feed.farewell(left), left, output)
                except Exception as error:  # noqa: BLE001 - the last frame reports the error
                    await self._end_socket(send, feed.farewell(error), error, output)

    async def _end_socket(self, send: Send, last: Frame, error: Exception, output: Output | None = None) -> None:
        # A reader that still reads nothing, or has disconnected, can resume from the cursor of the last frame that it
        # has read.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if output is None or not output.is_within_frame:
                    await send({"type": "websocket.send", "text": last.text.decode()})
                await send({"type": "websocket.close", "code": self._code(error), "reason": last.kind})

    def _code(self, error: Exception) -> int:
        if self._parked.is_closing:
            return _GOING_AWAY
        if isinstance(error, Unavailable):
            return _LATER
        return _REFUSED if isinstance(error, StoreError | MalformedRequest) else _FAILED


def _refusal_frame(error: Exception) -> Frame:
    if isinstance(error, FutureCursor):
        return frame("error", None, 0, 0, **error_body(error), code=error.code, retryable=False)
    if isinstance(error, StoreError):
        return frame("error", None, 0, 0, **error_body(error), retryable=error.retryable)
    if isinstance(error, MalformedRequest):
        return frame("error", None, 0, 0, detail=error.faults, error_type="Invalid", retryable=False)
    status, _, _ = refusal(error)
    return frame("error", None, 0, 0, detail="Internal server error", error_type=str(status), retryable=True)


async def _abort(scope: Scope, receive: Receive) -> None:
    """Close the connection to a reader that still reads nothing, so that uvicorn expects no end of the response.

    The reader can resume from the cursor of the last frame that it has read.
    """
    connection = scope.get("rollbook.connection")
    if connection is not None:
        connection.transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def _tail_query(call: Call, rollout_id: str | None) -> TailQuery:
    query = call.query(LogQuery)
    # A browser that reconnects repeats its first URL, and sends its current cursor in this header.
    last_event_id = call.header(b"last-event-id")
    after = last_event_id.decode("latin-1") if last_event_id else query.after
    if rollout_id is not None and await call.store.get_rollout_by_id(rollout_id) is None:
        raise NotFound.rollout(rollout_id)
    return await begin(call.store, after, query.type, rollout_id or query.rollout)


def _wants_events(scope: Scope) -> bool:
    if scope["method"] != "GET":
        return False
    return any(name == b"accept" and b"text/event-stream" in value.lower() for name, value in scope["headers"])


def _path_of(scope: Scope) -> str:
    """Return the path within the partition. An id in the path stays percent-encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("ascii", "replace")[len(scope.get("root_path", "")) :]


def _until_closed(receive: Receive) -> Receive:
    """Return a channel that reports the end of a WebSocket as the end of a request. Other messages have no effect."""

    async def receive_end() -> Message:
        message: Any = await receive()
        return {"type": "http.disconnect"} if message["type"] == "websocket.disconnect" else message

    return receive_end
