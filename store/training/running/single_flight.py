"""Single flight: concurrent equal requests share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Function that makes one call for concurrent requests with the same key.

    Requests share a call if they arrive before the call begins. A call that has begun takes no further requests, so the
    result is never older than a request. All requests must come from one event loop. If one caller is cancelled, the
    other callers still get the result.

    Args:
        ask: function that makes the call for a key.
    """

    def __init__(self, ask: Callable[[K], Awaitable[V]]) -> None:
        self._ask = ask
        self._about_to_begin: dict[K, asyncio.Task[V]] = {}

    async def __call__(self, key: K) -> V:
        """Return the result, which is the same object for all callers that share the call.

        Raises:
            Exception: an exception that the call raised.
        """
        task = self._about_to_begin.get(key)
        if task is None:

            async def begin() -> V:
                del self._about_to_begin[key]
                return await self._ask(key)

            task = self._about_to_begin[key] = asyncio.create_task(begin())
            # If all callers were cancelled, this callback retrieves the exception, so that asyncio does not log the
            # exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)
