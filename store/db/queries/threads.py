"""Reads of the threads of LangGraph: checkpoints (newest first), writes, and lists of threads.

A thread is a conversation with a graph, whose state is saved as checkpoints. A namespace (`ns`) identifies the subgraph
that a checkpoint belongs to; the main graph has an empty namespace. A write is a value that a task of the graph wrote
after a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, tuple_
from sqlalchemy.types import Integer, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables

CHECKPOINT_COLUMNS = tuple(column.name for column in core_tables.thread_checkpoints.columns)
WRITE_COLUMNS = tuple(column.name for column in core_tables.thread_writes.columns)

Place = tuple[str, str, str]
"""The place of a checkpoint in a list: its id, its thread and its namespace."""


def _text(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text)


async def checkpoints(
    session: ReadSession,
    *,
    thread_id: str | None = None,
    ns: str | None = None,
    checkpoint_id: str | None = None,
    before: str | None = None,
    after: Place | None = None,
    limit: int = -1,
) -> Sequence[NamedRow]:
    """Return rows of `thread_checkpoints` in descending order of their ids.

    Args:
        session: a connection to the database.
        thread_id: only checkpoints of this thread; None for all.
        ns: only checkpoints of this namespace; None for all.
        checkpoint_id: only the checkpoint with this id; None for all.
        before: only checkpoints with smaller ids than this one; None for all.
        after: only checkpoints after this place of the list; None for all.
        limit: the maximum number of rows; -1 for all.
    """
    row = core_tables.thread_checkpoints.c
    equal = {"thread_id": thread_id, "ns": ns, "checkpoint_id": checkpoint_id}

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = list(row)
        statement = select(*columns)
        for name, value in equal.items():
            if value is not None:
                statement = statement.where(row[name] == _text(f"of_{name}"))
        if before is not None:
            statement = statement.where(row.checkpoint_id < _text("before"))
        place = (row.checkpoint_id, row.thread_id, row.ns)
        if after is not None:
            statement = statement.where(tuple_(*place) < tuple_(*(_text(f"after_{index}") for index in range(3))))
        statement = statement.order_by(*(column.desc() for column in place))
        return statement if limit < 0 else statement.limit(bindparam("at_most", type_=Integer))

    shape = (
        "thread_checkpoints",
        *(value is None for value in equal.values()),
        before is None,
        after is None,
        limit < 0,
    )
    params: dict[str, Any] = {f"of_{name}": value for name, value in equal.items()}
    params |= {"before": before, "at_most": limit}
    params |= {f"after_{index}": part for index, part in enumerate(after or ())}
    return await session.fetch(compiled(session, shape, build), params)


async def writes(session: ReadSession, thread_ids: Sequence[str], checkpoint_ids: Sequence[str]) -> Sequence[NamedRow]:
    """Return the rows of `thread_writes` of some checkpoints, in the order in which the graph applies the writes."""

    def build() -> Select[Any]:
        row = core_tables.thread_writes.c
        columns: list[ColumnElement[Any]] = list(row)
        return (
            select(*columns)
            .where(
                session.dialect.any_of(row.thread_id, "thread_ids"),
                session.dialect.any_of(row.checkpoint_id, "checkpoint_ids"),
            )
            .order_by(row.task_path, row.task_id, row.number)
        )

    params = {
        "thread_ids": session.dialect.list_param(list(thread_ids)),
        "checkpoint_ids": session.dialect.list_param(list(checkpoint_ids)),
    }
    return await session.fetch(compiled(session, "thread_writes", build), params)


async def of_runs(session: ReadSession, run_ids: Sequence[str]) -> Sequence[NamedRow]:
    """Return thread, namespace and id of the checkpoints that have one of these run ids."""

    def build() -> Select[Any]:
        row = core_tables.thread_checkpoints.c
        place: list[ColumnElement[Any]] = [row.thread_id, row.ns, row.checkpoint_id]
        return select(*place).where(session.dialect.any_of(row.run_id, "run_ids")).order_by(*place)

    params = {"run_ids": session.dialect.list_param(list(run_ids))}
    return await session.fetch(compiled(session, "checkpoints_of_runs", build), params)


async def threads_of(session: ReadSession, rollout_id: str) -> Sequence[NamedRow]:
    """Return the threads of a rollout, in the order of their ids.

    The columns are the thread id, the number of checkpoints, the id and the step of the newest checkpoint of the main
    graph, and the time of the thread's last event.
    """

    def build() -> Select[Any]:
        thread, checkpoint, event = core_tables.threads.c, core_tables.thread_checkpoints.c, core_tables.events.c
        newest = core_tables.thread_checkpoints.alias("newest").c
        latest = (
            select(func.max(newest.checkpoint_id))
            .where(newest.thread_id == thread.thread_id, newest.ns == "")
            .correlate(core_tables.threads)
            .scalar_subquery()
        )
        counted = (
            select(func.count())
            .select_from(core_tables.thread_checkpoints)
            .where(checkpoint.thread_id == thread.thread_id)
            .correlate(core_tables.threads)
            .scalar_subquery()
        )
        head = core_tables.thread_checkpoints.alias("head")
        columns: list[ColumnElement[Any]] = [
            thread.thread_id,
            counted.label("checkpoints"),
            head.c.checkpoint_id,
            head.c.step,
            event.at,
        ]
        return (
            select(*columns)
            .select_from(core_tables.threads)
            .join(core_tables.events, event.position == thread.last_position)
            .outerjoin(
                head, and_(head.c.thread_id == thread.thread_id, head.c.ns == "", head.c.checkpoint_id == latest)
            )
            .where(
                or_(
                    thread.thread_id == _text("whole"),
                    and_(thread.thread_id >= _text("first"), thread.thread_id < _text("beyond")),
                )
            )
            .order_by(thread.thread_id)
        )

    # The id of a thread is the rollout id, or begins with the rollout id and a colon. A semicolon directly follows a
    # colon in the sort order, so all these ids sort before `beyond`.
    params = {"whole": rollout_id, "first": f"{rollout_id}:", "beyond": f"{rollout_id};"}
    return await session.fetch(compiled(session, "threads_of", build), params)
