"""One reader of a log for all streams of the log.

Once the streams have reached the end of the log, two hundred of them cost the database as much as one.

A stream first reads earlier events from pages of the log. Streams at the same cursor share a page. When a stream has
reached the events that the hub has read, it reads the following events from the hub's memory, which contains a few
hundred events. A stream that falls behind reads pages of the log again. See decision 22.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final, cast

from store.interface.log import StoreLog
from store.interface.store import Store
from store.journal.tail import parse
from store.models import LoggedEvent
from store.server.streaming.feed import Fact, TailQuery, fact_of
from store.server.streaming.log_pages import LogPages
from store.sql.database import StoreDatabase, database_of

# A hub keeps at least this many events in memory (fewer if they are large), and at most twice as many.
REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024
# The pause between two wake-ups is this time multiplied by the number of streams, at most `_PAUSE_SECONDS`. It is twice
# the time of the writes to all streams. So under load a stream gets several events at once, and the server has time for
# other requests.
_STREAM_SECONDS: Final = 0.0002
_PAUSE_SECONDS: Final = 0.1


class Hub:
    """The new events of one log."""

    def __init__(self, database: StoreDatabase) -> None:
        self.users = 0
        self.past = LogPages(database)
        self._database = database
        self._facts: list[Fact] = []
        self._bytes = 0
        self._forgotten = 0
        """The position up to which events are not in memory any more."""
        self._changed = asyncio.Event()
        self._woken_at = 0.0
        self._waking: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._read())

    @property
    def position(self) -> int:
        """The position up to which the log was read."""
        return self._facts[-1].position if self._facts else self._forgotten

    @property
    def is_over(self) -> bool:
        """Whether the hub has ended."""
        return self._task.done()

    async def begun(self) -> None:
        """Wait until the hub has read the position of the end of the log. The hub follows the log from this position.

        Raises:
            StoreError: the end of the log could not be read.
        """
        await asyncio.shield(self._began)

    async def after(self, position: int) -> AsyncGenerator[Fact]:
        """Yield the events after a position as they are recorded. End when the next event is not in memory any more.

        Raises:
            StoreError: the log can no longer be read.
        """
        while self._forgotten <= position:
            at = bisect_right(self._facts, position, key=lambda fact: fact.position)
            if at < len(self._facts):
                fact = self._facts[at]
                position = fact.position
                yield fact
            elif self._error is not None:
                raise self._error
            else:
                await self._changed.wait()

    async def _read(self) -> None:
        try:
            end = await self._database.core.end()
            self._forgotten = 0 if end is None else parse(end).position
            self._began.set_result(None)
            async with aclosing(_events(self._database.log, TailQuery(end, None, None))) as events:
                async for event in events:
                    self._remember(fact_of(event))
        except Exception as error:  # noqa: BLE001 - `after` raises the error
            self._error = error
            if not self._began.done():
                self._began.set_exception(error)
                # The reader that waited for the error may have disconnected, so the error is marked as retrieved.
                self._began.exception()
            self._schedule_wake()

    def _remember(self, fact: Fact) -> None:
        self._facts.append(fact)
        self._bytes += len(fact.frame.text)
        if len(self._facts) >= 2 * REMEMBERED or self._bytes >= 2 * _REMEMBERED_BYTES:
            half = max(len(self._facts) // 2, 1)
            self._forgotten = self._facts[half - 1].position
            del self._facts[:half]
            self._bytes = sum(len(remembered.frame.text) for remembered in self._facts)
        self._schedule_wake()

    def _schedule_wake(self) -> None:
        """Wake the streams. If they were woken just before, wake them after a pause."""
        loop = asyncio.get_running_loop()
        if self._waking is None:
            next_time = self._woken_at + min(self.users * _STREAM_SECONDS, _PAUSE_SECONDS)
            self._waking = loop.call_at(next_time, self._wake_now, loop)

    def _wake_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking = None
        self._woken_at = loop.time()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def close(self) -> None:
        """Stop reading the log."""
        if self._waking is not None:
            self._waking.cancel()
        self.past.close()
        self._task.cancel()
        await asyncio.wait((self._task,))


def _events(log: StoreLog, query: TailQuery) -> AsyncGenerator[LoggedEvent]:
    events = log.tail(query.after, follow=True, types=query.types, rollout_id=query.rollout_id)
    return cast("AsyncGenerator[LoggedEvent]", events)


class Hubs:
    """The hubs of a server, one for each store with readers."""

    def __init__(self) -> None:
        self._open: dict[StoreDatabase, Hub] = {}

    async def follow(self, store: Store, query: TailQuery) -> AsyncGenerator[Fact]:
        """Yield the matching events of a log, past and future, as the store's own `tail` does."""
        database = database_of(store)
        if database is None:
            async with aclosing(_events(store.log, query)) as events:
                async for event in events:
                    yield fact_of(event)
            return
        stream = None if query.rollout_id is None else f"rollout/{query.rollout_id}"
        types = None if query.types is None else frozenset(query.types)
        async with self.use(database) as hub:
            while True:
                # All events up to this position are committed, so the read below returns them. The reader's cursor may
                # be later than the hub's position.
                position = max(hub.position, 0 if query.after is None else parse(query.after).position)
                async with aclosing(hub.past.after(query, position)) as facts:
                    async for fact in facts:
                        query, position = replace(query, after=fact.cursor), max(position, fact.position)
                        yield fact
                async with aclosing(hub.after(position)) as facts:
                    async for fact in facts:
                        if (stream is None or fact.stream == stream) and (types is None or fact.type in types):
                            query = replace(query, after=fact.cursor)
                            yield fact

    @asynccontextmanager
    async def use(self, database: StoreDatabase) -> AsyncGenerator[Hub]:
        """Provide the hub of a log until the block ends."""
        hub = self._open.get(database)
        if hub is None or hub.is_over:
            hub = self._open[database] = Hub(database)
        hub.users += 1
        try:
            await hub.begun()
            yield hub
        finally:
            hub.users -= 1
            if not hub.users:
                if self._open.get(database) is hub:
                    del self._open[database]
                await hub.close()
