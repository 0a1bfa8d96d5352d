"""The state of a worker, and the function that applies an event to this state."""

from dataclasses import dataclass

from store.domain.events import Event, WorkerSeen, WorkerStatusChanged
from store.errors import Corrupt


@dataclass(slots=True)
class WorkerState:
    """The fields of a worker that decisions and the row in the database need. Times are microseconds since the epoch.

    Heartbeats of the worker are not part of this state. `WorkerSignals` contains them.
    """

    worker_id: str
    status: str
    current_rollout_id: str | None
    current_attempt_id: str | None
    last_busy_at: int | None
    last_idle_at: int | None
    stream_version: int
    """The version of the worker's last event."""
    first_position: int
    """The position of the worker's first event."""
    last_position: int
    """The position of the worker's last event."""


@dataclass(slots=True)
class WorkerSignals:
    """The last heartbeat and the last times of activity of a worker. Times are microseconds since the epoch.

    These values are not recorded as events, so a read of a past state does not return them.
    """

    worker_id: str
    heartbeat_stats: str | None = None
    """JSON text that the worker sent with its last heartbeat."""
    last_heartbeat_at: int | None = None
    last_dequeue_at: int | None = None
    last_busy_at: int | None = None
    last_idle_at: int | None = None


def evolve(state: WorkerState | None, event: Event) -> WorkerState:
    """Apply the next event of a worker's stream, and return the new state, which may be the same object.

    Raises:
        Corrupt: the event does not follow from the state.
    """
    match event.fact, state:
        case WorkerSeen(), None:
            return WorkerState(
                worker_id=event.stream.removeprefix("worker/"),
                status="unknown",
                current_rollout_id=None,
                current_attempt_id=None,
                last_busy_at=None,
                last_idle_at=None,
                stream_version=event.version,
                first_position=event.position,
                last_position=event.position,
            )
        case WorkerStatusChanged() as fact, WorkerState():
            if fact.from_ != state.status or event.version != state.stream_version + 1:
                raise Corrupt(event.stream, f"a change from {fact.from_}", f"a change from {state.status}")
            state.status = fact.to
            state.current_rollout_id, state.current_attempt_id = fact.rollout_id, fact.attempt_id
            if fact.to == "busy":
                state.last_busy_at = event.at
            else:
                state.last_idle_at = event.at
            state.stream_version = event.version
            state.last_position = event.position
            return state
        case _:
            raise Corrupt(event.stream, event.fact.type, "worker.seen as the first event, then changes of status")
