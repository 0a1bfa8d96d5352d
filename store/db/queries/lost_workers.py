"""Queries for workers that no longer send heartbeats: their last heartbeats, and the open attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, select

from store.db.dialect import ReadSession
from store.db.queries.pages import joins_latest
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.domain.rollout import ACTIVE

_AT_ONCE = 500


async def silent_since(session: ReadSession, before: int) -> dict[str, int]:
    """Return the time of the last heartbeat of each worker without a heartbeat since `before`, by worker id.

    Times are microseconds since the epoch.
    """

    def build() -> Select[Any]:
        signal = core_tables.worker_signals.c
        columns: list[ColumnElement[Any]] = [signal.worker_id, signal.last_heartbeat_at]
        return select(*columns).where(signal.last_heartbeat_at < bindparam("before", type_=BigInteger))

    rows = await session.fetch(compiled(session, "silent_since", build), {"before": before})
    return {row.worker_id: row.last_heartbeat_at for row in rows}


async def heartbeat_stats(session: ReadSession, worker_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the statistics in the last heartbeats of workers as JSON text, by worker id."""

    def build() -> Select[Any]:
        signal = core_tables.worker_signals.c
        columns: list[ColumnElement[Any]] = [signal.worker_id, signal.heartbeat_stats]
        return select(*columns).where(session.dialect.any_of(signal.worker_id, "workers"))

    by_worker: dict[str, str | None] = {}
    for start in range(0, len(worker_ids), _AT_ONCE):
        part = session.dialect.list_param(list(worker_ids[start : start + _AT_ONCE]))
        rows = await session.fetch(compiled(session, "heartbeat_stats", build), {"workers": part})
        by_worker.update((row.worker_id, row.heartbeat_stats) for row in rows)
    return by_worker


async def without_heartbeats(session: ReadSession, limit: int) -> list[str]:
    """Return the ids of at most `limit` workers of which neither a heartbeat nor a poll is stored."""

    def build() -> Select[Any]:
        worker, signal = core_tables.workers.c, core_tables.worker_signals.c
        joined = core_tables.workers.outerjoin(core_tables.worker_signals, signal.worker_id == worker.worker_id)
        statement = select(worker.worker_id).select_from(joined).where(signal.worker_id.is_(None))
        return statement.order_by(worker.worker_id).limit(bindparam("at_most", type_=BigInteger))

    return [
        row.worker_id for row in await session.fetch(compiled(session, "without_heartbeats", build), {"at_most": limit})
    ]


async def open_attempts(session: ReadSession) -> list[tuple[str, str, str]]:
    """Return the rollout id, the attempt id and the worker id of each active attempt that has a worker."""

    def build() -> Select[Any]:
        rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
        # The few active rollouts are selected first, because SQLite would otherwise begin with all attempts.
        active = (
            select(rollout.rollout_id, rollout.attempt_count)
            .where(session.dialect.any_of(rollout.status, "active"))
            .subquery("active")
        )
        columns: list[ColumnElement[Any]] = [attempt.rollout_id, attempt.attempt_id, attempt.worker_id]
        joined = active.join(core_tables.attempts, joins_latest(dict(active.c)))
        return select(*columns).select_from(joined).where(attempt.worker_id.is_not(None))

    active = session.dialect.list_param(sorted(ACTIVE))
    rows = await session.fetch(compiled(session, "open_attempts", build), {"active": active})
    return [(row.rollout_id, row.attempt_id, row.worker_id) for row in rows]
