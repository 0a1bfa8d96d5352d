"""Pages of query results as JSON.

If the store is on a database, each page is streamed, and the server caches the page until the next commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from store.interface.store import Store
from store.models.queries import PageQuery, RolloutQuery, SpanQuery
from store.server.page_cache import PageCache
from store.server.response_spool import Spool
from store.sql.database import database_of
from store.sql.json_pages import JSONPages, Write
from store.wire.encoding import dumps

Q = TypeVar("Q", bound=PageQuery)


CACHE_BYTES: Final = 16 * 1024 * 1024
"""The size of the cache that all stores share."""

_cache: Final = PageCache(CACHE_BYTES)


async def rollouts(store: Store, query: RolloutQuery) -> bytes | Spool:
    """Return the page of rollouts of a query."""
    if (database := database_of(store)) is not None:
        pages = JSONPages(database.core)
        return await _page(pages, pages.write_rollouts, query)
    return dumps(await store.find_rollouts(query))


async def spans(store: Store, query: SpanQuery) -> bytes | Spool:
    """Return the page of spans of a query."""
    if (database := database_of(store)) is not None:
        pages = JSONPages(database.core)
        return await _page(pages, pages.write_spans, query)
    return dumps(await store.find_spans(query))


async def _page(pages: JSONPages, page: Callable[[Write, Q], Awaitable[int]], query: Q) -> bytes | Spool:
    identity = await pages.state()
    if identity is None:
        return await _written(page, query)
    store_key, state = identity
    key = store_key, type(query), repr(vars(query))
    cached = _cache.get(key, state)
    if cached is not None:
        return cached
    body = await _written(page, query)
    if isinstance(body, bytes):
        _cache.keep(key, state, body)
    return body


async def _written(page: Callable[[Write, Q], Awaitable[int]], query: Q) -> bytes | Spool:
    spool = Spool()
    try:
        spool.write(b'{"items":[')
        head = spool.size

        def write(items: bytes) -> None:
            if spool.size != head:
                spool.write(b",")
            spool.write(items)

        total = await page(write, query)
        spool.write(b'],"limit":%d,"offset":%d,"total":%d}' % (query.limit, query.offset, total))
    except BaseException:
        spool.close()
        raise
    body = spool.whole()
    return spool if body is None else body
