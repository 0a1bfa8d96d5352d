"""Rollouts as rows of a table on a page, with sort orders and filters.

A rollout is a task for an agent, and an attempt is one execution of a rollout by a worker. The values come from the
summary columns of the table `rollouts` and from the latest attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from store.db.dialect import Dialect, Params, ReadSession
from store.db.queries.pages import joins_latest
from store.db.reports.annotations import carries, labels_of
from store.db.reports.conditions import big, one_of
from store.db.reports.overview_rows import rollouts_by_status
from store.db.reports.ranges import Range, within
from store.db.tables import core as core_tables

SORTS: Final = {
    "started": "first_position",
    "changed": "last_position",
    "reward": "last_reward",
    "attempts": "attempt_count",
    "spans": "spans",
    "tokens": "tokens_out",
    "step": "step",
}
"""The supported sort orders, each with the column by which it sorts."""
NO_ERROR: Final = "(none)"
"""The value of `RolloutListQuery.error_type` that selects attempts whose error has no type, or that have no error."""


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
    last_reward: float | None
    spans: int
    tokens_in: int
    tokens_out: int
    error: str | None
    first_position: int
    last_position: int
    attempt_id: str | None
    attempt_status: str | None
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class RolloutListQuery:
    """A selection of rollouts, and their order."""

    statuses: Sequence[str] = ()
    modes: Sequence[str] = ()
    ids: Sequence[str] = ()
    group_id: str | None = None
    step: int | None = None
    resources_id: str | None = None
    worker_id: str | None = None
    """Only rollouts with an attempt of this worker."""
    attempt_status: str | None = None
    """Only rollouts with an attempt in this status."""
    error_type: str | None = None
    """Only rollouts with an attempt that has this error type, or `NO_ERROR`."""
    label: str | None = None
    """Only rollouts with this label."""
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
    """Only rollouts that come before the rollout with this `first_position` in the list, the nearest `limit` of them.

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
class RolloutPage:
    """A page of rollouts, and counts of the matches."""

    rows: Sequence[RolloutRow]
    by_status: dict[str, int]
    """By status, the number of rollouts that meet all conditions other than the condition on the status."""
    newer: int
    """The number of matching rollouts whose first event is after the position `upto`."""
    has_more: bool
    """Whether more rows follow: with `before`, before this page of the list, and otherwise after this page."""
    labels: dict[str, list[str]]
    """The labels of rollouts on this page, by rollout id. Rollouts without labels are left out."""


async def rollout_page(session: ReadSession, wanted: RolloutListQuery) -> RolloutPage:
    """Return a page of rollouts with their latest attempts."""
    matching = _matching(session.dialect, wanted)
    others = _matching(session.dialect, replace(wanted, statuses=()))
    params = {"ids": session.dialect.list_param(list(wanted.ids))} if wanted.ids else {}
    rows = await _rows(session, wanted, matching, params)
    newer = 0
    if wanted.upto is not None:
        past = core_tables.rollouts.c.first_position > big(wanted.upto)
        counted = select(func.count()).select_from(core_tables.rollouts).where(matching, past)
        newer = int((await session.fetch(session.dialect.sql(counted), params))[0][0])
    by_status = await rollouts_by_status(session, others, params)
    shown = rows[: wanted.limit]
    labels = await labels_of(session, rollout_ids=[row.rollout_id for row in shown])
    return RolloutPage(shown, by_status, newer, len(rows) > wanted.limit, labels)


async def _rows(
    session: ReadSession, wanted: RolloutListQuery, matching: ColumnElement[bool], params: Params
) -> list[RolloutRow]:
    rollout, attempt = core_tables.rollouts.c, core_tables.attempts.c
    is_back = wanted.before is not None
    is_down = wanted.is_descending is not is_back
    order = rollout[SORTS[wanted.sort]]
    ordered = order.desc().nulls_last() if is_down else order.asc().nulls_last()
    orders = (ordered,) if wanted.is_keyed else (ordered, rollout.first_position.desc())
    if wanted.is_keyed:
        # The column has no nulls, so the order does not specify the place of nulls. If it did, Postgres could not use
        # the index.
        orders = (order.desc() if is_down else order.asc(),)
    # One more row than the page needs is read, to find out whether there is another page.
    cut = (
        select(rollout.rollout_id)
        .where(matching, *_window(wanted))
        .order_by(*orders)
        .limit(big(wanted.limit + 1))
        .offset(big(wanted.offset))
    )
    statement: Select[*tuple[Any, ...]] = (
        select(*(rollout[name] for name in _ROLLOUT), attempt.attempt_id, attempt.status, attempt.worker_id)
        .select_from(core_tables.rollouts.outerjoin(core_tables.attempts, joins_latest(dict(rollout))))
        .where(rollout.rollout_id.in_(cut))
        .order_by(*orders)
    )
    return [RolloutRow(*row) for row in await session.fetch(session.dialect.sql(statement), params)]


def _window(wanted: RolloutListQuery) -> list[ColumnElement[bool]]:
    first = core_tables.rollouts.c.first_position
    found: list[ColumnElement[bool]] = []
    if wanted.upto is not None:
        found.append(first <= big(wanted.upto))
    if wanted.is_keyed:
        if wanted.after is not None:
            found.append(first < big(wanted.after) if wanted.is_descending else first > big(wanted.after))
        if wanted.before is not None:
            found.append(first > big(wanted.before) if wanted.is_descending else first < big(wanted.before))
    return found


def _matching(dialect: Dialect, wanted: RolloutListQuery) -> ColumnElement[bool]:
    rollout = core_tables.rollouts.c
    found: list[ColumnElement[bool]] = []
    for column, values in ((rollout.status, wanted.statuses), (rollout.mode, wanted.modes)):
        if values:
            found.append(one_of(column, values))
    if wanted.ids:
        found.append(dialect.any_of(rollout.rollout_id, "ids"))
    for column, value in ((rollout.group_id, wanted.group_id), (rollout.resources_id, wanted.resources_id)):
        if value is not None:
            found.append(column == value)
    if wanted.step is not None:
        found.append(rollout.step == big(wanted.step))
    if wanted.label is not None:
        found.append(carries(rollout.rollout_id, wanted.label))
    if wanted.id_contains:
        found.append(dialect.contains(rollout.rollout_id, wanted.id_contains))
    found += within(wanted.ranges)
    of_attempts = _of_attempts(dialect, wanted)
    if of_attempts:
        found.append(rollout.rollout_id.in_(select(core_tables.attempts.c.rollout_id).where(*of_attempts)))
    return and_(True, *found)


def _of_attempts(dialect: Dialect, wanted: RolloutListQuery) -> list[ColumnElement[bool]]:
    """Return the conditions on attempts. A rollout matches if at least one of its attempts meets all of them."""
    attempt = core_tables.attempts.c
    found: list[ColumnElement[bool]] = []
    if wanted.worker_id is not None:
        found.append(attempt.worker_id == wanted.worker_id)
    if wanted.attempt_status is not None:
        found.append(attempt.status == wanted.attempt_status)
    if wanted.error_type == NO_ERROR:
        found.append(or_(attempt.error.is_(None), dialect.contains(attempt.error, _of_type(""))))
    elif wanted.error_type is not None:
        # The searched text contains unescaped quotation marks, which begin or end a string in JSON. An error message
        # inside the JSON text therefore cannot contain the searched text.
        found.append(dialect.contains(attempt.error, _of_type(wanted.error_type)))
    return [*found, attempt.released_position.is_(None)] if found else []


def _of_type(error_type: str) -> str:
    return f'"type":{orjson.dumps(error_type).decode()}'


_ROLLOUT: Final = (
    "rollout_id",
    "status",
    "mode",
    "resources_id",
    "resources_version",
    "start_at",
    "end_at",
    "group_id",
    "step",
    "attempt_count",
    "last_reward",
    "spans",
    "tokens_in",
    "tokens_out",
    "error",
    "first_position",
    "last_position",
)
