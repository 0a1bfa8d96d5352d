"""The methods of the HTTP client that query and return stored objects."""

from __future__ import annotations

from typing import TypeVar

from store.client import requests
from store.client.core import HTTPCore, with_limit
from store.interface.runs import AsAt
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
from store.wire import encoding, paths

T = TypeVar("T")


class HTTPReads:
    """Reads of a server's rollouts, attempts, spans, resources and workers. Each read sends one request."""

    def __init__(self, core: HTTPCore) -> None:
        self.core = core

    async def find_rollouts(self, query: RolloutQuery) -> PaginatedResult[Rollout | AttemptedRollout]:
        return await self.core.page("query_rollouts", paths.ROLLOUTS_SEARCH, query, encoding.decode_rollout_page)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        moment = await self.core.moment(as_at, at)
        decode = encoding.decode_rollout_or_none
        return await self.core.find("get_rollout_by_id", paths.ROLLOUT, "rollout_id", rollout_id, moment, decode)

    async def find_attempts(self, rollout_id: str, query: AttemptQuery) -> PaginatedResult[Attempt]:
        checked_id = requests.lookup_id(rollout_id, "rollout_id")
        if not requests.is_nameable(checked_id):
            # No such rollout can exist, but invalid arguments must still raise an error.
            await self.core.keys(query)
            return PaginatedResult(items=[], limit=query.limit, offset=query.offset, total=0)
        path = requests.path(paths.ATTEMPTS_SEARCH, rollout_id=checked_id)
        return await self.core.page("query_attempts", path, query, encoding.decode_attempt_page)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        moment = await self.core.moment(as_at, at)
        decode = encoding.decode_attempt_or_none
        return await self.core.find(
            "get_latest_attempt", paths.LATEST_ATTEMPT, "rollout_id", rollout_id, moment, decode
        )

    async def find_spans(self, query: SpanQuery) -> PaginatedResult[Span]:
        return await self.core.page("query_spans", paths.SPANS_SEARCH, query, requests.decode_span_page)

    async def find_resources(self, query: ResourcesQuery) -> PaginatedResult[ResourcesUpdate]:
        keys = await self.core.keys(query)
        page = await self.core.read("query_resources", paths.RESOURCES, keys, encoding.decode_resources_page)
        return with_limit(page, query.limit)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        moment = await self.core.moment(as_at)
        template, decode = paths.RESOURCES_BY_ID, encoding.decode_resources_or_none
        return await self.core.find("get_resources_by_id", template, "resources_id", resources_id, moment, decode)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        return await self.core.read(
            "get_latest_resources",
            paths.LATEST_RESOURCES,
            await self.core.moment(as_at),
            encoding.decode_resources_or_none,
        )

    async def find_workers(self, query: WorkerQuery) -> PaginatedResult[Worker]:
        return await self.core.page("query_workers", paths.WORKERS_SEARCH, query, encoding.decode_worker_page)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        moment = await self.core.moment(as_at)
        decode = encoding.decode_worker_or_none
        return await self.core.find("get_worker_by_id", paths.WORKER, "worker_id", worker_id, moment, decode)

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        return await self.core.read(
            "statistics", paths.STATISTICS, await self.core.moment(as_at), encoding.decode_statistics
        )
