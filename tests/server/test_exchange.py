"""Writing of responses to a connection, for any application."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.server.middleware import ForwardedLayer
from store.server.process import exchange
from store.server.process.connection import Connection
from store.server.process.exchange import MOST_LINES, lines
from store.wire.listener import bind

_ASKED = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Recorded(Connection):
    """A connection that keeps what it writes, write by write."""

    writes: list[bytes]

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(_Recorder(transport, self.writes))  # pyright: ignore[reportArgumentType] - as one


class _Recorder:
    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)


class Asked:
    """A connection to a server, and what the server wrote on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writes: list[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self.writes = writes

    async def ask(self, request: bytes = _ASKED) -> None:
        self._writer.write(request)
        await self._writer.drain()

    async def head(self) -> list[bytes]:
        """Return the lines of the next head, but that of the date."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
        return [line for line in head.split(b"\r\n") if not line.startswith(b"date: ")]

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """Return what comes until the server closes."""
        return await self._reader.read()


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, writes: list[bytes]) -> AsyncGenerator[tuple[str, int]]:
    """Serve an application and give its address."""
    config = uvicorn.Config(
        app,
        http=type("Protocol", (Recorded,), {"writes": writes}),
        lifespan="off",
        log_config=None,
        access_log=False,
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as listener:
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            async with asyncio.timeout(60):
                yield listener.getsockname()
        finally:
            server.should_exit = True
            await running


@contextlib.asynccontextmanager
async def asking(app: ASGIApp) -> AsyncGenerator[Asked]:
    """Serve an application and connect to it."""
    writes: list[bytes] = []
    async with serving(app, writes) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield Asked(reader, writer, writes)
        finally:
            writer.close()
            # It was perhaps closed by the server already.
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def answering(*messages: Message) -> ASGIApp:
    """Return an application that sends these."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send({**message})

    return app


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(part: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


_LENGTH = (b"content-length", b"5")
_KIND = (b"content-type", b"text/plain")


async def test_a_whole_answer_leaves_in_one_write() -> None:
    async with asking(answering(start(_KIND, _LENGTH), body(b"whole"))) as asked:
        for _ in range(2):
            await asked.ask()
            assert await asked.head() == [b"HTTP/1.1 200 OK", b"content-type: text/plain", b"content-length: 5"]
            assert await asked.read(5) == b"whole"
    assert len(asked.writes) == 2


async def test_an_answer_in_parts_arrives_as_a_whole() -> None:
    async with asking(answering(start(_LENGTH), body(b"wh", more=True), body(b"ole"))) as asked:
        await asked.ask()
        assert await asked.head() == [b"HTTP/1.1 200 OK", b"content-length: 5"]
        assert await asked.read(5) == b"whole"


async def test_the_head_of_a_stream_does_not_wait_for_its_body() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(_KIND))
        await go_on.wait()
        await send(body(b"later"))

    async with asking(app) as asked:
        await asked.ask()
        assert b"transfer-encoding: chunked" in await asked.head()
        go_on.set()
        assert await asked.read(15) == b"5\r\nlater\r\n0\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_body_sends_only_the_head(status: int) -> None:
    async with asking(answering(start((b"etag", b"1"), status=status), body(b""))) as asked:
        for _ in range(2):
            await asked.ask()
            assert (await asked.head())[1:] == [b"etag: 1"]


async def test_the_answer_to_head_has_the_length_and_not_the_body() -> None:
    async with asking(answering(start(_LENGTH), body(b"whole"))) as asked:
        await asked.ask(_ASKED.replace(b"GET", b"HEAD"))
        assert await asked.head() == [b"HTTP/1.1 200 OK", b"content-length: 5"]
        await asked.ask()
        assert await asked.head() == [b"HTTP/1.1 200 OK", b"content-length: 5"]
        assert await asked.read(5) == b"whole"


@pytest.mark.parametrize(
    "request_head", [b"GET / HTTP/1.0\r\n\r\n", _ASKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")]
)
async def test_the_last_answer_says_so_and_closes(request_head: bytes) -> None:
    async with asking(answering(start(_LENGTH), body(b"whole"))) as asked:
        await asked.ask(request_head)
        assert await asked.head() == [b"HTTP/1.1 200 OK", b"content-length: 5", b"connection: close"]
        assert await asked.rest() == b"whole"


async def test_an_application_may_close_the_connection() -> None:
    async with asking(answering(start(_LENGTH, (b"connection", b"close")), body(b"whole"))) as asked:
        await asked.ask()
        assert (await asked.head()).count(b"connection: close") == 1
        assert await asked.rest() == b"whole"


async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(_LENGTH))
        await send(body(scope["path"].encode()))

    async with asking(app) as asked:
        await asked.ask(b"".join(_ASKED.replace(b"/ ", b"/%04d " % number) for number in range(20)))
        for number in range(20):
            await asked.head()
            assert await asked.read(5) == b"/%04d" % number


async def test_expect_continue_is_answered_with_100() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = (await receive())["body"]
        await send(start(_LENGTH))
        await send(body(message))

    async with asking(app) as asked:
        await asked.ask(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n")
        assert await asked.head() == [b"HTTP/1.1 100 Continue"]
        await asked.ask(b"whole")
        await asked.head()
        assert await asked.read(5) == b"whole"


@pytest.mark.parametrize("header", [(b"x-id", b"1\r\nx-more: 2"), (b"x id", b"1"), (b"x-request-id", b"1\n")])
async def test_no_header_becomes_two(header: tuple[bytes, bytes]) -> None:
    async with asking(answering(start(header, _LENGTH), body(b"whole"))) as asked:
        await asked.ask()
        assert (await asked.head())[0] == b"HTTP/1.1 500 Internal Server Error"
        await asked.rest()
    assert b"x-more" not in b"".join(asked.writes)


@pytest.mark.parametrize("sent", [b"much too long", b"shrt"])
async def test_an_answer_of_another_length_than_it_says_ends_the_connection(sent: bytes) -> None:
    async with asking(answering(start(_LENGTH), body(sent))) as asked:
        await asked.ask()
        await asked.head()
        assert len(await asked.rest()) < 5


async def test_headers_that_differ_each_time_do_not_pile_up() -> None:
    numbers = iter(range(2 * MOST_LINES))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start((b"x-number", b"%d" % next(numbers)), _LENGTH))
        await send(body(b"whole"))

    async with asking(app) as asked:
        for number in range(2 * MOST_LINES):
            await asked.ask()
            assert b"x-number: %d" % number in await asked.head()
            await asked.read(5)
            assert len(lines) <= MOST_LINES


_LARGE = 40_000_000
_CLOSING = (b"connection", b"close")


def _posted(address: tuple[str, int], sent: Any, **headers: str) -> bytes:
    """Send a whole body, and only then read the response, as most clients do."""
    client = http.client.HTTPConnection(*address, timeout=60)
    with contextlib.closing(client):
        client.request("POST", "/", sent, headers)
        return client.getresponse().read()


@pytest.mark.parametrize("how", ["of the server", "of the client", "in pieces"])
async def test_a_client_that_sends_a_body_to_its_end_gets_the_answer_that_was_sent_before(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is, the body is read to its end.
    monkeypatch.setattr(exchange, "DRAIN_SECONDS", 600)
    headers = {"connection": "close"} if how == "of the client" else {}
    sent: Any = (b" " * 1_000_000 for _ in range(40)) if how == "in pieces" else b" " * _LARGE
    closing = [] if how == "of the client" else [_CLOSING]
    async with serving(answering(start(_LENGTH, *closing, status=413), body(b"whole")), []) as address:
        assert await asyncio.to_thread(_posted, address, sent, **headers) == b"whole"


async def test_an_answer_before_the_end_of_a_body_arrives_at_once() -> None:
    async with asking(answering(start(_LENGTH, _CLOSING, status=413), body(b"whole"))) as asked:
        await asked.ask(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhalf")
        await asked.head()
        assert await asked.read(5) == b"whole"
        await asked.ask(b" of it")
        assert await asked.rest() == b""


@pytest.mark.parametrize("limit", ["DRAINED_BYTES", "DRAIN_SECONDS"])
async def test_a_body_without_end_is_not_read_for_ever(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, limit, 0.05)
    async with asking(answering(start(_LENGTH, _CLOSING, status=413), body(b"whole"))) as asked:
        await asked.ask(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\nhalf")
        await asked.head()
        assert await asked.rest() == b"whole"


@pytest.mark.parametrize("leaves", ["before it is asked for", "before it is sent", "without reading"])
async def test_answer_that_the_client_did_not_read_is_undone(leaves: str) -> None:
    undone, answered, is_known = asyncio.Event(), asyncio.Event(), list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        # The loop of the server, which is this one, does not hear of it before it has nothing else to do.
        if leaves == "before it is asked for":
            client.close()
        has_left = scope["rollbook.connection"].if_unread(undone.set)
        is_known.append(has_left)
        if leaves == "before it is sent":
            client.close()
        if not has_left:
            await send(start(_LENGTH))
            await send(body(b"whole"))
            answered.set()

    async with serving(app, []) as address:
        with socket.create_connection(address) as client:
            client.sendall(_ASKED)
            if leaves == "without reading":
                await answered.wait()
                client.close()
            await undone.wait()
    assert is_known == [leaves == "before it is asked for"]


async def test_answer_that_the_client_has_read_is_not_undone() -> None:
    undone: list[bool] = []
    closed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope["rollbook.connection"].if_unread(lambda: undone.append(True))
        await send(start(_LENGTH))
        await send(body(b"whole"))
        assert (await receive())["type"] == "http.disconnect"
        closed.set()

    async with serving(app, []) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(_ASKED)
        assert (await reader.readuntil(b"whole")).endswith(b"whole")
        writer.close()
        await writer.wait_closed()
        await closed.wait()
    assert not undone


async def test_no_part_of_an_answer_waits_until_the_client_acknowledges_the_one_before() -> None:
    options: asyncio.Queue[int] = asyncio.Queue()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        options.put_nowait(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0) as listener:
        # asyncio's own loop: uvloop turns Nagle's algorithm off for every connection.
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await options.get()
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "headers, client, scheme",
    [
        (b"", b"127.0.0.1", b"http"),
        (b"x-forwarded-for: 192.0.2.7\r\n", b"192.0.2.7", b"http"),
        (b"x-forwarded-proto: https\r\n", b"127.0.0.1", b"https"),
    ],
    ids=["none", "for", "proto"],
)
async def test_local_proxy_forwards_the_address_of_its_client(headers: bytes, client: bytes, scheme: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told = f"{scope['client'][0]} {scope['scheme']}".encode()
        await send(start((b"content-length", b"%d" % len(told)), (b"connection", b"close")))
        await send(body(told))

    async with asking(ForwardedLayer(app)) as asked:
        await asked.ask(_ASKED.removesuffix(b"\r\n") + headers + b"\r\n")
        await asked.head()
        assert await asked.rest() == client + b" " + scheme
