"""Usage of models and of tools in a SQL store, from its index. Decisions 109 and 126."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Column, ColumnElement

from store.db.dialect import ReadSession
from store.db.queries import usage as usage_queries
from store.db.queries.usage import RolloutTools
from store.db.tables.usage import usage_sums, usage_tools
from store.errors import Invalid, StoreError, Unavailable
from store.indexing.following import IndexLag
from store.indexing.reading import fresh_lag, with_index
from store.indexing.usage_index import UsageIndex
from store.models.queries import UsageQuery
from store.models.usage import UsageReport, UsageSum
from store.sql.core import SQLCore

T = TypeVar("T")

_INDEX: Final = UsageIndex()


async def usage_report(core: SQLCore, query: UsageQuery) -> UsageReport:
    """Return the sums of a query. If the index is behind the log, it first follows the log for a limited time."""
    await fresh_lag(core.dialect, core.read, _INDEX)
    report = await indexed_usage(core, query)
    if report is None:
        raise Unavailable("the index of usage was dropped during this read; read again")
    return report


async def indexed_usage(core: SQLCore, query: UsageQuery) -> UsageReport | None:
    """Return the sums of a query as the index has them at present; None if there is no index."""
    if query.as_at is not None:
        raise Invalid("as_at", "usage is summed for the present only; leave as_at out")

    async def read(session: ReadSession, lag: IndexLag) -> UsageReport:
        sums, total, keys = await usage_queries.usage(session, query)
        return UsageReport(by=query.by, sums=sums, total=total, keys=keys, position=lag.position, head=lag.end)

    return await core.read(lambda session: with_index(session, _INDEX, read))


class RolloutUsage(NamedTuple):
    """The usage of some rollouts."""

    sums: list[UsageSum]
    """The sums by rollout, model and basis."""
    tools: Mapping[str, RolloutTools]
    """The tool calls by rollout id, of the rollouts with spans of calls."""
    events_behind: int
    """The number of events that the index has not read."""


async def usage_of_rollouts(
    core: SQLCore,
    condition: Callable[[Column[Any]], ColumnElement[bool]],
    *,
    waits: bool = False,
    **params: Any,
) -> RolloutUsage:
    """Return the usage of the rollouts whose id meets a condition; empty if there is no index and none can be made.

    If the index is behind the log, it first follows the log for a limited time, or with `waits` to the present end of
    the log.
    """

    async def read(session: ReadSession, lag: IndexLag) -> RolloutUsage:
        sums = await usage_queries.usage_of_rollouts(session, condition(usage_sums.c.rollout_id), **params)
        tools = await usage_queries.tools_of_rollouts(session, condition(usage_tools.c.rollout_id), **params)
        return RolloutUsage(sums, tools, lag.events_behind)

    return await read_usage(core, read, waits=waits) or RolloutUsage([], {}, 0)


async def read_usage(
    core: SQLCore,
    work: Callable[[ReadSession, IndexLag], Awaitable[T]],
    *,
    follows: bool = True,
    waits: bool = False,
) -> T | None:
    """Return what `work` reads from the index; None if there is no index and none can be made.

    Args:
        core: the store.
        work: reads the index. Its second argument is the place of the index in the log.
        follows: whether an index that is behind the log first follows the log for a limited time.
        waits: whether it follows the log to its present end instead.
    """
    try:
        lag = await fresh_lag(core.dialect, core.read, _INDEX) if follows or waits else IndexLag(0, 0)
        end = lag.end
        while waits and lag.position < end:
            lag = await fresh_lag(core.dialect, core.read, _INDEX)
    except StoreError:
        return None
    return await core.read(lambda session: with_index(session, _INDEX, work))
