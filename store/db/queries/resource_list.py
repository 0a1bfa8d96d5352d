"""Resources as rows of tables on pages: ids with the results of rollouts, and the versions of an id with their use.

A resources id names a set of resources, such as prompts or models, that rollouts (tasks for an agent) use. Each change
of the set publishes a new version under the same id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, func, literal, select, true

from store.db.columns import Str
from store.db.dialect import ReadSession
from store.db.queries import log as log_queries
from store.db.queries.bodies import payload
from store.db.reports.conditions import big, mean_of
from store.db.tables import core as core_tables
from store.domain.events import Json, ResourcesPublished, ResourcesReplaced

MOST_VERSIONS: Final = 200
MOST_NAMED_BYTES: Final = 64 * 1024
"""The maximum size in bytes of a body (the stored resources) that is read to list the names of the resources."""


@dataclass(frozen=True, slots=True)
class Use:
    """The results of the rollouts that used an id or a version of resources."""

    rollouts: int = 0
    mean_reward: float | None = None
    rewarded: int = 0
    """The number of these rollouts that have a reward."""


@dataclass(frozen=True, slots=True)
class ResourcesRow:
    """One resources id of a list. Times are microseconds since the epoch."""

    resources_id: str
    version: int
    created_at: int
    updated_at: int
    bytes: int | None
    """The size of the current version in bytes; None if its body was removed."""
    names: list[str] | None
    """The names of the resources in the current version; None if the body is too large or was removed."""
    use: Use
    """The results of the rollouts that used any version."""
    current: Use
    """The results of the rollouts that used the current version."""
    is_latest: bool
    """Whether a new rollout uses this id if it does not specify resources."""


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One published version. Times are microseconds since the epoch."""

    version: int
    at: int
    actor: str | None
    position: int
    bytes: int | None
    """The size of the resources in bytes; None if the body was removed."""
    use: Use = field(default_factory=Use)
    attempts: int = 0
    first_use_at: int | None = None
    last_use_at: int | None = None


async def resources_rows(
    session: ReadSession, *, contains: str, limit: int, offset: int
) -> tuple[list[ResourcesRow], int]:
    """Return a page of resources ids, the last published first, and the number of all matching ids."""
    row, body = core_tables.resources.c, core_tables.bodies.c
    matching = session.dialect.contains(row.resources_id, contains) if contains else true()
    shown: Sequence[ColumnElement[Any]] = (
        row.resources_id,
        row.version,
        row.create_at,
        row.update_at,
        row.body_position,
        body.raw_len,
        select(func.max(row.last_position)).scalar_subquery() == row.last_position,
    )
    statement = (
        select(*shown)
        .select_from(core_tables.resources.outerjoin(core_tables.bodies, body.position == row.body_position))
        .where(matching)
        .order_by(row.last_position.desc())
        .limit(big(limit))
        .offset(big(offset))
    )
    found = await session.fetch(session.dialect.sql(statement), {})
    total = await session.fetch(
        session.dialect.sql(select(func.count()).select_from(core_tables.resources).where(matching)), {}
    )
    uses = await _uses(session, [each[0] for each in found])
    small = [each[4] for each in found if each[5] is not None and each[5] <= MOST_NAMED_BYTES]
    bodies = await _payloads(session, small)
    rows = [
        ResourcesRow(
            resources_id=resources_id,
            version=version,
            created_at=created_at,
            updated_at=updated_at,
            bytes=size,
            names=list(bodies[position].get("resources", {})) if position in bodies else None,
            use=_together(uses[resources_id].values()),
            current=uses[resources_id].get(version, Use()),
            is_latest=bool(is_latest),
        )
        for resources_id, version, created_at, updated_at, position, size, is_latest in found
    ]
    return rows, int(total[0][0])


async def _uses(session: ReadSession, ids: Sequence[str]) -> dict[str, dict[int | None, Use]]:
    found: dict[str, dict[int | None, Use]] = defaultdict(dict)
    if not ids:
        return found
    rollout = core_tables.rollouts.c
    keys = (rollout.resources_id, rollout.resources_version)
    counted: Sequence[ColumnElement[Any]] = (
        *keys,
        func.count(),
        mean_of(rollout.last_reward),
        func.count(rollout.last_reward),
    )
    statement = select(*counted).where(session.dialect.any_of(rollout.resources_id, "ids")).group_by(*keys)
    params = {"ids": session.dialect.list_param(list(ids))}
    for resources_id, version, rollouts, mean, rewarded in await session.fetch(session.dialect.sql(statement), params):
        found[resources_id][version] = Use(rollouts, mean, rewarded)
    return found


def _together(uses: Any) -> Use:
    kept: list[Use] = list(uses)
    rewarded = sum(use.rewarded for use in kept)
    total = sum((use.mean_reward or 0.0) * use.rewarded for use in kept)
    return Use(sum(use.rollouts for use in kept), total / rewarded if rewarded else None, rewarded)


async def versions(session: ReadSession, resources_id: str) -> list[VersionRow]:
    """Return the newest versions of an id, at most `MOST_VERSIONS`, newest first.

    For an unknown id, the list is empty.
    """
    event, body = core_tables.events.c, core_tables.bodies.c
    stream = literal(f"resources/{resources_id}", Str)
    statement = (
        select(*event, body.raw_len)
        .select_from(core_tables.events.outerjoin(core_tables.bodies, body.position == event.position))
        .where(event.stream == stream)
        .order_by(event.version.desc())
        .limit(MOST_VERSIONS)
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    if not rows:
        return []
    uses = (await _uses(session, [resources_id]))[resources_id]
    spans = await _spans_of_use(session, resources_id)
    found: list[VersionRow] = []
    for row in rows:
        told = log_queries.event_of(row)
        if isinstance(told.fact, (ResourcesPublished, ResourcesReplaced)):
            number = told.fact.version
            use, times = uses.get(number, Use()), spans.get(number, (0, None, None))
            found.append(VersionRow(number, told.at, told.actor, told.position, row[-1], use, *times))
    return found


async def _spans_of_use(
    session: ReadSession, resources_id: str
) -> dict[int | None, tuple[int, int | None, int | None]]:
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    counted: Sequence[ColumnElement[Any]] = (
        attempt.resources_version,
        func.count(),
        func.min(attempt.start_at),
        func.max(attempt.start_at),
    )
    statement = (
        select(*counted)
        .select_from(core_tables.rollouts.join(core_tables.attempts, attempt.rollout_id == rollout.rollout_id))
        .where(rollout.resources_id == literal(resources_id, Str))
        .group_by(attempt.resources_version)
    )
    return {row[0]: (row[1], row[2], row[3]) for row in await session.fetch(session.dialect.sql(statement), {})}


async def published_before(session: ReadSession, resources_id: str) -> str | None:
    """Return the id that was published for the first time directly before this id; None if there is no such id."""
    row, other = core_tables.resources.c, core_tables.resources.alias("other").c
    first = select(other.first_position).where(other.resources_id == literal(resources_id, Str)).scalar_subquery()
    statement = select(row.resources_id).where(row.first_position < first).order_by(row.first_position.desc()).limit(1)
    found = await session.fetch(session.dialect.sql(statement), {})
    return found[0][0] if found else None


async def content(session: ReadSession, position: int) -> dict[str, Any] | None:
    """Return by name the resources that the event at a position published; None if its body was removed."""
    found = await _payloads(session, [position])
    return found[position].get("resources", {}) if position in found else None


async def _payloads(session: ReadSession, positions: Sequence[int]) -> dict[int, Json]:
    stored = await log_queries.bodies_at(session, positions)
    return {position: payload(codec, body) or {} for position, (codec, body) in stored.items()}
