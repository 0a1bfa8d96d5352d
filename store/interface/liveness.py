"""Checks whether the processes that execute attempts are alive.

In the store, a runner of a pipeline is a worker whose heartbeats contain the name of the pipeline's phase graph. An
orphan is an active attempt whose process is gone.
"""

from __future__ import annotations

import time
from typing import Any, Final, cast

from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, Rollout, Worker
from store.planning.run_state import CUT_OFF
from store.runtime.process import is_gone

WORKER_GONE: Final = "WorkerGone"
"""The error type of attempts whose runner's process died."""

_AT_WORK: Final = ("preparing", "running")
_BEATS: Final = 3
"""The number of heartbeats that a runner may miss before it no longer counts as live."""
_LEAST_SECONDS: Final = 5.0


async def is_orphan(store: Store, rollout: Rollout) -> bool:
    """Return whether the latest attempt of a rollout is active although its process is gone.

    The result is False if the process ran on another machine.
    """
    worker = await _worker_of(store, rollout)
    return worker is not None and is_gone(worker.heartbeat_stats or {})


async def close_orphans(store: Store) -> list[str]:
    """Set active attempts of pipelines to unresponsive if their process ran on this machine and is gone.

    The store would do the same after `unresponsive_seconds`. The run of such an attempt fails, or is queued again if
    its config retries unresponsive attempts. Attempts of runners without a pipeline are left out, because such a
    runner, when it starts, ends the attempts of the process that it replaces. The result contains the rollout ids of
    the runs.
    """
    closed: list[str] = []
    for rollout in await store.query_rollouts(status_in=list(_AT_WORK)):
        worker = await _worker_of(store, rollout)
        if worker is None or pipeline_of(worker) is None or not is_gone(worker.heartbeat_stats or {}):
            continue
        attempt = cast("AttemptedRollout", rollout).attempt
        error = AttemptError(type=WORKER_GONE, message=CUT_OFF)
        await store.update_attempt(rollout.rollout_id, attempt.attempt_id, status="unresponsive", error=error)
        closed.append(rollout.rollout_id)
    return closed


async def _worker_of(store: Store, rollout: Rollout) -> Worker | None:
    """Return the worker of the active attempt of a rollout; None if there is no such attempt or worker."""
    if not isinstance(rollout, AttemptedRollout) or rollout.status not in _AT_WORK:
        return None
    attempt = rollout.attempt
    if attempt.status not in _AT_WORK or attempt.worker_id is None:
        return None
    return await store.get_worker_by_id(attempt.worker_id)


def pipeline_of(worker: Worker) -> str | None:
    """Return the name of the phase graph that a worker executes; None if the worker runs no pipeline."""
    pipeline: Any = (worker.heartbeat_stats or {}).get("pipeline")
    return pipeline if isinstance(pipeline, str) else None


async def live_runners(store: Store, pipeline: str) -> list[str]:
    """Return the ids of the live runners of a pipeline. `pipeline` is the name of its phase graph.

    A live runner has sent a recent heartbeat, which says that the runner takes requests for re-runs.
    """
    now = time.time()
    return [
        worker.worker_id
        for worker in await store.query_workers(worker_id_contains=pipeline)
        if pipeline_of(worker) == pipeline and _is_live(worker, now)
    ]


def _is_live(worker: Worker, now: float) -> bool:
    stats = worker.heartbeat_stats or {}
    interval: Any = stats.get("heartbeat_interval")
    patience = max(_LEAST_SECONDS, _BEATS * interval) if isinstance(interval, int | float) else UNRESPONSIVE_SECONDS
    return (
        bool(stats.get("takes_requests"))
        and not stats.get("stopped")
        and not is_gone(stats)
        and now - (worker.last_heartbeat_time or 0.0) <= patience
    )
