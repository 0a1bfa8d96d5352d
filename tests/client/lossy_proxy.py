"""A TCP proxy that loses responses: the server executes the call, and the client gets no response.

All connections are real. The proxy reads the full response from the server and closes the client's connection instead
of sending it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

Message = tuple[bytes, bytes]

_HEAD_END = b"\r\n\r\n"


class LossyProxy:
    """A proxy in front of a server, in a thread of its own.

    Args:
        server: URL of the server.
        loses: says, answer by answer and given the head of the request, whether this one is lost.

    Attributes:
        url: where clients connect; the path of the server's URL is kept.
        lost: how many answers were lost.
        passed: how many were passed on.
        heads: the heads of all requests that came, in the order in which they were complete.
    """

    def __init__(self, server: str, loses: Callable[[bytes], bool]) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._loses = loses
        self._socket = socket.create_server(("127.0.0.1", 0))
        host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        self.lost = 0
        self.passed = 0
        self.heads: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @classmethod
    def losing(cls, server: str, share: float, seed: int = 0) -> Self:
        """Return a proxy that loses this share of all answers, at random."""
        dice = random.Random(seed)
        return cls(server, lambda _: dice.random() < share)

    @classmethod
    def losing_first(cls, server: str, path: str, times: int = 1) -> Self:
        """Return a proxy that loses the first answers to requests whose path ends so."""
        left = [times]

        def loses(head: bytes) -> bool:
            if head.split(b" ", 2)[1].partition(b"?")[0].endswith(path.encode()) and left[0]:
                left[0] -= 1
                return True
            return False

        return cls(server, loses)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._socket.close()

    def _run(self) -> None:
        accepting = self._loop.create_server(lambda: _Client(self._accept, self._loop), sock=self._socket)
        server = self._loop.run_until_complete(accepting)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(client, reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head, body = await _message(reader)
                    self.heads.append(head)
                    server_writer.write(head + body)
                    answer = await _unless_left(client, _message(server_reader))
                    if self._loses(head):
                        self.lost += 1
                        return
                    writer.write(b"".join(answer))
                    await writer.drain()
                    self.passed += 1
        finally:
            server_writer.close()


class _Client(asyncio.StreamReaderProtocol):
    """A client's connection, which notices when the client closes its side."""

    def __init__(
        self,
        accept: Callable[[_Client, asyncio.StreamReader, asyncio.StreamWriter], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.left = asyncio.Event()
        super().__init__(asyncio.StreamReader(loop=loop), lambda reader, writer: accept(self, reader, writer), loop)

    def eof_received(self) -> bool | None:
        self.left.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left.set()
        super().connection_lost(exc)


async def _unless_left(client: _Client, answering: Coroutine[Any, Any, Message]) -> Message:
    """Return the server's answer; a client that leaves meanwhile ends it, as it would without a proxy."""
    answer = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(client.left.wait())
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionResetError("the client left")
        return answer.result()
    finally:
        for task in (answer, leaving):
            task.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> Message:
    """Return the head and the body of the next request or answer."""
    head = await reader.readuntil(_HEAD_END)
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
        assert name.strip().lower() != b"transfer-encoding", "our own clients and servers announce lengths"
    return head, await reader.readexactly(length)
