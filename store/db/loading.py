"""What a batch loads: one query per family of rows, all run in one round trip. Statements only; drivers run them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, bindparam, or_, select
from sqlalchemy.types import BigInteger, Integer

from store.db.dialect import Dialect
from store.db.tables import (
    attempt_signals,
    attempts,
    bodies,
    queue,
    resources,
    rollouts,
    span_counters,
    spans,
    watch,
    worker_signals,
    workers,
)


@dataclass(frozen=True, slots=True)
class Loading:
    """The queries of one dialect, with the parameters that make each worth running."""

    queries: Mapping[str, Select[Any]]
    needs: Mapping[str, tuple[str, ...]]


LISTS = ("rollouts", "attempts", "counters", "plan_keys", "workers", "worked", "resources", "bodies_of")
KEYS = ("spans",)


def loading(dialect: Dialect) -> Loading:
    """Return the queries that load a batch's working set."""
    heads = (
        select(queue.c.position, queue.c.rollout_id)
        .where(queue.c.position > bindparam("watermark", type_=BigInteger))
        .order_by(queue.c.position)
        .limit(bindparam("heads", type_=Integer))
    )
    head_ids = select(heads.subquery("h").c.rollout_id)
    due = (
        select(watch.c.rollout_id)
        .where(watch.c.check_at < bindparam("due_at", type_=BigInteger))
        .order_by(watch.c.check_at, watch.c.rollout_id)
        .limit(bindparam("due", type_=Integer))
    )
    # `or_` over different indexes reads badly on both planners; a union of three index scans does not.
    wanted = (
        select(rollouts.c.rollout_id)
        .where(dialect.any_of(rollouts.c.rollout_id, "rollouts"))
        .union_all(
            select(rollouts.c.rollout_id).where(dialect.any_of(rollouts.c.plan_key, "plan_keys")),
            head_ids,
        )
        .subquery("wanted")
    )
    versions = resources.c.version.label("resources_now")
    rollouts_query = (
        select(*rollouts.c, versions)
        .select_from(
            rollouts.outerjoin(resources, resources.c.resources_id == rollouts.c.resources_id),
        )
        .where(rollouts.c.rollout_id.in_(select(wanted.c.rollout_id)))
    )
    joined = attempts.join(rollouts, rollouts.c.rollout_id == attempts.c.rollout_id).outerjoin(
        attempt_signals,
        and_(
            attempt_signals.c.rollout_id == attempts.c.rollout_id,
            attempt_signals.c.attempt_id == attempts.c.attempt_id,
        ),
    )
    of_interest = or_(
        and_(attempts.c.sequence_id == rollouts.c.attempt_count, attempts.c.released_position.is_(None)),
        dialect.any_of(attempts.c.attempt_id, "attempts"),
    )
    attempts_query = (
        select(*attempts.c, attempt_signals.c.beat_time, attempt_signals.c.stamped_at)
        .select_from(joined)
        .where(attempts.c.rollout_id.in_(select(wanted.c.rollout_id)), of_interest)
        .order_by(attempts.c.rollout_id, attempts.c.sequence_id)
    )
    their_workers = select(attempts.c.worker_id).where(dialect.any_of(attempts.c.rollout_id, "worked"))
    workers_query = (
        select(
            *workers.c,
            *(column for column in worker_signals.c if column.name != "worker_id"),
            worker_signals.c.worker_id.label("has_signals"),
        )
        .select_from(workers.outerjoin(worker_signals, worker_signals.c.worker_id == workers.c.worker_id))
        .where(or_(dialect.any_of(workers.c.worker_id, "workers"), workers.c.worker_id.in_(their_workers)))
    )
    latest = select(resources.c.resources_id).order_by(resources.c.last_position.desc()).limit(1)
    asked = (
        select(rollouts.c.rollout_id)
        .where(dialect.any_of(rollouts.c.rollout_id, "bodies_of"))
        .union_all(select(rollouts.c.rollout_id).where(dialect.any_of(rollouts.c.plan_key, "plan_keys")), head_ids)
        .subquery("asked")
    )
    asked_ids = select(asked.c.rollout_id)
    attempt_bodies = select(attempts.c.metadata_position).where(
        dialect.any_of(attempts.c.rollout_id, "bodies_of"), attempts.c.metadata_position.is_not(None)
    )
    positions = (
        select(rollouts.c.input_position.label("position"))
        .where(rollouts.c.rollout_id.in_(asked_ids))
        .union(
            select(rollouts.c.metadata_position).where(rollouts.c.rollout_id.in_(asked_ids)),
            attempt_bodies,
        )
        .subquery("positions")
    )
    bodies_query = select(*bodies.c).where(bodies.c.position.in_(select(positions.c.position)))
    queries: dict[str, Select[Any]] = {
        "rollouts": rollouts_query,
        "attempts": attempts_query,
        "spans": select(spans.c.rollout_id, spans.c.attempt_id, spans.c.span_id).where(
            dialect.any_key((spans.c.rollout_id, spans.c.attempt_id, spans.c.span_id), "spans")
        ),
        "counters": select(*span_counters.c).where(dialect.any_of(span_counters.c.rollout_id, "counters")),
        "workers": workers_query,
        "resources": select(*resources.c).where(dialect.any_of(resources.c.resources_id, "resources")),
        "latest_resources": select(*resources.c).where(
            resources.c.resources_id.in_(latest), bindparam("latest_resources", type_=Integer) == 1
        ),
        "bodies": bodies_query,
        "heads": heads,
        "due": due,
    }
    needs = {
        "rollouts": ("rollouts", "plan_keys", "heads"),
        "attempts": ("rollouts", "plan_keys", "heads"),
        "spans": ("spans",),
        "counters": ("counters",),
        "workers": ("workers", "worked"),
        "resources": ("resources",),
        "latest_resources": ("latest_resources",),
        "bodies": ("bodies_of", "plan_keys", "heads"),
        "heads": ("heads",),
        "due": ("due",),
    }
    return Loading(queries, needs)
