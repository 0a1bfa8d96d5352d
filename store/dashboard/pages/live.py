"""What open pages hear: that something has happened, never what. They ask again for what they show.

A page says up to which position it was drawn, so nothing is lost between drawing and listening, nor while a server is
away: the browser comes again with the last position it heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import orjson

from store.sql.store import SQLStore

PAUSE_SECONDS: Final = 0.5
"""However much happens, a page is told no more often."""
HEARTBEAT_SECONDS: Final = 10.0
MOST_STREAMS: Final = 200
"""Of more streams a page is not told which: anything may have changed."""


async def news(store: SQLStore, after: int) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: `{"position": …, "streams": […] or null}`, the position being their id."""
    yield b"retry: 1000\n\n"
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                position = await store.core.news_after(after)
        except TimeoutError:
            yield b"event: heartbeat\ndata: {}\n\n"
            continue
        changed = await store.core.streams_between(after, position, MOST_STREAMS + 1)
        # Where the log ends before what was heard of, it is another one.
        is_known = after < position and len(changed) <= MOST_STREAMS
        told = {"position": position, "streams": changed if is_known else None}
        yield b"id: %d\nevent: news\ndata: %s\n\n" % (position, orjson.dumps(told))
        after = position
        await asyncio.sleep(PAUSE_SECONDS)
