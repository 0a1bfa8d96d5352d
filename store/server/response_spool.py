"""Bodies of responses that may be too large for memory. See decision 23."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Generator
from contextlib import closing
from typing import IO, Final

from starlette.types import Message, Scope, Send

from store.errors import Unavailable
from store.server.call import ClientLeft

IN_MEMORY: Final = 1024 * 1024
"""The largest body in memory, in bytes. A larger body is written to a temporary file."""
STALL_SECONDS: Final = 30.0
"""A client that reads nothing of a body for this long is disconnected."""

_PIECE: Final = 256 * 1024


class Spool:
    """A response body that is written completely before it is sent. A large body is written to a temporary file.

    The body is complete before its first byte is sent. The response therefore has a length, an error has a status, and
    a client that reads slowly does not occupy a connection to the database.
    """

    __slots__ = ("_file", "_parts", "_waiting", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0
        self._file: IO[bytes] | None = None
        self.size = 0
        """The number of bytes written so far."""

    def write(self, part: bytes) -> None:
        """Append a part to the body.

        Raises:
            Unavailable: the temporary file cannot be written.
        """
        self._parts.append(part)
        self._waiting += len(part)
        self.size += len(part)
        if self._waiting > IN_MEMORY:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._waiting = self._parts, [], 0
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
            self._file.writelines(parts)
        except OSError as error:
            raise Unavailable(f"no temporary file can store {self.size:,} bytes of a response ({error})") from error

    def whole(self) -> bytes | None:
        """Return the body if it is in memory; None if it is in a file."""
        return None if self._file is not None else b"".join(self._parts)

    def pieces(self) -> Generator[bytes]:
        """Yield the body in pieces, and delete the body afterwards."""
        with closing(self):
            if self._file is None:
                yield b"".join(self._parts)
                return
            self._flush()
            self._file.seek(0)
            while piece := self._file.read(_PIECE):
                yield piece

    def close(self) -> None:
        """Delete the body."""
        self._parts = []
        if self._file is not None:
            self._file.close()


async def send_spooled(scope: Scope, send: Send, body: Spool) -> None:
    """Send the body of a response whose headers were sent, as fast as the client reads.

    Raises:
        ClientLeft: the client read nothing for `STALL_SECONDS`.
    """
    pieces = body.pieces()
    with closing(pieces):
        for piece in pieces:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await send(_part(piece, more=True))
            except TimeoutError:
                await _cut_off(scope, send)
                raise ClientLeft from None
    await send(_part(b"", more=False))


def _part(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def _cut_off(scope: Scope, send: Send) -> None:
    connection = scope.get("rollbook.connection")
    if connection is not None:
        # A normal close would wait until the client has read everything.
        connection.transport.abort()
        # `send` returns when the server knows that the connection is closed. The response then need not be completed.
        await send(_part(b"", more=True))
