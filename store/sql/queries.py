"""Methods of a SQL store that read rollouts, attempts, spans, resources and workers.

Most reads of the present sweep first: they end overdue attempts, unless the last sweep was a short time ago. A read of
the past computes its result from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters
from store.db.queries.filters import FilterQuery
from store.db.queries.paging import Page
from store.db.queries.scores import rewards_of_version
from store.interface.runs import AsAt
from store.journal.state_view import StateView
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
from store.sql.mapping import spans as span_mapping
from store.validation import arguments
from store.validation.scores import VersionKey

T = TypeVar("T")
M = TypeVar("M", bound=Rollout | Attempt)


class RewardReader(Generic[M]):
    """Converter from rows to rollouts or attempts. It reads the rewards of all of them with one statement.

    Args:
        core: the core of the store.
        make: converts a row to a rollout or an attempt, without its rewards.
        attempt_of: returns the id of the attempt whose rewards the result needs, or None if it needs no rewards.
        version: the version of the rewards; None for recorded rewards.
    """

    def __init__(
        self,
        core: SQLCore,
        make: Callable[[NamedRow], M],
        attempt_of: Callable[[NamedRow], str | None],
        version: VersionKey | None = None,
    ) -> None:
        self._core, self._make, self._attempt_of, self._version = core, make, attempt_of, version
        self._waiting: list[tuple[M, str]] = []
        self._until: int | None = None

    def at(self, view: StateView) -> StateView:
        """Ignore rewards that the view does not include, and return the view."""
        self._until = view.until
        return view

    def __call__(self, row: NamedRow) -> M:
        """Return the rollout or the attempt in a row."""
        item = self._make(row)
        attempt_id = self._attempt_of(row)
        if attempt_id is not None:
            self._waiting.append((item, attempt_id))
        return item

    async def read(self, session: ReadSession | None = None) -> None:
        """Read the rewards of all converted rows, in the given session or in a new one."""
        if not self._waiting:
            return
        ids = [item.rollout_id for item, _ in self._waiting]
        read = partial(rewards_of_version, rollout_ids=ids, version=self._version, until=self._until)
        by_attempt = await (self._core.read(read) if session is None else read(session))
        for item, attempt_id in self._waiting:
            rewards = by_attempt.get((item.rollout_id, attempt_id))
            if rewards is None:
                continue
            rollout_mapping.set_rewards(item, rewards.final, rewards.by_name)
            if isinstance(item, AttemptedRollout):
                rollout_mapping.set_rewards(item.attempt, rewards.final, {**rewards.by_name})


def rollout_reader(core: SQLCore, query: FilterQuery) -> RewardReader[Rollout | AttemptedRollout]:
    """Return a converter from the rows of a query of rollouts to rollouts with the rewards that the query selects."""
    version = query.reward_version
    attempt_of = rollout_mapping.rewarded_attempt if version is None else rollout_mapping.latest_attempt_id
    return RewardReader(core, rollout_mapping.rollout_of_page, attempt_of, version)


class SQLReads:
    """Methods of a SQL store that read its tables and its log."""

    def __init__(self, core: SQLCore) -> None:
        self.core = core

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        filter_query = filters.of(query)
        make = rollout_reader(self.core, filter_query)
        page = await self.core.view(lambda view: make.at(view).rollouts(filter_query, make), query.as_at)
        await make.read()
        return _paginated(page, filter_query)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        make = RewardReader(self.core, rollout_mapping.rollout_of_page, rollout_mapping.rewarded_attempt)
        row = await self.core.view(lambda view: make.at(view).rollout(rollout_id), as_at, (rollout_id, at))
        rollout = None if row is None else make(row)
        await make.read()
        return rollout

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        filter_query = filters.of(query)
        make = RewardReader(self.core, rollout_mapping.attempt_of_page, rollout_mapping.attempt_id_of_page)
        page = await self.core.view(
            lambda view: make.at(view).attempts(rollout_id, filter_query, make), query.as_at, (rollout_id, query.at)
        )
        await make.read()
        return _paginated(page, filter_query)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        make = RewardReader(self.core, rollout_mapping.attempt_of_page, rollout_mapping.attempt_id_of_page)
        row = await self.core.view(lambda view: make.at(view).latest_attempt(rollout_id), as_at, (rollout_id, at))
        attempt = None if row is None else make(row)
        await make.read()
        return attempt

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        filter_query = filters.of(query)
        make = span_mapping.span_of_page
        several, attempt_id = query.several, query.attempt_id
        if attempt_id is not None:
            arguments.text(attempt_id, "attempt_id")
        rollout_ids = arguments.text(query.rollout_id, "rollout_id") if several is None else several
        page = await self.core.view(
            lambda view: view.spans(rollout_ids, attempt_id, filter_query, make),
            query.as_at,
            (query.rollout_id, query.at),
        )
        return _paginated(page, filter_query)

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        filter_query = filters.of(query)
        make = rollout_mapping.resources_of_page
        page = await self.core.view(lambda view: view.resources(filter_query, make), query.as_at, sweeps=False)
        return _paginated(page, filter_query)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        row = await self.core.view(lambda view: view.resources_by_id(resources_id), as_at, sweeps=False)
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        row = await self.core.view(StateView.latest_resources, as_at, sweeps=False)
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        filter_query = filters.of(query)
        make = rollout_mapping.worker_of_page
        page = await self.core.view(lambda view: view.workers(filter_query, make), query.as_at)
        return _paginated(page, filter_query)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        row = await self.core.view(lambda view: view.worker(worker_id), as_at, sweeps=False)
        return None if row is None else rollout_mapping.worker_of_page(row)

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        totals = await self.core.view(StateView.totals, as_at, sweeps=False)
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
