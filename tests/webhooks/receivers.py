"""Receivers of webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Receiver:
    """A server that answers with the statuses in turn, and never answers without a status."""

    port: int
    statuses: list[int]
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def receiving(*statuses: int, location: str = "/", has_endless_body: bool = False) -> AsyncGenerator[Receiver]:
    """Receive messages. The status 0 closes the connection without a response."""
    receiver = Receiver(0, list(statuses))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {name.lower(): value for name, _, value in (text.partition(": ") for text in head)}
            receiver.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
            if not receiver.statuses:
                await reader.read()
                return
            if not (status := receiver.statuses.pop(0)):
                return
            length = 10**12 if has_endless_body else 0
            writer.write(f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: {length}\r\n\r\n".encode())
            while has_endless_body:
                writer.write(b"x" * 65_536)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
