"""Pages of a run that its readers share. Twenty readers of a run cost the database as much as one."""

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
from store.sql.database import StoreDatabase

_KEPT: Final = 3
"""The number of pages of a run that are kept: one for readers at the end of the run, and some for slower readers."""


class SharedRun:
    """A run in a SQL store, which is read once for all its readers. It is a `Source` of `store.planning.follow`.

    Recorded events never change. So a page that was read for one reader is valid for all readers at the same version.
    """

    def __init__(self, database: StoreDatabase, hub: Hub, rollout_id: str, *, bodies: bool) -> None:
        self.users = 0
        self.facts: dict[int, Fact] = {}
        """The latest events in encoded form, by version. They are the same for all readers."""
        self._own = database.runs.source(rollout_id, bodies=bodies)
        self.hub = hub
        self._stream = f"rollout/{rollout_id}"
        self._pages: dict[int, asyncio.Task[RunFollowPage]] = {}
        """The pages by the version after which each page begins."""

    @property
    def position(self) -> int:
        """The position up to which the hub has read the log."""
        return self.hub.position

    async def past(self) -> tuple[Sequence[Turn], RunPosition]:
        """See `store.planning.follow.Source`, which also describes the following methods."""
        return await self._own.past()

    async def place(self, version: int) -> RunPosition:
        """Return the moment of an existing event."""
        return await self._own.place(version)

    def view(self, form: Form, attempt: int, after: int, until: RunPosition) -> AsyncGenerator[RunEventRow]:
        """Yield the events of a view at a moment, after a version."""
        return self._own.view(form, attempt, after, until)

    async def page(self, after: int, since: int) -> RunFollowPage:
        """Return the events after a version. The page is read when the log has reached the position `since`."""
        while True:
            reading = self._pages.get(after)
            if reading is None:
                reading = self._pages[after] = asyncio.ensure_future(self._own.page(after, since))
                reading.add_done_callback(_retrieve_error)
                while len(self._pages) > _KEPT:
                    del self._pages[next(iter(self._pages))]
            try:
                # The read is shielded, because other readers wait for it as well.
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
        """Wait until the run may have events after the position `end` of the log.

        Return the position of the run's next event, or `end` + 1 if that position is not in memory any more.
        """
        async with aclosing(self.hub.after(end)) as facts:
            async for fact in facts:
                if fact.stream == self._stream:
                    return fact.position
        # The hub does not have all events after `end` in memory any more.
        return end + 1

    def close(self) -> None:
        """Cancel the reads."""
        for reading in self._pages.values():
            reading.cancel()


def _retrieve_error(reading: asyncio.Task[RunFollowPage]) -> None:
    # The reader that waited for the page may have disconnected, so an error is marked as retrieved.
    if not reading.cancelled():
        reading.exception()


class SharedRuns:
    """The runs of a server that have readers."""

    def __init__(self, hubs: Hubs) -> None:
        self._hubs = hubs
        self._open: dict[tuple[StoreDatabase, str, bool], SharedRun] = {}

    @asynccontextmanager
    async def use(self, database: StoreDatabase, rollout_id: str, *, bodies: bool) -> AsyncGenerator[SharedRun]:
        """Provide the pages of a run until the block ends."""
        async with self._hubs.use(database) as hub:
            key = (database, rollout_id, bodies)
            shared = self._open.get(key)
            # The pages of an ended hub are not used. After a restore of the database, they may contain events that the
            # log does not contain any more.
            if shared is None or shared.hub is not hub:
                shared = self._open[key] = SharedRun(database, hub, rollout_id, bodies=bodies)
            shared.users += 1
            try:
                yield shared
            finally:
                shared.users -= 1
                if not shared.users:
                    if self._open.get(key) is shared:
                        del self._open[key]
                    shared.close()
