"""Noticing that a client has left while it is being answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientDisconnected(Exception):
    """The client closed its connection before it had the whole answer."""


class Client:
    """Who is being answered."""

    def __init__(self) -> None:
        self.is_cut_off = True
        """Whether the answer is not yet, and now perhaps never, complete."""

    def finishes(self) -> None:
        """Say that the last of the answer is on its way: a client that leaves now has got it."""
        self.is_cut_off = False


@asynccontextmanager
async def while_there(receive: Receive) -> AsyncGenerator[Client]:
    """Run the body of the `with` as long as the client is there; the request's own body has been read.

    Raises:
        ClientDisconnected: it left before `finishes` was called; the body was cancelled.
    """
    client = Client()
    body = asyncio.current_task()
    assert body is not None  # an application runs in a task
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            continue
        if client.is_cut_off:
            has_left = True
            body.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield client
    except asyncio.CancelledError:
        if has_left and body.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watching.cancel()
