"""Waiting calls. Each call ends when it has its result, when its client disconnects, or when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from starlette.types import Message

from store.errors import Unavailable
from store.server.call import ClientLeft

logger = logging.getLogger("store.server")

T = TypeVar("T")


class Unread(Protocol):
    """An event that the reader of a stream has not read yet."""

    @property
    def position(self) -> int: ...

    @property
    def at(self) -> float: ...


class OpenStream(Protocol):
    """A stream of a partition's log."""

    @property
    def partition(self) -> str: ...

    @property
    def untaken(self) -> Unread | None: ...


class Parked:
    """The waiting calls and the open streams of one server."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()
        self._aside: set[asyncio.Task[Any]] = set()
        self.streams: set[OpenStream] = set()
        """The open streams. A stream is open until its last frame is written."""
        self.is_closing = False
        """Whether the server is stopping."""

    def __len__(self) -> int:
        return len(self._calls)

    async def run(self, receive: Callable[[], Awaitable[Message]], work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call that may take long. The call is cancelled when its client disconnects.

        Args:
            receive: the ASGI channel of a request whose body was read.
            work: the call.

        Raises:
            ClientLeft: the client has disconnected.
            Unavailable: the server is stopping.
        """
        if self.is_closing:
            work.close()
            raise _stopping()
        call = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(_until_left(receive))
        self._calls.add(call)
        try:
            await asyncio.wait((call, watch), return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled():
                return call.result()
            call.cancel()
            # Wait until the call has released its resources.
            await asyncio.wait((call,))
            if not call.cancelled() and call.exception() is not None:
                logger.debug("a call failed after its client had left", exc_info=call.exception())
        finally:
            self._calls.discard(call)
            watch.cancel()
            # If the request itself was cancelled, the call is still running.
            call.cancel()
        raise _stopping() if self.is_closing else ClientLeft

    @contextmanager
    def streaming(self, stream: OpenStream) -> Generator[None]:
        """List a stream while it is open."""
        self.streams.add(stream)
        try:
            yield
        finally:
            self.streams.discard(stream)

    def aside(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a job for which no request waits."""
        task = asyncio.ensure_future(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def close(self) -> None:
        """Cancel all waiting calls, and refuse new calls."""
        self.is_closing = True
        for call in list(self._calls):
            call.cancel()

    async def emptied(self, seconds: float) -> None:
        """Wait until waiting calls have ended and streams have written their last frame, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._calls or self.streams:  # noqa: ASYNC110 - once, at the end of a server
                    await asyncio.sleep(0.01)


async def _until_left(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping")
