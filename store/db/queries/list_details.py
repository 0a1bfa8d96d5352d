"""Values that a list shows beside its rollouts: the dimensions of their rewards, and their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, select

from store.db.dialect import ReadSession
from store.db.queries.bodies import payload
from store.db.queries.rollout_list import RolloutRow
from store.db.queries.scores import rewards_of_version
from store.db.tables import core as core_tables
from store.validation.scores import VersionKey

SMALL_BODY: Final = 64 * 1024
"""The maximum number of uncompressed bytes of a body that is read for a list that shows no metadata."""
_RESERVED: Final = "rollbook."


async def dimensions_of(
    session: ReadSession, rows: Sequence[RolloutRow], version: VersionKey | None
) -> dict[str, dict[str, float]]:
    """Return the last value of each name of the rewards of the latest attempts, by rollout id."""
    rewards = await rewards_of_version(session, [row.rollout_id for row in rows], version)
    latest = {row.rollout_id: row.attempt_id for row in rows}
    return {
        rollout_id: values.by_name
        for (rollout_id, attempt_id), values in rewards.items()
        if latest[rollout_id] == attempt_id
    }


async def metadata_of(
    session: ReadSession, rollout_ids: Sequence[str], *, only_small: bool
) -> dict[str, dict[str, Any]]:
    """Return the metadata of rollouts, by rollout id, without the keys that columns of the list have.

    Rollouts whose metadata was removed are left out, and with `only_small` those whose body is larger than
    `SMALL_BODY`, because a body may also contain the input.
    """
    rollout, body = core_tables.rollouts.c, core_tables.bodies.c
    columns: list[ColumnElement[Any]] = [rollout.rollout_id, body.codec, body.body]
    statement = (
        select(*columns)
        .select_from(core_tables.rollouts.join(core_tables.bodies, body.position == rollout.metadata_position))
        .where(session.dialect.any_of(rollout.rollout_id, "ids"))
    )
    if only_small:
        statement = statement.where(body.raw_len <= SMALL_BODY)
    rows = await session.fetch(session.dialect.sql(statement), {"ids": session.dialect.list_param(list(rollout_ids))})
    metadata: dict[str, dict[str, Any]] = {}
    for row in rows:
        content = (payload(row.codec, row.body) or {}).get("metadata")
        if isinstance(content, dict):
            values = cast("dict[str, Any]", content)
            metadata[row.rollout_id] = {key: value for key, value in values.items() if not key.startswith(_RESERVED)}
    return metadata
