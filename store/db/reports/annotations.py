"""Labels of rollouts, which are tasks for an agent: all existing labels, and the labels of the rollouts in a list."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select

from store.db.dialect import ReadSession
from store.db.reports.conditions import big
from store.db.tables import core as core_tables


async def labels_in_use(session: ReadSession, *, limit: int) -> list[str]:
    """Return the labels that any rollout has, sorted, at most the first `limit`."""
    label = core_tables.labels.c.label
    # The statement steps from label to label in the index. A label that a hundred thousand rollouts have takes only one
    # step.
    found = select(func.min(label).label("label")).cte("found", recursive=True)
    following = select(func.min(label)).where(label > found.c.label).scalar_subquery()
    found = found.union_all(select(following).where(found.c.label.is_not(None)))
    statement = select(found.c.label).where(found.c.label.is_not(None)).limit(big(limit))
    return [row[0] for row in await session.fetch(session.dialect.sql(statement), {})]


async def labels_of(session: ReadSession, *, rollout_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the sorted labels of rollouts, by rollout id. Rollouts without labels are left out."""
    if not rollout_ids:
        return {}
    row = core_tables.labels.c
    statement = (
        select(row.rollout_id, row.label)
        .where(session.dialect.any_of(row.rollout_id, "wanted"))
        .order_by(row.rollout_id, row.label)
    )
    found: dict[str, list[str]] = {}
    params = {"wanted": session.dialect.list_param(list(rollout_ids))}
    for rollout_id, label in await session.fetch(session.dialect.sql(statement), params):
        found.setdefault(rollout_id, []).append(label)
    return found


def carries(rollout_id: ColumnElement[str], label: str) -> ColumnElement[bool]:
    """Return the condition that a rollout has a label."""
    row = core_tables.labels.c
    return rollout_id.in_(select(row.rollout_id).where(row.label == label))
