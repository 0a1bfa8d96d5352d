"""Connection that receives the server-sent events of a server. The data of an event is a JSON object."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import orjson

from store.client.pools import Pool
from store.wire.sse import EventReader

SILENCE_SECONDS: Final = 60.0
"""The time without any bytes after which the connection counts as lost. Heartbeats of the server count as bytes."""


class EventStream:
    """The events of one connection. Different tasks may call `take`, but only one at a time."""

    def __init__(self, pool: Pool, response: aiohttp.ClientResponse, operation: str) -> None:
        self._pool = pool
        self._response = response
        self._operation = operation
        self._reader = EventReader()

    async def take(self) -> list[dict[str, Any]]:
        """Return the data of the next events when at least one has arrived; an empty list if the connection has ended.

        Raises:
            Closed: the store was closed.
        """
        while True:
            # `call` sets a timeout of the current task, and the next call of `take` may come from another task. So the
            # block of `call` ends before this method returns.
            async with self._pool.call(self._operation, waits=True):
                try:
                    chunk = await self._response.content.readany()
                except (aiohttp.ClientError, OSError):
                    return []
            if not chunk:
                return []
            if events := [orjson.loads(data) for data in self._reader.feed(chunk)]:
                return events

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
