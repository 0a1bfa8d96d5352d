"""Runs as rows of a table on a page, and the recording times of events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Select, and_, bindparam, case, func, literal, literal_column, select
from sqlalchemy.types import Text

from store.db.dialect import ReadSession
from store.db.queries.expressions import ONE, one_of
from store.db.queries.records import columns_of, records
from store.db.tables import core as core_tables
from store.models.runs import PHASE_KINDS

_STARTED: Final = PHASE_KINDS[0]
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a list. Times are microseconds since the epoch."""

    rollout_id: str
    status: str
    group_id: str | None
    start_at: int
    end_at: int | None
    attempts: int
    head: int | None
    """The sequence_id of the attempt whose history counts as the current history of the run."""
    tokens_in: int
    tokens_out: int
    error: str | None
    phases_done: int = 0
    """The number of pairs of a phase and a scope that were completed or skipped, and not started again."""
    phases_begun: int = 0
    """The number of pairs of a phase and a scope that have an event."""


async def run_rows(session: ReadSession, *, before: str | None, limit: int) -> list[RunRow]:
    """Return the newest rollouts with run events, in descending order of their ids. Newer rollouts have greater ids.

    Args:
        session: a connection to the database.
        before: only rollouts with smaller ids than this one; None for all.
        limit: the maximum number of rollouts.
    """
    params = {"page": limit} if before is None else {"page": limit, "before": before}
    rows = await session.fetch(session.dialect.sql(_ids(is_cut=before is not None)), params)
    return await _rows(session, [row.rollout_id for row in rows])


def _ids(*, is_cut: bool) -> Select[Any]:
    """Return a statement that finds the ids of runs. In the index, the statement skips from run to run."""
    event = core_tables.run_events.alias("event").c
    newest: list[ColumnElement[Any]] = [func.max(event.rollout_id).label("rollout_id"), ONE.label("number")]
    start: Select[Any] = select(*newest)
    if is_cut:
        start = start.where(event.rollout_id < bindparam("before", type_=Text))
    runs = start.cte("runs", recursive=True)
    older = core_tables.run_events.alias("older").c
    next_run = select(func.max(older.rollout_id)).where(older.rollout_id < runs.c.rollout_id).scalar_subquery()
    has_next = and_(runs.c.rollout_id.is_not(None), runs.c.number < bindparam("page", type_=Integer))
    runs = runs.union_all(select(next_run, runs.c.number + 1).where(has_next))
    return select(runs.c.rollout_id).where(runs.c.rollout_id.is_not(None)).order_by(runs.c.number)


async def _rows(session: ReadSession, ids: Sequence[str]) -> list[RunRow]:
    if not ids:
        return []
    rollout = core_tables.rollouts.c
    # The phases are counted by another statement.
    computed = {"attempts": rollout.attempt_count, "phases_done": literal(0), "phases_begun": literal(0)}
    statement = (
        select(*columns_of(RunRow, dict(rollout), computed))
        .where(session.dialect.any_of(rollout.rollout_id, "ids"))
        .order_by(rollout.rollout_id.desc())
    )
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))})
    phases = await _phases(session, ids)
    return [replace(run, **phases.get(run.rollout_id, {})) for run in records(RunRow, rows)]


async def _phases(session: ReadSession, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return for each run the values of `phases_done` and `phases_begun`, without runs that have no phases."""
    event = core_tables.run_events.c

    def last(*kinds: str) -> ColumnElement[Any]:
        return func.coalesce(func.max(case((one_of(event.kind, kinds), event.version))), 0)

    columns: list[ColumnElement[Any]] = [
        event.rollout_id,
        last(_STARTED).label("started"),
        last(*PHASE_KINDS[1:]).label("ended"),
    ]
    statement = (
        select(*columns)
        .where(session.dialect.any_of(event.rollout_id, "ids"), one_of(event.kind, PHASE_KINDS))
        .group_by(event.rollout_id, event.scope, event.phase)
    )
    phases: dict[str, dict[str, int]] = {}
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))})
    for row in rows:
        counts = phases.setdefault(row.rollout_id, {"phases_done": 0, "phases_begun": 0})
        counts["phases_done"] += row.ended > row.started
        counts["phases_begun"] += 1
    return phases


async def recorded_at(session: ReadSession, rollout_id: str, versions: Sequence[int]) -> dict[int, int]:
    """Return the recording times of some events of a run in microseconds, by version."""
    run_event, event = core_tables.run_events, core_tables.events
    columns: list[ColumnElement[Any]] = [run_event.c.version, event.c.at]
    times: dict[int, int] = {}
    for start in range(0, len(versions), _AT_ONCE):
        # Versions come from the database, so it is safe to make them a part of the statement.
        literals: list[ColumnElement[int]] = [
            literal_column(str(int(version))) for version in versions[start:][:_AT_ONCE]
        ]
        of_run = and_(run_event.c.rollout_id == bindparam("rollout", type_=Text), run_event.c.version.in_(literals))
        source = run_event.join(event, event.c.position == run_event.c.position)
        statement = select(*columns).select_from(source).where(of_run)
        rows = await session.fetch(session.dialect.sql(statement), {"rollout": rollout_id})
        times |= {row.version: row.at for row in rows}
    return times
