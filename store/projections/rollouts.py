"""Rows computed from the states of rollouts, attempts, workers and resources, and all rows that a batch changed.

The values of a row are in the order of the table's columns. Commits, `rebuild` and `verify` all compute the
rows with these functions.
"""

from operator import attrgetter
from typing import Any

import orjson

from store.db.dialect import Changes, NamedRow, TablePart, Tail
from store.db.tables import core as core_tables
from store.domain import retry
from store.domain.events import Event, Json, MetricsLogged, SpanRecorded
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, QueuePlace, RolloutState
from store.domain.views import (
    ATTEMPT_COLUMNS,
    ROLLOUT_COLUMNS,
    attempt_row,
    resources_row,
    rollout_row,
    signals_row,
    worker_row,
)
from store.domain.worker import WorkerState
from store.domain.working_set import WorkingSet
from store.projections import threads as thread_projection
from store.projections.runs import RunRows, has_run_rows

Row = tuple[Any, ...]

KEY_MICROS = 86_400_000_000
"""The lifetime of an idempotency key, in microseconds: one day."""

# The columns that a new span changes, in the row of its rollout and in the row of its attempt. Decision 14.
ROLLOUT_AFTER_SPAN = ("last_reward", "spans", "tokens_in", "tokens_out", "stream_version", "last_position")
# An event of a run, including a span that belongs to a node, also changes `run_version`.
ROLLOUT_AFTER_RUN = (*ROLLOUT_AFTER_SPAN, "run_version")
ATTEMPT_AFTER_SPAN = ("last_heartbeat_time", "heartbeat_stamped_at", "last_position")

_ROLLOUT_AFTER_SPAN = TablePart(core_tables.rollouts, ROLLOUT_AFTER_SPAN)
_ROLLOUT_AFTER_RUN = TablePart(core_tables.rollouts, ROLLOUT_AFTER_RUN)
_ATTEMPT_AFTER_SPAN = TablePart(core_tables.attempts, ATTEMPT_AFTER_SPAN)
_RETRACTION = TablePart(core_tables.artifacts, ("retracted",))

_CONFIG = ROLLOUT_COLUMNS.index("config")
_ROLLOUT_ERROR = ROLLOUT_COLUMNS.index("error")
_OWNER = ATTEMPT_COLUMNS.index("owner")
_ATTEMPT_ERROR = ATTEMPT_COLUMNS.index("error")


def rollout(state: RolloutState) -> Row:
    """Return the row of a rollout."""
    row: list[Any] = list(rollout_row(state))
    row[_CONFIG] = _text(state.config)
    row[_ROLLOUT_ERROR] = _text(state.error)
    return tuple(row)


def attempt(state: AttemptState) -> Row:
    """Return the row of an attempt."""
    row: list[Any] = list(attempt_row(state))
    row[_OWNER] = _text(state.owner)
    row[_ATTEMPT_ERROR] = _text(state.error)
    return tuple(row)


rollout_after_span = attrgetter("rollout_id", *ROLLOUT_AFTER_SPAN)
rollout_after_run = attrgetter("rollout_id", *ROLLOUT_AFTER_RUN)
attempt_after_span = attrgetter("rollout_id", "attempt_id", *ATTEMPT_AFTER_SPAN)


def resources(state: ResourcesState) -> Row:
    """Return the row of a set of resources."""
    return resources_row(state)


def worker(state: WorkerState) -> Row:
    """Return the row of a worker."""
    return worker_row(state)


def queued(state: RolloutState) -> Row | None:
    """Return the row of `queue` for a rollout; None if the rollout is not in the queue."""
    queue_place = state.queue_place
    return None if queue_place is None else (queue_place[-1], state.rollout_id, *queue_place[:-1])


def labels(state: RolloutState) -> list[Row]:
    """Return the rows of a rollout's labels, sorted by label."""
    return [(state.rollout_id, label, position) for label, position in sorted((state.labels or {}).items())]


def span(rollout_id: str, event: Event, fact: SpanRecorded) -> Row:
    """Return the row of a span."""
    return (
        rollout_id,
        fact.attempt_id,
        fact.span_id,
        fact.sequence_id,
        fact.trace_id,
        fact.parent_id,
        fact.name,
        fact.start,
        fact.end,
        fact.status_code,
        fact.status_message,
        event.position,
    )


def rewards(rollout_id: str, event: Event, fact: SpanRecorded) -> list[Row]:
    """Return the rows of the rewards that a span contains: one row for each dimension of the reward."""
    return [
        (rollout_id, event.position, ordinal, fact.attempt_id, name, value)
        for ordinal, (name, value) in enumerate(fact.rewards or ())
    ]


def metrics(event: Event, fact: MetricsLogged) -> list[Row]:
    """Return the rows of the numbers of a training step. Decision 116."""
    return [
        (name, fact.step, event.position, *((None, value) if isinstance(value, str) else (float(value), None)))
        for name, value in fact.values
    ]


def rollout_state(row: NamedRow) -> RolloutState:
    """Return the state that a row of `rollouts` represents. The state contains no attempts."""
    values: list[Any] = list(rollout_row(row))
    values[_CONFIG] = orjson.loads(values[_CONFIG])
    values[_ROLLOUT_ERROR] = _value(values[_ROLLOUT_ERROR])
    return RolloutState(*values)


def attempt_state(row: Any) -> AttemptState:
    """Return the state that a row of `attempts` represents.

    After the columns of the table, the row may have two columns with the time of the last heartbeat and the time at
    which the store received it.
    """
    values: list[Any] = list(row)
    values[_OWNER] = _value(values[_OWNER])
    values[_ATTEMPT_ERROR] = _value(values[_ATTEMPT_ERROR])
    return AttemptState(*values)


def _text(value: Json | None) -> str | None:
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _value(text: str | None) -> Json | None:
    return None if text is None else orjson.loads(text)


def projected(working_set: WorkingSet, changes: Changes) -> None:
    """Add to `changes` all rows of projections that the batch changed."""
    for rollout_id, queued_before in working_set.queued_before.items():
        state = working_set.rollouts[rollout_id]
        if rollout_id not in working_set.moved:
            if state.run_version is None:
                changes.updates.setdefault(_ROLLOUT_AFTER_SPAN, []).append(rollout_after_span(state))
            else:
                changes.updates.setdefault(_ROLLOUT_AFTER_RUN, []).append(rollout_after_run(state))
            continue
        changes.upserts.setdefault(core_tables.rollouts, []).append(rollout(state))
        _requeue(queued_before, state, changes)
    for key, changed_attempt in working_set.touched_attempts.items():
        if key in working_set.moved_attempts:
            changes.upserts.setdefault(core_tables.attempts, []).append(attempt(changed_attempt))
        else:
            changes.updates.setdefault(_ATTEMPT_AFTER_SPAN, []).append(attempt_after_span(changed_attempt))
    _add_event_rows(working_set, changes)
    if working_set.touched_labels:
        _add_labels(working_set, changes)
    for worker_id in working_set.touched_workers:
        changes.upserts.setdefault(core_tables.workers, []).append(worker(working_set.workers[worker_id]))
    if working_set.touched_threads:
        _add_threads(working_set, changes)
    for resources_id in working_set.touched_resources:
        changes.upserts.setdefault(core_tables.resources, []).append(resources(working_set.resources[resources_id]))


def _add_event_rows(working_set: WorkingSet, changes: Changes) -> None:
    """Add the rows of single events, such as the row of a span."""
    run: RunRows | None = None
    for event in working_set.events:
        fact = event.fact
        if isinstance(fact, SpanRecorded):
            rollout_id = event.stream.removeprefix("rollout/")
            changes.inserts.setdefault(core_tables.spans, []).append(span(rollout_id, event, fact))
            if fact.rewards:
                changes.inserts.setdefault(core_tables.rewards, []).extend(rewards(rollout_id, event, fact))
            if fact.node_id is None:
                continue
        elif isinstance(fact, MetricsLogged):
            changes.inserts.setdefault(core_tables.metrics, []).extend(metrics(event, fact))
        if has_run_rows(fact):
            run = run or RunRows()
            run.add(event, fact, working_set.rollouts[event.stream.removeprefix("rollout/")])
    if run is None:
        return
    for table, run_rows in run.written():
        changes.inserts.setdefault(table, []).extend(run_rows)
    for key, version in run.retracted.items():
        saved = working_set.artifacts[key][0]
        changes.updates.setdefault(_RETRACTION, []).append((key[0], saved, version))


def _add_labels(working_set: WorkingSet, changes: Changes) -> None:
    """Add the rows of new labels, and the keys of removed labels, so that the rows of removed labels are deleted."""
    for rollout_id, label in working_set.touched_labels:
        position = (working_set.rollouts[rollout_id].labels or {}).get(label)
        if position is None:
            changes.deletes.setdefault(core_tables.labels, []).append((rollout_id, label))
        else:
            changes.upserts.setdefault(core_tables.labels, []).append((rollout_id, label, position))


def _add_threads(working_set: WorkingSet, changes: Changes) -> None:
    """Add the changed rows of threads to `changes`.

    A thread contains the checkpoints of a LangGraph conversation, and the writes of tasks on each checkpoint. For a
    saved checkpoint or write, its row is added. For a deleted checkpoint or write, its key is added, so that its row is
    deleted.
    """
    for thread_id in working_set.touched_threads:
        changes.upserts.setdefault(core_tables.threads, []).append(
            thread_projection.thread(working_set.threads[thread_id])
        )
    for thread_id, key in working_set.touched_checkpoints:
        checkpoint = working_set.threads[thread_id].checkpoints.get(key)
        if checkpoint is None:
            changes.deletes.setdefault(core_tables.thread_checkpoints, []).append((thread_id, *key))
        else:
            row = thread_projection.checkpoint(thread_id, key, checkpoint)
            changes.upserts.setdefault(core_tables.thread_checkpoints, []).append(row)
    for thread_id, key in working_set.touched_writes:
        write = working_set.threads[thread_id].writes.get(key)
        if write is None:
            changes.deletes.setdefault(core_tables.thread_writes, []).append((thread_id, *key))
        else:
            changes.upserts.setdefault(core_tables.thread_writes, []).append(
                thread_projection.write(thread_id, key, write)
            )


def _requeue(queued_before: QueuePlace | None, state: RolloutState, changes: Changes) -> None:
    if state.queue_place == queued_before:
        return
    if queued_before is not None:
        changes.deletes.setdefault(core_tables.queue, []).append((queued_before[-1],))
    row = queued(state)
    if row is not None:
        changes.inserts.setdefault(core_tables.queue, []).append(row)


def signalled(working_set: WorkingSet, tail: Tail, changes: Changes) -> None:
    """Add to `changes` the rows that are not computed from events.

    These are the counters of span numbers, the calls of models, the heartbeats, the times of the watchdog's next
    checks, the replies to idempotent calls, and the epoch of the queue. The epoch changes when a rollout returns to an
    earlier place in the queue.
    """
    for rollout_id in working_set.touched_counters:
        counter = (rollout_id, working_set.counters[rollout_id], working_set.reserved.get(rollout_id))
        changes.upserts.setdefault(core_tables.span_counters, []).append(counter)
    for call in working_set.touched_model_calls:
        changes.upserts.setdefault(core_tables.model_calls, []).append((*call, *working_set.model_calls[call]))
    for worker_id in working_set.touched_signals:
        signals = signals_row(working_set.worker_signals[worker_id])
        changes.upserts.setdefault(core_tables.worker_signals, []).append(signals)
    for (rollout_id, attempt_id), live_attempt in working_set.beats.items():
        beat = (rollout_id, attempt_id, live_attempt.signal_time, live_attempt.signal_stamped_at)
        changes.upserts.setdefault(core_tables.attempt_signals, []).append(beat)
    if working_set.rewatch:
        _rewatch(working_set, changes)
    for scope, key in working_set.touched_answers:
        answer = working_set.answered.get((scope, key))
        if answer is None:
            changes.deletes.setdefault(core_tables.idempotency, []).append((key, scope))
        else:
            reply = orjson.dumps(answer.reply).decode()
            row = (key, scope, answer.request_hash, answer.position, reply, tail.now + KEY_MICROS)
            changes.upserts.setdefault(core_tables.idempotency, []).append(row)
    if working_set.queue_reordered:
        changes.upserts.setdefault(core_tables.queue_epoch, []).append((1, tail.queue_epoch + 1))


def _rewatch(working_set: WorkingSet, changes: Changes) -> None:
    for rollout_id, may_have_row in working_set.rewatch.items():
        at = retry.check_at(working_set.rollouts[rollout_id])
        if at is not None:
            changes.upserts.setdefault(core_tables.watch, []).append((rollout_id, at))
        elif may_have_row:
            changes.deletes.setdefault(core_tables.watch, []).append((rollout_id,))
