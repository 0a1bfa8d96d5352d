"""Equal questions that are put at the same time are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Together(Generic[K, V]):
    """Asks a question once for all who put it before the asking began, so that nobody is told what was true earlier.

    In one event loop. Who gives up waiting leaves the others alone.

    Args:
        ask: the question, for a key.
    """

    def __init__(self, ask: Callable[[K], Awaitable[V]]) -> None:
        self._ask = ask
        self._about_to_begin: dict[K, asyncio.Task[V]] = {}

    async def __call__(self, key: K) -> V:
        """Return the answer, the same object for all who share it.

        Raises:
            Exception: what the asking raised.
        """
        asking = self._about_to_begin.get(key)
        if asking is None:
            asking = self._about_to_begin[key] = asyncio.create_task(self._begin(key))
            # If all have given up, nobody looks at what it raised.
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asking)

    async def _begin(self, key: K) -> V:
        del self._about_to_begin[key]
        return await self._ask(key)
