"""Results of decisions. They contain copies of rows, because the states change afterwards."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from store.domain.commands import Idempotency
from store.domain.events import Body
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, RolloutState
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import WorkingSet

Row = tuple[Any, ...]

# The names of a row's columns, in the order of its table.
ROLLOUT_COLUMNS = tuple(field.name for field in fields(RolloutState) if field.name not in {"attempts", "labels"})
ATTEMPT_COLUMNS = tuple(field.name for field in fields(AttemptState) if not field.name.startswith("signal_"))
RESOURCES_COLUMNS = tuple(field.name for field in fields(ResourcesState))
WORKER_COLUMNS = tuple(field.name for field in fields(WorkerState))
SIGNALS_COLUMNS = tuple(field.name for field in fields(WorkerSignals))

rollout_row = attrgetter(*ROLLOUT_COLUMNS)
attempt_row = attrgetter(*ATTEMPT_COLUMNS)
resources_row = attrgetter(*RESOURCES_COLUMNS)
worker_row = attrgetter(*WORKER_COLUMNS)
signals_row = attrgetter(*SIGNALS_COLUMNS)


@dataclass(slots=True)
class AttemptView:
    """An attempt with its payload."""

    row: Row
    sign_of_life: float | None
    metadata: Body | None


@dataclass(slots=True)
class RolloutView:
    """A rollout with its payload, and one attempt if the result has one."""

    row: Row
    input: Body
    metadata: Body
    attempt: AttemptView | None = None


@dataclass(slots=True)
class ClaimView:
    """A claimed rollout, and the data to undo the claim."""

    rollout: RolloutView
    claim_position: int
    status_before: str
    queued_at: int
    idempotency: Idempotency | None = None
    """The idempotency key of the claim."""


@dataclass(slots=True)
class ResourcesView:
    """A set of resources with its content."""

    row: Row
    body: Body


@dataclass(slots=True)
class WorkerView:
    """A worker with its signals."""

    row: Row
    signals: Row | None


def view_rollout(working_set: WorkingSet, rollout_id: str, attempt_id: str | None = None) -> RolloutView:
    """Return a rollout as it is now; its payload must be loaded."""
    state = working_set.rollouts[rollout_id]
    return RolloutView(
        rollout_row(state),
        working_set.bodies[state.input_position],
        working_set.bodies[state.metadata_position],
        None if attempt_id is None else view_attempt(working_set, state.attempts[attempt_id]),
    )


def view_attempt(working_set: WorkingSet, attempt: AttemptState) -> AttemptView:
    """Return an attempt as it is now; its payload must be loaded."""
    position = attempt.metadata_position
    metadata = None if position is None else working_set.bodies[position]
    return AttemptView(attempt_row(attempt), attempt.sign_of_life, metadata)


def view_worker(working_set: WorkingSet, worker_id: str) -> WorkerView:
    """Return a worker as it is now."""
    signals = working_set.worker_signals.get(worker_id)
    return WorkerView(worker_row(working_set.workers[worker_id]), None if signals is None else signals_row(signals))
