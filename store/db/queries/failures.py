"""Failed attempts, newest first, with their errors, workers, times and training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, select, true

from store.db.dialect import ReadSession
from store.db.queries.expressions import big, one_of
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.tables import core as core_tables

FAILED: Final = ("failed", "timeout", "unresponsive")
"""The statuses of failed attempts."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """The number of the attempt among the attempts of the rollout."""
    status: str
    worker_id: str | None
    error: str | None
    """The error as JSON text, with the keys type and message, and span_id if the span of the error is known."""
    at: int
    """The end time of the attempt, in µs since the epoch; without an end time, the time of the attempt's last event."""
    step: int | None
    """The training step of the rollout."""
    last_position: int
    """The position of the last event of the attempt, by which attempts are sorted."""
    block: int
    """The block of the rollout."""


async def failed_attempts(session: ReadSession, block: int | None = None, *, limit: int) -> list[FailedAttempt]:
    """Return the newest failed attempts of the rollouts of one block, or of all blocks, newest first."""
    attempt, event = core_tables.attempts.c, core_tables.events.c
    rollout = core_tables.rollouts.c
    of_block = attempt.rollout_id.in_(select(rollout.rollout_id).where(in_block(block)))
    newest = (
        select(*columns_of(FailedAttempt, dict(attempt)), attempt.end_at)
        .where(_has_failed(), true() if block is None else of_block)
        .order_by(attempt.last_position.desc())
        .limit(big(limit))
        .subquery()
    )
    # Few failed attempts have no end time. A join would read the event of every attempt.
    last_change = select(event.at).where(event.position == newest.c.last_position).scalar_subquery()
    computed = {"at": func.coalesce(newest.c.end_at, last_change), "step": rollout.step, "block": block_of()}
    source = newest.join(core_tables.rollouts, rollout.rollout_id == newest.c.rollout_id)
    columns = columns_of(FailedAttempt, dict(newest.c), computed)
    statement = select(*columns).select_from(source).order_by(newest.c.last_position.desc())
    return records(FailedAttempt, await session.fetch(session.dialect.sql(statement), {}))


async def failed_span_names(session: ReadSession, rollout_ids: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the name of the last span with an error status in each attempt of some rollouts.

    The keys are the ids of a rollout and an attempt. Attempts without such a span are left out.
    """
    span = core_tables.spans.c
    columns = (span.rollout_id, span.attempt_id, span.name)
    matches = (session.dialect.any_of(span.rollout_id, "rollouts"), span.status_code == "ERROR")
    statement = select(*columns).where(*matches).order_by(span.sequence_id, span.position)
    params = {"rollouts": session.dialect.list_param(list(rollout_ids))}
    rows = await session.fetch(session.dialect.sql(statement), params)
    return {(row.rollout_id, row.attempt_id): row.name for row in rows}


@dataclass(frozen=True, slots=True)
class FailedCount:
    """The number of failed attempts at the rollouts of one block."""

    block: int
    attempts: int


async def failed_counts(session: ReadSession, block: int | None = None) -> list[FailedCount]:
    """Return the numbers of failed attempts of one block, or of all blocks."""
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    statement = (
        select(block_of(), func.count().label("attempts"))
        .select_from(core_tables.rollouts.join(core_tables.attempts, attempt.rollout_id == rollout.rollout_id))
        .where(_has_failed(), in_block(block))
        .group_by(block_of())
    )
    return records(FailedCount, await session.fetch(session.dialect.sql(statement), {}))


def _has_failed() -> ColumnElement[bool]:
    attempt = core_tables.attempts.c
    return one_of(attempt.status, FAILED) & attempt.released_position.is_(None)
