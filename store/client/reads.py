"""The reads of a store over HTTP: one request each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from store.client import requests
from store.client.transport import Call, Transport, reading
from store.interface.store import AsAt, Store
from store.models import (
    Attempt,
    AttemptedRollout,
    FilterLogic,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    SortOrder,
    Span,
    Worker,
    WorkerStatus,
)
from store.wire import encoding, paths

T = TypeVar("T")


class HTTPReads(Store):
    """What a server answers from its store."""

    _transport: Transport
    _knows_server: bool

    # -- rollouts ----------------------------------------------------------------------------------------------------

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        fields = {
            **requests.given(
                status_in=requests.texts(status if status_in is None else status_in, "status_in"),
                rollout_id_in=requests.texts(rollout_ids if rollout_id_in is None else rollout_id_in, "rollout_id_in"),
                rollout_id_contains=requests.text(rollout_id_contains, "rollout_id_contains"),
                sort_by=sort_by,
            ),
            **requests.page(limit, offset, sort_order, filter_logic),
            **await self._past(as_at),
        }
        return await self._page("query_rollouts", paths.ROLLOUTS_SEARCH, fields, limit, encoding.decode_rollout_page)

    async def get_rollout_by_id(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Rollout | AttemptedRollout | None:
        moment = await self._past(as_at, at)
        decode = encoding.decode_rollout_or_none
        return await self._find("get_rollout_by_id", paths.ROLLOUT, "rollout_id", rollout_id, moment, decode)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> PaginatedResult[Attempt]:
        sought = requests.sought(rollout_id, "rollout_id")
        fields = {
            # Null is the order of creation here, while leaving it out means the default.
            "sort_by": sort_by,
            **requests.page(limit, offset, sort_order),
            **await self._past(as_at, at),
        }
        if not requests.is_nameable(sought):
            return PaginatedResult(items=[], limit=limit, offset=offset, total=0)
        path = requests.path(paths.ATTEMPTS_SEARCH, rollout_id=sought)
        return await self._page("query_attempts", path, fields, limit, encoding.decode_attempt_page)

    async def get_latest_attempt(
        self, rollout_id: str, *, as_at: AsAt | None = None, at: int | None = None
    ) -> Attempt | None:
        moment = await self._past(as_at, at)
        decode = encoding.decode_attempt_or_none
        return await self._find("get_latest_attempt", paths.LATEST_ATTEMPT, "rollout_id", rollout_id, moment, decode)

    # -- spans -------------------------------------------------------------------------------------------------------

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> PaginatedResult[Span]:
        conditions = {
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
        }
        fields = {
            "rollout_id": requests.sought(rollout_id, "rollout_id"),
            "sort_by": sort_by,
            **requests.given(**{field: requests.text(value, field) for field, value in conditions.items()}),
            **requests.page(limit, offset, sort_order, filter_logic),
            **await self._past(as_at, at),
        }
        return await self._page("query_spans", paths.SPANS_SEARCH, fields, limit, requests.decode_span_page)

    # -- resources and workers ---------------------------------------------------------------------------------------

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[ResourcesUpdate]:
        fields = {
            **requests.given(
                resources_id=requests.text(resources_id, "resources_id"),
                resources_id_contains=requests.text(resources_id_contains, "resources_id_contains"),
                sort_by=sort_by,
            ),
            **requests.page(limit, offset, sort_order),
            **await self._past(as_at),
        }
        page = await self._read("query_resources", paths.RESOURCES, fields, encoding.decode_resources_page)
        return _echo(page, limit)

    async def get_resources_by_id(self, resources_id: str, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        moment = await self._past(as_at)
        template, decode = paths.RESOURCES_BY_ID, encoding.decode_resources_or_none
        return await self._find("get_resources_by_id", template, "resources_id", resources_id, moment, decode)

    async def get_latest_resources(self, *, as_at: AsAt | None = None) -> ResourcesUpdate | None:
        return await self._read(
            "get_latest_resources", paths.LATEST_RESOURCES, await self._past(as_at), encoding.decode_resources_or_none
        )

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        as_at: AsAt | None = None,
    ) -> PaginatedResult[Worker]:
        fields = {
            **requests.given(
                status_in=requests.texts(status_in, "status_in"),
                worker_id_contains=requests.text(worker_id_contains, "worker_id_contains"),
                sort_by=sort_by,
            ),
            **requests.page(limit, offset, sort_order, filter_logic),
            **await self._past(as_at),
        }
        return await self._page("query_workers", paths.WORKERS_SEARCH, fields, limit, encoding.decode_worker_page)

    async def get_worker_by_id(self, worker_id: str, *, as_at: AsAt | None = None) -> Worker | None:
        moment = await self._past(as_at)
        decode = encoding.decode_worker_or_none
        return await self._find("get_worker_by_id", paths.WORKER, "worker_id", worker_id, moment, decode)

    # -- numbers -----------------------------------------------------------------------------------------------------

    async def statistics(self, *, as_at: AsAt | None = None) -> LightningStoreStatistics:
        return await self._read("statistics", paths.STATISTICS, await self._past(as_at), encoding.decode_statistics)

    # -- how they read -----------------------------------------------------------------------------------------------

    async def _page(
        self,
        operation: str,
        path: str,
        fields: dict[str, Any],
        limit: int,
        decode: Callable[[bytes], PaginatedResult[T]],
    ) -> PaginatedResult[T]:
        call = Call(operation, "POST", path, requests.body(**fields))
        return _echo(await self._transport.ask(call, decode), limit)

    async def _read(self, operation: str, path: str, fields: dict[str, Any], decode: Callable[[bytes], T]) -> T:
        return await self._transport.ask(reading(operation, path + requests.query_string(fields)), decode)

    async def _find(
        self,
        operation: str,
        template: str,
        field: str,
        key: str,
        fields: dict[str, Any],
        decode: Callable[[bytes], T | None],
    ) -> T | None:
        """Return the one thing that a path names, or None."""
        if not requests.is_nameable(requests.sought(key, field)):
            return None
        return await self._read(operation, requests.path(template, **{field: key}), fields, decode)

    async def _past(self, as_at: AsAt | None, at: int | None = None) -> dict[str, Any]:
        """Return the moment a read is about, having made sure that the server does not answer with the present."""
        moment = requests.past(as_at, at)
        if moment and not self._knows_server:
            await self._meet("as_at")
        return moment

    async def _meet(self, operation: str) -> None:
        """Make sure that the server is Rollbook's.

        Raises:
            Incompatible: it is another's, which would not know what the operation means.
        """
        raise NotImplementedError


def _echo(page: PaginatedResult[T], limit: int) -> PaginatedResult[T]:
    """Return a page as it was asked for; the protocol has none without items."""
    if limit:
        return page
    return PaginatedResult(items=[], limit=0, offset=page.offset, total=page.total)
