"""Search for runs by name.

An imported run is also found by the id that it had before the import. The runs of a flow are found by the id of the
flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, or_, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries.pages import LONGEST_ID
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.validation.json_limits import check_text

_IMPORTED: Final = "run:"
"""The prefix of the plan key of an imported run. A plan key is a unique key of a rollout.

The id of the run before the import follows the prefix. If the same run is imported again, the plan key of the new
rollout also has a suffix: `#2` for the second import.
"""


async def imported(session: ReadSession, run_id: str) -> list[str]:
    """Return the ids of the rollouts that were imported from the run `run_id`, newest first."""
    rollout = core_tables.rollouts.c

    def build() -> Select[Any]:
        first = rollout.plan_key == bindparam("plan_key", type_=Text)
        # Plan keys are sorted by code point, and `$` directly follows `#`. The range therefore contains all keys with a
        # suffix.
        later = and_(
            rollout.plan_key >= bindparam("later", type_=Text), rollout.plan_key < bindparam("beyond", type_=Text)
        )
        return select(rollout.rollout_id).where(or_(first, later)).order_by(rollout.first_position.desc())

    key = _IMPORTED + check_text(run_id, "run_id", LONGEST_ID)
    params = {"plan_key": key, "later": f"{key}#", "beyond": f"{key}$"}
    return [row.rollout_id for row in await session.fetch(compiled(session, "runs_imported", build), params)]


async def of_flow(session: ReadSession, flow_id: str) -> list[str]:
    """Return the ids of the rollouts of a flow, newest first."""
    rollout = core_tables.rollouts.c

    def build() -> Select[Any]:
        is_in_flow = rollout.group_id == bindparam("of_group", type_=Text)
        return select(rollout.rollout_id).where(is_in_flow).order_by(rollout.first_position.desc())

    params = {"of_group": check_text(flow_id, "run_id", LONGEST_ID)}
    return [row.rollout_id for row in await session.fetch(compiled(session, "runs_of_flow", build), params)]


async def of_flows(session: ReadSession, limit: int, offset: int) -> list[str]:
    """Return a page of the ids of all rollouts that belong to a flow, newest first."""
    rollout = core_tables.rollouts.c

    def build() -> Select[Any]:
        statement = select(rollout.rollout_id).where(rollout.group_id.is_not(None))
        part = statement.order_by(rollout.first_position.desc()).limit(bindparam("at_most", type_=BigInteger))
        return part.offset(bindparam("beyond", type_=BigInteger))

    params = {"at_most": limit, "beyond": offset}
    return [row.rollout_id for row in await session.fetch(compiled(session, "runs_of_flows", build), params)]


async def ends(session: ReadSession, rollout_ids: Sequence[str]) -> Sequence[NamedRow]:
    """Return rollout_id, rerun_seq (the number of the last re-run) and the last error (JSON text) of some rollouts."""
    rollout = core_tables.rollouts.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [rollout.rollout_id, rollout.rerun_seq, rollout.error]
        return select(*columns).where(session.dialect.any_of(rollout.rollout_id, "wanted"))

    params = {"wanted": session.dialect.list_param(list(rollout_ids))}
    return await session.fetch(compiled(session, "run_ends", build), params)
