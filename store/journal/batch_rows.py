"""What a decided batch writes: the log's rows, and the rows of every state it touched, each once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Table

from store.db.dialect import Changes, Part, Tail
from store.db.tables import core as core_tables
from store.domain import retry
from store.domain.events import Event, SpanRecorded, encode
from store.domain.rollout import RolloutState
from store.domain.run_commands import IN_BLOBS
from store.domain.views import signals_row
from store.domain.working_set import World
from store.journal import hash_chain
from store.projections import rollouts as rollout_projection
from store.projections import threads as thread_projection
from store.projections.runs import RunRows, has_run_rows

Row = tuple[Any, ...]

KEY_MICROS = 86_400_000_000
"""How long the key of a call is known."""

# Which running total of `commits` an event raises, by its type.
_COUNTED = {
    "rollout.enqueued": 1,
    "rollout.started": 1,
    "attempt.started": 2,
    "span.recorded": 3,
    "resources.published": 4,
    "worker.seen": 5,
}
_EVENTS, _ATTEMPTS, _BODY_BYTES = 0, 2, 6
_ROLLOUT_AFTER_SPAN = Part(core_tables.rollouts, rollout_projection.ROLLOUT_AFTER_SPAN)
_ROLLOUT_AFTER_RUN = Part(core_tables.rollouts, rollout_projection.ROLLOUT_AFTER_RUN)
_ATTEMPT_AFTER_SPAN = Part(core_tables.attempts, rollout_projection.ATTEMPT_AFTER_SPAN)
_RETRACTION = Part(core_tables.artifacts, ("retracted",))


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit as it will stand in the log."""

    commit_id: int
    first_position: int
    last_position: int


def totals_after(totals: tuple[int, ...], events: list[tuple[str, int]]) -> tuple[int, ...]:
    """Return the running totals after events given as (type, bytes of body before compression)."""
    after = list(totals)
    for type_, body_bytes in events:
        after[_EVENTS] += 1
        after[_BODY_BYTES] += body_bytes
        counted = _COUNTED.get(type_)
        if counted is not None:
            after[counted] += 1
        elif type_ == "claim.released":
            after[_ATTEMPTS] -= 1
    return tuple(after)


def log_rows(world: World, tail: Tail, commit_id: int, batch_key: str, writer: str) -> dict[Table, list[Sequence[Any]]]:
    """Return the rows of `events`, `bodies` and `commits` for the facts of a batch."""
    events: list[Sequence[Any]] = [_event_row(event, commit_id) for event in world.events]
    first, last = world.events[0].position, world.events[-1].position
    recorded_at = world.events[-1].at
    digests = [hash_chain.event_digest(row) for row in events]
    chain_hash = hash_chain.link(tail.chain_hash, commit_id, first, last, recorded_at, digests)
    totals = totals_after(tail.totals, [(event.fact.type, _body_bytes(event)) for event in world.events])
    bodies: list[Sequence[Any]] = [
        (event.position, event.body.codec, event.body.raw_len, event.body.stored)
        for event in world.events
        if event.body is not None and event.fact.type not in IN_BLOBS
    ]
    commit = (commit_id, batch_key, first, last, recorded_at, writer, chain_hash, *totals)
    written: dict[Table, list[Sequence[Any]]] = {core_tables.events: events, core_tables.commits: [commit]}
    if bodies:
        written[core_tables.bodies] = bodies
    if world.new_blobs:
        written[core_tables.blobs] = [
            (name, blob.codec, blob.raw_len, blob.stored) for name, blob in world.new_blobs.items()
        ]
    return written


def _body_bytes(event: Event) -> int:
    # What is stored once for several events weighs on none of them.
    return 0 if event.body is None or event.fact.type in IN_BLOBS else event.body.raw_len


def _event_row(event: Event, commit_id: int) -> Row:
    fact = event.fact
    return (
        event.position,
        commit_id,
        event.stream,
        event.version,
        event.command,
        fact.type,
        fact.shape,
        event.at,
        event.actor,
        event.cause,
        encode(fact),
        None if event.body is None else event.body.sha256,
    )


def projected(world: World, changes: Changes) -> None:
    """Add the rows of every projection that the batch touched."""
    for rollout_id, queued_before in world.queued_before.items():
        state = world.rollouts[rollout_id]
        if rollout_id not in world.moved:
            if state.run_version is None:
                changes.updates.setdefault(_ROLLOUT_AFTER_SPAN, []).append(rollout_projection.rollout_after_span(state))
            else:
                changes.updates.setdefault(_ROLLOUT_AFTER_RUN, []).append(rollout_projection.rollout_after_run(state))
            continue
        changes.upserts.setdefault(core_tables.rollouts, []).append(rollout_projection.rollout(state))
        if state.queued_position != queued_before:
            _requeue(queued_before, state, changes)
    for key, attempt in world.touched_attempts.items():
        if key in world.moved_attempts:
            changes.upserts.setdefault(core_tables.attempts, []).append(rollout_projection.attempt(attempt))
        else:
            changes.updates.setdefault(_ATTEMPT_AFTER_SPAN, []).append(rollout_projection.attempt_after_span(attempt))
    _add_of_events(world, changes)
    _projected_labels(world, changes)
    for worker_id in world.touched_workers:
        changes.upserts.setdefault(core_tables.workers, []).append(rollout_projection.worker(world.workers[worker_id]))
    if world.touched_threads:
        _projected_threads(world, changes)
    for resources_id in world.touched_resources:
        changes.upserts.setdefault(core_tables.resources, []).append(
            rollout_projection.resources(world.resources[resources_id])
        )


def _add_of_events(world: World, changes: Changes) -> None:
    """Add the rows that are made of one event each."""
    run = RunRows()
    for event in world.events:
        fact = event.fact
        if isinstance(fact, SpanRecorded):
            _add_span(event, fact, changes)
        if has_run_rows(fact):
            run.add(event, fact, world.rollouts[event.stream.removeprefix("rollout/")])
    for table, run_rows in run.written():
        changes.inserts.setdefault(table, []).extend(run_rows)
    for key, version in run.retracted.items():
        saved = world.artifacts[key][0]
        changes.updates.setdefault(_RETRACTION, []).append((key[0], saved, version))


def _projected_labels(world: World, changes: Changes) -> None:
    """Add the rows of the labels that rollouts were given, and the keys of those they lost."""
    for rollout_id, label in world.touched_labels:
        position = (world.rollouts[rollout_id].labels or {}).get(label)
        if position is None:
            changes.deletes.setdefault(core_tables.labels, []).append((rollout_id, label))
        else:
            changes.upserts.setdefault(core_tables.labels, []).append((rollout_id, label, position))


def _projected_threads(world: World, changes: Changes) -> None:
    """Add the rows of what the batch kept in threads, and the keys of what it took away."""
    for thread_id in world.touched_threads:
        changes.upserts.setdefault(core_tables.threads, []).append(thread_projection.thread(world.threads[thread_id]))
    for thread_id, key in world.touched_checkpoints:
        kept = world.threads[thread_id].checkpoints.get(key)
        if kept is None:
            changes.deletes.setdefault(core_tables.thread_checkpoints, []).append((thread_id, *key))
        else:
            row = thread_projection.checkpoint(thread_id, key, kept)
            changes.upserts.setdefault(core_tables.thread_checkpoints, []).append(row)
    for thread_id, key in world.touched_writes:
        written = world.threads[thread_id].writes.get(key)
        if written is None:
            changes.deletes.setdefault(core_tables.thread_writes, []).append((thread_id, *key))
        else:
            changes.upserts.setdefault(core_tables.thread_writes, []).append(
                thread_projection.write(thread_id, key, written)
            )


def _requeue(queued_before: int | None, state: RolloutState, changes: Changes) -> None:
    if queued_before is not None:
        changes.deletes.setdefault(core_tables.queue, []).append((queued_before,))
    row = rollout_projection.queued(state)
    if row is not None:
        changes.inserts.setdefault(core_tables.queue, []).append(row)


def _add_span(event: Event, fact: SpanRecorded, changes: Changes) -> None:
    rollout_id = event.stream.removeprefix("rollout/")
    changes.inserts.setdefault(core_tables.spans, []).append(rollout_projection.span(rollout_id, event, fact))
    if fact.rewards:
        changes.inserts.setdefault(core_tables.rewards, []).extend(rollout_projection.rewards(rollout_id, event, fact))


def signalled(world: World, tail: Tail, changes: Changes) -> None:
    """Add the rows that are no facts: counters, heartbeats, and when the watchdog has to look again."""
    for rollout_id in world.touched_counters:
        counter = (rollout_id, world.counters[rollout_id])
        changes.upserts.setdefault(core_tables.span_counters, []).append(counter)
    for worker_id in world.touched_signals:
        signals = signals_row(world.worker_signals[worker_id])
        changes.upserts.setdefault(core_tables.worker_signals, []).append(signals)
    for (rollout_id, attempt_id), attempt in world.beats.items():
        beat = (rollout_id, attempt_id, attempt.signal_time, attempt.signal_stamped_at)
        changes.upserts.setdefault(core_tables.attempt_signals, []).append(beat)
    for rollout_id, may_have_row in world.rewatch.items():
        at = retry.check_at(world.rollouts[rollout_id])
        if at is not None:
            changes.upserts.setdefault(core_tables.watch, []).append((rollout_id, at))
        elif may_have_row:
            changes.deletes.setdefault(core_tables.watch, []).append((rollout_id,))
    for scope, key in world.touched_answers:
        answer = world.answered.get((scope, key))
        if answer is None:
            changes.deletes.setdefault(core_tables.idempotency, []).append((key, scope))
        else:
            reply = orjson.dumps(answer.reply).decode()
            row = (key, scope, answer.request_hash, answer.position, reply, tail.now + KEY_MICROS)
            changes.upserts.setdefault(core_tables.idempotency, []).append(row)
    if world.queue_reordered:
        changes.upserts.setdefault(core_tables.queue_epoch, []).append((1, tail.queue_epoch + 1))
