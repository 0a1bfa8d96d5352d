"""Readers of streams, as server-sent events and as WebSockets, and a server that can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import uuid4

import aiohttp
import orjson
from fastapi import FastAPI
from starlette.middleware import Middleware

from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.interface.store import Store
from store.server.app import build_app
from store.server.partitions import Partitions
from store.server.process.serve import Server
from store.server.routing import RouteLayer
from store.server.streaming.paths import LOG_SOCKET
from store.server.streaming.streams import StreamLayer
from store.wire.listener import bind
from tests.prompt_uvicorn import end_at_once

end_at_once()

LOG = "/v1/agl/log"
PATIENCE = 30.0
Json = dict[str, Any]


class Stream(Protocol):
    """A connection on which frames arrive."""

    async def frame(self) -> Json | None:
        """Return the next frame, or None when the stream has ended."""
        ...

    async def events(self, count: int) -> list[Json]:
        """Return the next events, whatever comes between them."""
        ...


class _Reading:
    async def frame(self) -> Json | None:
        raise NotImplementedError

    async def events(self, count: int) -> list[Json]:
        frames: list[Json] = []
        while len(frames) < count:
            frame = await self.frame()
            assert frame is not None, "the stream ended"
            if frame["kind"] == "event":
                frames.append(frame)
        return frames


class Events(_Reading):
    """Server-sent events, as a browser reads them."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.last_event_id: str | None = None

    async def frame(self) -> Json | None:
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            while True:
                line = await self._answer.content.readuntil(b"\n")
                if not line:
                    return None
                text = line.decode().rstrip("\n")
                if text:
                    name, _, value = text.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    break
                else:
                    fields.clear()
        frame = orjson.loads(fields["data"])
        assert fields["event"] == frame["kind"]
        if "cursor" in frame:
            assert fields.get("id") == frame["cursor"]
        self.last_event_id = fields.get("id", self.last_event_id)
        return frame


class Socket(_Reading):
    """A WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def frame(self) -> Json | None:
        async with asyncio.timeout(PATIENCE):
            message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            return orjson.loads(message.data)
        return None


Parameters = list[tuple[str, str]]


class Client:
    """What connects to a server."""

    def __init__(self, session: aiohttp.ClientSession, app: FastAPI, url: str, server: Server) -> None:
        self.session = session
        self.app = app
        self.url = url
        self.server = server

    @property
    def port(self) -> int:
        """Where the server listens."""
        return int(self.url.rpartition(":")[2])

    @asynccontextmanager
    async def events(
        self, path: str = LOG, parameters: Parameters | None = None, **headers: str
    ) -> AsyncGenerator[Events]:
        """Follow by server-sent events, and leave at the end of the block."""
        sent = {"Accept": "text/event-stream", **headers}
        async with self.session.get(self.url + path, params=parameters, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            yield Events(answer)
            answer.close()

    @asynccontextmanager
    async def socket(
        self, parameters: Parameters | None = None, path: str = LOG_SOCKET, **headers: str
    ) -> AsyncGenerator[Socket]:
        """Follow by WebSocket, and leave at the end of the block."""
        connecting = self.session.ws_connect(self.url + path, params=parameters, headers=headers, max_msg_size=0)
        async with connecting as socket:
            yield Socket(socket)

    def follow(self, way: str, after: str | None = None, *more: tuple[str, str]) -> Any:
        """Follow one way or the other."""
        parameters = [*more] if after is None else [("after", after), *more]
        return self.events(LOG, parameters) if way == "events" else self.socket(parameters)

    async def get(self, path: str, parameters: Parameters | None = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of an answer that is no stream."""
        async with self.session.get(self.url + path, params=parameters, headers=headers) as answer:
            return answer.status, orjson.loads(await answer.read())

    async def quiet(self) -> None:
        """Return once no call waits on the server any more."""
        await until(lambda: len(self.app.state.parked) == 0)


def unused_partition() -> str:
    """Return a name that no other test has: on Postgres, partitions of one name are one."""
    return f"p{uuid4().hex[:12]}"


async def until(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(store: Store | Partitions, **options: Any) -> AsyncGenerator[Client]:
    """Serve a store, its streams with the given options, and give a client; the server stops with the block."""
    app = build_app(store if isinstance(store, Partitions) else Partitions(store), front_end=TradingFrontEnd())
    layers = [middleware for middleware in app.user_middleware if middleware.cls is not StreamLayer]
    innermost = next(place for place, middleware in enumerate(layers) if middleware.cls is RouteLayer)
    layers.insert(
        innermost, Middleware(StreamLayer, parked=app.state.parked, sockets=TradingFrontEnd.sockets, **options)
    )
    app.user_middleware[:] = layers
    with bind("127.0.0.1", 0) as listener:
        server = Server(app, lambda: None)
        running = asyncio.ensure_future(server.serve(sockets=[listener]))
        await until(lambda: server.started or running.done())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with aiohttp.ClientSession(read_bufsize=2**26) as session:
                yield Client(session, app, url, server)
        finally:
            server.should_exit = True
            await running
