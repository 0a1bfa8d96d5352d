"""Tasks: rollouts with equal inputs, which recur in several steps and modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select

from store.db.dialect import ReadSession
from store.db.queries.input_starts import input_starts
from store.db.tables import core as core_tables

_CHARACTERS: Final = 160


async def task_titles(session: ReadSession, tasks: Sequence[str]) -> dict[str, str]:
    """Return the beginnings of inputs, by the hash of the input. Inputs that were removed are left out."""
    rollout = core_tables.rollouts.c
    distinct = sorted(set(tasks))
    if not distinct:
        return {}
    statement = (
        select(rollout.input_sha256, func.max(rollout.rollout_id).label("rollout_id"))
        .where(session.dialect.any_of(rollout.input_sha256, "tasks"))
        .group_by(rollout.input_sha256)
    )
    rows = await session.fetch(session.dialect.sql(statement), {"tasks": session.dialect.list_param(distinct)})
    starts = await input_starts(session, [row.rollout_id for row in rows], _CHARACTERS)
    return {row.input_sha256: starts[row.rollout_id] for row in rows if row.rollout_id in starts}
