"""Pages of what was found, as JSON: of any length where the store writes them row by row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from store.interface import Store
from store.server.spool import Spool
from store.wire.bodies import PageQuery, RolloutsQuery, SpansQuery
from store.wire.encoding import dumps

Write = Callable[[bytes], object]


@runtime_checkable
class WritesPages(Protocol):
    """A store that writes the JSON of what its queries return, item by item, and returns how many match."""

    async def write_rollouts(self, write: Write, **query: Any) -> int:
        """Write what `query_rollouts` returns."""
        ...

    async def write_spans(self, write: Write, **query: Any) -> int:
        """Write what `query_spans` returns."""
        ...


async def rollouts(store: Store, query: RolloutsQuery) -> bytes | Spool:
    """Return the page of rollouts that a query asks for."""
    # The fields of a query are the arguments of the call.
    if isinstance(store, WritesPages):
        return await _written(store.write_rollouts, query)
    return dumps(await store.query_rollouts(**vars(query)))


async def spans(store: Store, query: SpansQuery) -> bytes | Spool:
    """Return the page of spans that a query asks for."""
    if isinstance(store, WritesPages):
        return await _written(store.write_spans, query)
    return dumps(await store.query_spans(**vars(query)))


async def _written(page: Callable[..., Awaitable[int]], query: PageQuery) -> bytes | Spool:
    spool = Spool()
    try:
        spool.write(b'{"items":[')
        head = spool.size

        def write(item: bytes) -> None:
            spool.write(item if spool.size == head else b"," + item)

        total = await page(write, **vars(query))
        spool.write(b'],"limit":%d,"offset":%d,"total":%d}' % (query.limit, query.offset, total))
    except BaseException:
        spool.close()
        raise
    whole = spool.whole()
    return spool if whole is None else whole
