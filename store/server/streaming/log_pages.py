"""Pages of earlier events of a log. A page is read and encoded once for all readers at the same cursor.

See decision 59.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from store.journal import tail as tails
from store.server.streaming.feed import Fact, TailQuery, fact_of
from store.server.streaming.output import PIECE_BYTES
from store.sql.database import StoreDatabase

_FIRST: Final = 32
"""The number of events to read for a reader's first page, when the size of the events is not known yet."""
_PAGE_BYTES: Final = 1024 * 1024
"""The maximum size of a page. A larger event forms a page of its own."""
_KEPT: Final = 8
"""The maximum number of pages that are cached for readers that reach the same cursor later."""
_KEPT_BYTES: Final = 8 * 1024 * 1024
_HELD_BYTES: Final = 64 * 1024 * 1024
"""The limit on the total size of the pages that readers use. At this limit, a reader waits before it reads a page."""


@dataclass(frozen=True, slots=True, eq=False)
class PastPage:
    """Consecutive matching events of a log."""

    facts: tuple[Fact, ...]
    place: str
    """The cursor after these events."""
    is_last: bool
    """Whether the log had no more events when the page was read."""
    size: int
    """The size of the encoded events in bytes."""
    fitting: int
    """The number of events to read for the next page."""


class LogPages:
    """A cache of the pages of one log, shared by its readers.

    Args:
        database: the database of the log.
    """

    def __init__(self, database: StoreDatabase) -> None:
        self._log = database.log
        self._pages: dict[tuple[str | None, tuple[str, ...] | None, str | None], asyncio.Task[PastPage]] = {}
        self._holders: Counter[PastPage] = Counter()
        self._held_bytes = 0
        self._released = asyncio.Event()

    async def after(self, query: TailQuery, since: int) -> AsyncGenerator[Fact]:
        """Yield the events that match a reader's query, until the end of the log.

        All matching events up to the position `since` are included.

        Raises:
            StoreError: the log cannot be read, or does not contain the reader's cursor.
        """
        limit = _FIRST
        while True:
            while self._held_bytes >= _HELD_BYTES:
                await self._released.wait()
            page = await self._page(query, since, limit)
            with self._held(page):
                for fact in page.facts:
                    yield fact
            if page.is_last:
                return
            query, limit = replace(query, after=page.place), page.fitting

    async def _page(self, query: TailQuery, since: int, limit: int) -> PastPage:
        key = (query.after, None if query.types is None else tuple(query.types), query.rollout_id)
        while True:
            reading = self._pages.get(key)
            is_own = reading is None
            if reading is None:
                reading = self._pages[key] = asyncio.ensure_future(self._read(query, limit))
                reading.add_done_callback(self._limit)
            try:
                # The read is shielded, because other readers wait for it as well.
                page = await asyncio.shield(reading)
            except Exception:
                self._forget(key, reading)
                raise
            # A cached page from the end of the log lacks the events that were recorded after the page was read.
            if is_own or not page.is_last or tails.parse(page.place).position >= since:
                return page
            self._forget(key, reading)

    async def _read(self, query: TailQuery, limit: int) -> PastPage:
        page = await self._log.page(query.after, query.types, query.rollout_id, limit)
        facts: list[Fact] = []
        size = 0
        for event in page.events:
            fact = fact_of(event)
            if facts and size + len(fact.frame.text) > _PAGE_BYTES:
                return PastPage(tuple(facts), facts[-1].cursor, is_last=False, size=size, fitting=len(facts))
            facts.append(fact)
            size += len(fact.frame.text)
            if len(fact.frame.text) > PIECE_BYTES:
                # Encoding a large event takes long, so other calls are served before the next event is encoded.
                await asyncio.sleep(0)
        fitting = max(1, min(tails.EVENTS_AT_ONCE, 4 * limit, limit * _PAGE_BYTES // (size + 1)))
        return PastPage(tuple(facts), str(page.place), page.is_last, size, fitting)

    @contextmanager
    def _held(self, page: PastPage) -> Generator[None]:
        """Count the size of a page while readers use it. A page with several readers is counted once."""
        if not self._holders[page]:
            self._held_bytes += page.size
        self._holders[page] += 1
        try:
            yield
        finally:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._held_bytes -= page.size
                released, self._released = self._released, asyncio.Event()
                released.set()

    def _limit(self, read: asyncio.Task[PastPage]) -> None:
        # If the reader has disconnected, only this line retrieves the error. Otherwise asyncio would log the error.
        if not read.cancelled():
            read.exception()
        done = [(key, task) for key, task in self._pages.items() if task.done()]
        for key, task in done:
            if task.cancelled() or task.exception() is not None:
                del self._pages[key]
        done = [(key, task) for key, task in done if key in self._pages]
        size = sum(task.result().size for _, task in done)
        while len(done) > _KEPT or (size > _KEPT_BYTES and len(done) > 1):
            key, oldest = done.pop(0)
            size -= oldest.result().size
            del self._pages[key]

    def _forget(self, key: tuple[str | None, tuple[str, ...] | None, str | None], read: asyncio.Task[PastPage]) -> None:
        if self._pages.get(key) is read:
            del self._pages[key]

    def close(self) -> None:
        """Cancel all reads in progress."""
        for reading in self._pages.values():
            reading.cancel()
