"""Rollbook in the process of an Agent-lightning 0.3 trainer: `Trainer(store=RollbookStore(url))`.

The module needs the extra `agentlightning`. With a Rollbook server, this module is not needed: the client of
Agent-lightning can use the server.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false
# Agent-lightning is installed in a separate environment, which the type checker does not see.
# ruff: noqa: A002, ASYNC109 - the names of arguments are those of Agent-lightning.

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from agentlightning.store.base import UNSET, LightningStore
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Event,
    Link,
    NamedResources,
    OtelResource,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    SpanContext,
    TraceStatus,
    Worker,
)
from pydantic import BaseModel, TypeAdapter

from store import models
from store.errors import SpanConflict
from store.integrations.by_url import StoreByURL
from store.interface.store import Store

logger = logging.getLogger("store.spans")

_RESOURCES: TypeAdapter[models.NamedResources] = TypeAdapter(models.NamedResources)

Ours = TypeVar("Ours", bound=BaseModel)
Theirs = TypeVar("Theirs", bound=BaseModel)


class RollbookStore(LightningStore):
    """Implementation of the store interface of Agent-lightning on a Rollbook database.

    The first call in each process opens the database: the object may be pickled, and a forked runner opens its own
    connection. Returned models are copies; changing a copy does not change the store.

    Args:
        url: the URL of the database, as for `open_store`.
        scan_debounce_seconds: the minimum time between two checks for overdue attempts by calls marked *Sweeps* in
            `Store`; at 0, each of these calls checks.

    Raises:
        Invalid: the URL is invalid.
    """

    def __init__(self, url: str, *, scan_debounce_seconds: float = 10.0) -> None:
        super().__init__()
        self._store = StoreByURL(url, scan_debounce_seconds=scan_debounce_seconds)

    async def rollbook(self) -> Store:
        """Return the underlying store, with the methods that Agent-lightning's interface lacks: history, verify, as_at.

        Raises:
            WrongProcess: a `memory://` store can be used only in the process that created it.
        """
        return await self._store.opened()

    async def close(self) -> None:
        """Close the database in this process; a later call opens the database again."""
        await self._store.close()

    @property
    def capabilities(self) -> dict[str, bool]:
        """Return the capabilities on which Agent-lightning may rely. They are known before the database is opened."""
        return {
            "thread_safe": True,
            "async_safe": True,
            "zero_copy": not self._store.is_private,
            "otlp_traces": self._store.server is not None,
        }

    def otlp_traces_endpoint(self) -> str:
        """Return the URL that accepts traces over OTLP, if the store is a server.

        Raises:
            NotImplementedError: the store is a database.
        """
        server = self._store.server
        return super().otlp_traces_endpoint() if server is None else f"{server}/v1/traces"

    async def statistics(self) -> dict[str, Any]:
        return dict(await self._store.call(Store.statistics))

    async def start_rollout(
        self,
        input: Any,
        mode: models.RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        started = await self._store.call(
            Store.start_rollout, input, mode, resources_id, _config(config), metadata, worker_id
        )
        return _copy(AttemptedRollout, started)

    async def enqueue_rollout(
        self,
        input: Any,
        mode: models.RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        return _copy(
            Rollout, await self._store.call(Store.enqueue_rollout, input, mode, resources_id, _config(config), metadata)
        )

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        requests = [_copy(models.EnqueueRolloutRequest, request) for request in rollouts]
        return [_copy(Rollout, enqueued) for enqueued in await self._store.call(Store.enqueue_many_rollouts, requests)]

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        return _copy_or_none(AttemptedRollout, await self._store.call(Store.dequeue_rollout, worker_id))

    async def dequeue_many_rollouts(self, *, limit: int = 1, worker_id: str | None = None) -> list[AttemptedRollout]:
        claimed = await self._store.call(Store.dequeue_many_rollouts, limit, worker_id)
        return [_copy(AttemptedRollout, rollout) for rollout in claimed]

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        return _copy(AttemptedRollout, await self._store.call(Store.start_attempt, rollout_id, worker_id))

    async def query_rollouts(self, **conditions: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        return _page(_rollout, await self._store.call(Store.query_rollouts, **conditions))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        rollout = await self._store.call(Store.get_rollout_by_id, rollout_id)
        return None if rollout is None else _rollout(rollout)

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any = UNSET,
        mode: Any = UNSET,
        resources_id: Any = UNSET,
        status: Any = UNSET,
        config: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Rollout:
        fields = _set_fields(input=input, mode=mode, resources_id=resources_id, status=status, metadata=metadata)
        if config is not UNSET:
            fields["config"] = _config(config)
        return _copy(Rollout, await self._store.call(Store.update_rollout, rollout_id, **fields))

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Rollout]:
        ended = await self._store.call(Store.wait_for_rollouts, rollout_ids, timeout)
        return [_copy(Rollout, rollout) for rollout in ended]

    async def query_attempts(self, rollout_id: str, **conditions: Any) -> PaginatedResult[Attempt]:
        page = await self._store.call(Store.query_attempts, rollout_id, **conditions)
        return _page(partial(_copy, Attempt), page)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return _copy_or_none(Attempt, await self._store.call(Store.get_latest_attempt, rollout_id))

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        fields = _set_fields(
            status=status, worker_id=worker_id, last_heartbeat_time=last_heartbeat_time, metadata=metadata
        )
        return _copy(Attempt, await self._store.call(Store.update_attempt, rollout_id, attempt_id, **fields))

    async def add_span(self, span: Span) -> Span | None:
        try:
            return span if await self._store.call(Store.add_span, _copy(models.Span, span)) else None
        except SpanConflict as error:
            _log_conflict(error)
            return None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        try:
            recorded = await self._store.call(Store.add_many_spans, [_copy(models.Span, span) for span in spans])
        except SpanConflict as error:
            _log_conflict(error)
            return [spans[index] for index, _ in error.recorded]
        # If two spans have the same key, the store records the first one. A span with a derived id is a new object.
        originals = {_key(span): span for span in reversed(spans)}
        return [originals.get(_key(span)) or _span(span) for span in recorded]

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        try:
            recorded = await self._store.call(Store.add_otel_span, rollout_id, attempt_id, readable_span, sequence_id)
        except SpanConflict as error:
            _log_conflict(error)
            return None
        return None if recorded is None else _span(recorded)

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return await self._store.call(Store.get_next_span_sequence_id, rollout_id, attempt_id)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        return await self._store.call(Store.get_many_span_sequence_ids, rollout_attempt_ids)

    async def query_spans(
        self, rollout_id: str, attempt_id: str | None = None, **conditions: Any
    ) -> PaginatedResult[Span]:
        return _page(_span, await self._store.call(Store.query_spans, rollout_id, attempt_id, **conditions))

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return _copy(ResourcesUpdate, await self._store.call(Store.add_resources, _resources(resources)))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        updated = await self._store.call(Store.update_resources, resources_id, _resources(resources))
        return _copy(ResourcesUpdate, updated)

    async def query_resources(self, **conditions: Any) -> PaginatedResult[ResourcesUpdate]:
        page = await self._store.call(Store.query_resources, **conditions)
        return _page(partial(_copy, ResourcesUpdate), page)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return _copy_or_none(ResourcesUpdate, await self._store.call(Store.get_resources_by_id, resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return _copy_or_none(ResourcesUpdate, await self._store.call(Store.get_latest_resources))

    async def query_workers(self, **conditions: Any) -> PaginatedResult[Worker]:
        page = await self._store.call(Store.query_workers, **conditions)
        return _page(partial(_copy, Worker), page)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return _copy_or_none(Worker, await self._store.call(Store.get_worker_by_id, worker_id))

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        return _copy(
            Worker,
            await self._store.call(Store.update_worker, worker_id, **_set_fields(heartbeat_stats=heartbeat_stats)),
        )


class _Keyed(Protocol):
    rollout_id: str
    attempt_id: str
    span_id: str


def _key(span: _Keyed) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id


def _log_conflict(error: SpanConflict) -> None:
    # Agent-lightning returns None for a span whose id is already stored, even if the contents differ.
    logger.warning("Duplicated span added: %s", error)


def _copy(kind: type[Theirs], model: BaseModel) -> Theirs:
    """Convert a model of one package to the other package's class with the same fields."""
    return kind.model_validate(model.model_dump())


def _copy_or_none(kind: type[Theirs], model: BaseModel | None) -> Theirs | None:
    return None if model is None else _copy(kind, model)


def _rollout(rollout: models.Rollout) -> Rollout | AttemptedRollout:
    return _copy(AttemptedRollout if isinstance(rollout, models.AttemptedRollout) else Rollout, rollout)


def _page(convert: Callable[[Ours], Any], page: models.PaginatedResult[Ours]) -> PaginatedResult[Any]:
    items = [convert(item) for item in page.items]
    return PaginatedResult(items=items, limit=page.limit, offset=page.offset, total=page.total)


def _config(config: RolloutConfig | None) -> Any:
    return None if config is None else _copy(models.RolloutConfig, config)


def _resources(resources: NamedResources) -> models.NamedResources:
    return _RESOURCES.validate_python({name: resource.model_dump() for name, resource in resources.items()})


def _set_fields(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not UNSET}


def _span(span: models.Span) -> Span:
    """Return a span as a span of Agent-lightning, without validation, because the store has validated it."""
    return Span.model_construct(
        **{
            **span.model_dump(),
            "status": TraceStatus.model_construct(**span.status.model_dump()),
            "events": [Event.model_construct(**event.model_dump()) for event in span.events],
            "links": [
                Link.model_construct(**{**link.model_dump(), "context": _context(link.context)}) for link in span.links
            ],
            "context": _context(span.context),
            "parent": _context(span.parent),
            "resource": OtelResource.model_construct(**span.resource.model_dump()),
        }
    )


def _context(context: models.SpanContext | None) -> SpanContext | None:
    return None if context is None else SpanContext.model_construct(**context.model_dump())
