"""Client of a stream of server-sent events. Here, a frame is one event of the stream, with a JSON object as data."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import orjson

from store.client.pools import Pool

EVENT_STREAM: Final = "text/event-stream"

SILENCE_SECONDS: Final = 60.0
"""The time without any bytes after which the connection counts as lost. Heartbeats of the server count as bytes."""

_END: Final = b"\n\n"
_DATA: Final = b"data: "


class EventStream:
    """The events of one connection. Different tasks may call `take`, but only one at a time."""

    def __init__(self, pool: Pool, response: aiohttp.ClientResponse, operation: str) -> None:
        self._pool = pool
        self._response = response
        self._operation = operation
        self._rest = bytearray()

    async def take(self) -> list[dict[str, Any]]:
        """Return the next frames when at least one has arrived; an empty list if the connection has ended.

        Raises:
            Closed: the store was closed.
        """
        while True:
            # `call` sets a timeout of the current task, and the next call of `take` may come from another task.
            # So `call` is left before this method returns.
            async with self._pool.call(self._operation, waits=True):
                try:
                    chunk = await self._response.content.readany()
                except (aiohttp.ClientError, OSError):
                    return []
            if not chunk:
                return []
            if frames := self._split(chunk):
                return frames

    def _split(self, chunk: bytes) -> list[dict[str, Any]]:
        # A frame may end in the middle of a chunk, and its two-byte end mark may be split between chunks.
        searched = max(len(self._rest) - 1, 0)
        self._rest += chunk
        end = self._rest.rfind(_END, searched)
        if end < 0:
            return []
        whole, self._rest = self._rest[:end], self._rest[end + len(_END) :]
        return [frame for text in bytes(whole).split(_END) if (frame := _frame(text)) is not None]

    def close(self) -> None:
        """Close the connection."""
        self._response.close()


def _frame(text: bytes) -> dict[str, Any] | None:
    """Return the data of an event; None for an event without data, such as a comment."""
    parts = [line.removeprefix(_DATA) for line in text.split(b"\n") if line.startswith(_DATA)]
    return orjson.loads(b"\n".join(parts)) if parts else None
