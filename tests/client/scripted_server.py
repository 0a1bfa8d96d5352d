"""A TCP server that sends scripted responses, including invalid ones."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

HANG_UP = b"\0"
"""At the end of an answer, or instead of one: close the connection."""


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of an answer: `answer("503 Busy", b"{}", retry_after="1")`."""
    fields = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


class ScriptedServer:
    """The server; the last answer is given again and again.

    Attributes:
        url: where it is.
        requests: the requests that came, head and body, in the order in which they came.
        came: set when the first has come.
    """

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[tuple[str, bytes]] = []
        self.came = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def header(self, name: str) -> list[str | None]:
        """Return a header of each request that came."""
        values: list[str | None] = []
        for head, _ in self.requests:
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            values.append(fields.get(name.lower()))
        return values

    def _run(self) -> None:
        server = self._loop.run_until_complete(self._listen())
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, sock=self._socket)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._exchange(reader, writer):
                pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        self.requests.append((head, await reader.readexactly(length)))
        self.came.set()
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if said is None:
            # No answer at all: until the client gives up.
            await reader.read()
            return False
        writer.write(said.removesuffix(HANG_UP))
        await writer.drain()
        return not said.endswith(HANG_UP)
