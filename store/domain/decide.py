"""Decide which events a command records.

The `actor` of an event is the caller, and its `cause` is the position of an earlier event that led to it. The commands
of a batch change the working set one after another. Each item of a command gets its own timestamp: `tick` begins the
next one.

A refused command records no event, with one exception: if `RecordSpans` refuses a group of spans, the groups before it
stay recorded.
"""

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from store.domain import annotations, retry, scanners, scores, trainer_metrics
from store.domain.commands import (
    AmendRollout,
    BeatWorker,
    Claim,
    Command,
    Enqueue,
    LimitSilence,
    NewRollout,
    NewSpan,
    NumberSpans,
    PublishResources,
    RecordSpans,
    ReleaseClaim,
    SpanKey,
    SpansOutcome,
    StartAttempt,
    StartRollout,
    Sweep,
    UpdateAttempt,
    derived_span_id,
)
from store.domain.decide_runs import append_to_run, come_to_life, fork, move_head, retract_artifact
from store.domain.decide_threads import copy_thread, delete_thread, keep_in_thread, prune_thread
from store.domain.decide_workers import actor_of, beat, idle, sync
from store.domain.events import (
    AttemptAmended,
    AttemptStarted,
    AttemptStatusChanged,
    ClaimReleased,
    Event,
    Json,
    ResourcesPublished,
    ResourcesReplaced,
    RolloutAmended,
    RolloutEnqueued,
    RolloutStarted,
    RolloutStatusChanged,
    SpanNumbersReserved,
)
from store.domain.log_time import Sweeping
from store.domain.rollout import ACTIVE, ENDED_ATTEMPT, TERMINAL, WAITING, AttemptState, RolloutState
from store.domain.run_commands import AppendToRun, Fork, MoveHead, RetractArtifact
from store.domain.thread_commands import CopyThread, DeleteThread, KeepInThread, PruneThread
from store.domain.views import (
    AttemptView,
    ClaimView,
    ResourcesView,
    RolloutView,
    view_attempt,
    view_resources,
    view_rollout,
)
from store.domain.working_set import NeedsSpans, WorkingSet
from store.errors import Conflict, NotFound

NUMBERS_RESERVED: Final = 32
"""The number of span numbers that one event reserves, unless one call draws more. Decision 44."""


def decide(command: Command, working_set: WorkingSet) -> Any:
    """Record the events of a command and return its result.

    Raises:
        StoreError: the command is refused.
        NeedsHeads: more rows of the queue must be loaded before this command can be decided.
        NeedsSpans: more spans must be loaded before this command can be decided.
    """
    return _DECIDERS[type(command)](command, working_set)


def _enqueue(command: Enqueue, working_set: WorkingSet) -> list[RolloutView]:
    existing = _check_plan_keys(command.items, working_set)
    created: list[str] = []
    for ordinal, item in enumerate(command.items):
        rollout_id = existing.get(item.plan_key) if item.plan_key is not None else None
        if rollout_id is None:
            if ordinal:
                working_set.tick()
            rollout_id = item.rollout_id
            _create(item, RolloutEnqueued, working_set, command.actor)
            working_set.joins_queue(rollout_id)
            if item.plan_key is not None:
                existing[item.plan_key] = rollout_id
        created.append(rollout_id)
    return [view_rollout(working_set, rollout_id) for rollout_id in created]


def _check_plan_keys(items: list[NewRollout], working_set: WorkingSet) -> dict[str, str]:
    """Return the existing rollouts by plan key. A plan key is a caller's key, which at most one rollout has.

    Raises:
        Conflict: a key belongs to a rollout, or to an earlier item, with another input.
    """
    existing: dict[str, str] = {}
    inputs: dict[str, str] = {}
    for item in items:
        if item.plan_key is None:
            continue
        rollout_id = working_set.plan_keys.get(item.plan_key)
        if rollout_id is not None:
            existing[item.plan_key] = rollout_id
            inputs[item.plan_key] = working_set.rollouts[rollout_id].input_sha256
        if inputs.setdefault(item.plan_key, item.input_sha256) != item.input_sha256:
            held_by = f"rollout {rollout_id}" if rollout_id else "an earlier item of this call"
            raise Conflict(
                f"plan key {item.plan_key!r} belongs to {held_by}, which has another input",
                "use another key for another input",
            )
    return existing


def _create(
    item: NewRollout, kind: type[RolloutEnqueued | RolloutStarted], working_set: WorkingSet, actor: str | None
) -> RolloutState:
    resources_id = item.resources_id if item.resources_id is not None else working_set.latest_resources
    fact = kind(
        input_sha256=item.input_sha256,
        config=item.config,
        mode=item.mode,
        resources_id=resources_id,
        resources_version=_version_of(resources_id, working_set),
        group=item.group,
        step=item.step,
        plan_key=item.plan_key,
    )
    working_set.record_rollout(item.rollout_id, fact, actor=actor, body=item.body)
    if item.plan_key is not None:
        working_set.plan_keys[item.plan_key] = item.rollout_id
    return working_set.rollouts[item.rollout_id]


def _start_rollout(command: StartRollout, working_set: WorkingSet) -> RolloutView:
    item = command.item
    held_by = working_set.plan_keys.get(item.plan_key) if item.plan_key is not None else None
    if held_by is not None:
        raise Conflict(
            f"plan key {item.plan_key!r} belongs to rollout {held_by}",
            "start an attempt at that rollout, or use another key",
        )
    _create(item, RolloutStarted, working_set, command.actor)
    started = _start(
        item.rollout_id, command.attempt_id, "rollout", command.worker_id, command.owner, working_set, command
    )
    if command.worker_id is not None:
        sync(
            _attempt(working_set, item.rollout_id, command.attempt_id),
            working_set,
            command.actor,
            cause=started.position,
        )
    return view_rollout(working_set, item.rollout_id, command.attempt_id)


def _version_of(resources_id: str | None, working_set: WorkingSet) -> int | None:
    # Decision 6.
    return None if resources_id is None else working_set.resource_versions.get(resources_id)


def _claim(command: Claim, working_set: WorkingSet) -> list[ClaimView]:
    taken = (
        working_set.take_heads(command.limit)
        if command.rollout_ids is None
        else [rollout_id for rollout_id in command.rollout_ids if _waits(rollout_id, working_set)][: command.limit]
    )
    claims: list[ClaimView] = []
    cause: int | None = None
    for ordinal, rollout_id in enumerate(taken):
        if ordinal:
            working_set.tick()
        state = working_set.rollouts[rollout_id]
        before, queued_at = state.status, state.queued_position
        assert queued_at is not None  # it came from the queue
        attempt_id = command.attempt_ids[ordinal]
        started = _start(rollout_id, attempt_id, "dequeue", command.worker_id, command.owner, working_set, command)
        _move(rollout_id, "preparing", "claimed", working_set, command.actor, cause=started.position)
        cause = started.position
        view = view_rollout(working_set, rollout_id, attempt_id)
        claims.append(ClaimView(view, cause, before, queued_at, command.idempotency))
    if command.worker_id is not None:
        if taken:
            last = _attempt(working_set, taken[-1], command.attempt_ids[len(taken) - 1])
            sync(last, working_set, command.actor, cause=cause)
        elif command.rollout_ids is None:
            idle(command.worker_id, working_set, command.actor)
        working_set.signals_of(command.worker_id).last_dequeue_at = working_set.stamp
    return claims


def _waits(rollout_id: str, working_set: WorkingSet) -> bool:
    state = working_set.rollouts.get(rollout_id)
    return state is not None and state.queued_position is not None


def _release(command: ReleaseClaim, working_set: WorkingSet) -> bool:
    """Return a claimed rollout to its old place in the queue, unless its attempt has changed since the claim.

    Return whether the claim is released, by this command or an earlier one.
    """
    key = None if command.claim_key is None else (command.claim_key.scope, command.claim_key.key)
    if key is not None and (answered := working_set.answered.get(key)) is not None and answered.is_repeated:
        return False
    state = working_set.rollouts.get(command.rollout_id)
    attempt = None if state is None else state.attempts.get(command.attempt_id)
    if state is None or attempt is None:
        return False
    if attempt.released_position is not None:
        return True
    if state.latest is not attempt or state.status != "preparing":
        return False
    if attempt.last_position != command.claim_position or attempt.signal_stamped_at is not None:
        return False
    fact = ClaimReleased(
        attempt_id=attempt.attempt_id,
        sequence=attempt.sequence_id,
        from_=state.status,
        to=command.status_before,
        queued_at=command.queued_at,
    )
    released = working_set.record_rollout(command.rollout_id, fact, actor=command.actor, cause=command.claim_position)
    working_set.joins_queue(command.rollout_id)
    working_set.queue_reordered = True
    if key is not None:
        working_set.forget_answer(key)
    held = working_set.workers.get(attempt.worker_id) if attempt.worker_id else None
    if held is not None and held.current_attempt_id == attempt.attempt_id:
        idle(held.worker_id, working_set, command.actor, cause=released.position, forget=True)
    return True


def _start_attempt(command: StartAttempt, working_set: WorkingSet) -> RolloutView:
    state = working_set.existing_rollout(command.rollout_id)
    started = _start(
        command.rollout_id, command.attempt_id, "start", command.worker_id, command.owner, working_set, command
    )
    _move(command.rollout_id, "preparing", "attempt", working_set, command.actor, cause=started.position)
    if command.worker_id is not None:
        sync(state.attempts[command.attempt_id], working_set, command.actor, cause=started.position)
    return view_rollout(working_set, command.rollout_id, command.attempt_id)


def _start(
    rollout_id: str,
    attempt_id: str,
    via: str,
    worker_id: str | None,
    owner: Json | None,
    working_set: WorkingSet,
    command: Command,
) -> Event:
    state = working_set.rollouts[rollout_id]
    fact = AttemptStarted(
        attempt_id=attempt_id,
        sequence=state.attempt_count + 1,
        via=via,
        rerun_seq=before.rerun_seq if (before := state.latest) is not None else 0,
        worker_id=worker_id,
        resources_version=_version_of(state.resources_id, working_set),
        owner=owner,
    )
    return working_set.record_rollout(rollout_id, fact, actor=command.actor)


def _move(
    rollout_id: str, to: str, reason: str, working_set: WorkingSet, actor: str | None, *, cause: int | None = None
) -> Event | None:
    """Set the status of a rollout. With a waiting status, a rollout outside the queue joins the end of the queue."""
    state = working_set.rollouts[rollout_id]
    if state.status == to and to not in TERMINAL:
        return None
    waited = state.queued_position is not None
    fact = RolloutStatusChanged(from_=state.status, to=to, reason=reason)
    event = working_set.record_rollout(rollout_id, fact, actor=actor, cause=cause)
    if to in WAITING and not waited:
        working_set.joins_queue(rollout_id)
    return event


def _amend_rollout(command: AmendRollout, working_set: WorkingSet) -> RolloutView:
    state = working_set.rollouts.get(command.rollout_id)
    if state is None:
        raise NotFound.item(rollout_id=command.rollout_id)
    same = {
        "mode": command.mode == state.mode,
        "resources_id": command.resources_id == state.resources_id,
        "config": command.config == state.config,
    }
    changed = [name for name in command.fields if not same.get(name, False)]
    if changed:
        sets_resources = "resources_id" in changed
        fact = RolloutAmended(
            fields=changed,
            mode=command.mode if "mode" in changed else None,
            resources_id=command.resources_id if sets_resources else None,
            resources_version=_version_of(command.resources_id, working_set) if sets_resources else None,
            config=command.config if "config" in changed else None,
        )
        working_set.record_rollout(command.rollout_id, fact, actor=command.actor, body=command.body)
    if command.status is not None:
        _move(command.rollout_id, command.status, "manual", working_set, command.actor)
    return view_rollout(working_set, command.rollout_id)


def _limit_silence(command: LimitSilence, working_set: WorkingSet) -> bool:
    """Set a time limit if the rollout has none, and return whether it was set. A retry condition does not change."""
    state = working_set.rollouts.get(command.rollout_id)
    if state is None or state.status not in ACTIVE or state.latest is None:
        return False
    config = dict(state.config)
    if state.latest.attempt_id != command.attempt_id or state.latest.status not in ACTIVE:
        return False
    if config["timeout_seconds"] is not None or config["unresponsive_seconds"] is not None:
        return False
    config["unresponsive_seconds"] = command.unresponsive_seconds
    if not config["retry_condition"]:
        config["retry_condition"] = ["unresponsive"]
        config["max_attempts"] = max(config["max_attempts"], command.max_attempts)
    fact = RolloutAmended(fields=["config"], config=config)
    working_set.record_rollout(command.rollout_id, fact, actor=command.actor)
    return True


def _update_attempt(command: UpdateAttempt, working_set: WorkingSet) -> AttemptView:
    state = working_set.existing_rollout(command.rollout_id)
    if state.attempt_count == 0:
        raise NotFound.attempts(command.rollout_id)
    latest = state.latest if command.attempt_id == "latest" else None
    attempt = latest or state.existing_attempt(command.attempt_id)
    if command.fields == ["last_heartbeat_time"] and command.status is None:
        # A heartbeat without other changes is not recorded as an event, because heartbeats are frequent and only the
        # latest heartbeat matters.
        attempt.signal_time, attempt.signal_stamped_at = command.last_heartbeat_time, working_set.stamp
        working_set.beats[attempt.rollout_id, attempt.attempt_id] = attempt
        working_set.rewatch.setdefault(state.rollout_id, False)
        return view_attempt(working_set, attempt)

    reports_loss = command.status == "unresponsive" and command.error is not None
    if (command.requeues or reports_loss) and attempt.status in ENDED_ATTEMPT:
        return view_attempt(working_set, attempt)
    requeues = (
        command.requeues and state.latest is attempt and attempt.status in ACTIVE and state.status not in TERMINAL
    )
    # A worker that shows no sign of life does not report this itself.
    actor = command.actor if command.status == "unresponsive" else actor_of(attempt, command.actor)
    cause = _amend_attempt(command, attempt, working_set, actor)
    if command.status is not None:
        is_counted = False if requeues else None
        changed = _report(
            attempt, command.status, "reported", working_set, actor, error=command.error, is_counted=is_counted
        )
        cause = changed.position if changed else cause
        if requeues:
            _move(state.rollout_id, "requeuing", "attempt", working_set, actor, cause=cause)
        # An error means that the attempt is over. If its rollout ended earlier, the rollout keeps its status.
        elif state.status in ACTIVE or (command.error is None and not command.requeues):
            _propagate(state, attempt, working_set, actor, cause)
    if command.worker_id or (command.status is not None and attempt.worker_id):
        sync(attempt, working_set, actor, cause=cause)
    return view_attempt(working_set, attempt)


def _amend_attempt(
    command: UpdateAttempt, attempt: AttemptState, working_set: WorkingSet, actor: str | None
) -> int | None:
    same = {"worker_id": command.worker_id == attempt.worker_id}
    changed = [name for name in command.fields if not same.get(name, False)]
    if not changed:
        return None
    fact = AttemptAmended(
        attempt_id=attempt.attempt_id,
        fields=changed,
        worker_id=command.worker_id if "worker_id" in changed else None,
        last_heartbeat_time=command.last_heartbeat_time if "last_heartbeat_time" in changed else None,
    )
    return working_set.record_rollout(attempt.rollout_id, fact, actor=actor, body=command.body).position


def _report(
    attempt: AttemptState,
    to: str,
    reason: str,
    working_set: WorkingSet,
    actor: str | None,
    overdue: retry.Overdue | None = None,
    error: Json | None = None,
    *,
    is_counted: bool | None = None,
) -> Event | None:
    """Set the status of an attempt. `succeeded` and `failed` also set the end time, even if it was set before."""
    if attempt.status == to and to not in ENDED_ATTEMPT and error is None:
        return None
    fact = AttemptStatusChanged(
        attempt_id=attempt.attempt_id,
        from_=attempt.status,
        to=to,
        reason=reason,
        limit=overdue.limit if overdue else None,
        last_sign=overdue.last_sign if overdue else None,
        error=error,
        is_counted=is_counted,
    )
    return working_set.record_rollout(attempt.rollout_id, fact, actor=actor)


def _propagate(
    state: RolloutState, attempt: AttemptState, working_set: WorkingSet, actor: str | None, cause: int | None
) -> None:
    """Set the status of a rollout from `attempt` if this is its latest attempt. Other attempts do not change it."""
    if state.latest is not attempt:
        return
    to = retry.status_after(attempt, state.config)
    if to != state.status:
        _move(state.rollout_id, to, "attempt", working_set, actor, cause=cause)


def _number_spans(command: NumberSpans, working_set: WorkingSet) -> list[int]:
    """Return the next number of each given rollout, in the given order.

    If the reserved block of a rollout has too few numbers left for this call, an event reserves the next block. The log
    does not contain the numbers of a rollout that does not exist.
    """
    is_first = True
    for rollout_id, count in Counter(command.rollout_ids).items():
        first = working_set.counters.get(rollout_id, 0) + 1
        if first + count - 1 <= working_set.reserved.get(rollout_id, 0) or rollout_id not in working_set.rollouts:
            continue
        if not is_first:
            working_set.tick()
        is_first = False
        until = first + max(count, NUMBERS_RESERVED) - 1
        fact = SpanNumbersReserved(first=first, until=until)
        working_set.record_rollout(rollout_id, fact, actor=command.actor)
        working_set.reserved[rollout_id] = until
    return [working_set.next_number(rollout_id) for rollout_id in command.rollout_ids]


def _record_spans(command: RecordSpans, working_set: WorkingSet) -> SpansOutcome:
    """Record spans group by group, except repeats and conflicts. Decision 75.

    A group contains all spans of one attempt. Groups are in the order of their first spans. A group of an unknown
    rollout or attempt is refused, and the groups before it stay recorded.

    The counter of the rollout's span numbers is raised before the checks, so that a refused span raises it too. If the
    command draws numbers, it draws none for a span that exists, so that the numbers stay dense when an exporter repeats
    a request.
    """
    if command.rename is not None and (working_set.spans or len(command.items) > 1):
        _separate_traces(command, working_set)
    recorded: list[tuple[int, int]] = []
    conflicts: list[int] = []
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(command.items):
        groups.setdefault((item.rollout_id, item.fact.attempt_id), []).append(index)
    for (rollout_id, attempt_id), indexes in groups.items():
        if command.number:
            _number_new_spans([command.items[index] for index in indexes], working_set)
        else:
            working_set.raise_counter(rollout_id, max(command.items[index].fact.sequence_id for index in indexes))
        state = working_set.existing_rollout(rollout_id)
        attempt = state.existing_attempt(attempt_id)
        for index in indexes:
            item = command.items[index]
            existing = working_set.spans.get((rollout_id, attempt_id, item.fact.span_id))
            if existing is None:
                _record_span(item, state, attempt, working_set, command.actor, is_first=not recorded)
                recorded.append((index, item.fact.sequence_id))
            elif not existing.is_repeated_by(item.content):
                conflicts.append(index)
    return SpansOutcome(recorded, conflicts, sorted(command.derived))


def _separate_traces(command: RecordSpans, working_set: WorkingSet) -> None:
    """Replace the id of each span whose id belongs to a span of another trace in the attempt by a derived id.

    Raises:
        NeedsSpans: the rows with the derived ids are not loaded.
    """
    traces: dict[SpanKey, str] = {}
    derived: dict[int, SpanKey] = {}
    for index, item in enumerate(command.items):
        key, trace_id = item.key, item.fact.trace_id
        existing = working_set.spans.get(key)
        first = traces.setdefault(key, trace_id if existing is None else existing.trace_id)
        if first != trace_id:
            derived[index] = (*key[:2], derived_span_id(trace_id, item.fact.span_id))
    if missing := set(derived.values()) - working_set.derived_spans - working_set.spans.keys():
        raise NeedsSpans(missing)
    if derived:
        command.derive(derived)


def _number_new_spans(items: list[NewSpan], working_set: WorkingSet) -> None:
    """Give each new span of an attempt the next number of its rollout.

    A span that exists, or that occurs earlier in `items`, gets no number.
    """
    drawn: set[str] = set()
    for item in items:
        fact = item.fact
        if fact.span_id not in drawn and item.key not in working_set.spans:
            # The span is not recorded yet, so its fact may be changed. If the command is decided again, for example
            # after a failed commit, the fact gets a new number.
            fact.sequence_id = working_set.next_number(item.rollout_id)
            drawn.add(fact.span_id)


def _record_span(
    item: NewSpan,
    state: RolloutState,
    attempt: AttemptState,
    working_set: WorkingSet,
    actor: str | None,
    *,
    is_first: bool,
) -> None:
    """Record a new span.

    It is a sign of life, so it can set the status of its attempt and of its rollout to `running`.
    """
    if not is_first:
        working_set.tick()
    if attempt.worker_id and (actor is None or actor.startswith("key:")):
        actor = f"worker:{attempt.worker_id}"  # the rule of `actor_of`, without a call for each span
    fact = item.fact
    working_set.spans[item.rollout_id, fact.attempt_id, fact.span_id] = item.content
    if fact.response_id is not None:
        # The proxy and the agent's instrumentation can both record a call of a model. Their spans have one response id,
        # and the rollout counts the tokens of the call once. Decision 56.
        tokens_in, tokens_out = fact.tokens_in or 0, fact.tokens_out or 0
        counted_in, counted_out = working_set.count_model_call(
            (item.rollout_id, fact.attempt_id, fact.response_id), tokens_in, tokens_out
        )
        before = [min(counted_in, tokens_in), min(counted_out, tokens_out)]
        # If the command is decided again, for example after a failed commit, this replaces the earlier value.
        fact.counted_before = before if any(before) else None
    event = working_set.record_sign(state, fact, actor=actor, body=item.body)
    if attempt.status != "running" or state.status != "running":
        come_to_life(state, attempt, working_set, actor, event.position, reason="span")


def _sweep(command: Sweep, working_set: WorkingSet) -> int:
    """End the attempts that have exceeded a time limit, and return their number.

    Rollouts are checked in the order of their creation. If the time of a check has come and no limit is exceeded, the
    rollout is checked again later. Rollouts that earlier commands of the batch have changed are checked too, because
    the tables do not yet contain their new times of a check.
    """
    given_up = 0
    due = set(working_set.due)
    log_time = working_set.log_time
    horizon = working_set.horizon
    postponed: list[int] = []
    rollouts = [working_set.rollouts[rollout_id] for rollout_id in due | working_set.rewatch.keys()]
    for state in sorted(rollouts, key=attrgetter("first_position")):
        rollout_id = state.rollout_id
        overdue = retry.judge(state, working_set.stamp, log_time)
        attempt = state.latest
        if overdue is None or attempt is None:
            if rollout_id not in due:
                continue
            at = retry.check_at(state)
            if log_time is None or at is None or at >= horizon:
                working_set.rewatch[rollout_id] = True
            elif (left := retry.time_left(state, working_set.stamp, log_time)) is not None:
                # The check is due by the timestamps, but this process does not find the attempt overdue. The time of
                # the check does not change, because another process may have waited longer for a sign of life.
                postponed.append(left)
            continue
        if given_up:
            working_set.tick()
        given_up += 1
        changed = _report(attempt, overdue.status, overdue.status, working_set, command.actor, overdue)
        cause = changed.position if changed else None
        _propagate(state, attempt, working_set, command.actor, cause)
        if attempt.worker_id:
            sync(attempt, working_set, command.actor, cause=cause)
    if log_time is not None:
        until = log_time.heard + min(postponed) if postponed else None
        log_time.sweeping = Sweeping(horizon, until, len(working_set.due))
    return given_up


def _publish(command: PublishResources, working_set: WorkingSet) -> ResourcesView:
    state = working_set.resources.get(command.resources_id)
    fact = ResourcesPublished(version=1) if state is None else ResourcesReplaced(version=state.version + 1)
    working_set.record_resources(command.resources_id, fact, actor=command.actor, body=command.body)
    return view_resources(working_set.resources[command.resources_id], command.body)


def _attempt(working_set: WorkingSet, rollout_id: str, attempt_id: str) -> AttemptState:
    return working_set.rollouts[rollout_id].attempts[attempt_id]


_DECIDERS: dict[type[Command], Callable[..., Any]] = {
    Enqueue: _enqueue,
    StartRollout: _start_rollout,
    Claim: _claim,
    ReleaseClaim: _release,
    StartAttempt: _start_attempt,
    AmendRollout: _amend_rollout,
    LimitSilence: _limit_silence,
    UpdateAttempt: _update_attempt,
    RecordSpans: _record_spans,
    NumberSpans: _number_spans,
    Sweep: _sweep,
    PublishResources: _publish,
    BeatWorker: beat,
    AppendToRun: append_to_run,
    RetractArtifact: retract_artifact,
    Fork: fork,
    MoveHead: move_head,
    KeepInThread: keep_in_thread,
    DeleteThread: delete_thread,
    PruneThread: prune_thread,
    CopyThread: copy_thread,
    **annotations.DECIDERS,
    **scores.DECIDERS,
    **trainer_metrics.DECIDERS,
    **scanners.DECIDERS,
}
