"""Initial situations of many tests, and short reads of their results."""

from __future__ import annotations

from typing import Any

from store.interface.store import Store
from store.models import Attempt, AttemptedRollout, Rollout, RolloutConfig, Worker

__all__ = ["attempt_of", "attempts_of", "reread", "started", "statuses", "worker_of"]


async def started(store: Store, *, worker_id: str | None = None, **config: Any) -> AttemptedRollout:
    """Start a rollout whose config has these fields."""
    return await store.start_rollout({"task": "contract"}, config=RolloutConfig(**config), worker_id=worker_id)


async def reread(store: Store, rollout: Rollout) -> Rollout:
    """Return the current rollout."""
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found


async def attempts_of(store: Store, rollout: Rollout) -> list[Attempt]:
    """Return the attempts of the rollout, first to last."""
    return list(await store.query_attempts(rollout.rollout_id))


async def attempt_of(store: Store, rollout: Rollout, sequence_id: int = 1) -> Attempt:
    """Return one attempt of the rollout by its sequence id."""
    (found,) = [one for one in await attempts_of(store, rollout) if one.sequence_id == sequence_id]
    return found


async def statuses(store: Store, rollout: Rollout) -> tuple[str, ...]:
    """Return the status of the rollout, followed by the statuses of its attempts, first to last."""
    return ((await reread(store, rollout)).status, *(one.status for one in await attempts_of(store, rollout)))


async def worker_of(store: Store, worker_id: str) -> Worker:
    """Return the worker; this read does not sweep."""
    found = await store.get_worker_by_id(worker_id)
    assert found is not None
    return found
