"""Reads of single checkpoints and artifacts of runs, for the results of the calls that save them."""

from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, Table, bindparam, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables


async def checkpoint(session: ReadSession, rollout_id: str, version: int) -> dict[str, Any]:
    """Return the fields of `CheckpointRef` for the checkpoint that the event with this version saved."""
    fields = await _at(session, core_tables.checkpoints, rollout_id, version)
    external = fields["external"]
    return fields | {"external": None if external is None else orjson.loads(external)}


async def artifact(session: ReadSession, rollout_id: str, version: int) -> dict[str, Any]:
    """Return the fields of `ArtifactRef` for the artifact that the event with this version saved."""
    fields = await _at(session, core_tables.artifacts, rollout_id, version, core_tables.rollouts.c.group_id)
    return fields | {"retracted": fields["retracted"] is not None}


async def _at(
    session: ReadSession, table: Table, rollout_id: str, version: int, *more: ColumnElement[Any]
) -> dict[str, Any]:
    def build() -> Select[Any]:
        columns = table.c
        return (
            select(*columns, *more, core_tables.events.c.at)
            .join(core_tables.events, core_tables.events.c.position == columns.position)
            .join(core_tables.rollouts, core_tables.rollouts.c.rollout_id == columns.rollout_id)
            .where(
                columns.rollout_id == bindparam("of", type_=Text),
                columns.version == bindparam("number", type_=BigInteger),
            )
        )

    sql = compiled(session, ("run_ref", table.name), build)
    rows = await session.fetch(sql, {"of": rollout_id, "number": version})
    return {**rows[0]._asdict(), "at": rows[0].at / 1_000_000}


async def last_checkpoint(session: ReadSession, rollout_id: str, scope: str, name: str) -> str | None:
    """Return the id of the latest checkpoint with this scope and name; None if there is no such checkpoint."""

    def build() -> Select[Any]:
        row = core_tables.checkpoints.c
        return (
            select(row.checkpoint_id)
            .where(
                row.rollout_id == bindparam("of", type_=Text),
                row.scope == bindparam("in_scope", type_=Text),
                row.name == bindparam("named", type_=Text),
            )
            .order_by(row.version.desc())
            .limit(1)
        )

    params = {"of": rollout_id, "in_scope": scope, "named": name}
    rows = await session.fetch(compiled(session, "last_checkpoint", build), params)
    return rows[0].checkpoint_id if rows else None
