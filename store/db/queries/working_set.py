"""Queries that load the working set of a batch, in one round trip. Each query reads by one key.

A signal contains heartbeats of an attempt or a worker that are not events of the log.

This module builds the statements, and drivers run them. A single query that joins several conditions with OR would be
shorter than several queries, but SQLite and Postgres both make bad plans for such a query.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, tuple_
from sqlalchemy.types import BigInteger, Integer

from store.db.dialect import Dialect
from store.db.tables.core import (
    QUEUE_ORDER,
    artifacts,
    attempt_signals,
    attempts,
    blobs,
    bodies,
    events,
    idempotency,
    labels,
    model_calls,
    queue,
    resources,
    rollouts,
    run_keys,
    scans,
    scores,
    span_counters,
    spans,
    thread_checkpoints,
    thread_writes,
    threads,
    watch,
    worker_signals,
    workers,
)
from store.domain.events import ScannerAdded, SpanNumbersReserved
from store.domain.rollout import QueuePlace


@dataclass(frozen=True, slots=True)
class LoadStatement:
    """One of the queries that load a working set."""

    family: str
    """The kind of the rows that the query returns."""
    requested_by: str
    """The parameter by which the query searches. If the parameter has no value, the query is left out."""
    lists: tuple[str, ...]
    """The list parameters of the query, including `requested_by` if it is a list."""
    statement: Select[*tuple[Any, ...]]


def loading(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries that load a working set. The queries are built once for all databases of a kind."""
    kind = type(dialect)
    if kind not in _built:
        _built[kind] = _build(dialect)
    return _built[kind]


_BEHIND = [bindparam(f"behind_{column.name}", type_=column.type) for column in QUEUE_ORDER]


def behind(place: QueuePlace) -> dict[str, int]:
    """Return the parameters of the query of the queue that begins behind a place."""
    return {param.key: value for param, value in zip(_BEHIND, place, strict=True)}


_built: dict[type[Dialect], tuple[LoadStatement, ...]] = {}


def _build(dialect: Dialect) -> tuple[LoadStatement, ...]:
    return (
        *_of_rollouts(dialect),
        *_of_spans(dialect),
        *_of_workers_and_resources(dialect),
        LoadStatement("heads", "heads", (), _HEADS),
        LoadStatement("due", "due", (), _DUE),
        *_of_runs(dialect),
        *_of_threads(dialect),
    )


_HEADS = (
    select(*QUEUE_ORDER, queue.c.rollout_id)
    .where(tuple_(*QUEUE_ORDER) > tuple_(*_BEHIND))
    .order_by(*QUEUE_ORDER)
    .limit(bindparam("heads", type_=Integer))
)
_DUE = (
    select(watch.c.rollout_id)
    .where(watch.c.check_at < bindparam("due_at", type_=BigInteger))
    .order_by(watch.c.check_at, watch.c.rollout_id)
    .limit(bindparam("due", type_=Integer))
)


def _of_rollouts(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries for rollouts with their attempts and bodies: those that are requested, or in the queue."""
    waiting = select(_HEADS.subquery("waiting").c.rollout_id)
    named = dialect.any_of(rollouts.c.rollout_id, "rollouts")
    planned = dialect.any_of(rollouts.c.plan_key, "plan_keys")
    is_waiting = rollouts.c.rollout_id.in_(waiting)
    taken = select(rollouts.c.rollout_id).where(dialect.any_of(rollouts.c.rollout_id, "fresh"))
    with_bodies = dialect.any_of(rollouts.c.rollout_id, "bodies_of")
    with_metadata = dialect.any_of(attempts.c.rollout_id, "metadata_of")
    waiting_forks = (attempts.c.rollout_id.in_(waiting), attempts.c.fork_version.is_not(None))
    return (
        LoadStatement("taken", "fresh", ("fresh",), taken),
        LoadStatement("rollouts", "rollouts", ("rollouts",), _rollouts(named)),
        LoadStatement("rollouts", "plan_keys", ("plan_keys",), _rollouts(planned)),
        LoadStatement("rollouts", "heads", (), _rollouts(is_waiting)),
        LoadStatement("attempts", "rollouts", ("rollouts", "attempts"), _attempts(dialect, named)),
        LoadStatement("attempts", "heads", ("attempts",), _attempts(dialect, is_waiting)),
        LoadStatement("bodies", "bodies_of", ("bodies_of",), _bodies(with_bodies)),
        LoadStatement("bodies", "metadata_of", ("metadata_of",), _metadata(with_metadata)),
        LoadStatement("bodies", "plan_keys", ("plan_keys",), _bodies(planned)),
        LoadStatement("bodies", "heads", (), _bodies(is_waiting)),
        LoadStatement("bodies", "heads", (), _metadata(*waiting_forks)),
    )


def _of_spans(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries for spans, for the calls of models that they report, and for their numbers."""
    span_key = (spans.c.rollout_id, spans.c.attempt_id, spans.c.span_id)
    call_key = (model_calls.c.rollout_id, model_calls.c.attempt_id, model_calls.c.response_id)
    content = (
        select(
            *span_key,
            spans.c.trace_id,
            spans.c.parent_id,
            spans.c.name,
            spans.c.start_time,
            spans.c.end_time,
            spans.c.status_code,
            spans.c.status_message,
            events.c.body_hash,
        )
        .join_from(spans, events, events.c.position == spans.c.position)
        .where(dialect.any_key(span_key, "spans"))
    )
    calls = select(*model_calls.c).where(dialect.any_key(call_key, "model_calls"))
    counters = select(*span_counters.c).where(dialect.any_of(span_counters.c.rollout_id, "counters"))
    numbers = (
        select(spans.c.rollout_id, func.max(spans.c.sequence_id).label("last_number"))
        .where(dialect.any_of(spans.c.rollout_id, "numbers_of"))
        .group_by(spans.c.rollout_id)
    )
    reservations = select(events.c.position, events.c.stream, events.c.shape, events.c.data).where(
        dialect.any_of(events.c.stream, "reservations_of"), events.c.type == SpanNumbersReserved.type
    )
    return (
        LoadStatement("spans", "spans", ("spans",), content),
        LoadStatement("model_calls", "model_calls", ("model_calls",), calls),
        LoadStatement("counters", "counters", ("counters",), counters),
        LoadStatement("recorded_numbers", "numbers_of", ("numbers_of",), numbers),
        LoadStatement("reservations", "reservations_of", ("reservations_of",), reservations),
    )


def _of_workers_and_resources(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries for workers, resources, and the replies to earlier calls."""
    by_id = dialect.any_of(workers.c.worker_id, "workers")
    of_attempts = select(attempts.c.worker_id).where(dialect.any_of(attempts.c.rollout_id, "worked"))
    requested = select(*resources.c).where(dialect.any_of(resources.c.resources_id, "resources"))
    newest = select(resources.c.resources_id).order_by(resources.c.last_position.desc()).limit(1)
    is_requested = bindparam("latest_resources", type_=Integer) == 1
    latest = select(*resources.c).where(resources.c.resources_id.in_(newest), is_requested)
    of_store = select(func.coalesce(func.max(events.c.version), 0).label("version")).where(
        events.c.stream == "store", bindparam("store_stream", type_=Integer) == 1
    )
    replies = select(*[column for column in idempotency.c if column.name != "expires_at"]).where(
        dialect.any_of(idempotency.c.key, "keys")
    )
    return (
        LoadStatement("workers", "workers", ("workers",), _workers(by_id)),
        LoadStatement("workers", "worked", ("worked",), _workers(workers.c.worker_id.in_(of_attempts))),
        LoadStatement("resources", "resources", ("resources",), requested),
        LoadStatement("latest_resources", "latest_resources", (), latest),
        LoadStatement("store_stream", "store_stream", (), of_store),
        LoadStatement("answered", "keys", ("keys",), replies),
    )


def _of_runs(dialect: Dialect) -> tuple[LoadStatement, ...]:
    key = (dialect.any_of(run_keys.c.rollout_id, "keyed"), dialect.any_of(run_keys.c.key, "run_keys"))
    artifact = (
        dialect.any_of(artifacts.c.rollout_id, "artifacts_of"),
        dialect.any_of(artifacts.c.artifact_id, "artifacts"),
    )
    every = dialect.any_of(attempts.c.rollout_id, "forked")
    return (
        LoadStatement("run_keys", "keyed", ("keyed", "run_keys"), select(*run_keys.c).where(*key)),
        LoadStatement("blobs", "blobs", ("blobs",), select(blobs.c.hash).where(dialect.any_of(blobs.c.hash, "blobs"))),
        LoadStatement(
            "artifacts",
            "artifacts",
            ("artifacts", "artifacts_of"),
            select(artifacts.c.rollout_id, artifacts.c.artifact_id, artifacts.c.version, artifacts.c.retracted).where(
                *artifact
            ),
        ),
        LoadStatement("attempts", "forked", ("forked",), _with_signals(every)),
        LoadStatement(
            "labels",
            "labelled",
            ("labelled",),
            select(*labels.c).where(dialect.any_of(labels.c.rollout_id, "labelled")),
        ),
        LoadStatement("scores", "scores", ("scores",), _scores(dialect)),
        *_of_scanners(dialect),
    )


def _of_scanners(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries for scanners and their results; of several results with one key, the last comes first."""
    key = (scans.c.rollout_id, scans.c.attempt_id, scans.c.scanner, scans.c.version)
    results = select(*key, scans.c.is_match, scans.c.error).where(dialect.any_key(key, "scans"))
    added = select(events.c.position, events.c.stream, events.c.shape, events.c.data).where(
        dialect.any_of(events.c.stream, "scanners"), events.c.type == ScannerAdded.type
    )
    return (
        LoadStatement("scans", "scans", ("scans",), results.order_by(scans.c.position.desc())),
        LoadStatement("scanners", "scanners", ("scanners",), added),
    )


def _scores(dialect: Dialect) -> Select[Any]:
    """Select the scores with the requested keys; of several with one key, the last score comes first."""
    key = (scores.c.rollout_id, scores.c.attempt_id, scores.c.name, scores.c.version)
    content = [scores.c.value, scores.c.dimensions, scores.c.error, scores.c.code_sha256]
    return select(*key, *content).where(dialect.any_key(key, "scores")).order_by(scores.c.position.desc())


def _of_threads(dialect: Dialect) -> tuple[LoadStatement, ...]:
    """Return the queries for threads, which contain the checkpoints of LangGraph conversations.

    If a batch has several requests, a query may also return rows that no request needs, because they combine the keys
    of different requests.
    """
    checkpoint, write = thread_checkpoints.c, thread_writes.c
    place = ("threads", "thread_namespaces", "thread_checkpoints")
    named = [dialect.any_of(checkpoint[column], name) for column, name in _places(place)]
    of_tasks = [dialect.any_of(write[column], name) for column, name in (*_places(place), ("task_id", "thread_tasks"))]
    return (
        LoadStatement(
            "threads", "threads", ("threads",), select(*threads.c).where(dialect.any_of(threads.c.thread_id, "threads"))
        ),
        LoadStatement("thread_checkpoints", "thread_checkpoints", place, _with_hash(*named)),
        LoadStatement("thread_writes", "thread_tasks", (*place, "thread_tasks"), select(*write).where(*of_tasks)),
        LoadStatement(
            "thread_checkpoints",
            "whole_threads",
            ("whole_threads",),
            _with_hash(dialect.any_of(checkpoint.thread_id, "whole_threads")),
        ),
        LoadStatement(
            "thread_writes",
            "whole_threads",
            ("whole_threads",),
            select(*write).where(dialect.any_of(write.thread_id, "whole_threads")),
        ),
    )


def _places(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(("thread_id", "ns", "checkpoint_id"), names, strict=True))


def _with_hash(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Select checkpoints of threads, each with the hash of the body that contains its state."""
    joined = thread_checkpoints.outerjoin(events, events.c.position == thread_checkpoints.c.body_position)
    return select(*thread_checkpoints.c, events.c.body_hash).select_from(joined).where(*conditions)


def _rollouts(condition: ColumnElement[bool]) -> Select[Any]:
    """Select rollouts, each with the current version of its resources."""
    joined = rollouts.outerjoin(resources, resources.c.resources_id == rollouts.c.resources_id)
    return select(*rollouts.c, resources.c.version.label("resources_now")).select_from(joined).where(condition)


def _attempts(dialect: Dialect, condition: ColumnElement[bool]) -> Select[Any]:
    """Select the latest two attempts of rollouts, and the requested attempts, with their signals."""
    of_interest = or_(
        # If the claim of the latest attempt is released, the attempt before it becomes the latest again.
        and_(attempts.c.sequence_id >= rollouts.c.attempt_count - 1, attempts.c.released_position.is_(None)),
        dialect.any_of(attempts.c.attempt_id, "attempts"),
    )
    return _with_signals(condition, of_interest)


def _with_signals(*conditions: ColumnElement[bool]) -> Select[Any]:
    joined = attempts.join(rollouts, rollouts.c.rollout_id == attempts.c.rollout_id).outerjoin(
        attempt_signals,
        and_(
            attempt_signals.c.rollout_id == attempts.c.rollout_id,
            attempt_signals.c.attempt_id == attempts.c.attempt_id,
        ),
    )
    return (
        select(*attempts.c, attempt_signals.c.beat_time, attempt_signals.c.stamped_at)
        .select_from(joined)
        .where(*conditions)
        .order_by(attempts.c.rollout_id, attempts.c.sequence_id)
    )


def _bodies(of_rollouts: ColumnElement[bool]) -> Select[Any]:
    """Select the bodies that contain the input and the metadata of rollouts."""
    positions = (
        select(rollouts.c.input_position.label("position"))
        .where(of_rollouts)
        .union_all(select(rollouts.c.metadata_position).where(of_rollouts))
        .subquery("positions")
    )
    return select(*bodies.c).where(bodies.c.position.in_(select(positions.c.position)))


def _metadata(*of_attempts: ColumnElement[bool]) -> Select[Any]:
    """Select the bodies that contain the metadata of attempts."""
    positions = select(attempts.c.metadata_position).where(*of_attempts, attempts.c.metadata_position.is_not(None))
    return select(*bodies.c).where(bodies.c.position.in_(positions))


def _workers(condition: ColumnElement[bool]) -> Select[Any]:
    """Select workers, each with its signal. The last column is null if the worker has no signal."""
    signals = [
        worker_signals.c.heartbeat_stats,
        worker_signals.c.last_heartbeat_at,
        worker_signals.c.last_dequeue_at,
        worker_signals.c.last_busy_at.label("signal_busy_at"),
        worker_signals.c.last_idle_at.label("signal_idle_at"),
    ]
    joined = workers.outerjoin(worker_signals, worker_signals.c.worker_id == workers.c.worker_id)
    present = worker_signals.c.worker_id.label("has_signals")
    return select(*workers.c, *signals, present).select_from(joined).where(condition)
