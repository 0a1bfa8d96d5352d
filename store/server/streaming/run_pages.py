"""Shared pages of runs with readers, so that twenty readers of a run cost the database as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from store.models import RunEventRow
from store.planning.follow import Form, RunFollowPage, RunPosition
from store.planning.run_state import Turn
from store.server.streaming.feed import Fact
from store.server.streaming.hub import Hub, Hubs
from store.sql.store import SQLStore

_KEPT: Final = 3
"""How many pages of a run are kept: one for the readers at its end, and some for slower readers."""


class SharedRun:
    """A run in a SQL store, read once for all its readers; a source for `store.planning.follow`.

    Recorded events never change, so a page that was read for one reader serves all readers at that place.
    """

    def __init__(self, store: SQLStore, hub: Hub, rollout_id: str, *, bodies: bool) -> None:
        self.users = 0
        self.facts: dict[int, Fact] = {}
        """The encoded latest events by their versions, which are equal for all readers."""
        self._own = store.runs.source(rollout_id, bodies=bodies)
        self.hub = hub
        self._stream = f"rollout/{rollout_id}"
        self._pages: dict[int, asyncio.Task[RunFollowPage]] = {}
        """By the version after which they begin."""

    @property
    def position(self) -> int:
        """The position up to which the log is known."""
        return self.hub.position

    async def past(self) -> tuple[Sequence[Turn], RunPosition]:
        """See `store.planning.follow.Source`, as for the following methods."""
        return await self._own.past()

    async def place(self, version: int) -> RunPosition:
        """Return the moment of an existing event."""
        return await self._own.place(version)

    def view(self, form: Form, attempt: int, after: int, until: RunPosition) -> AsyncGenerator[RunEventRow]:
        """Yield the events of a view at a moment, after a version."""
        return self._own.view(form, attempt, after, until)

    async def page(self, after: int, since: int) -> RunFollowPage:
        """Return the events after a version, read when the log had reached a position."""
        while True:
            reading = self._pages.get(after)
            if reading is None:
                reading = self._pages[after] = asyncio.ensure_future(self._own.page(after, since))
                reading.add_done_callback(_heard)
                while len(self._pages) > _KEPT:
                    del self._pages[next(iter(self._pages))]
            try:
                # Other readers wait for it as well.
                page = await asyncio.shield(reading)
            except Exception:
                self._forget(after, reading)
                raise
            if page.end >= since:
                return page
            self._forget(after, reading)

    def _forget(self, after: int, reading: asyncio.Task[RunFollowPage]) -> None:
        if self._pages.get(after) is reading:
            del self._pages[after]

    async def news(self, end: int) -> int:
        """Wait until the run may have new events after a position of the log; return the position that is reached."""
        async with aclosing(self.hub.after(end)) as facts:
            async for fact in facts:
                if fact.stream == self._stream:
                    return fact.position
        # More events were recorded since than are in memory.
        return end + 1

    def close(self) -> None:
        """Stop reading."""
        for reading in self._pages.values():
            reading.cancel()


def _heard(reading: asyncio.Task[RunFollowPage]) -> None:
    # The reader that waited for it may have left.
    if not reading.cancelled():
        reading.exception()


class SharedRuns:
    """The runs of a server that have readers."""

    def __init__(self, hubs: Hubs) -> None:
        self._hubs = hubs
        self._open: dict[tuple[SQLStore, str, bool], SharedRun] = {}

    @asynccontextmanager
    async def use(self, store: SQLStore, rollout_id: str, *, bodies: bool) -> AsyncGenerator[SharedRun]:
        """Provide the pages of a run until the block ends."""
        async with self._hubs.use(store) as hub:
            key = (store, rollout_id, bodies)
            shared = self._open.get(key)
            # A run whose hub has ended may have read events that a log that was restored since does not contain.
            if shared is None or shared.hub is not hub:
                shared = self._open[key] = SharedRun(store, hub, rollout_id, bodies=bodies)
            shared.users += 1
            try:
                yield shared
            finally:
                shared.users -= 1
                if not shared.users:
                    if self._open.get(key) is shared:
                        del self._open[key]
                    shared.close()
