"""The state of a worker, and the function that applies the events of its stream."""

from dataclasses import dataclass

from store.domain.events import Event, WorkerSeen, WorkerStatusChanged
from store.errors import Corrupt


@dataclass(slots=True)
class WorkerState:
    """One worker, with the fields that decisions and its row need.

    Its heartbeats are signals, which are stored separately.
    """

    worker_id: str
    status: str
    current_rollout_id: str | None
    current_attempt_id: str | None
    last_busy_at: int | None
    last_idle_at: int | None
    stream_version: int
    first_position: int
    last_position: int


@dataclass(slots=True)
class WorkerSignals:
    """The last heartbeat of a worker. It is not an event, so reads of the past do not have it."""

    worker_id: str
    heartbeat_stats: str | None = None
    """JSON text."""
    last_heartbeat_at: int | None = None
    last_dequeue_at: int | None = None
    last_busy_at: int | None = None
    last_idle_at: int | None = None


def evolve(state: WorkerState | None, event: Event) -> WorkerState:
    """Apply one fact of a worker's stream.

    Raises:
        Corrupt: the fact does not follow from the state.
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
                raise Corrupt(event.stream, f"a change from {fact.from_}", f"one from {state.status}")
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
            raise Corrupt(event.stream, event.fact.type, "first seen, then changes of status")
