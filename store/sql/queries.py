"""The reads of a SQL store: a swept call asks the watchdog first, a call about the past asks the log."""

import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from store.db.dialect import Dialect, ReadSession
from store.db.queries import counts as counting
from store.db.queries import filters, pages
from store.db.queries.filters import Query
from store.db.queries.paging import Page
from store.errors import Closed, Invalid, WrongProcess
from store.interface.store import AsAt, Store
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
from store.runtime import process
from store.runtime.clock import system_clock
from store.runtime.loop_thread import Home
from store.sql.mapping import rollouts as rollout_mapping

T = TypeVar("T")


class SQLReads(Store):
    """What a SQL store answers from its tables and its log."""

    _dialect: Dialect
    _home: Home
    _pid: int
    _closed: bool
    _opened: float

    @abstractmethod
    async def _sweep_if_due(self) -> None:
        """Let the watchdog judge, if it is time."""

    # -- rollouts ----------------------------------------------------------------------------------------------------

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        asked = filters.of(query)
        make, dialect = rollout_mapping.rollout_of_page, self._dialect
        page = await self._answer(
            lambda session: pages.rollouts(dialect, session, asked, make),
            lambda session, until: timeline.rollouts(dialect, session, asked, until, make),
            query.as_at,
        )
        return _paginated(page, asked)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        dialect = self._dialect
        row = await self._answer(
            lambda session: pages.rollout(dialect, session, rollout_id),
            lambda session, until: timeline.rollout(dialect, session, rollout_id, until),
            as_at,
            (rollout_id, at),
        )
        return None if row is None else rollout_mapping.rollout_of_page(row)

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        asked = filters.of(query)
        make, dialect = rollout_mapping.attempt_of_page, self._dialect
        page = await self._answer(
            lambda session: pages.attempts(dialect, session, rollout_id, asked, make),
            lambda session, until: timeline.attempts(dialect, session, rollout_id, asked, until, make),
            query.as_at,
            (rollout_id, query.at),
        )
        return _paginated(page, asked)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        dialect = self._dialect
        row = await self._answer(
            lambda session: pages.latest_attempt(dialect, session, rollout_id),
            lambda session, until: timeline.latest_attempt(dialect, session, rollout_id, until),
            as_at,
            (rollout_id, at),
        )
        return None if row is None else rollout_mapping.attempt_of_page(row)

    # -- spans -------------------------------------------------------------------------------------------------------

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        asked = filters.of(query)
        make, dialect = rollout_mapping.span_of_page, self._dialect
        page = await self._answer(
            lambda session: pages.spans(dialect, session, query.rollout_id, query.attempt_id, asked, make),
            lambda session, until: timeline.spans(
                dialect, session, query.rollout_id, query.attempt_id, asked, until, make
            ),
            query.as_at,
            (query.rollout_id, query.at),
        )
        return _paginated(page, asked)

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        asked = filters.of(query)
        make, dialect = rollout_mapping.resources_of_page, self._dialect
        page = await self._answer(
            lambda session: pages.resources(dialect, session, asked, make),
            lambda session, until: timeline.resources(dialect, session, asked, until, make),
            query.as_at,
            sweeps=False,
        )
        return _paginated(page, asked)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        dialect = self._dialect
        row = await self._answer(
            lambda session: pages.resources_by_id(dialect, session, resources_id),
            lambda session, until: timeline.resources_by_id(dialect, session, resources_id, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        dialect = self._dialect
        row = await self._answer(
            lambda session: pages.latest_resources(dialect, session),
            lambda session, until: timeline.latest_resources(dialect, session, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.resources_of_page(row)

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        asked = filters.of(query)
        make, dialect = rollout_mapping.worker_of_page, self._dialect
        page = await self._answer(
            lambda session: pages.workers(dialect, session, asked, make),
            lambda session, until: timeline.workers(dialect, session, asked, until, make),
            query.as_at,
        )
        return _paginated(page, asked)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        dialect = self._dialect
        row = await self._answer(
            lambda session: pages.worker(dialect, session, worker_id),
            lambda session, until: timeline.worker(dialect, session, worker_id, until),
            as_at,
            sweeps=False,
        )
        return None if row is None else rollout_mapping.worker_of_page(row)

    # -- numbers -----------------------------------------------------------------------------------------------------

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        dialect = self._dialect
        totals = await self._answer(
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
            "uptime": time.monotonic() - self._opened,
        }

    async def counts(self) -> counting.Counts:
        """Return what the partition holds, for metrics: rollouts and attempts by status, and its queue."""
        return await self._read(lambda session: counting.counts(self._dialect, session))

    async def _queue_depth(self) -> int:
        return await self._read(lambda session: pages.queue_depth(self._dialect, session))

    async def _seconds_to_next_check(self) -> float | None:
        at = await self._read(lambda session: pages.next_check(self._dialect, session))
        clock = self._dialect.clock or system_clock
        return None if at is None else (at - clock()) / 1_000_000

    async def _known_and_ended(self, rollout_ids: set[str]) -> tuple[set[str], set[str]]:
        found = await self._read(lambda session: pages.finished(self._dialect, session, sorted(rollout_ids)))
        return set(found), {rollout_id for rollout_id, ended in found.items() if ended}

    async def _ended(self, rollout_ids: set[str]) -> set[str]:
        return (await self._known_and_ended(rollout_ids))[1]

    async def _ended_in_order(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        found = await self._read(
            lambda session: pages.rollouts_by_id(
                self._dialect, session, rollout_ids, rollout_mapping.plain_rollout_of_page
            )
        )
        ended = {"succeeded", "failed", "cancelled"}
        return [found[each] for each in rollout_ids if each in found and found[each].status in ended]

    # -- how they read -----------------------------------------------------------------------------------------------

    async def _answer(
        self,
        live: Callable[[ReadSession], Awaitable[T]],
        past: Callable[[ReadSession, int], Awaitable[T]],
        as_at: AsAt | None,
        own_number: tuple[str, int | None] = ("", None),
        *,
        sweeps: bool = True,
        snapshot: bool = False,
    ) -> T:
        """Read the present, or the past: at a moment of the log, or at a rollout's own event number."""
        rollout_id, at = own_number
        if as_at is None and at is None:
            if sweeps:
                await self._sweep_if_due()
            return await self._read(live, snapshot=snapshot)
        if as_at is not None and at is not None:
            raise Invalid("at", "give as_at, a moment of the log, or at, a number of the rollout's history; not both")

        async def read(session: ReadSession) -> T:
            if at is not None:
                return await past(session, await timeline.moment_of(self._dialect, session, rollout_id, at))
            return await past(session, await timeline.moment(self._dialect, session, as_at))

        return await self._read(read, snapshot=True)

    async def look(self, work: Callable[[Dialect, ReadSession], Awaitable[T]], *, snapshot: bool = False) -> T:
        """Return what a read of the tables themselves gives; for storeys above that count and group them.

        Args:
            work: is given the dialect, which compiles its statements, and a session that can only read.
            snapshot: whether all its statements see one state.
        """
        await self._sweep_if_due()
        return await self._read(lambda session: work(self._dialect, session), snapshot=snapshot)

    async def size_bytes(self) -> int:
        """Return the bytes that the partition takes on disk."""
        self._check()
        if self._dialect.loop_bound:
            return await self._home.run(self._dialect.size_bytes())
        return await self._dialect.size_bytes()

    async def _read(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool = False) -> T:
        self._check()
        if self._dialect.loop_bound:
            return await self._home.run(self._read_here(work, snapshot=snapshot))
        return await self._read_here(work, snapshot=snapshot)

    async def _read_here(self, work: Callable[[ReadSession], Awaitable[T]], *, snapshot: bool) -> T:
        async with self._dialect.read(snapshot=snapshot) as session:
            return await work(session)

    def _check(self) -> None:
        if process.number != self._pid:
            raise WrongProcess(self._pid, process.number)
        if self._closed:
            raise Closed("a call")


def _paginated(page: Page[T], asked: Query) -> PaginatedResult[T]:
    return PaginatedResult(items=page.items, limit=asked.limit, offset=asked.offset, total=page.total)
