"""Pages of query results as JSON. A store on a database streams them; the server caches them until the next commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from store.interface.store import Store
from store.models.queries import PageQuery, RolloutQuery, SpanQuery
from store.server.page_cache import KeptPages
from store.server.response_spool import Spool
from store.sql.database import database_of
from store.sql.json_pages import JSONPages, Write
from store.wire.encoding import dumps

Q = TypeVar("Q", bound=PageQuery)


KEPT_BYTES: Final = 16 * 1024 * 1024
"""The size of the cache that all stores share."""

_kept: Final = KeptPages(KEPT_BYTES)


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
    known = await pages.state()
    if known is None:
        return await _written(page, query)
    which, state = known
    key = which, type(query), repr(vars(query))
    kept = _kept.get(key, state)
    if kept is not None:
        return kept
    written = await _written(page, query)
    if isinstance(written, bytes):
        _kept.keep(key, state, written)
    return written


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
    whole = spool.whole()
    return spool if whole is None else whole
