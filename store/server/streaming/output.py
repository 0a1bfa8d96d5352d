"""The connections to the readers of streams. A large frame is written in pieces. See decision 59.

Between two pieces, the event loop serves other calls. A connection buffers about one piece. Streams with large events
therefore delay other calls only briefly, and a slow reader uses little memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from starlette.types import Message, Send

from store.errors import Unavailable
from store.server.streaming.feed import Frame

PIECE_BYTES: Final = 64 * 1024
_WHOLE_BYTES: Final = 2 * PIECE_BYTES
"""Frames whose total size is at most this are written at once."""

FRAGMENTS: Final = "rollbook.websocket.fragments"
"""The ASGI extension of a server whose WebSockets accept the messages `FRAGMENT` and `DRAIN`."""
FRAGMENT: Final = "rollbook.websocket.fragment"
"""The message that sends `bytes` as a fragment of a text. `is_first` and `is_last` mark the ends of the text."""
DRAIN: Final = "rollbook.websocket.drain"
"""The message that sends no data. Its `send` call returns when the connection can accept more data."""


class SlowReader(Unavailable):
    """The reader read nothing for too long. The reader may resume from its cursor."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing was read for {seconds:g} s, so the stream was closed")


class Turns:
    """The order in which a server's connections write. One connection writes in each iteration of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Wait until the caller may write. Callers are served in the order of their calls."""
        async with self._lock:
            await asyncio.sleep(0)


class Output(ABC):
    """The connection to one reader.

    Args:
        send: the ASGI channel of the response.
        write_seconds: the time after which a reader that reads nothing is disconnected.
        turns: the order in which all connections write their pieces.
    """

    def __init__(self, send: Send, write_seconds: float, turns: Turns) -> None:
        self.is_within_frame = False
        """Whether the connection has sent only a part of a frame. No other frame may be sent in that state."""
        self._send = send
        self._write_seconds = write_seconds
        self._turns = turns

    @abstractmethod
    def _whole(self, frames: list[Frame]) -> Iterator[Message]:
        """Yield the messages of small frames."""

    @abstractmethod
    def _pieces(self, frames: list[Frame]) -> Iterator[tuple[Message, bool]]:
        """Yield the messages of frames in pieces, and for each message whether its frame continues in the next."""

    @property
    @abstractmethod
    def _drain(self) -> Message | None:
        """The message whose `send` call waits until the connection accepts more data; None if it is not supported."""

    async def write(self, frames: list[Frame]) -> None:
        """Write frames.

        Raises:
            SlowReader: the reader read nothing for too long.
        """
        if sum(len(frame.text) for frame in frames) <= _WHOLE_BYTES:
            for message in self._whole(frames):
                await self._sent(message)
            return
        for message, continues in self._pieces(frames):
            # A connection with a slow reader waits before its turn, so that it does not delay other connections.
            if self._drain is not None:
                await self._sent(self._drain)
            await self._turns.take()
            await self._sent(message)
            self.is_within_frame = continues

    async def _sent(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._send(message)
        except TimeoutError:
            raise SlowReader(self._write_seconds) from None


class EventsOutput(Output):
    """A connection with server-sent events. Several frames may be written at once."""

    def _whole(self, frames: list[Frame]) -> Iterator[Message]:
        yield _body(b"".join(part for frame in frames for part in (frame.head, frame.text, _EVENT_END)))

    def _pieces(self, frames: list[Frame]) -> Iterator[tuple[Message, bool]]:
        for frame in frames:
            head, last = frame.head, len(frame.text)
            for start in range(0, last, PIECE_BYTES):
                piece, is_last = frame.text[start : start + PIECE_BYTES], start + PIECE_BYTES >= last
                yield _body(b"".join((head, piece, _EVENT_END if is_last else b""))), not is_last
                head = b""

    @property
    def _drain(self) -> Message:
        return _body(b"")


_EVENT_END: Final = b"\n\n"


def as_event(frame: Frame) -> bytes:
    """Return a frame as a server-sent event."""
    return b"".join((frame.head, frame.text, _EVENT_END))


def _body(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


class SocketOutput(Output):
    """A WebSocket. The pieces of a large frame are the fragments of one message.

    Args:
        send: the ASGI channel of the WebSocket.
        write_seconds: as in `Output`.
        turns: as in `Output`.
        has_fragments: whether the server can send fragments. If not, each frame is sent whole.
    """

    def __init__(self, send: Send, write_seconds: float, turns: Turns, *, has_fragments: bool) -> None:
        super().__init__(send, write_seconds, turns)
        self._has_fragments = has_fragments

    def _whole(self, frames: list[Frame]) -> Iterator[Message]:
        for frame in frames:
            yield {"type": "websocket.send", "text": frame.text.decode()}

    def _pieces(self, frames: list[Frame]) -> Iterator[tuple[Message, bool]]:
        if not self._has_fragments:
            for message in self._whole(frames):
                yield message, False
            return
        for frame in frames:
            last = len(frame.text)
            for start in range(0, last, PIECE_BYTES):
                piece, is_last = frame.text[start : start + PIECE_BYTES], start + PIECE_BYTES >= last
                yield {"type": FRAGMENT, "bytes": piece, "is_first": start == 0, "is_last": is_last}, not is_last

    @property
    def _drain(self) -> Message | None:
        return {"type": DRAIN} if self._has_fragments else None
