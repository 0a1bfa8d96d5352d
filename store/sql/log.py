"""The log of a SQL store, with the methods history, tail, verify, rebuild and seal."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from store.db.dialect import ReadSession
from store.db.queries import trainer_metrics as metric_queries
from store.errors import ReadOnly
from store.indexing.checking import check_indexes, make_again
from store.indexing.registry import all_indexes
from store.interface.log import StoreLog
from store.interface.runs import AsAt
from store.journal import as_at as timeline
from store.journal import tail as tails
from store.models import History, HistoryEvent, LoggedEvent, LogPosition, RebuildReport, Seal, VerifyReport
from store.models.flat_spans import TakeSpans
from store.models.queries import SearchQuery, SpanQuery, UsageQuery
from store.models.search import SearchPage
from store.models.trainer_metrics import Metric, MetricsQuery
from store.models.usage import UsageReport
from store.runtime.progress import OnProgress, ignore
from store.sql import flat_spans
from store.sql.core import SQLCore
from store.sql.usage import usage_report
from store.validation import arguments
from store.verification import last
from store.verification import seal as seals
from store.verification.rebuild import rebuild
from store.verification.verify import verify

logger = logging.getLogger("store")


class SQLLog(StoreLog):
    """The log in a SQL database."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    async def history(
        self, rollout_id: str, *, as_at: AsAt | None = None, after: int = 0, limit: int = -1
    ) -> list[HistoryEvent]:
        events = await self.core.read(
            lambda session: tails.history(session, rollout_id, as_at, after=after, limit=limit),
            snapshot=True,
        )
        return History(events)

    async def position(self, as_at: AsAt | None = None) -> LogPosition:
        if as_at is None:
            return LogPosition(store_id=self.core.store_id, position=await self.core.position())
        moment = await self.core.read(lambda session: timeline.moment(session, as_at), snapshot=True)
        return LogPosition(store_id=self.core.store_id, position=moment)

    async def take_spans(self, query: SpanQuery, take: TakeSpans) -> int:
        return await flat_spans.take_spans(self.core, query, take)

    async def search_texts(self, query: SearchQuery) -> SearchPage:
        from store.sql.searches import search_texts

        return await search_texts(self.core, query)

    async def usage(self, query: UsageQuery) -> UsageReport:
        return await usage_report(self.core, query)

    async def metrics(self, query: MetricsQuery | None = None) -> list[Metric]:
        query = query or MetricsQuery()
        return await self.core.view(
            lambda view: metric_queries.metrics(view.session, query, view.until), query.as_at, sweeps=False
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
        place = await self.core.read(lambda session: tails.resume(session, self.core.store_id, after))
        while True:
            work = partial(self._page, place=place, types=types, rollout_id=rollout_id)
            page = await self.core.read(work, snapshot=True)
            for event in page.events:
                yield event
            place = page.place
            if not page.is_last:
                continue
            if not follow:
                return
            await self.core.log_news(place.position)

    async def before_end(self, count: int) -> str | None:
        """Return the cursor after which the last `count` events follow; None if the log has no more events."""
        return await self.core.read(lambda session: tails.before_end(session, self.core.store_id, count), snapshot=True)

    async def page(
        self, after: str | None, types: Sequence[str] | None, rollout_id: str | None, limit: int
    ) -> tails.TailPage:
        """Return at most `limit` of the events that `tail` yields, and the place after them."""

        async def read(session: ReadSession) -> tails.TailPage:
            place = await tails.resume(session, self.core.store_id, after)
            return await tails.page(session, place, types, rollout_id, limit)

        arguments.log_part(types, rollout_id)
        return await self.core.read(read, snapshot=True)

    async def _page(
        self, session: ReadSession, place: tails.Cursor, types: Sequence[str] | None, rollout_id: str | None
    ) -> tails.TailPage:
        return await tails.page(session, place, types, rollout_id)

    async def verify(
        self, seal: Seal | str | os.PathLike[str] | None = None, *, on_progress: OnProgress = ignore
    ) -> VerifyReport:
        self.core.check()
        arguments.seal(seal)
        expected_seal = seal if seal is None or isinstance(seal, Seal) else await asyncio.to_thread(seals.read, seal)
        verifying = verify(self.core.dialect, self.core.store_id, expected_seal, self._calls_so_far, on_progress)
        report = await (self.core.thread.run(verifying) if self.core.dialect.loop_bound else verifying)
        checking = check_indexes(self.core.dialect)
        differences = await (self.core.thread.run(checking) if self.core.dialect.loop_bound else checking)
        if differences:
            count = report.difference_count + len(differences)
            more = {"differences": [*report.differences, *differences][:1000], "difference_count": count}
            report = report.model_copy(update=more)
        if not self.core.read_only:
            try:
                await self.core.thread.run(last.record(self.core.dialect, report))
            except Exception as error:  # noqa: BLE001 (a damaged database may raise any error, and the report is needed)
                logger.warning("the result of the verification cannot be stored for metrics: %s", error)
        return report

    async def rebuild(self, *, on_progress: OnProgress = ignore) -> RebuildReport:
        self.core.check()
        if self.core.read_only:
            raise ReadOnly("rebuild")
        # The rebuild runs in the store's thread, because the writer accepts jobs only from that thread.
        report = await self.core.thread.run(
            rebuild(self.core.dialect, self.core.store_id, self.core.writer.run_job, self._calls_so_far, on_progress)
        )
        checking = check_indexes(self.core.dialect)
        differences = await (self.core.thread.run(checking) if self.core.dialect.loop_bound else checking)
        for index in all_indexes():
            if any(difference.check == f"index {index.name}" for difference in differences):
                await make_again(self.core.dialect, index)
        return report

    async def seal(self, path: str | os.PathLike[str]) -> Seal:
        if await asyncio.to_thread(Path(path).exists):
            raise FileExistsError(f"{path} exists, and a seal is never overwritten; choose another name")
        head = await self.core.read(lambda session: seals.head(session, self.core.store_id))
        await asyncio.to_thread(seals.write, head, path)
        return head

    def _calls_so_far(self) -> int:
        return self.core.writer.statistics.calls
