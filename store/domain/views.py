"""Results of commands, and functions that make them from states.

A result contains copies of values instead of a state object, because later commands change the state objects. Signals
are times that are stored outside of the log.
"""

from dataclasses import dataclass, fields
from operator import attrgetter

from store.domain.body import Body
from store.domain.commands import Idempotency
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, RolloutState
from store.domain.rows import NamedRow, row_maker
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import WorkingSet

# The names of the columns of each row, in the order of the columns of the table.
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

_named_rollout = row_maker(ROLLOUT_COLUMNS)
_named_attempt = row_maker(ATTEMPT_COLUMNS)
_named_resources = row_maker(RESOURCES_COLUMNS)
_named_worker = row_maker(WORKER_COLUMNS)
_named_signals = row_maker(SIGNALS_COLUMNS)


@dataclass(slots=True)
class AttemptView:
    """An attempt with its metadata."""

    row: NamedRow
    sign_of_life: float | None
    """The time of the last sign of life, in seconds since the epoch."""
    metadata: Body | None


@dataclass(slots=True)
class RolloutView:
    """A rollout with its input and its metadata. A body is None if it was removed from the store."""

    row: NamedRow
    input: Body | None
    metadata: Body | None
    attempt: AttemptView | None = None
    """The attempt that is a part of the result; None if the result describes only the rollout."""


@dataclass(slots=True)
class ClaimView:
    """A claimed rollout, and the data from which the claim can be undone."""

    rollout: RolloutView
    claim_position: int
    """The position of the event with which the claim started the attempt."""
    status_before: str
    """The status of the rollout before the claim."""
    queued_at: int
    """The place of the rollout in the queue before the claim."""
    idempotency: Idempotency | None = None
    """The idempotency key of the claim."""


@dataclass(slots=True)
class ResourcesView:
    """A set of resources with its content."""

    row: NamedRow
    body: Body


@dataclass(slots=True)
class WorkerView:
    """A worker with its signals."""

    row: NamedRow
    signals: NamedRow | None


def view_rollout(working_set: WorkingSet, rollout_id: str, attempt_id: str | None = None) -> RolloutView:
    """Return the present state of a rollout, and of an attempt if `attempt_id` is given. The bodies must be loaded."""
    state = working_set.rollouts[rollout_id]
    return RolloutView(
        _named_rollout(rollout_row(state)),
        working_set.bodies.get(state.input_position),
        working_set.bodies.get(state.metadata_position),
        None if attempt_id is None else view_attempt(working_set, state.attempts[attempt_id]),
    )


def view_attempt(working_set: WorkingSet, attempt: AttemptState) -> AttemptView:
    """Return the present state of an attempt. The body with its metadata must be loaded."""
    position = attempt.metadata_position
    metadata = None if position is None else working_set.bodies.get(position)
    return AttemptView(_named_attempt(attempt_row(attempt)), attempt.sign_of_life, metadata)


def view_worker(working_set: WorkingSet, worker_id: str) -> WorkerView:
    """Return the present state of a worker."""
    signals = working_set.worker_signals.get(worker_id)
    return WorkerView(
        _named_worker(worker_row(working_set.workers[worker_id])),
        None if signals is None else _named_signals(signals_row(signals)),
    )


def view_resources(state: ResourcesState, body: Body) -> ResourcesView:
    """Return the present state of a set of resources with its content."""
    return ResourcesView(_named_resources(resources_row(state)), body)
