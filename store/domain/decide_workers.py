"""Decide the status of a worker from its attempts."""

from store.domain.events import WorkerSeen, WorkerStatusChanged
from store.domain.rollout import AttemptState
from store.domain.working_set import WorkingSet

_STATUS_OF = {
    "preparing": "busy",
    "running": "busy",
    "succeeded": "idle",
    "failed": "idle",
    "timeout": "unknown",
    "unresponsive": "unknown",
}


def seen(worker_id: str, working_set: WorkingSet, actor: str | None) -> None:
    """Record a worker that is not known yet."""
    if worker_id not in working_set.workers:
        working_set.record_worker(worker_id, WorkerSeen(), actor=actor)


def sync(attempt: AttemptState, working_set: WorkingSet, actor: str | None, *, cause: int | None) -> None:
    """Set the status of an attempt's worker from the attempt; other workers do not change."""
    if not attempt.worker_id:
        return
    status = _STATUS_OF[attempt.status]
    if status == "busy":
        _become(attempt.worker_id, status, attempt.rollout_id, attempt.attempt_id, working_set, actor, cause)
    else:
        _become(attempt.worker_id, status, None, None, working_set, actor, cause)


def idle(
    worker_id: str, working_set: WorkingSet, actor: str | None, *, cause: int | None = None, forget: bool = False
) -> None:
    """Record that a worker found no work. Its last rollout and attempt stay, unless `forget` is set."""
    seen(worker_id, working_set, actor)
    state = working_set.workers[worker_id]
    if state.status != "idle" or forget:
        ids = (None, None) if forget else (state.current_rollout_id, state.current_attempt_id)
        _become(worker_id, "idle", *ids, working_set, actor, cause)


def beat(worker_id: str, heartbeat_stats: str | None, working_set: WorkingSet) -> None:
    """Save a worker's heartbeat."""
    signals = working_set.signals_of(worker_id)
    signals.last_heartbeat_at = working_set.stamp
    if heartbeat_stats is not None:
        signals.heartbeat_stats = heartbeat_stats


def _become(
    worker_id: str,
    status: str,
    rollout_id: str | None,
    attempt_id: str | None,
    working_set: WorkingSet,
    actor: str | None,
    cause: int | None,
) -> None:
    seen(worker_id, working_set, actor)
    state = working_set.workers[worker_id]
    if (state.status, state.current_rollout_id, state.current_attempt_id) != (status, rollout_id, attempt_id):
        fact = WorkerStatusChanged(from_=state.status, to=status, rollout_id=rollout_id, attempt_id=attempt_id)
        working_set.record_worker(worker_id, fact, actor=actor, cause=cause)
    elif status == "busy":
        # A change that only refreshes the time is a signal and not an event.
        working_set.signals_of(worker_id).last_busy_at = working_set.stamp
    else:
        working_set.signals_of(worker_id).last_idle_at = working_set.stamp
