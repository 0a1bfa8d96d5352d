"""A store that passes every call to another store."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from store.interface.annotations import StoreAnnotations
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.interface.threads import StoreThreads
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


class DelegatingStore(Store):
    """A store whose methods call those of `target`."""

    @property
    @abstractmethod
    def target(self) -> Store:
        """The store that executes the calls."""

    @property
    def log(self) -> StoreLog:
        return self.target.log

    @property
    def runs(self) -> StoreRuns:
        return self.target.runs

    @property
    def annotations(self) -> StoreAnnotations:
        return self.target.annotations

    @property
    def threads(self) -> StoreThreads:
        return self.target.threads

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

    async def find_rollouts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        return await self.target.find_rollouts(*args, **kwargs)

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | AttemptedRollout | None:
        return await self.target.get_rollout_by_id(*args, **kwargs)

    async def update_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        return await self.target.update_rollout(*args, **kwargs)

    async def find_attempts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Attempt]:
        return await self.target.find_attempts(*args, **kwargs)

    async def get_latest_attempt(self, *args: Any, **kwargs: Any) -> Attempt | None:
        return await self.target.get_latest_attempt(*args, **kwargs)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        return await self.target.update_attempt(*args, **kwargs)

    async def find_spans(self, *args: Any, **kwargs: Any) -> PaginatedResult[Span]:
        return await self.target.find_spans(*args, **kwargs)

    async def add_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self.target.add_resources(*args, **kwargs)

    async def update_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self.target.update_resources(*args, **kwargs)

    async def find_resources(self, *args: Any, **kwargs: Any) -> PaginatedResult[ResourcesUpdate]:
        return await self.target.find_resources(*args, **kwargs)

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self.target.get_resources_by_id(*args, **kwargs)

    async def get_latest_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self.target.get_latest_resources(*args, **kwargs)

    async def find_workers(self, *args: Any, **kwargs: Any) -> PaginatedResult[Worker]:
        return await self.target.find_workers(*args, **kwargs)

    async def get_worker_by_id(self, *args: Any, **kwargs: Any) -> Worker | None:
        return await self.target.get_worker_by_id(*args, **kwargs)

    async def update_worker(self, *args: Any, **kwargs: Any) -> Worker:
        return await self.target.update_worker(*args, **kwargs)

    async def statistics(self, *args: Any, **kwargs: Any) -> LightningStoreStatistics:
        return await self.target.statistics(*args, **kwargs)
