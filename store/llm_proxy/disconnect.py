"""Detection of clients that disconnect during their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientDisconnected(Exception):
    """The client closed its connection before it received the whole response."""


class Client:
    """The client of a request."""

    def __init__(self) -> None:
        self.is_incomplete = True
        """Whether the response is still incomplete. A disconnect is then a failure."""

    def complete(self) -> None:
        """Mark the response as complete. A later disconnect is not a failure."""
        self.is_incomplete = False


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncGenerator[Client]:
    """Run the block of the `with` statement, and cancel the block if the client disconnects.

    The caller must read the body of the request completely before it enters the block.

    Raises:
        ClientDisconnected: the client disconnected before `complete` was called, so the block was cancelled.
    """
    client = Client()
    task = asyncio.current_task()
    assert task is not None  # the server calls an ASGI application in a task
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            continue
        if client.is_incomplete:
            has_left = True
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield client
    except asyncio.CancelledError:
        if has_left and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watching.cancel()
