"""Sums of the usage of models, and tool calls, from the tables of their index. Decisions 109 and 126."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import ColumnElement, Double, FromClause, Select, and_, case, func, literal, or_, select, true
from sqlalchemy import cast as cast_sql

from store.db.columns import Str
from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters
from store.db.queries.counted_rewards import has_ended
from store.db.queries.curves import Axis
from store.db.queries.expressions import ONE, ZERO, big, one_of
from store.db.queries.pages import rollout_columns
from store.db.tables import core as core_tables
from store.db.tables.usage import usage_sums, usage_tools, usage_totals
from store.domain.usage import UsageNumbers
from store.models.queries import UsageQuery
from store.models.usage import UsageKey, UsageSum

_DIVISIONS: Final[Mapping[UsageKey, Mapping[str, str]]] = {
    "all": {},
    "step": {"step": "step"},
    "group": {"group": "group_id"},
    "version": {"resources_id": "resources_id", "resources_version": "resources_version"},
    "model": {"model": "model"},
    "mode": {"mode": "mode"},
    "run": {"rollout_id": "rollout_id"},
}
"""The names of the columns of each division, by the names in `UsageSum.key`."""
_LISTED: Final = ("group", "run")
"""The divisions with so many keys that their sums are read in pages."""
_IN_TOTALS: Final = frozenset({"step", "group", "mode", "resources_id", "resources_version"})
"""The conditions that the table with the totals answers."""


async def usage(session: ReadSession, query: UsageQuery) -> tuple[list[UsageSum], list[UsageSum], int]:
    """Return the sums of a query, the sums of all its rollouts by model, and the number of all keys.

    The session must see the tables of the index.
    """
    filter_query = filters.of(query)
    source = _source(session, query, filter_query)
    if query.by not in _LISTED:
        rows = await source.sums(session, _DIVISIONS[query.by])
        distinct = list(dict.fromkeys(tuple(row.key.values()) for row in rows))
        first, last = filter_query.offset_param, filter_query.offset_param + filter_query.limit_param
        page = set(distinct[first:last])
        return [row for row in rows if tuple(row.key.values()) in page], _joined(rows), len(distinct)
    (name,) = _DIVISIONS[query.by].values()
    column = source.table.c[name]
    source = source.where(column.is_not(None))
    listed = (
        select(column.label("key"), func.count().over().label("total"))
        .where(*source.conditions)
        .group_by(column)
        .order_by(_tokens(source.table).desc(), column)
        .limit(big(filter_query.limit_param))
        .offset(big(filter_query.offset_param))
    )
    keys = await session.fetch(session.dialect.sql(listed), source.params)
    order = {row.key: number for number, row in enumerate(keys)}
    of_page = source.where(session.dialect.any_of(column, "keys"), keys=session.dialect.list_param(list(order)))
    rows = await of_page.sums(session, _DIVISIONS[query.by])
    rows.sort(key=lambda row: order[next(iter(row.key.values()))])
    return rows, await source.sums(session, {}), keys[0].total if keys else 0


async def usage_of_rollouts(session: ReadSession, condition: ColumnElement[bool], **params: Any) -> list[UsageSum]:
    """Return the sums by rollout, model and basis of the rollouts whose row in `usage_sums` meets a condition.

    The session must see the tables of the index.
    """
    return await _Source(usage_sums, [usage_sums.c.calls > 0, condition], params).sums(session, _DIVISIONS["run"])


async def usage_along(
    session: ReadSession, along: Axis, modes: Sequence[str], resources_id: str | None
) -> list[UsageSum]:
    """Return the sums by bucket of an axis, mode, model and basis. Along time, they are those of ended rollouts.

    The session must see the tables of the index.

    Args:
        session: a reading session.
        along: the axis.
        modes: only rollouts with one of these modes; an empty sequence means all rollouts.
        resources_id: only attempts with this id of resources, with sums by version; None for all attempts.
    """
    # The totals have steps but no times, and far fewer rows than there are attempts.
    table = usage_sums if along.by == "time" else usage_totals
    rollouts = core_tables.rollouts
    at = rollouts.c.end_at if along.by == "time" else table.c.step
    names = {"bucket": "bucket", "mode": "mode"} | ({} if resources_id is None else {"version": "resources_version"})
    columns = [table.c[name] for name in names.values() if name != "bucket"]
    numbers = [table.c[name] for name in ("model", "source", "calls", *UsageNumbers._fields)]
    # Postgres would consider an expression with parameters in GROUP BY and in the SELECT list different.
    placed = select(((at - big(along.start)) // big(along.width)).label("bucket"), *columns, *numbers)
    if along.by == "time":
        placed = placed.select_from(table.join(rollouts, rollouts.c.rollout_id == table.c.rollout_id))
        # A retried rollout keeps its old end time until it ends again.
        placed = placed.where(has_ended())
    placed = placed.where(table.c.calls > 0, at >= big(along.start), at < big(along.low(along.count)))
    if modes:
        placed = placed.where(one_of(table.c.mode, modes))
    if resources_id is not None:
        placed = placed.where(table.c.resources_id == literal(resources_id, Str))
    return await _Source(placed.subquery("placed"), [true()], {}).sums(session, names)


class RolloutTools(NamedTuple):
    """The tool calls of all attempts of a rollout. Decision 126."""

    calls: int | None
    """None if an attempt has no recorded responses or tools, or if attributes were removed or are too large."""
    errors: int | None
    """The number of spans of tools with an error; None if `calls` is None, or if spans of tools are missing."""


async def tools_of_rollouts(
    session: ReadSession, condition: ColumnElement[bool], **params: Any
) -> dict[str, RolloutTools]:
    """Return the tool calls of the rollouts whose row in `usage_tools` meets a condition, by rollout id.

    Rollouts without spans of calls are left out. The session must see the tables of the index.
    """
    column = usage_tools.c
    most = case((column.requested > column.executed, column.requested), else_=column.executed)
    is_untraced = and_(column.requested > 0, column.executed == 0)
    is_unknown = or_(column.unread > 0, and_(column.answered == 0, column.executed == 0))
    statement = (
        select(
            column.rollout_id,
            func.sum(cast_sql(most, Double)).label("calls"),
            func.sum(cast_sql(column.failed, Double)).label("errors"),
            func.max(case((is_unknown, ONE), else_=ZERO)).label("is_unread"),
            func.max(case((is_untraced, ONE), else_=ZERO)).label("is_untraced"),
        )
        .where(condition)
        .group_by(column.rollout_id)
    )
    rows = await session.fetch(session.dialect.sql(statement), params)
    return {
        row.rollout_id: RolloutTools(
            None if row.is_unread else int(row.calls), None if row.is_unread or row.is_untraced else int(row.errors)
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class _Source:
    """The rows of the totals, or of the attempts, that a query selects."""

    table: FromClause
    conditions: Sequence[ColumnElement[bool]]
    params: Mapping[str, Any]

    def where(self, condition: ColumnElement[bool], **params: Any) -> _Source:
        """Return the rows that also meet a condition."""
        return _Source(self.table, [*self.conditions, condition], {**self.params, **params})

    async def sums(self, session: ReadSession, names: Mapping[str, str]) -> list[UsageSum]:
        """Return the sums by some columns, by model and by basis. `names` has the column of each name in the keys."""
        column = self.table.c
        columns = {name: column[of] for name, of in names.items()}
        # Sums of 64-bit integers can exceed 64 bits; numbers up to 2^53 are exact as floats.
        numbers = [func.sum(cast_sql(column[name], Double)).label(name) for name in UsageNumbers._fields]
        calls = func.sum(cast_sql(column.calls, Double)).label("calls")
        keys = [key.label(f"key_{name}") for name, key in columns.items()]
        statement: Select[Any] = (
            select(*keys, column.model, column.source, calls, *numbers)
            .where(and_(*self.conditions))
            .group_by(*columns.values(), column.model, column.source)
            .order_by(*(key.asc().nulls_last() for key in columns.values() if key.name != "model"))
            .order_by(_tokens(self.table).desc(), column.model)
        )
        rows = await session.fetch(session.dialect.sql(statement), self.params)
        return [_sum_of(row, columns) for row in rows]


def _source(session: ReadSession, query: UsageQuery, filter_query: filters.FilterQuery) -> _Source:
    params = filters.params(session.dialect, filter_query)
    if query.by != "run" and all(condition.field in _IN_TOTALS for condition in filter_query.conditions):
        matching = filters.where(session.dialect, filter_query, dict(usage_totals.c))
        return _Source(usage_totals, [usage_totals.c.calls > 0, matching], params)
    source = _Source(usage_sums, [usage_sums.c.calls > 0], params)
    rollout = core_tables.rollouts
    if query.by == "run":
        runs = select(rollout.c.rollout_id).where(rollout.c.run_version.is_not(None))
        source = source.where(usage_sums.c.rollout_id.in_(runs))
    if filter_query.conditions:
        matching = filters.where(session.dialect, filter_query, rollout_columns(session.dialect, filter_query))
        source = source.where(usage_sums.c.rollout_id.in_(select(rollout.c.rollout_id).where(matching)))
    return source


def _tokens(table: FromClause) -> ColumnElement[Any]:
    """Return the sum of all tokens of a group of rows."""
    tokens_in, tokens_out = (cast_sql(func.coalesce(table.c[name], 0), Double) for name in ("tokens_in", "tokens_out"))
    return func.sum(tokens_in + tokens_out)


def _sum_of(row: NamedRow, columns: Mapping[str, Any]) -> UsageSum:
    numbers: dict[str, float | None] = {name: getattr(row, name) for name in UsageNumbers._fields if name != "cost"}
    tokens = {name: None if number is None else int(number) for name, number in numbers.items()}
    key = {name: getattr(row, f"key_{name}") for name in columns}
    if "model" in key:
        key["model"] = key["model"] or None
    return UsageSum(key=key, model=row.model or None, source=row.source, calls=int(row.calls), cost=row.cost, **tokens)


def _joined(sums: Sequence[UsageSum]) -> list[UsageSum]:
    """Return the sums by model and basis alone."""
    joined: dict[tuple[str | None, str], tuple[int, UsageNumbers]] = defaultdict(lambda: (0, UsageNumbers()))
    for item in sums:
        calls, numbers = joined[item.model, item.source]
        more = UsageNumbers(*(getattr(item, name) for name in UsageNumbers._fields))
        joined[item.model, item.source] = (calls + item.calls, numbers.plus(more))
    return [
        UsageSum(key={}, model=model, source=cast("Any", source), calls=calls, **numbers._asdict())
        for (model, source), (calls, numbers) in joined.items()
    ]
