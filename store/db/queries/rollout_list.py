"""The rollouts of a list, with the counts that a page shows beside it.

The values come from the summary columns of the table `rollouts` and from the latest attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Literal, get_args

import orjson
from sqlalchemy import ColumnElement, FromClause, Select, and_, case, func, null, or_, select

from store.db.dialect import Dialect, ReadSession
from store.db.queries import filters
from store.db.queries.annotations import labels_of
from store.db.queries.counted_rewards import counted_reward, has_ended
from store.db.queries.expressions import big, mean_of
from store.db.queries.filters import Columns, FilterCondition, FilterField, FilterQuery
from store.db.queries.pages import joins_latest
from store.db.queries.paging import Listing, read_rows
from store.db.queries.records import columns_of, records
from store.db.queries.scores import scored_reward
from store.db.tables import core as core_tables
from store.models.missing_rewards import ENDED, MissingReward
from store.runtime.clock import MICROSECONDS
from store.validation.scores import VersionKey

SORTS: Final = {
    "started": FilterField("first_position", "number"),
    "changed": FilterField("last_position", "number"),
    "reward": FilterField("last_reward", "value"),
    "attempts": FilterField("attempt_count", "number"),
    "spans": FilterField("spans", "number"),
    "tokens": FilterField("tokens_out", "number"),
    "step": FilterField("step", "value"),
    "duration": FilterField("duration", "value"),
}
"""The supported sort orders, each with the field by which it sorts."""
_LIST_FIELDS: Final = {
    "ended": FilterField("end_at", "time"),
    "task": FilterField("input_sha256", "text"),
    "tokens_in": FilterField("tokens_in", "number"),
}
LISTED: Final = replace(filters.ROLLOUTS, fields={**filters.ROLLOUTS.fields, **_LIST_FIELDS, **SORTS})
"""Rollouts with the fields of lists. The reward is the column with the last reward of any attempt."""
Ranged = Literal["reward", "step", "tokens", "duration", "ended", "tokens_in", "spans", "attempts"]
RANGED: Final[tuple[Ranged, ...]] = get_args(Ranged)
NO_ERROR: Final = "(none)"
"""The value of `RolloutListQuery.error_type` that selects attempts whose error has no type, or that have no error."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of rewards, training steps, tokens, durations, end times, or numbers of spans or attempts.

    `least` and `most` are optional. Both belong to the range, except that `most` does not belong to a range of end
    times. Durations are seconds, and end times are seconds since the epoch.
    """

    of: Ranged
    least: float | None
    most: float | None

    def conditions(self) -> Iterator[FilterCondition]:
        """Yield the conditions that a rollout is in the range. A rollout without a value is not in the range."""
        least, most = self.least, self.most
        if self.of in {"step", "tokens", "tokens_in", "spans", "attempts"}:
            least = None if least is None else math.ceil(least)
            most = None if most is None else math.floor(most)
        elif self.of == "ended":
            least = None if least is None else round(least * MICROSECONDS)
            most = None if most is None else round(most * MICROSECONDS) - 1
        elif self.of == "duration":
            least = None if least is None else round(least * MICROSECONDS)
            most = None if most is None else round(most * MICROSECONDS)
        if self.of in {"tokens", "tokens_in"} and (least is None or least < 1):
            # An unknown number of tokens is stored as 0.
            least = 1
        if least is not None:
            yield FilterCondition(self.of, "min", least)
        if most is not None:
            yield FilterCondition(self.of, "max", most)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout of a list. Times are microseconds since the epoch."""

    rollout_id: str
    status: str
    mode: str | None
    resources_id: str | None
    resources_version: int | None
    start_at: int
    end_at: int | None
    group_id: str | None
    step: int | None
    attempts: int
    """The number of attempts."""
    last_reward: float | None
    """The last primary reward, from any attempt. For a version of rewards, the value of the latest attempt."""
    spans: int
    """The number of spans."""
    tokens_in: int
    tokens_out: int
    error: str | None
    """The error as JSON text."""
    first_position: int
    last_position: int
    attempt_id: str | None
    attempt_status: str | None
    worker_id: str | None


def _duration() -> ColumnElement[int]:
    """Return an expression for the time from the start to the end of a rollout in µs; null if it has not ended."""
    rollout = core_tables.rollouts.c
    # The end of an earlier attempt remains when a rollout is put into the queue again.
    return case((has_ended(), rollout.end_at - rollout.start_at), else_=null()).label("duration")


_COLUMNS: Final[Columns] = {**core_tables.rollouts.c, "duration": _duration()}
_CARRIED: Final = ("attempt_count", *(field.name for field in fields(RolloutRow) if field.name in _COLUMNS))


@dataclass(frozen=True, slots=True)
class RolloutListQuery:
    """A selection of rollouts, and their order."""

    statuses: Sequence[str] = ()
    modes: Sequence[str] = ()
    ids: Sequence[str] = ()
    group_id: str | None = None
    step: int | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    """Only rollouts that were given this version of their resources."""
    task: str | None = None
    """Only rollouts whose input has this SHA-256 hash."""
    worker_id: str | None = None
    """Only rollouts with an attempt of this worker."""
    attempt_status: str | None = None
    """Only rollouts with an attempt in this status."""
    error_type: str | None = None
    """Only rollouts with an attempt that has this error type, or `NO_ERROR`."""
    label: str | None = None
    """Only rollouts with this label."""
    scan_match: VersionKey | None = None
    """Only rollouts whose latest attempt this version of a scanner matched."""
    reward_version: VersionKey | None = None
    """The version of the rewards; None for recorded rewards."""
    ranges: Sequence[Range] = ()
    id_contains: str | None = None
    sort: str = "started"
    is_descending: bool = True
    limit: int = 50
    offset: int = 0
    after: int | None = None
    """Only rollouts that come after the rollout with this `first_position` in the list.

    Used only for the order `started`.
    """
    before: int | None = None
    """Only the nearest rollouts that come before the rollout with this `first_position` in the list.

    Used only for the order `started`.
    """
    upto: int | None = None
    """Only rollouts whose first event is at or before this position of the log."""

    @property
    def is_keyed(self) -> bool:
        """Whether `after` and `before` select the page.

        All pages are then equally fast, and new rollouts do not shift them.
        """
        return self.sort == "started"


@dataclass(frozen=True, slots=True)
class StatusFigures:
    """The number of rollouts in one status, and their rewards."""

    total: int
    ended: int
    rewarded_ended: int
    """The number of ended rollouts with a reward."""
    counted: int
    """The number of rollouts that count in the mean."""
    mean_counted: float | None


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """A page of rollouts, and counts of the matches."""

    rows: Sequence[RolloutRow]
    by_status: dict[str, StatusFigures]
    """By status, figures of the rollouts that meet all conditions other than the condition on the status."""
    newer: int
    """The number of matching rollouts whose first event is after the position `upto`."""
    has_more: bool
    """Whether more rows follow: with `before`, before this page of the list, and otherwise after this page."""
    labels: dict[str, list[str]]
    """The labels of rollouts on this page, by rollout id. Rollouts without labels are left out."""


async def status_figures(
    session: ReadSession, query: RolloutListQuery, missing: MissingReward
) -> dict[str, StatusFigures]:
    """Return by status the figures of the rollouts that meet all conditions other than that on the status."""
    dialect = session.dialect
    any_status = listing_of(dialect, replace(query, statuses=()), RolloutRow)
    status = core_tables.rollouts.c.status
    reward = any_status.columns["last_reward"]
    # The rollouts of a row have the same status, so no aggregate needs to check whether they have ended.
    counts_as = case((reward.is_not(None), reward), else_=counted_reward(missing, reward))
    columns: list[ColumnElement[Any]] = [
        status,
        func.count().label("total"),
        func.count(reward).label("rewarded"),
        mean_of(counts_as).label("mean_counted"),
    ]
    grouped = select(*columns).where(any_status.matching(dialect)).group_by(status)
    statuses = await session.fetch(dialect.sql(grouped), any_status.params(dialect))
    by_status: dict[str, StatusFigures] = {}
    for row in statuses:
        if row.status in ENDED:
            counted = row.rewarded if missing.substitute(row.status) is None else row.total
            by_status[row.status] = StatusFigures(row.total, row.total, row.rewarded, counted, row.mean_counted)
        else:
            by_status[row.status] = StatusFigures(row.total, 0, 0, 0, None)
    return by_status


async def rollout_page(
    session: ReadSession,
    query: RolloutListQuery,
    missing: MissingReward,
    by_status: dict[str, StatusFigures] | None = None,
) -> RolloutPage:
    """Return a page of rollouts with their latest attempts.

    Args:
        session: a connection to the database.
        query: the selection and the page.
        missing: how rollouts without a reward count.
        by_status: the result of `status_figures`, if the caller has it.
    """
    dialect = session.dialect
    # One more row than the page needs is read, to find out whether there is another page.
    page = listing_of(dialect, replace(query, limit=query.limit + 1), RolloutRow, *_window(query))
    rows = records(RolloutRow, await read_rows(session, page))
    newer = 0
    if query.upto is not None:
        later = listing_of(dialect, query, RolloutRow, core_tables.rollouts.c.first_position > big(query.upto))
        counts = await session.fetch(dialect.sql(later.count(dialect)), later.params(dialect))
        newer = counts[0].total
    if by_status is None:
        by_status = await status_figures(session, query, missing)
    on_page = rows[: query.limit]
    labels = await labels_of(session, rollout_ids=[row.rollout_id for row in on_page])
    return RolloutPage(on_page, by_status, newer, len(rows) > query.limit, labels)


def matching_rollouts(dialect: Dialect, query: RolloutListQuery) -> tuple[ColumnElement[bool], dict[str, Any]]:
    """Return the condition on rollouts that a selection makes, and the parameters of the condition."""
    listing = listing_of(dialect, query, RolloutRow)
    return listing.matching(dialect), listing.params(dialect)


def listing_of(dialect: Dialect, query: RolloutListQuery, kind: type[Any], *window: ColumnElement[bool]) -> Listing:
    """Return the listing of the rollouts of a query that also meet the conditions `window`, with rows of `kind`."""
    is_descending = query.is_descending is not (query.before is not None)
    filter_query = FilterQuery(
        LISTED,
        tuple(_conditions(query)),
        sort_by=None if query.is_keyed else query.sort,
        is_descending=is_descending,
        limit=query.limit,
        offset=query.offset,
        is_newest_first=is_descending or not query.is_keyed,
        reward_version=query.reward_version,
    )
    return listed_rollouts(filter_query, kind, *window, *_of_attempts(dialect, query))


def listed_rollouts(filter_query: FilterQuery, kind: type[Any], *terms: ColumnElement[bool]) -> Listing:
    """Return the listing of rollouts with their latest attempts, whose rows have the fields of the dataclass `kind`.

    The rollouts also meet the conditions `terms`.
    """
    version = filter_query.reward_version
    reward = {} if version is None else {"last_reward": scored_reward(version).label("last_reward")}

    def read(rollout: Columns, source: FromClause) -> Select[Any]:
        attempt = core_tables.attempts.c
        renamed = {"attempts": rollout["attempt_count"], "reward": rollout["last_reward"]}
        latest = {
            "attempt_id": attempt.attempt_id,
            "attempt_status": attempt.status,
            "worker_id": attempt.worker_id,
        }
        columns = columns_of(kind, rollout, renamed, latest)
        return select(*columns).select_from(source.outerjoin(core_tables.attempts, joins_latest(rollout)))

    return Listing(
        filter_query,
        {**_COLUMNS, **reward},
        core_tables.rollouts,
        read,
        within=partial(and_, *terms) if terms else None,
        has_values=bool(terms or reward),
        shape=("listed", kind),
        carried=_CARRIED,
        is_narrow_first=True,
    )


def _window(query: RolloutListQuery) -> Iterator[ColumnElement[bool]]:
    first = core_tables.rollouts.c.first_position
    if query.upto is not None:
        yield first <= big(query.upto)
    if query.is_keyed and query.after is not None:
        yield first < big(query.after) if query.is_descending else first > big(query.after)
    if query.is_keyed and query.before is not None:
        yield first > big(query.before) if query.is_descending else first < big(query.before)


def _conditions(query: RolloutListQuery) -> Iterator[FilterCondition]:
    for field, values in (("status", query.statuses), ("mode", query.modes), ("rollout_id", query.ids)):
        if values:
            yield FilterCondition(field, "in", list(values))
    values = {
        "group": query.group_id,
        "resources_id": query.resources_id,
        "resources_version": query.resources_version,
        "task": query.task,
        "step": query.step,
    }
    for field, value in values.items():
        if value is not None:
            yield FilterCondition(field, "is", value)
    if query.label is not None:
        yield FilterCondition(filters.LABEL, "in", [query.label])
    if query.scan_match is not None:
        yield FilterCondition(filters.SCAN_MATCH, "is", str(query.scan_match))
    if query.id_contains:
        yield FilterCondition("rollout_id", "contains", query.id_contains)
    for bounds in query.ranges:
        yield from bounds.conditions()


def _of_attempts(dialect: Dialect, query: RolloutListQuery) -> list[ColumnElement[bool]]:
    """Return the condition that one attempt of the rollout meets all conditions on attempts; none without these."""
    attempt = core_tables.attempts.c
    terms: list[ColumnElement[bool]] = []
    if query.worker_id is not None:
        terms.append(attempt.worker_id == query.worker_id)
    if query.attempt_status is not None:
        terms.append(attempt.status == query.attempt_status)
    if query.error_type == NO_ERROR:
        terms.append(or_(attempt.error.is_(None), dialect.contains(attempt.error, _of_type(""))))
    elif query.error_type is not None:
        # The searched text contains unescaped quotation marks, which begin or end a string in JSON. An error message
        # inside the JSON text therefore cannot contain the searched text.
        terms.append(dialect.contains(attempt.error, _of_type(query.error_type)))
    if not terms:
        return []
    one = select(attempt.rollout_id).where(*terms, attempt.released_position.is_(None))
    return [core_tables.rollouts.c.rollout_id.in_(one)]


def _of_type(error_type: str) -> str:
    return f'"type":{orjson.dumps(error_type).decode()}'
