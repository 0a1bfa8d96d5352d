"""Runs as rows of a table on a page, and the recording times of events of a run.

A run is the execution of a rollout, which is a task for an agent. A phase is a group of steps of a run that is executed
for a scope, which is a subject such as a ticker. The version of an event is its number in its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Select, and_, bindparam, case, func, literal_column, select
from sqlalchemy.types import Text

from store.db.dialect import NamedRow, ReadSession
from store.db.tables import core as core_tables
from store.models.runs import PHASE_KINDS

_STARTED: Final = PHASE_KINDS[0]
_AT_ONCE: Final = 1000
_ONE: Final[ColumnElement[int]] = literal_column("1", Integer)


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
    """The number of pairs of a phase and a scope that were last completed or skipped, and not started again."""
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
    return await _rows(session, [row[0] for row in rows])


def _ids(*, is_cut: bool) -> Select[Any]:
    """Return a statement that finds the ids of runs. In the index, it steps from run to run and skips their events."""
    said = core_tables.run_events.alias("said").c
    begun: list[ColumnElement[Any]] = [func.max(said.rollout_id).label("rollout_id"), _ONE.label("number")]
    start: Select[Any] = select(*begun)
    if is_cut:
        start = start.where(said.rollout_id < bindparam("before", type_=Text))
    found = start.cte("found", recursive=True)
    older = core_tables.run_events.alias("older").c
    next_one = select(func.max(older.rollout_id)).where(older.rollout_id < found.c.rollout_id).scalar_subquery()
    is_wanted = and_(found.c.rollout_id.is_not(None), found.c.number < bindparam("page", type_=Integer))
    found = found.union_all(select(next_one, found.c.number + 1).where(is_wanted))
    return select(found.c.rollout_id).where(found.c.rollout_id.is_not(None)).order_by(found.c.number)


async def _rows(session: ReadSession, ids: Sequence[str]) -> list[RunRow]:
    if not ids:
        return []
    rollout = core_tables.rollouts.c
    shown: list[ColumnElement[Any]] = [rollout[name] for name in _COLUMNS]
    wanted = session.dialect.any_of(rollout.rollout_id, "ids")
    statement = select(*shown).where(wanted).order_by(rollout.rollout_id.desc())
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))})
    phases = await _phases(session, ids)
    found: list[Sequence[Any]] = [[*row, *phases.get(row[0], (0, 0))] for row in rows]
    return [RunRow(*each) for each in found]


async def _phases(session: ReadSession, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each run the values of `phases_done` and `phases_begun`, without runs that have no phases."""
    said = core_tables.run_events.c

    def last(*kinds: str) -> ColumnElement[Any]:
        return func.coalesce(func.max(case((_is_any(said.kind, kinds), said.version))), 0)

    shown: list[ColumnElement[Any]] = [said.rollout_id, last(_STARTED), last(*PHASE_KINDS[1:])]
    statement: Select[Any] = (
        select(*shown)
        .where(session.dialect.any_of(said.rollout_id, "ids"), _is_any(said.kind, PHASE_KINDS))
        .group_by(said.rollout_id, said.scope, said.phase)
    )
    found: dict[str, tuple[int, int]] = {}
    for run, started, ended in await session.fetch(
        session.dialect.sql(statement), {"ids": session.dialect.list_param(list(ids))}
    ):
        done, begun = found.get(run, (0, 0))
        found[run] = done + (ended > started), begun + 1
    return found


def _is_any(column: ColumnElement[Any], words: Sequence[str]) -> ColumnElement[bool]:
    # These words are constants, so it is safe to make them a part of the statement.
    return column.in_([literal_column(f"'{word}'", Text) for word in words])


async def recorded_at(session: ReadSession, rollout_id: str, versions: Sequence[int]) -> dict[int, int]:
    """Return the recording times of some events of a run in microseconds, by version."""
    said, event = core_tables.run_events, core_tables.events
    shown: list[ColumnElement[Any]] = [said.c.version, event.c.at]
    found: dict[int, int] = {}
    for start in range(0, len(versions), _AT_ONCE):
        # Versions come from the database, so it is safe to make them a part of the statement.
        wanted: list[ColumnElement[int]] = [literal_column(str(int(each))) for each in versions[start:][:_AT_ONCE]]
        of_run = and_(said.c.rollout_id == bindparam("rollout", type_=Text), said.c.version.in_(wanted))
        source = said.join(event, event.c.position == said.c.position)
        statement: Select[Any] = select(*shown).select_from(source).where(of_run)
        rows: Sequence[NamedRow] = await session.fetch(session.dialect.sql(statement), {"rollout": rollout_id})
        found |= {row[0]: row[1] for row in rows}
    return found


_COLUMNS: Final = (
    "rollout_id",
    "status",
    "group_id",
    "start_at",
    "end_at",
    "attempt_count",
    "head",
    "tokens_in",
    "tokens_out",
    "error",
)
