"""Pages of what was found, as JSON: of any length where the store writes them, and read once while nothing changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import cache
from typing import Final, Protocol, TypeVar, cast, runtime_checkable

from store.interface.store import Store
from store.models.queries import PageQuery, RolloutQuery, SpanQuery
from store.server.page_cache import KeptPages
from store.server.response_spool import Spool
from store.wire.encoding import dumps

Q = TypeVar("Q", bound=PageQuery)
Write = Callable[[bytes], object]


@runtime_checkable
class WritesPages(Protocol):
    """A store that writes the JSON of what its queries return, some items at a time, and returns how many match."""

    async def write_rollouts(self, write: Write, query: RolloutQuery) -> int:
        """Write what `find_rollouts` returns."""
        ...

    async def write_spans(self, write: Write, query: SpanQuery) -> int:
        """Write what `find_spans` returns."""
        ...

    async def state(self) -> tuple[Hashable, Hashable] | None:
        """Return which store this is and the state it is in, another one after every commit; None to be read anew."""
        ...


KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of the pages of all stores."""

_kept: Final = KeptPages(KEPT_BYTES)


async def rollouts(store: Store, query: RolloutQuery) -> bytes | Spool:
    """Return the page of rollouts that a query asks for."""
    if _writes_pages(type(store)):
        writing = cast("WritesPages", store)
        return await _page(writing, writing.write_rollouts, query)
    return dumps(await store.find_rollouts(query))


async def spans(store: Store, query: SpanQuery) -> bytes | Spool:
    """Return the page of spans that a query asks for."""
    if _writes_pages(type(store)):
        writing = cast("WritesPages", store)
        return await _page(writing, writing.write_spans, query)
    return dumps(await store.find_spans(query))


@cache
def _writes_pages(kind: type[Store]) -> bool:
    # To ask an instance for the parts of a protocol takes longer than to find its page.
    return issubclass(kind, WritesPages)


async def _page(store: WritesPages, page: Callable[[Write, Q], Awaitable[int]], query: Q) -> bytes | Spool:
    known = await store.state()
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
