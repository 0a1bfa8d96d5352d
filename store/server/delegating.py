"""A store that hands every call on to another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from store.interface import Store
from store.models import (
    Attempt,
    AttemptedRollout,
    HistoryEvent,
    LightningStoreStatistics,
    LoggedEvent,
    PaginatedResult,
    RebuildReport,
    ResourcesUpdate,
    Rollout,
    Seal,
    Span,
    VerifyReport,
    Worker,
)


class DelegatingStore(Store):
    """The interface once more, each method as that of `target`."""

    @property
    @abstractmethod
    def target(self) -> Store:
        """The store that answers."""

    async def start_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout:
        return await self.target.start_rollout(*args, **kwargs)

    async def enqueue_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        return await self.target.enqueue_rollout(*args, **kwargs)

    async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        return await self.target.enqueue_many_rollouts(*args, **kwargs)

    async def dequeue_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout | None:
        return await self.target.dequeue_rollout(*args, **kwargs)

    async def dequeue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[AttemptedRollout]:
        return await self.target.dequeue_many_rollouts(*args, **kwargs)

    async def start_attempt(self, *args: Any, **kwargs: Any) -> AttemptedRollout:
        return await self.target.start_attempt(*args, **kwargs)

    async def add_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self.target.add_span(*args, **kwargs)

    async def add_many_spans(self, *args: Any, **kwargs: Any) -> list[Span]:
        return await self.target.add_many_spans(*args, **kwargs)

    async def add_otel_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self.target.add_otel_span(*args, **kwargs)

    async def get_next_span_sequence_id(self, *args: Any, **kwargs: Any) -> int:
        return await self.target.get_next_span_sequence_id(*args, **kwargs)

    async def get_many_span_sequence_ids(self, *args: Any, **kwargs: Any) -> list[int]:
        return await self.target.get_many_span_sequence_ids(*args, **kwargs)

    async def wait_for_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        return await self.target.wait_for_rollouts(*args, **kwargs)

    async def query_rollouts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        return await self.target.query_rollouts(*args, **kwargs)

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | AttemptedRollout | None:
        return await self.target.get_rollout_by_id(*args, **kwargs)

    async def update_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        return await self.target.update_rollout(*args, **kwargs)

    async def query_attempts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Attempt]:
        return await self.target.query_attempts(*args, **kwargs)

    async def get_latest_attempt(self, *args: Any, **kwargs: Any) -> Attempt | None:
        return await self.target.get_latest_attempt(*args, **kwargs)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        return await self.target.update_attempt(*args, **kwargs)

    async def query_spans(self, *args: Any, **kwargs: Any) -> PaginatedResult[Span]:
        return await self.target.query_spans(*args, **kwargs)

    async def add_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self.target.add_resources(*args, **kwargs)

    async def update_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self.target.update_resources(*args, **kwargs)

    async def query_resources(self, *args: Any, **kwargs: Any) -> PaginatedResult[ResourcesUpdate]:
        return await self.target.query_resources(*args, **kwargs)

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self.target.get_resources_by_id(*args, **kwargs)

    async def get_latest_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self.target.get_latest_resources(*args, **kwargs)

    async def query_workers(self, *args: Any, **kwargs: Any) -> PaginatedResult[Worker]:
        return await self.target.query_workers(*args, **kwargs)

    async def get_worker_by_id(self, *args: Any, **kwargs: Any) -> Worker | None:
        return await self.target.get_worker_by_id(*args, **kwargs)

    async def update_worker(self, *args: Any, **kwargs: Any) -> Worker:
        return await self.target.update_worker(*args, **kwargs)

    async def statistics(self, *args: Any, **kwargs: Any) -> LightningStoreStatistics:
        return await self.target.statistics(*args, **kwargs)

    async def history(self, *args: Any, **kwargs: Any) -> list[HistoryEvent]:
        return await self.target.history(*args, **kwargs)

    async def verify(self, *args: Any, **kwargs: Any) -> VerifyReport:
        return await self.target.verify(*args, **kwargs)

    async def rebuild(self, *args: Any, **kwargs: Any) -> RebuildReport:
        return await self.target.rebuild(*args, **kwargs)

    async def seal(self, *args: Any, **kwargs: Any) -> Seal:
        return await self.target.seal(*args, **kwargs)

    def tail(self, *args: Any, **kwargs: Any) -> AsyncIterator[LoggedEvent]:
        return self.target.tail(*args, **kwargs)
