"""Pages of the past of a log, which are read and encoded once for all readers at the same place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from store.journal import tail as tails
from store.server.streaming.feed import Fact, Wanted, fact_of
from store.server.streaming.output import PIECE_BYTES
from store.sql.store import SQLStore

_FIRST: Final = 32
"""The number of events that are read at a reader's first place, where their size is not known."""
_PAGE_BYTES: Final = 1024 * 1024
"""The size of a page, unless its first event is larger."""
_KEPT: Final = 8
"""The number of pages that are kept for readers that come to the same place later."""
_KEPT_BYTES: Final = 8 * 1024 * 1024
_HELD_BYTES: Final = 64 * 1024 * 1024
"""The size of all pages that readers hold. Beyond this size a reader waits before it reads another page."""


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
    """The number of events to read at the next place."""


class LogPages:
    """The pages of one log that its readers share.

    Args:
        store: the store of the log.
    """

    def __init__(self, store: SQLStore) -> None:
        self._store = store
        self._pages: dict[tuple[str | None, tuple[str, ...] | None, str | None], asyncio.Task[PastPage]] = {}
        self._holders: Counter[PastPage] = Counter()
        self._held_bytes = 0
        self._released = asyncio.Event()

    async def after(self, wanted: Wanted, since: int) -> AsyncGenerator[Fact]:
        """Yield the events that a reader wants, until the end of the log, which is at least the position `since`.

        Raises:
            StoreError: the log cannot be read, or does not contain the reader's place.
        """
        limit = _FIRST
        while True:
            while self._held_bytes >= _HELD_BYTES:
                await self._released.wait()
            page = await self._page(wanted, since, limit)
            with self._held(page):
                for fact in page.facts:
                    yield fact
            if page.is_last:
                return
            wanted, limit = replace(wanted, after=page.place), page.fitting

    async def _page(self, wanted: Wanted, since: int, limit: int) -> PastPage:
        key = (wanted.after, None if wanted.types is None else tuple(wanted.types), wanted.rollout_id)
        while True:
            reading = self._pages.get(key)
            is_own = reading is None
            if reading is None:
                reading = self._pages[key] = asyncio.ensure_future(self._read(wanted, limit))
                reading.add_done_callback(self._limit)
            try:
                # The read is shielded, because other readers wait for it as well.
                page = await asyncio.shield(reading)
            except Exception:
                self._forget(key, reading)
                raise
            # A page that was read at the end of the log lacks the events that were recorded since.
            if is_own or not page.is_last or tails.parse(page.place).position >= since:
                return page
            self._forget(key, reading)

    async def _read(self, wanted: Wanted, limit: int) -> PastPage:
        found = await self._store.log.page(wanted.after, wanted.types, wanted.rollout_id, limit)
        facts: list[Fact] = []
        size = 0
        for event in found.events:
            fact = fact_of(event)
            if facts and size + len(fact.frame.text) > _PAGE_BYTES:
                return PastPage(tuple(facts), facts[-1].cursor, is_last=False, size=size, fitting=len(facts))
            facts.append(fact)
            size += len(fact.frame.text)
            if len(fact.frame.text) > PIECE_BYTES:
                # Encoding the next event may take as long, so other calls are served first.
                await asyncio.sleep(0)
        fitting = max(1, min(tails.EVENTS_AT_ONCE, 4 * limit, limit * _PAGE_BYTES // (size + 1)))
        return PastPage(tuple(facts), str(found.place), found.is_last, size, fitting)

    @contextmanager
    def _held(self, page: PastPage) -> Generator[None]:
        """Count a page while a reader holds it, once for all readers."""
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
        # The reader that waited for the page may have disconnected, so an error is marked as retrieved.
        if not read.cancelled():
            read.exception()
        done = [(key, each) for key, each in self._pages.items() if each.done()]
        for key, each in done:
            if each.cancelled() or each.exception() is not None:
                del self._pages[key]
        done = [(key, each) for key, each in done if key in self._pages]
        size = sum(each.result().size for _, each in done)
        while len(done) > _KEPT or (size > _KEPT_BYTES and len(done) > 1):
            key, oldest = done.pop(0)
            size -= oldest.result().size
            del self._pages[key]

    def _forget(self, key: tuple[str | None, tuple[str, ...] | None, str | None], read: asyncio.Task[PastPage]) -> None:
        if self._pages.get(key) is read:
            del self._pages[key]

    def close(self) -> None:
        """Cancel the reads."""
        for reading in self._pages.values():
            reading.cancel()
