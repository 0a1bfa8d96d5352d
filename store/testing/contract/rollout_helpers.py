"""Functions that prepare a store for a test, and functions that read the results."""

from __future__ import annotations

from typing import Any

from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Rollout, RolloutConfig, Worker

__all__ = ["attempt_of", "attempts_of", "reread", "started", "statuses", "worker_of"]


async def started(store: Store, *, worker_id: str | None = None, **config: Any) -> AttemptedRollout:
    """Start a rollout with a `RolloutConfig` that has the given fields, and return the rollout."""
    return await store.start_rollout({"task": "contract"}, config=RolloutConfig(**config), worker_id=worker_id)


async def reread(store: Store, rollout: Rollout) -> Rollout:
    """Return the current state of the rollout."""
    current = await store.get_rollout_by_id(rollout.rollout_id)
    assert current is not None
    return current


async def attempts_of(store: Store, rollout: Rollout) -> list[Attempt]:
    """Return the attempts of the rollout, from the first to the last."""
    return list(await store.query_attempts(rollout.rollout_id))


async def attempt_of(store: Store, rollout: Rollout, sequence_id: int = 1) -> Attempt:
    """Return the attempt of the rollout with the given sequence id."""
    (attempt,) = [item for item in await attempts_of(store, rollout) if item.sequence_id == sequence_id]
    return attempt


async def statuses(store: Store, rollout: Rollout) -> tuple[str, ...]:
    """Return the status of the rollout, followed by the statuses of its attempts from the first to the last."""
    return ((await reread(store, rollout)).status, *(attempt.status for attempt in await attempts_of(store, rollout)))


async def worker_of(store: Store, worker_id: str) -> Worker:
    """Return the worker. Unlike most reads, this read does not sweep."""
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None
    return worker
