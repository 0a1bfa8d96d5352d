"""Wrappers around a store and around its `runs`, which pass every call to the wrapped object.

A subclass overrides the methods that it changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from store.interface.annotations import StoreAnnotations
from store.interface.calls import perform
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.scanners import StoreScanners
from store.interface.store import Store
from store.interface.threads import StoreThreads
from store.models import (
    Artifact,
    ArtifactRef,
    Attempt,
    AttemptDiff,
    AttemptedRollout,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    LightningStoreStatistics,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RunEventPage,
    RunFrame,
    RunGraph,
    Snapshot,
    Span,
    Worker,
)
from store.models.calls import ChangingCall

T = TypeVar("T")


class DelegatingStore(Store):
    """A store whose methods call the same methods of the store `target`."""

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
    def scanners(self) -> StoreScanners:
        return self.target.scanners

    @property
    def threads(self) -> StoreThreads:
        return self.target.threads

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return perform(self.target, call)

    async def add_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self.target.add_span(*args, **kwargs)

    async def add_many_spans(self, *args: Any, **kwargs: Any) -> list[Span]:
        return await self.target.add_many_spans(*args, **kwargs)

    async def add_otel_span(self, *args: Any, **kwargs: Any) -> Span | None:
        return await self.target.add_otel_span(*args, **kwargs)

    async def wait_for_rollouts(self, *args: Any, **kwargs: Any) -> list[Rollout]:
        return await self.target.wait_for_rollouts(*args, **kwargs)

    async def find_rollouts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Rollout | AttemptedRollout]:
        return await self.target.find_rollouts(*args, **kwargs)

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | AttemptedRollout | None:
        return await self.target.get_rollout_by_id(*args, **kwargs)

    async def find_attempts(self, *args: Any, **kwargs: Any) -> PaginatedResult[Attempt]:
        return await self.target.find_attempts(*args, **kwargs)

    async def get_latest_attempt(self, *args: Any, **kwargs: Any) -> Attempt | None:
        return await self.target.get_latest_attempt(*args, **kwargs)

    async def find_spans(self, *args: Any, **kwargs: Any) -> PaginatedResult[Span]:
        return await self.target.find_spans(*args, **kwargs)

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

    async def statistics(self, *args: Any, **kwargs: Any) -> LightningStoreStatistics:
        return await self.target.statistics(*args, **kwargs)


class DelegatingRuns(StoreRuns):
    """The `runs` of a store, with methods that call the same methods of another store's `runs`.

    Args:
        target: the `runs` of the other store, which execute the calls.
    """

    def __init__(self, target: StoreRuns) -> None:
        super().__init__(target.backend)
        self.target = target

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return perform(self.target, call)

    def follow(self, *args: Any, **kwargs: Any) -> AsyncIterator[RunFrame]:
        return self.target.follow(*args, **kwargs)

    async def find_events(self, *args: Any, **kwargs: Any) -> RunEventPage:
        return await self.target.find_events(*args, **kwargs)

    async def get_graph(self, *args: Any, **kwargs: Any) -> RunGraph:
        return await self.target.get_graph(*args, **kwargs)

    async def get_checkpoint(self, *args: Any, **kwargs: Any) -> Snapshot | None:
        return await self.target.get_checkpoint(*args, **kwargs)

    async def get_checkpoint_by_id(self, *args: Any, **kwargs: Any) -> Snapshot:
        return await self.target.get_checkpoint_by_id(*args, **kwargs)

    async def find_checkpoints(self, *args: Any, **kwargs: Any) -> list[CheckpointRef]:
        return await self.target.find_checkpoints(*args, **kwargs)

    async def find_artifacts(self, *args: Any, **kwargs: Any) -> list[Artifact]:
        return await self.target.find_artifacts(*args, **kwargs)

    async def scope_history(self, *args: Any, **kwargs: Any) -> list[ArtifactRef]:
        return await self.target.scope_history(*args, **kwargs)

    async def plan_fork(self, *args: Any, **kwargs: Any) -> ForkPlan:
        return await self.target.plan_fork(*args, **kwargs)

    async def list_lineage(self, *args: Any, **kwargs: Any) -> list[AttemptNode]:
        return await self.target.list_lineage(*args, **kwargs)

    async def compare_attempts(self, *args: Any, **kwargs: Any) -> AttemptDiff:
        return await self.target.compare_attempts(*args, **kwargs)
