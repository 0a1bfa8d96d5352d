"""Resources as rows of tables on pages: ids with the results of rollouts, and the versions of an id with their use."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, Select, case, func, literal, select

from store.db.columns import Str
from store.db.dialect import NamedRow, ReadSession
from store.db.queries import log as log_queries
from store.db.queries.bodies import payload
from store.db.queries.counted_rewards import counted_reward, has_ended, squares_of
from store.db.queries.expressions import ONE, bounded
from store.db.queries.filters import RESOURCES, Columns, FilterCondition, FilterQuery
from store.db.queries.paging import Listing, Page, make_page
from store.db.queries.records import columns_of, records
from store.db.queries.rollout_blocks import block_of, in_block
from store.db.tables import core as core_tables
from store.domain.events import Json, ResourcesPublished, ResourcesReplaced
from store.models.missing_rewards import MissingReward
from store.runtime.statistics import Sample, mean_interval

MOST_VERSIONS: Final = 200
_UNSUMMED: Final = frozenset({"block", "resources_id", "resources_version", "first_step", "last_step"})
_BY_PUBLICATION: Final = replace(RESOURCES, created="last_position")
"""Resources in the order in which their current versions were published."""
MOST_NAMED_BYTES: Final = 64 * 1024
"""The maximum size in bytes of a body (the stored resources) that is read to list the names of the resources."""


@dataclass(frozen=True, slots=True)
class MeanReward:
    """A mean of rewards, with its 95 % confidence interval of ± `margin`."""

    counted: int = 0
    """The number of rollouts that count in the mean."""
    mean: float | None = None
    margin: float | None = None
    """None with too few rollouts."""


@dataclass(frozen=True, slots=True)
class Use:
    """The results of the rollouts that used an id or a version of resources."""

    rollouts: int = 0
    mean_reward: float | None = None
    rewarded: int = 0
    """The number of these rollouts that have a reward."""
    ended: int = 0
    rewarded_ended: int = 0
    """The number of ended rollouts that have a reward."""
    counted: MeanReward = MeanReward()
    """The mean of the rewards of ended rollouts, in which missing rewards count by the choice of the page."""
    rewarded_only: MeanReward = MeanReward()
    """The mean of the rewards of ended rollouts that have one."""
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class ResourcesRow:
    """One resources id of a list. Times are microseconds since the epoch."""

    resources_id: str
    version: int
    """The number of the current version."""
    created_at: int
    """The time of the first version."""
    updated_at: int
    """The time of the current version."""
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
    """The number of attempts that used the version."""
    first_use_at: int | None = None
    """The start of the first of these attempts."""
    last_use_at: int | None = None
    """The start of the last of these attempts."""


async def resources_rows(
    session: ReadSession, sums: Sequence[UseSums], missing: MissingReward, *, contains: str, limit: int, offset: int
) -> tuple[list[ResourcesRow], int]:
    """Return a page of resources ids, the last published first, and the number of all matching ids.

    `sums` are the `use_sums` of all blocks.
    """
    conditions = (FilterCondition("resources_id", "contains", contains),) if contains else ()
    filter_query = FilterQuery(_BY_PUBLICATION, conditions, limit=limit, offset=offset, is_newest_first=True)
    listing = Listing(filter_query, dict(core_tables.resources.c), core_tables.resources, _listed, shape="listed")
    page: Page[NamedRow] = await make_page(session, listing, lambda row: row)
    uses = _uses(sums, {row.resources_id for row in page.items})
    small = [row.body_position for row in page.items if row.raw_len is not None and row.raw_len <= MOST_NAMED_BYTES]
    bodies = await _payloads(session, small)
    rows = [
        ResourcesRow(
            resources_id=row.resources_id,
            version=row.version,
            created_at=row.create_at,
            updated_at=row.update_at,
            bytes=row.raw_len,
            names=list(bodies[row.body_position].get("resources", {})) if row.body_position in bodies else None,
            use=_add(uses[row.resources_id].values()).use(missing) if uses[row.resources_id] else Use(),
            current=_use_of(uses[row.resources_id], row.version, missing),
            is_latest=bool(row.is_latest),
        )
        for row in page.items
    ]
    return rows, page.total


def _listed(resources: Columns, source: FromClause) -> Select[Any]:
    body = core_tables.bodies.c
    last = select(func.max(core_tables.resources.c.last_position)).scalar_subquery()
    columns: list[ColumnElement[Any]] = [
        *resources.values(),
        body.raw_len,
        (last == resources["last_position"]).label("is_latest"),
    ]
    return select(*columns).select_from(
        source.outerjoin(core_tables.bodies, body.position == resources["body_position"])
    )


@dataclass(frozen=True, slots=True)
class UseSums:
    """Aggregates of the rollouts of one block with one version of resources."""

    block: int
    resources_id: str
    resources_version: int | None
    rollouts: int
    rewarded: int
    reward_sum: float | None
    ended: int
    rewarded_ended: int
    counted: int
    ended_sum: float | None
    """The sum of the rewards of ended rollouts."""
    ended_squares: float | None
    first_step: int | None
    last_step: int | None

    def use(self, missing: MissingReward) -> Use:
        return Use(
            self.rollouts,
            None if self.reward_sum is None else self.reward_sum / self.rewarded,
            self.rewarded,
            self.ended,
            self.rewarded_ended,
            _mean(self, self.counted, missing.value),
            _mean(self, self.rewarded_ended),
            self.first_step,
            self.last_step,
        )


def _mean(sums: UseSums, count: int, substitute: float = 0.0) -> MeanReward:
    """Return the mean of `count` rollouts. Those without a reward count as `substitute`."""
    if not count:
        return MeanReward()
    substituted = count - sums.rewarded_ended
    mean = ((sums.ended_sum or 0.0) + substituted * substitute) / count
    squares = (sums.ended_squares or 0.0) + substituted * substitute**2
    deviation = None if count == 1 else math.sqrt(max(squares - count * mean * mean, 0.0) / (count - 1))
    interval = mean_interval(Sample(count, mean, deviation))
    return MeanReward(count, mean, interval and interval.margin)


async def use_sums(session: ReadSession, block: int | None = None, *, missing: MissingReward) -> list[UseSums]:
    """Return the sums of the rollouts of one block, or of all blocks, by id and version of resources."""
    rollout = core_tables.rollouts.c
    reward = counted_reward(MissingReward("out"))
    figures: dict[str, ColumnElement[Any]] = {
        "block": block_of(),
        "rollouts": func.count(),
        "rewarded": func.count(rollout.last_reward),
        "reward_sum": func.sum(bounded(rollout.last_reward)),
        "ended": func.count(case((has_ended(), ONE))),
        "rewarded_ended": func.count(reward),
        "counted": func.count(counted_reward(missing)),
        "ended_sum": func.sum(bounded(reward)),
        "ended_squares": func.sum(squares_of(reward)),
        "first_step": func.min(rollout.step),
        "last_step": func.max(rollout.step),
    }
    keys = (block_of(), rollout.resources_id, rollout.resources_version)
    statement = select(*columns_of(UseSums, dict(rollout), figures))
    statement = statement.where(rollout.resources_id.is_not(None), in_block(block)).group_by(*keys)
    return records(UseSums, await session.fetch(session.dialect.sql(statement), {}))


def _uses(sums: Iterable[UseSums], ids: Collection[str]) -> dict[str, dict[int | None, UseSums]]:
    """Return the sums of all blocks by id and version."""
    parts: defaultdict[str, defaultdict[int | None, list[UseSums]]] = defaultdict(lambda: defaultdict(list))
    for part in sums:
        if part.resources_id in ids:
            parts[part.resources_id][part.resources_version].append(part)
    return {id_: {version: _add(of_version) for version, of_version in parts[id_].items()} for id_ in ids}


def _use_of(uses: Mapping[int | None, UseSums], version: int, missing: MissingReward) -> Use:
    return uses[version].use(missing) if version in uses else Use()


def _add(sums: Collection[UseSums]) -> UseSums:
    """Return the sums of several blocks or versions as one. The id and the version are those of the first."""

    def total(name: str) -> Any:
        values = [value for one in sums if (value := getattr(one, name)) is not None]
        return sum(values) if values else None

    totals: dict[str, Any] = {field.name: total(field.name) for field in fields(UseSums) if field.name not in _UNSUMMED}
    firsts = [one.first_step for one in sums if one.first_step is not None]
    lasts = [one.last_step for one in sums if one.last_step is not None]
    ends: dict[str, Any] = {"first_step": min(firsts, default=None), "last_step": max(lasts, default=None)}
    return replace(next(iter(sums)), **totals, **ends)


async def versions(
    session: ReadSession,
    resources_id: str,
    sums: Sequence[UseSums],
    counts: Sequence[AttemptCount],
    missing: MissingReward,
) -> list[VersionRow]:
    """Return the newest versions of an id, at most `MOST_VERSIONS`, newest first.

    `sums` are the `use_sums`, and `counts` the `attempt_counts`, of all blocks. For an unknown id, the list is empty.
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
    uses = _uses(sums, {resources_id})[resources_id]
    attempts = _attempts_with(counts, resources_id)
    published: list[VersionRow] = []
    for row in rows:
        event = log_queries.event_of(row)
        if isinstance(event.fact, (ResourcesPublished, ResourcesReplaced)):
            version = VersionRow(event.fact.version, event.at, event.actor, event.position, row.raw_len)
            published.append(
                replace(version, use=_use_of(uses, version.version, missing), **attempts.get(version.version, {}))
            )
    return published


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """The attempts of the rollouts of one block that used one version of resources."""

    block: int
    resources_id: str
    resources_version: int | None
    attempts: int
    first_use_at: int
    last_use_at: int


async def attempt_counts(session: ReadSession, block: int | None = None) -> list[AttemptCount]:
    """Return the attempts of the rollouts of one block, or of all blocks, by the version of resources they used."""
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    figures: dict[str, ColumnElement[Any]] = {
        "block": block_of(),
        "resources_version": attempt.resources_version,
        "attempts": func.count(),
        "first_use_at": func.min(attempt.start_at),
        "last_use_at": func.max(attempt.start_at),
    }
    statement = (
        select(*columns_of(AttemptCount, dict(rollout), figures))
        .select_from(core_tables.rollouts.join(core_tables.attempts, attempt.rollout_id == rollout.rollout_id))
        .where(rollout.resources_id.is_not(None), in_block(block))
        .group_by(block_of(), rollout.resources_id, attempt.resources_version)
    )
    return records(AttemptCount, await session.fetch(session.dialect.sql(statement), {}))


def _attempts_with(counts: Iterable[AttemptCount], resources_id: str) -> dict[int | None, dict[str, int]]:
    """Return the number of attempts with each version, and the times at which the first and the last attempt began."""
    parts: defaultdict[int | None, list[AttemptCount]] = defaultdict(list)
    for count in counts:
        if count.resources_id == resources_id:
            parts[count.resources_version].append(count)
    return {
        version: {
            "attempts": sum(part.attempts for part in of_version),
            "first_use_at": min(part.first_use_at for part in of_version),
            "last_use_at": max(part.last_use_at for part in of_version),
        }
        for version, of_version in parts.items()
    }


async def published_before(session: ReadSession, resources_id: str) -> str | None:
    """Return the id that was published for the first time directly before this id; None if there is no such id."""
    row, other = core_tables.resources.c, core_tables.resources.alias("other").c
    first = select(other.first_position).where(other.resources_id == literal(resources_id, Str)).scalar_subquery()
    statement = select(row.resources_id).where(row.first_position < first).order_by(row.first_position.desc()).limit(1)
    rows = await session.fetch(session.dialect.sql(statement), {})
    return rows[0].resources_id if rows else None


async def content(session: ReadSession, position: int) -> dict[str, Any] | None:
    """Return by name the resources that the event at a position published; None if its body was removed."""
    payloads = await _payloads(session, [position])
    return payloads[position].get("resources", {}) if position in payloads else None


async def _payloads(session: ReadSession, positions: Sequence[int]) -> dict[int, Json]:
    stored = await log_queries.bodies_at(session, positions)
    return {position: payload(codec, body) or {} for position, (codec, body) in stored.items()}
