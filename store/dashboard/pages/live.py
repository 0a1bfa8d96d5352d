"""Server-sent events that make open pages reload. They contain the names of the changed streams, not the changes.

A page sends the log position at which the page was rendered, and a browser that reconnects sends the last position that
the browser received. Therefore no change is lost between rendering and listening, or while the server is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import orjson

from store.sql.store import SQLStore

PAUSE_SECONDS: Final = 0.5
"""The minimum time between two server-sent events, however many changes there are."""
HEARTBEAT_SECONDS: Final = 10.0
MOST_STREAMS: Final = 200
"""If more streams changed, the server-sent event contains no names.

Pages then assume that any stream may have changed.
"""


async def news(store: SQLStore, after: int) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events `{"position": …, "streams": […] or null}` about the changes after the position `after`.

    The position is also the id of the server-sent event.
    """
    yield b"retry: 1000\n\n"
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                position = await store.core.news_after(after)
        except TimeoutError:
            yield b"event: heartbeat\ndata: {}\n\n"
            continue
        changed = await store.core.streams_between(after, position, MOST_STREAMS + 1)
        # If the log ends before `after`, the page was rendered from a different log, so the changes are unknown.
        is_known = after < position and len(changed) <= MOST_STREAMS
        event = {"position": position, "streams": changed if is_known else None}
        yield b"id: %d\nevent: news\ndata: %s\n\n" % (position, orjson.dumps(event))
        after = position
        await asyncio.sleep(PAUSE_SECONDS)
