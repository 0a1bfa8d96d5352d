"""A store of another make joins by subclassing `Store`: this one, which hands every call on, keeps the contract too."""

from __future__ import annotations

from typing import Any

import pytest

from store.interface.store import Store
from store.models import (
    Attempt,
    AttemptedRollout,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from store.testing.contract import StoreContract


class DelegatingStore(Store):
    """A store made of nothing but the interface and another store."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._inner.capabilities

    async def start_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout:
        return await self._inner.start_rollout(*args, **kwargs)

    async def enqueue_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        return await self._inner.enqueue_rollout(*args, **kwargs)

    async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        return await self._inner.enqueue_many_rollouts(*args, **kwargs)

    async def dequeue_rollout(self, *args: Any, **kwargs: Any) -> AttemptedRollout | None:
        return await self._inner.dequeue_rollout(*args, **kwargs)

    async def dequeue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[AttemptedRollout]:
        return await self._inner.dequeue_many_rollouts(*args, **kwargs)

    async def start_attempt(self, *args: Any, **kwargs: Any) -> AttemptedRollout:
        return await self._inner.start_attempt(*args, **kwargs)

    async def add_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self._inner.add_span(*args, **kwargs)

    async def add_many_spans(self, *args: Any, **kwargs: Any) -> list[Span]:
        return await self._inner.add_many_spans(*args, **kwargs)

    async def add_otel_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self._inner.add_otel_span(*args, **kwargs)

    async def get_next_span_sequence_id(self, *args: Any, **kwargs: Any) -> int:
        return await self._inner.get_next_span_sequence_id(*args, **kwargs)

    async def get_many_span_sequence_ids(self, *args: Any, **kwargs: Any) -> list[int]:
        return await self._inner.get_many_span_sequence_ids(*args, **kwargs)

    async def wait_for_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        return await self._inner.wait_for_rollouts(*args, **kwargs)

    async def find_rollouts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        return await self._inner.find_rollouts(*args, **kwargs)

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | AttemptedRollout | None:
        return await self._inner.get_rollout_by_id(*args, **kwargs)

    async def update_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        return await self._inner.update_rollout(*args, **kwargs)

    async def find_attempts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Attempt]:
        return await self._inner.find_attempts(*args, **kwargs)

    async def get_latest_attempt(self, *args: Any, **kwargs: Any) -> Attempt | None:
        return await self._inner.get_latest_attempt(*args, **kwargs)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        return await self._inner.update_attempt(*args, **kwargs)

    async def find_spans(self, *args: Any, **kwargs: Any) -> PaginatedResult[Span]:
        return await self._inner.find_spans(*args, **kwargs)

    async def add_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self._inner.add_resources(*args, **kwargs)

    async def update_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate:
        return await self._inner.update_resources(*args, **kwargs)

    async def find_resources(self, *args: Any, **kwargs: Any) -> PaginatedResult[ResourcesUpdate]:
        return await self._inner.find_resources(*args, **kwargs)

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self._inner.get_resources_by_id(*args, **kwargs)

    async def get_latest_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        return await self._inner.get_latest_resources(*args, **kwargs)

    async def find_workers(self, *args: Any, **kwargs: Any) -> PaginatedResult[Worker]:
        return await self._inner.find_workers(*args, **kwargs)

    async def get_worker_by_id(self, *args: Any, **kwargs: Any) -> Worker | None:
        return await self._inner.get_worker_by_id(*args, **kwargs)

    async def update_worker(self, *args: Any, **kwargs: Any) -> Worker:
        return await self._inner.update_worker(*args, **kwargs)

    async def statistics(self, *args: Any, **kwargs: Any) -> LightningStoreStatistics:
        return await self._inner.statistics(*args, **kwargs)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.repeat
class TestDelegatingStore(StoreContract):
    """The contract, through a wrapper; one backend behind it is enough."""

    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"

    @pytest.fixture
    def store(self, store: Store) -> DelegatingStore:
        return DelegatingStore(store)
