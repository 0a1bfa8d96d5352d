"""Reports of the attempts whose runner's process has died, before the store would notice their missing heartbeats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from store.errors import StoreError
from store.interface.liveness import WORKER_GONE, pipeline_of
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError

_AT_WORK: Final = ("preparing", "running")


async def close_orphans(store: Store, is_dead: Callable[[Mapping[str, Any]], bool]) -> None:
    """Report the open attempts of dead runners as unresponsive.

    The store would do the same later, because the heartbeats of these attempts are missing. Attempts of rollouts
    without limits are left to the store, which retries the rollouts. Other rollouts are retried if their config
    permits it. Runners of pipelines close the attempts of pipelines.

    Args:
        store: the store of the attempts.
        is_dead: function that returns whether a process has died. Its argument contains the fields of `this_process`,
            among other fields of a worker's heartbeat.
    """
    # A worker that executes several attempts at once may be idle according to its row.
    active = [
        rollout
        for rollout in await store.query_rollouts(status_in=list(_AT_WORK))
        if isinstance(rollout, AttemptedRollout)
        and rollout.attempt.status in _AT_WORK
        and not rollout.config.is_unlimited
    ]
    if not active:
        return
    dead_worker_pids = {
        worker.worker_id: (worker.heartbeat_stats or {}).get("pid")
        for worker in await store.query_workers()
        if is_dead(worker.heartbeat_stats or {}) and pipeline_of(worker) is None
    }
    for rollout in active:
        if rollout.attempt.worker_id not in dead_worker_pids:
            continue
        worker_id = rollout.attempt.worker_id
        error = AttemptError(
            type=WORKER_GONE, message=f"process {dead_worker_pids[worker_id]} of worker {worker_id} is gone"
        )
        with contextlib.suppress(StoreError):
            await store.update_attempt(
                rollout.rollout_id,
                rollout.attempt.attempt_id,
                status="unresponsive",
                metadata={**(rollout.attempt.metadata or {}), "reason": "interrupted"},
                error=error,
            )
