"""Methods of a SQL store that read rollouts, attempts, spans, resources and workers.

Most reads of the present sweep first: they end overdue attempts, unless the last sweep was a short time ago. A read of
the past computes its result from the log.
"""

import time
from typing import TypeVar

from store.db.queries import filters, pages
from store.db.queries.filters import FilterQuery
from store.db.queries.paging import Page
from store.interface.runs import AsAt
from store.journal import as_at as timeline
from store.models import (
    Attempt,
    AttemptedRollout,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from store.models.queries import AttemptQuery, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping

T = TypeVar("T")


class SQLReads:
    """Methods of a SQL store that read its tables and its log."""

    def __init__(self, core: SQLCore) -> None:
        self.core = core

    # -- rollouts ----------------------------------------------------------------------------------------------------

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        filter_query = filters.of(query)
        make, dialect = rollout_mapping.rollout_of_page, self.core.dialect
        page = await self.core.answer(
            lambda session: pages.rollouts(dialect, session, filter_query, make),
            lambda session, until: timeline.rollouts(dialect, session, filter_query, until, make),
            query.as_at,
        )
        return _paginated(page, filter_query)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        dialect = self.core.dialect
        row = await self.core.answer(
            lambda session: pages.rollout(dialect, session, rollout_id),
            lambda session, until: timeline.rollout(dialect, session, rollout_id, until),
            as_at,
            (rollout_id, at),
        )
        return None if row is None else rollout_mapping.rollout_of_page(row)

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        filter_query = filters.of(query)
        make, dialect = rollout_mapping.attempt_of_page, self.core.dialect
        page = await self.core.answer(
            lambda session: pages.attempts(dialect, session, rollout_id, filter_query, make),
            lambda session, until: timeline.attempts(dialect, session, rollout_id, filter_query, until, make),
            query.as_at,
            (rollout_id, query.at),
        )
        return _paginated(page, filter_query)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        dialect = self.core.dialect
        row = await self.core.answer(
            lambda session: pages.latest_attempt(dialect, session, rollout_id),
            lambda session, until: timeline.latest_attempt(dialect, session, rollout_id, until),
            as_at,
            (rollout_id, at),
        )
        return None if row is None else rollout_mapping.attempt_of_page(row)

    # -- spans -------------------------------------------------------------------------------------------------------

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        filter_query = filters.of(query)
        make, dialect = rollout_mapping.span_of_page, self.core.dialect
        page = await self.core.answer(
            lambda session: pages.spans(dialect, session, query.rollout_id, query.attempt_id, filter_query, make),
            lambda session, until: timeline.spans(
                dialect, session, query.rollout_id, query.attempt_id, filter_query, until, make
            ),
            query.as_at,
            (query.rollout_id, query.at),
        )
        return _paginated(page, filter_query)

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        filter_query = filters.of(query)
        make, dialect = rollout_mapping.resources_of_page, self.core.dialect
        page = await self.core.answer(
            lambda session: pages.resources(dialect, session, filter_query, make),
            lambda session, until: timeline.resources(dialect, session, filter_query, until, make),
            query.as_at,
            sweeps=False,
        )
        return _paginated(page, filter_query)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        dialect = self.core.dialect
        row = await self.core.answer(
            lambda session: pages.resources_by_id(dialect, session, resources_id),
            lambda session, until: timeline.resources_by_id(dialect, session, resources_id, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        dialect = self.core.dialect
        row = await self.core.answer(
            lambda session: pages.latest_resources(dialect, session),
            lambda session, until: timeline.latest_resources(dialect, session, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        filter_query = filters.of(query)
        make, dialect = rollout_mapping.worker_of_page, self.core.dialect
        page = await self.core.answer(
            lambda session: pages.workers(dialect, session, filter_query, make),
            lambda session, until: timeline.workers(dialect, session, filter_query, until, make),
            query.as_at,
        )
        return _paginated(page, filter_query)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        dialect = self.core.dialect
        row = await self.core.answer(
            lambda session: pages.worker(dialect, session, worker_id),
            lambda session, until: timeline.worker(dialect, session, worker_id, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.worker_of_page(row)

    # -- numbers -----------------------------------------------------------------------------------------------------

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        dialect = self.core.dialect
        totals = await self.core.answer(
            lambda session: pages.totals(dialect, session),
            lambda session, until: timeline.totals(dialect, session, until),
            as_at,
            sweeps=False,
        )
        return {
            "name": type(self).__name__,
            "total_rollouts": totals[1],
            "total_attempts": totals[2],
            "total_spans": totals[3],
            "total_resources": totals[4],
            "total_workers": totals[5],
            "uptime": time.monotonic() - self.core.opened,
        }


def _paginated(page: Page[T], filter_query: FilterQuery) -> PaginatedResult[T]:
    return PaginatedResult(items=page.items, limit=filter_query.limit, offset=filter_query.offset, total=page.total)
