"""Decide which events about a worker are recorded.

The status of a worker (`busy`, `idle` or `unknown`) follows from the status of its attempts. Signals are times and
values that are stored outside of the log, such as the time of the last heartbeat. In each function, `cause` is the
position of the event that led to the change, and `actor` is the caller.
"""

from store.domain.commands import BeatWorker
from store.domain.events import WorkerSeen, WorkerStatusChanged
from store.domain.rollout import AttemptState
from store.domain.views import WorkerView, view_worker
from store.domain.working_set import WorkingSet

_STATUS_OF = {
    "preparing": "busy",
    "running": "busy",
    "succeeded": "idle",
    "failed": "idle",
    "timeout": "unknown",
    "unresponsive": "unknown",
}


def _ensure_worker(worker_id: str, working_set: WorkingSet, actor: str | None) -> None:
    """Record that a worker exists, if the store does not know the worker yet."""
    if worker_id not in working_set.workers:
        working_set.record_worker(worker_id, WorkerSeen(), actor=actor)


def sync(attempt: AttemptState, working_set: WorkingSet, actor: str | None, *, cause: int | None) -> None:
    """Set the status of an attempt's worker to the status that follows from the attempt."""
    if not attempt.worker_id:
        return
    status = _STATUS_OF[attempt.status]
    if status == "busy":
        _set_status(attempt.worker_id, status, attempt.rollout_id, attempt.attempt_id, working_set, actor, cause)
    else:
        _set_status(attempt.worker_id, status, None, None, working_set, actor, cause)


def idle(
    worker_id: str, working_set: WorkingSet, actor: str | None, *, cause: int | None = None, forget: bool = False
) -> None:
    """Record that a worker found no work.

    The worker's row keeps the last rollout and the last attempt, unless `forget` is set.
    """
    _ensure_worker(worker_id, working_set, actor)
    state = working_set.workers[worker_id]
    if state.status != "idle" or forget:
        ids = (None, None) if forget else (state.current_rollout_id, state.current_attempt_id)
        _set_status(worker_id, "idle", *ids, working_set, actor, cause)


def beat(command: BeatWorker, working_set: WorkingSet) -> WorkerView:
    """Save a heartbeat of a worker as a signal."""
    _ensure_worker(command.worker_id, working_set, command.actor)
    signals = working_set.signals_of(command.worker_id)
    signals.last_heartbeat_at = working_set.stamp
    if command.heartbeat_stats is not None:
        signals.heartbeat_stats = command.heartbeat_stats
    return view_worker(working_set, command.worker_id)


def _set_status(
    worker_id: str,
    status: str,
    rollout_id: str | None,
    attempt_id: str | None,
    working_set: WorkingSet,
    actor: str | None,
    cause: int | None,
) -> None:
    _ensure_worker(worker_id, working_set, actor)
    state = working_set.workers[worker_id]
    if (state.status, state.current_rollout_id, state.current_attempt_id) != (status, rollout_id, attempt_id):
        fact = WorkerStatusChanged(from_=state.status, to=status, rollout_id=rollout_id, attempt_id=attempt_id)
        working_set.record_worker(worker_id, fact, actor=actor, cause=cause)
    elif status == "busy":
        # Only the time would change, so the time is saved as a signal and no event is recorded.
        working_set.signals_of(worker_id).last_busy_at = working_set.stamp
    else:
        working_set.signals_of(worker_id).last_idle_at = working_set.stamp


def actor_of(attempt: AttemptState, caller: str | None) -> str | None:
    """Return the actor of a call about an attempt: the attempt's worker if no caller or only an API key is known."""
    if attempt.worker_id and (caller is None or caller.startswith("key:")):
        return f"worker:{attempt.worker_id}"
    return caller
