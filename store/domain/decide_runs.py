"""Decide which events are recorded for the events of a run, for forks, and for moves of the head. Decision 24."""

from dataclasses import dataclass

from store.domain.decide_workers import actor_of, sync
from store.domain.events import AttemptAmended, AttemptStarted, AttemptStatusChanged, RolloutStatusChanged
from store.domain.rollout import ACTIVE, AttemptState, RolloutState
from store.domain.run_commands import IN_BLOBS, AppendToRun, Fork, ForkPrecondition, MoveHead, RetractArtifact
from store.domain.run_events import ArtifactRetracted, ArtifactSaved, AttemptForked, HeadMoved
from store.domain.views import RolloutView, view_rollout
from store.domain.working_set import RunKey, WorkingSet
from store.errors import AttemptActive, Conflict, NotFound


@dataclass(frozen=True, slots=True)
class AppendedEvents:
    """The versions of a call's events in the rollout's stream. The versions of one call are consecutive."""

    first: int
    """The version of the first event."""
    last: int
    """The version of the last event."""
    kind: str
    """`events` for a call with a list of events; otherwise the type of the call's only event.

    For a repeated call, this is the kind that the first call had.
    """
    is_repeated: bool

    @property
    def versions(self) -> list[int]:
        """The version of each event."""
        return list(range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class GroundMoved:
    """The result of a fork that was not started, because the state on which its plan depends has changed."""

    ground: ForkPrecondition
    """The present state."""


def append_to_run(command: AppendToRun, working_set: WorkingSet) -> AppendedEvents:
    """Record the events of an attempt. Like a span, they can set the attempt and the rollout to `running`.

    A call with a known key records nothing and returns the versions of the earlier call's events.

    Raises:
        NotFound: the rollout or the attempt does not exist.
        Conflict: the key was used for another request.
    """
    earlier = _earlier_call(working_set, command.rollout_id, command.key, command.kind)
    if earlier is not None:
        if earlier.attempt_id != command.attempt_id:
            raise _key_conflict(command.key, command.rollout_id)
        return AppendedEvents(earlier.version, earlier.last_version, earlier.kind, is_repeated=True)
    state = working_set.existing_rollout(command.rollout_id)
    attempt = state.existing_attempt(command.attempt_id)
    first, cause, actor = state.stream_version + 1, 0, actor_of(attempt, command.actor)
    for ordinal, item in enumerate(command.items):
        if ordinal:
            working_set.tick()
        for blob in item.blobs:
            working_set.keep_blob(blob)
        if item.body is not None and item.fact.type in IN_BLOBS:
            working_set.keep_blob(item.body)
        event = working_set.record_sign(state, item.fact, actor=actor, body=item.body)
        cause = cause or event.position
        if isinstance(item.fact, ArtifactSaved):
            working_set.artifacts[command.rollout_id, item.fact.artifact_id] = (event.version, None)
    last = state.stream_version
    kind = command.kind if command.kind == _EVENTS else command.items[0].fact.type
    _keep_key(working_set, command.rollout_id, command.key, RunKey(kind, first, last, command.attempt_id))
    come_to_life(state, attempt, working_set, actor, cause)
    return AppendedEvents(first, last, kind, is_repeated=False)


def come_to_life(
    state: RolloutState,
    attempt: AttemptState,
    working_set: WorkingSet,
    actor: str | None,
    cause: int | None,
    *,
    reason: str = "event",
) -> None:
    """Set an attempt and its rollout to `running` after a sign of life, such as an event.

    Args:
        state: the rollout.
        attempt: the attempt that showed the sign of life. An attempt that has ended does not change.
        working_set: the loaded states.
        actor: the caller.
        cause: the position of the event that is the sign of life; None if there is no such event.
        reason: the reason of the new status, as the event states it.
    """
    if attempt.status in {"preparing", "unresponsive"}:
        fact = AttemptStatusChanged(attempt_id=attempt.attempt_id, from_=attempt.status, to="running", reason=reason)
        working_set.record_rollout(state.rollout_id, fact, actor=actor, cause=cause)
    # If the attempt is over, its rollout may wait in the queue for a retry. A late sign must not end this wait.
    if attempt.status == "running" and state.status in {"preparing", "requeuing"} and state.latest is attempt:
        moved = RolloutStatusChanged(from_=state.status, to="running", reason=reason)
        working_set.record_rollout(state.rollout_id, moved, actor=actor, cause=cause)


def retract_artifact(command: RetractArtifact, working_set: WorkingSet) -> int:
    """Retract an artifact (a saved result), and return the version of the event that saved it.

    If the artifact is already retracted, nothing changes.

    Raises:
        NotFound: the rollout or the artifact does not exist.
        Conflict: the key was used for another request.
    """
    earlier = _earlier_call(working_set, command.rollout_id, command.key, ArtifactRetracted.type)
    state = working_set.existing_rollout(command.rollout_id)
    artifact = working_set.artifacts.get((command.rollout_id, command.artifact_id))
    if artifact is None:
        raise NotFound("artifact", command.artifact_id)
    saved, retracted = artifact
    if earlier is None and retracted is None:
        fact = ArtifactRetracted(artifact_id=command.artifact_id, reason=command.reason, key=command.key)
        event = working_set.record_rollout(command.rollout_id, fact, actor=command.actor)
        working_set.artifacts[command.rollout_id, command.artifact_id] = (saved, event.version)
        key = RunKey(fact.type, state.stream_version, state.stream_version, None)
        _keep_key(working_set, command.rollout_id, command.key, key)
    return saved


def fork(command: Fork, working_set: WorkingSet) -> RolloutView | GroundMoved:
    """Start the attempt of a fork, unless the state on which the plan of the fork depends has changed.

    A repeated request returns the attempt that the first request started.

    Raises:
        AttemptActive: an attempt is active, and the command must not end it.
        NotFound: the rollout or the base does not exist.
        Conflict: the key was used for another request.
    """
    rollout_id, fact = command.rollout_id, command.fact
    earlier = _earlier_call(working_set, rollout_id, fact.request_id, AttemptForked.type)
    state = working_set.existing_rollout(rollout_id)
    if earlier is not None:
        assert earlier.attempt_id is not None  # the key of a fork has the id of its attempt
        return view_rollout(working_set, rollout_id, earlier.attempt_id)
    attempts = [attempt for attempt in state.attempts.values() if attempt.released_position is None]
    active = [attempt for attempt in attempts if attempt.status in ACTIVE]
    if active and not command.supersede:
        raise AttemptActive(rollout_id, active[-1].sequence_id)
    ground = ForkPrecondition(state.head, state.run_version or 0)
    if ground != command.ground:
        return GroundMoved(ground)
    base = next((attempt for attempt in attempts if attempt.sequence_id == fact.base), None)
    if base is None:
        raise NotFound("attempt", f"{rollout_id}/{fact.base}", f"rollout {rollout_id} has no attempt {fact.base}")
    cause = _supersede(active, working_set, command.actor)
    started = AttemptStarted(
        attempt_id=fact.attempt_id,
        sequence=state.attempt_count + 1,
        via="fork",
        rerun_seq=base.rerun_seq if fact.kind == "resume" else state.rerun_seq + 1,
        worker_id=command.worker_id,
        resources_version=None if state.resources_id is None else working_set.resource_versions.get(state.resources_id),
        owner=command.owner,
    )
    event = working_set.record_rollout(rollout_id, started, actor=command.actor, cause=cause)
    working_set.record_rollout(rollout_id, fact, actor=command.actor, cause=event.position, body=command.body)
    key = RunKey(fact.type, state.stream_version, state.stream_version, fact.attempt_id)
    _keep_key(working_set, rollout_id, fact.request_id, key)
    amended = AttemptAmended(attempt_id=fact.attempt_id, fields=["metadata"])
    working_set.record_rollout(rollout_id, amended, actor=command.actor, cause=event.position, body=command.metadata)
    if state.status != "preparing":
        moved = RolloutStatusChanged(from_=state.status, to="preparing", reason="fork")
        working_set.record_rollout(rollout_id, moved, actor=command.actor, cause=event.position)
    if command.worker_id is not None:
        sync(state.attempts[fact.attempt_id], working_set, command.actor, cause=event.position)
    return view_rollout(working_set, rollout_id, fact.attempt_id)


def _supersede(active: list[AttemptState], working_set: WorkingSet, actor: str | None) -> int | None:
    """End active attempts, because a new attempt replaces them.

    Return the position of the event that ended the last of these attempts; None if no attempt was active.
    """
    cause: int | None = None
    for attempt in active:
        fact = AttemptStatusChanged(
            attempt_id=attempt.attempt_id, from_=attempt.status, to="failed", reason="superseded"
        )
        cause = working_set.record_rollout(attempt.rollout_id, fact, actor=actor).position
        sync(attempt, working_set, actor, cause=cause)
    return cause


def move_head(command: MoveHead, working_set: WorkingSet) -> RolloutView:
    """Make another attempt the head, so that its view becomes the view of the rollout.

    The status of the rollout and its place in the queue do not change.

    Raises:
        NotFound: the rollout or the attempt does not exist.
        Conflict: the key was used for another request.
    """
    earlier = _earlier_call(working_set, command.rollout_id, command.request_id, HeadMoved.type)
    state = working_set.existing_rollout(command.rollout_id)
    attempt = state.existing_attempt(command.attempt_id)
    if earlier is None and state.head != attempt.sequence_id:
        assert state.head is not None  # there is an attempt
        fact = HeadMoved(from_=state.head, to=attempt.sequence_id, request_id=command.request_id)
        working_set.record_rollout(command.rollout_id, fact, actor=command.actor, body=command.body)
        key = RunKey(fact.type, state.stream_version, state.stream_version, None)
        _keep_key(working_set, command.rollout_id, command.request_id, key)
    return view_rollout(working_set, command.rollout_id)


_EVENTS = "events"
# A request to save a checkpoint records one of these two types. A repeated request with the same key may find the other
# type.
_SAME = {"checkpoint.rejected": "checkpoint.saved"}


def _earlier_call(working_set: WorkingSet, rollout_id: str, key: str | None, kind: str) -> RunKey | None:
    """Return the key's entry with the events that an earlier call recorded; None if there was no such call.

    Raises:
        Conflict: the key was used for another request.
    """
    earlier = None if key is None else working_set.run_keys.get((rollout_id, key))
    if earlier is not None and _SAME.get(earlier.kind, earlier.kind) != _SAME.get(kind, kind):
        raise _key_conflict(key, rollout_id)
    return earlier


def _key_conflict(key: str | None, rollout_id: str) -> Conflict:
    return Conflict(f"key {key!r} was used for another call of rollout {rollout_id}", "make a new key for each call")


def _keep_key(working_set: WorkingSet, rollout_id: str, key: str | None, events: RunKey) -> None:
    if key is not None:
        working_set.run_keys[rollout_id, key] = events
