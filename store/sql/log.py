"""What a SQL store tells of its log: history, tail, verify, rebuild, seal."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from store.db.dialect import ReadSession
from store.db.queries import log as log_queries
from store.db.queries import scan
from store.errors import Closed, ReadOnly
from store.interface.store import AsAt
from store.journal import tail as tails
from store.journal.writer import Writer
from store.models import HistoryEvent, LoggedEvent, RebuildReport, Seal, VerifyReport
from store.sql.json_pages import SQLTexts
from store.sql.waiters import FALLBACK_SECONDS, Waiting
from store.validation import arguments
from store.verification import seal as seals
from store.verification.rebuild import rebuild
from store.verification.verify import verify


class SQLProof(SQLTexts):
    """The audit half of a SQL store."""

    store_id: str
    _writer: Writer
    _read_only: bool

    @property
    def _at_work(self) -> Waiting:
        raise NotImplementedError

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        return await self._read(
            lambda session: tails.history(self._dialect, session, rollout_id, as_at, after=after, limit=limit),
            snapshot=True,
        )

    async def tail(
        self,
        after: str | None = None,
        *,
        follow: bool = False,
        types: Sequence[str] | None = None,
        rollout_id: str | None = None,
    ) -> AsyncIterator[LoggedEvent]:
        arguments.log_part(types, rollout_id)
        place = await self._read(lambda session: tails.resume(self._dialect, session, self.store_id, after))
        while True:
            work = partial(self._page, place=place, types=types, rollout_id=rollout_id)
            page = await self._read(work, snapshot=True)
            for event in page.events:
                yield event
            place = page.place
            if not page.is_last:
                continue
            if not follow:
                return
            self._check()
            await self._home.run(self._news_after(place))

    async def end(self) -> str | None:
        """Return the cursor of the log's end; None while there is nothing in it."""
        return await self._read(lambda session: tails.end(self._dialect, session, self.store_id))

    async def position(self) -> int:
        """Return the position of the last event of the log; 0 while there is none."""
        seen = await self._read(partial(log_queries.last_commit, self._dialect))
        return 0 if seen is None else int(seen[3])

    async def news_after(self, position: int) -> int:
        """Return the last position of the log once it is not this one; at once if it is another already.

        A restored database may end before it: that is news too.
        """
        while (last := await self.position()) == position:
            await self._home.run(self._news_after(tails.Cursor(self.store_id, position=position)))
        return last

    async def streams_between(self, after: int, until: int, limit: int) -> list[str]:
        """Return the streams that have events after a position and up to another, at most so many, in order."""
        return await self._read(partial(scan.streams, self._dialect, after=after, until=until, limit=limit))

    async def _page(
        self, session: ReadSession, place: tails.Cursor, types: Sequence[str] | None, rollout_id: str | None
    ) -> tails.Page:
        return await tails.page(self._dialect, session, place, types, rollout_id)

    async def _news_after(self, place: tails.Cursor) -> None:
        """Return when something may have been committed after a place; in the store's own loop."""
        waiting = self._at_work
        if waiting.is_closed:
            raise Closed("tail")
        with waiting.parked():
            news = waiting.follow()
            try:
                # A commit between the last page and this line has been announced already.
                seen = await self._read_here(partial(log_queries.last_commit, self._dialect), snapshot=False)
                if seen is None or seen[3] <= place.position:
                    # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FALLBACK_SECONDS):
                            await news.wait()
            finally:
                waiting.unfollow(news)
        if waiting.is_closed:
            raise Closed("tail")

    async def verify(self, seal: Seal | str | os.PathLike[str] | None = None) -> VerifyReport:
        self._check()
        arguments.seal(seal)
        given = seal if seal is None or isinstance(seal, Seal) else await asyncio.to_thread(seals.read, seal)
        verifying = verify(self._dialect, self.store_id, given, self._calls_so_far)
        return await (self._home.run(verifying) if self._dialect.loop_bound else verifying)

    async def rebuild(self) -> RebuildReport:
        self._check()
        if self._read_only:
            raise ReadOnly("rebuild")
        # At home: the errands it sends to the writer belong there.
        return await self._home.run(rebuild(self._dialect, self.store_id, self._writer.errand, self._calls_so_far))

    async def seal(self, path: str | os.PathLike[str]) -> Seal:
        if await asyncio.to_thread(Path(path).exists):
            raise FileExistsError(f"{path} exists; a seal is never overwritten, choose another name")
        head = await self._read(lambda session: seals.head(self._dialect, session, self.store_id))
        await asyncio.to_thread(seals.write, head, path)
        return head

    def _calls_so_far(self) -> int:
        return self._writer.statistics.calls
