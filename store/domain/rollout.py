"""State of a rollout and its attempts, and the function that applies an event to this state.

A re-run is a fork that repeats a part of the work. `rerun_seq` is the number of the re-run to which an attempt belongs.
To release a claim means to undo the claim. The attempt that the claim started then no longer counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from store.domain.events import (
    AttemptAmended,
    AttemptStarted,
    AttemptStatusChanged,
    ClaimReleased,
    Event,
    Fact,
    Json,
    RewardScored,
    RolloutAmended,
    RolloutAnnotated,
    RolloutEnqueued,
    RolloutScanned,
    RolloutStarted,
    RolloutStatusChanged,
    SpanNumbersReserved,
    SpanRecorded,
)
from store.domain.run_events import (
    ArtifactRetracted,
    ArtifactSaved,
    AttemptForked,
    CheckpointRejected,
    CheckpointSaved,
    HeadMoved,
    Phase,
    PhaseCompleted,
    PhaseSkipped,
    PhaseStarted,
    RunEvent,
)
from store.errors import Corrupt, NotFound

WAITING = frozenset({"queuing", "requeuing"})
ACTIVE = frozenset({"preparing", "running"})
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
# An attempt that timed out or became unresponsive has no end time, because its end was not observed.
ENDED_ATTEMPT = frozenset({"succeeded", "failed"})

QueuePlace = tuple[int, ...]
"""The place of a rollout in the queue: the values of `QUEUE_ORDER` in `store.db.tables.core`. Lower places are claimed
first. The last value is the position of the event that put the rollout into the queue."""


@dataclass(slots=True)
class AttemptState:
    """The fields of an attempt that decisions and the row in the database need."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    status: str
    worker_id: str | None
    start_at: int
    end_at: int | None
    last_heartbeat_time: float | None
    heartbeat_stamped_at: int | None
    metadata_position: int | None
    via: str
    rerun_seq: int
    resources_version: int | None
    owner: Json | None
    error: Json | None
    released_position: int | None
    first_position: int
    last_position: int
    tries: int
    """The number of attempts with the same `rerun_seq` that count for `max_attempts`, up to and including this one."""
    fork_version: int | None = None
    """The version of the fork event whose masks apply to this attempt; None if no fork applies.

    The fork of an attempt also applies to the retries of this attempt.
    """
    base: int | None = None
    """The sequence id of the base."""
    base_version: int | None = None
    """The version up to which the events of the base belong to the view of this attempt."""
    head_before: int | None = None
    """The sequence id of the attempt that was the rollout's head before this attempt started."""
    # The latest heartbeat that was not recorded as an event. It is not part of the row.
    signal_time: float | None = None
    signal_stamped_at: int | None = None

    @property
    def sign_of_life(self) -> float | None:
        """The time of the last sign of life, in seconds since the epoch; None if there was no sign.

        It is the time of the last event of the attempt's agent, such as a span, or the time in a later heartbeat.
        """
        if self.signal_stamped_at is not None and self.signal_stamped_at > (self.heartbeat_stamped_at or 0):
            return self.signal_time
        return self.last_heartbeat_time

    @property
    def sign_stamped_at(self) -> int | None:
        """The timestamp of the log at which the last sign of life was recorded; None if there was no sign."""
        stamps = [stamp for stamp in (self.signal_stamped_at, self.heartbeat_stamped_at) if stamp is not None]
        return max(stamps, default=None)


@dataclass(slots=True)
class RolloutState:
    """A rollout with its loaded attempts.

    A rebuild of the tables loads all attempts of the rollout. A batch of commands loads the latest attempts and those
    that the commands request.
    """

    rollout_id: str
    status: str
    mode: str | None
    resources_id: str | None
    resources_version: int | None
    config: Json
    start_at: int
    end_at: int | None
    group_id: str | None
    step: int | None
    plan_key: str | None
    input_sha256: str
    input_position: int
    metadata_position: int
    queued_position: int | None
    attempt_count: int
    rerun_seq: int
    last_reward: float | None
    spans: int
    tokens_in: int
    tokens_out: int
    error: Json | None
    stream_version: int
    first_position: int
    last_position: int
    head: int | None = None
    """The sequence id of the attempt that is the head; None before the first attempt."""
    run_version: int | None = None
    """The version of the last event of a kind that can change the plan of a fork; None if there is no such event.

    A plan that was made at another version is out of date.
    """
    attempts: dict[str, AttemptState] = field(default_factory=dict[str, AttemptState])
    labels: dict[str, int] | None = None
    """The rollout's labels, each with the position of the event that added it; None if they are not loaded."""

    @property
    def queue_place(self) -> QueuePlace | None:
        """The place in the queue; None if the rollout does not wait."""
        return None if self.queued_position is None else (self.queued_position,)

    @property
    def latest(self) -> AttemptState | None:
        """The latest attempt whose claim was not released; None if there is no attempt."""
        for attempt in reversed(self.attempts.values()):
            if attempt.sequence_id == self.attempt_count and attempt.released_position is None:
                return attempt
        return None

    def attempt(self, attempt_id: str) -> AttemptState | None:
        """Return the attempt with this id; None if it is not loaded or its claim was released."""
        attempt = self.attempts.get(attempt_id)
        return None if attempt is None or attempt.released_position is not None else attempt

    def existing_attempt(self, attempt_id: str) -> AttemptState:
        """Return the attempt with this id.

        Raises:
            NotFound: the attempt does not exist, or its claim was released.
        """
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.released_position is not None:
            raise NotFound.attempt(attempt_id, self.rollout_id)
        return attempt


def evolve(state: RolloutState | None, event: Event, *, may_skip: bool = False) -> RolloutState:
    """Apply the next event of a rollout's stream, and return the new state. It may be the given object, changed.

    Args:
        state: the state before the event; None for the first event.
        event: the event.
        may_skip: whether some events between the state and this event may be left out by a caller that does not need
            their effects.

    Raises:
        Corrupt: the event does not follow from the state, so another program has changed the log or the row.
    """
    if state is None:
        if event.version != 1 or not isinstance(event.fact, RolloutEnqueued | RolloutStarted):
            raise Corrupt(event.stream, f"{event.fact.type} as event {event.version}", "a created rollout first")
        return _created(event, event.fact)
    if event.version != state.stream_version + 1 and not may_skip:
        raise Corrupt(event.stream, f"event {event.version}", f"event {state.stream_version + 1}")
    _EVOLVE[type(event.fact)](state, event, event.fact)
    state.stream_version = event.version
    state.last_position = event.position
    return state


def _created(event: Event, fact: RolloutEnqueued | RolloutStarted) -> RolloutState:
    waits = isinstance(fact, RolloutEnqueued)
    return RolloutState(
        rollout_id=event.stream.removeprefix("rollout/"),
        status="queuing" if waits else "preparing",
        mode=fact.mode,
        resources_id=fact.resources_id,
        resources_version=fact.resources_version,
        config=fact.config,
        start_at=event.at,
        end_at=None,
        group_id=fact.group,
        step=fact.step,
        plan_key=fact.plan_key,
        input_sha256=fact.input_sha256,
        input_position=event.position,
        metadata_position=event.position,
        queued_position=event.position if waits else None,
        attempt_count=0,
        rerun_seq=0,
        last_reward=None,
        spans=0,
        tokens_in=0,
        tokens_out=0,
        error=None,
        stream_version=1,
        first_position=event.position,
        last_position=event.position,
        labels={},
    )


def _created_again(state: RolloutState, event: Event, _: RolloutEnqueued | RolloutStarted) -> None:
    raise Corrupt(event.stream, "a second creation", f"a fact about the rollout created at {state.first_position}")


def _amended(state: RolloutState, event: Event, fact: RolloutAmended) -> None:
    for name in fact.fields:
        match name:
            case "input":
                state.input_position = event.position
            case "metadata":
                state.metadata_position = event.position
            case "mode":
                state.mode = fact.mode
            case "resources_id":
                state.resources_id, state.resources_version = fact.resources_id, fact.resources_version
            case "config":
                state.config = fact.config or {}
            case _:
                raise Corrupt(event.stream, f"amended field {name!r}", "a field of a rollout")


def _status_changed(state: RolloutState, event: Event, fact: RolloutStatusChanged) -> None:
    _check_from(event, fact.from_, state.status)
    state.status = fact.to
    if fact.to in TERMINAL:
        state.end_at = event.at
    if fact.to not in WAITING:
        state.queued_position = None
    elif state.queued_position is None:
        state.queued_position = event.position


def _attempt_started(state: RolloutState, event: Event, fact: AttemptStarted) -> None:
    if fact.sequence != state.attempt_count + 1:
        raise Corrupt(event.stream, f"attempt {fact.sequence}", f"attempt {state.attempt_count + 1}")
    # A retry has the `rerun_seq` of the attempt before it. The base and the masks of a fork are in the next event.
    before, is_fork = state.latest, fact.via == "fork"
    retried = before if not is_fork and before is not None and before.rerun_seq == fact.rerun_seq else None
    if is_fork:
        attempts = state.attempts.values()
        tries = max(
            (at.tries for at in attempts if at.rerun_seq == fact.rerun_seq and at.released_position is None), default=0
        )
    else:
        tries = 0 if retried is None else retried.tries
    head, state.head = state.head, fact.sequence
    state.rerun_seq = max(state.rerun_seq, fact.rerun_seq)
    state.attempt_count = fact.sequence
    state.attempts[fact.attempt_id] = AttemptState(
        rollout_id=state.rollout_id,
        attempt_id=fact.attempt_id,
        sequence_id=fact.sequence,
        status="preparing",
        worker_id=fact.worker_id,
        start_at=event.at,
        end_at=None,
        last_heartbeat_time=None,
        heartbeat_stamped_at=None,
        # The metadata of an attempt that a fork started describe this fork, so a retry of the attempt needs them too.
        metadata_position=None if retried is None or retried.fork_version is None else retried.metadata_position,
        via=fact.via,
        rerun_seq=fact.rerun_seq,
        resources_version=fact.resources_version,
        owner=fact.owner,
        error=None,
        released_position=None,
        first_position=event.position,
        last_position=event.position,
        tries=tries + 1,
        fork_version=None if retried is None else retried.fork_version,
        base=None if retried is None else retried.base,
        base_version=None if retried is None else retried.base_version,
        head_before=head,
    )


def _attempt_status_changed(state: RolloutState, event: Event, fact: AttemptStatusChanged) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    _check_from(event, fact.from_, attempt.status)
    attempt.status = fact.to
    if fact.to in ENDED_ATTEMPT:
        attempt.end_at = event.at
    if fact.error is not None:
        attempt.error = state.error = fact.error
    if fact.is_counted is False:
        attempt.tries -= 1


def _attempt_amended(state: RolloutState, event: Event, fact: AttemptAmended) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    for name in fact.fields:
        match name:
            case "worker_id":
                attempt.worker_id = fact.worker_id
            case "last_heartbeat_time":
                attempt.last_heartbeat_time = fact.last_heartbeat_time
                attempt.heartbeat_stamped_at = event.at
            case "metadata":
                attempt.metadata_position = event.position
            case _:
                raise Corrupt(event.stream, f"amended field {name!r}", "a field of an attempt")


def _claim_released(state: RolloutState, event: Event, fact: ClaimReleased) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    _check_from(event, fact.from_, state.status)
    attempt.released_position = event.position
    state.attempt_count -= 1
    if state.head == attempt.sequence_id:
        state.head = attempt.head_before
    state.status = fact.to
    state.queued_position = fact.queued_at


def _numbers_reserved(_state: RolloutState, _event: Event, _fact: SpanNumbersReserved) -> None:
    """Change nothing: the row of the rollout's span counter contains the reservation."""


def _span_recorded(state: RolloutState, event: Event, fact: SpanRecorded) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    attempt.last_heartbeat_time = event.at / 1_000_000
    attempt.heartbeat_stamped_at = event.at
    if fact.node_id is not None:
        state.run_version = event.version
    state.spans += 1
    if fact.tokens_in is not None or fact.tokens_out is not None:
        tokens_in, tokens_out = fact.counted
        state.tokens_in += tokens_in
        state.tokens_out += tokens_out
    if fact.rewards:
        # A reward has one or more named values. The first value is the primary value.
        state.last_reward = fact.rewards[0][1]


def _run_event_recorded(
    state: RolloutState, event: Event, fact: RunEvent | Phase | CheckpointSaved | ArtifactSaved
) -> None:
    _sign_of_life(state, event, fact)
    state.run_version = event.version


def _sign_of_life(
    state: RolloutState, event: Event, fact: RunEvent | Phase | CheckpointSaved | CheckpointRejected | ArtifactSaved
) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    attempt.last_heartbeat_time = event.at / 1_000_000
    attempt.heartbeat_stamped_at = event.at


def _artifact_retracted(state: RolloutState, event: Event, _: ArtifactRetracted) -> None:
    state.run_version = event.version


def _attempt_forked(state: RolloutState, event: Event, fact: AttemptForked) -> None:
    attempt = _attempt(state, event, fact.attempt_id)
    if fact.base >= attempt.sequence_id:
        raise Corrupt(event.stream, f"a fork of attempt {fact.base}", f"an attempt before {attempt.sequence_id}")
    attempt.fork_version, attempt.base, attempt.base_version = event.version, fact.base, fact.base_version
    state.run_version = event.version


def _head_moved(state: RolloutState, event: Event, fact: HeadMoved) -> None:
    if fact.from_ != state.head or not 0 < fact.to <= state.attempt_count:
        raise Corrupt(event.stream, f"a head moved from {fact.from_} to {fact.to}", f"from {state.head}")
    state.head, state.run_version = fact.to, event.version


def _annotated(state: RolloutState, event: Event, fact: RolloutAnnotated) -> None:
    labels = state.labels
    if labels is None:
        return
    if any(label in labels for label in fact.added) or not labels.keys() >= set(fact.removed):
        raise Corrupt(event.stream, f"labels {fact.added} added, {fact.removed} removed", f"a change of {[*labels]}")
    for label in fact.removed:
        del labels[label]
    labels.update(dict.fromkeys(fact.added, event.position))


def _scored(state: RolloutState, event: Event, fact: RewardScored | RolloutScanned) -> None:
    """Check that the attempt exists. A score and a scan change neither the rollout nor the attempt."""
    if fact.attempt_id not in state.attempts:
        raise Corrupt(event.stream, f"{fact.type} of attempt {fact.attempt_id}", "an attempt that started")


def _attempt(state: RolloutState, event: Event, attempt_id: str) -> AttemptState:
    attempt = state.attempts.get(attempt_id)
    if attempt is None or attempt.released_position is not None:
        raise Corrupt(event.stream, f"attempt {attempt_id}", "an attempt that started and was not released")
    attempt.last_position = event.position
    return attempt


def _check_from(event: Event, stated: str, actual: str) -> None:
    if stated != actual:
        raise Corrupt(f"{event.stream}, event {event.version}", f"a change from {stated}", f"a change from {actual}")


_EVOLVE: dict[type[Fact], Callable[[RolloutState, Event, Any], None]] = {
    RolloutEnqueued: _created_again,
    RolloutStarted: _created_again,
    RolloutAmended: _amended,
    RolloutStatusChanged: _status_changed,
    AttemptStarted: _attempt_started,
    AttemptStatusChanged: _attempt_status_changed,
    AttemptAmended: _attempt_amended,
    ClaimReleased: _claim_released,
    SpanNumbersReserved: _numbers_reserved,
    SpanRecorded: _span_recorded,
    RunEvent: _run_event_recorded,
    PhaseStarted: _run_event_recorded,
    PhaseCompleted: _run_event_recorded,
    PhaseSkipped: _run_event_recorded,
    CheckpointSaved: _run_event_recorded,
    CheckpointRejected: _sign_of_life,
    ArtifactSaved: _run_event_recorded,
    ArtifactRetracted: _artifact_retracted,
    AttemptForked: _attempt_forked,
    HeadMoved: _head_moved,
    RolloutAnnotated: _annotated,
    RewardScored: _scored,
    RolloutScanned: _scored,
}
