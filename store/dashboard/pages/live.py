"""Server-sent events that make open pages reload. They contain the ids of the changed streams, not the changes.

A page sends the log position at which it was rendered, and a browser that reconnects sends the last position it
received. So no change is lost between rendering and listening, or while the server is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import orjson

from store.sql.store import SQLStore

PAUSE_SECONDS: Final = 0.5
"""The minimum time between two events, however many changes there are."""
HEARTBEAT_SECONDS: Final = 10.0
MOST_STREAMS: Final = 200
"""If more streams changed, the event does not list them, so pages assume that anything may have changed."""


async def news(store: SQLStore, after: int) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events `{"position": …, "streams": […] or null}`; the position is also the event id."""
    yield b"retry: 1000\n\n"
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                position = await store.core.news_after(after)
        except TimeoutError:
            yield b"event: heartbeat\ndata: {}\n\n"
            continue
        changed = await store.core.streams_between(after, position, MOST_STREAMS + 1)
        # A log that ends before `after` is a different log, so the changed streams are unknown.
        is_known = after < position and len(changed) <= MOST_STREAMS
        event = {"position": position, "streams": changed if is_known else None}
        yield b"id: %d\nevent: news\ndata: %s\n\n" % (position, orjson.dumps(event))
        after = position
        await asyncio.sleep(PAUSE_SECONDS)
