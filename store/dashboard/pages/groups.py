"""The pages of groups: rollouts of the same task, compared by reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.dialect import ReadSession
from store.db.queries.groups import (
    MEMBER_SORTS,
    SORTS,
    SPREADS,
    GroupQuery,
    GroupRow,
    MemberQuery,
    MemberRow,
    group_row,
    group_rows,
    member_rows,
)
from store.errors import NotFound

pages = Pages()

WIDTH: Final = 100
"""The width of the drawing that contains a bar, in SVG units."""


@dataclass(frozen=True, slots=True)
class ValueBar:
    """A value as a bar that begins at zero. All bars of a table have the same scale."""

    x: float
    """The position of the left end."""
    width: float
    zero: float
    """The position of zero."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of the values of a table. The range always includes zero."""

    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Scale:
        """Return the smallest scale that includes all values and zero."""
        numbers = [value for value in values if value is not None]
        return cls(min([0.0, *numbers]), max([0.0, *numbers]))

    def at(self, value: float) -> float:
        """Return the position of a value, between 0 and `WIDTH`."""
        reach = self.most - self.least
        # The difference of two huge values of opposite sign may be infinite.
        share = value / reach - self.least / reach if reach else 0.0
        return round(WIDTH * share, 2) if 0 <= share <= 1 else 0.0

    def bar(self, value: float) -> ValueBar:
        """Return the bar of a value; the bar of zero is a thin line."""
        zero, end = self.at(0.0), self.at(value)
        width = max(abs(end - zero), 0.75)
        return ValueBar(round(min(zero, end, WIDTH - width), 2), round(width, 2), zero)


@pages.get("/ui/groups")
async def groups(request: PageRequest) -> PageContent:
    """Show the groups, newest first by default. The query parameters are filters."""
    query = GroupQuery(
        id_contains=request.one("q") or None,
        step=request.maybe_whole("step", least=-(2**63), most=2**63 - 1),
        spread=request.among("spread", SPREADS, "any"),
        has_siblings=request.among("siblings", ("0", "1"), "0") == "1",
        sort=request.among("sort", SORTS, "newest"),
        is_descending=request.among("desc", ("0", "1"), "1") == "1",
        limit=request.rows,
        offset=request.whole("offset", 0),
    )
    rows, total = await request.store.core.look(partial(group_rows, query=query))
    scale = Scale.of([value for row in rows for value in (row.least, row.most)])
    values = {"groups": rows, "total": total, "limit": query.limit, "offset": query.offset}
    hidden = {"query": query, "spreads": SPREADS, "ranges": [_range(row, scale) for row in rows]}
    return PageContent("groups.html", values, "Groups", hidden=hidden)


@dataclass(frozen=True, slots=True)
class RewardRange:
    """The least, mean and greatest reward of a group as a bar. All bars of a table have the same scale."""

    x: float
    """The position of the least reward."""
    width: float
    """The distance between the least and the greatest reward."""
    mean: float
    """The position of the mean reward."""
    zero: float
    """The position of zero."""


def _range(row: GroupRow, scale: Scale) -> RewardRange | None:
    if row.least is None or row.most is None or row.mean is None:
        return None
    left, right = scale.at(row.least), scale.at(row.most)
    width = max(right - left, 0.75)
    return RewardRange(
        round(min(left, WIDTH - width), 2), round(width, 2), min(scale.at(row.mean), WIDTH - 1), scale.at(0.0)
    )


@pages.get("/ui/groups/{group_id}")
async def group(request: PageRequest) -> PageContent:
    """Show one group: its rollouts side by side, best first by default."""
    query = MemberQuery(
        request.ids["group_id"],
        sort=request.among("sort", MEMBER_SORTS, "reward"),
        is_descending=request.among("desc", ("0", "1"), "1") == "1",
        limit=request.rows,
        offset=request.whole("offset", 0),
    )
    summary, rows = await request.store.core.look(partial(_group, query=query), snapshot=True)
    if summary is None:
        raise NotFound("group", query.group_id, f"No rollout belongs to a group {query.group_id!r}")
    scale = Scale.of([summary.least, summary.most])
    bars = [None if row.reward is None else scale.bar(row.reward) for row in rows]
    first, second = _extremes(rows)
    values = {"group": summary, "rollouts": rows, "limit": query.limit, "offset": query.offset}
    hidden = {"query": query, "bars": bars, "zero": scale.at(0.0), "a": first, "b": second}
    return PageContent("group.html", values, f"Group {summary.group_id}", hidden=hidden)


async def _group(session: ReadSession, query: MemberQuery) -> tuple[GroupRow | None, list[MemberRow]]:
    row = await group_row(session, query.group_id)
    return row, [] if row is None else await member_rows(session, query)


def _extremes(rows: Sequence[MemberRow]) -> tuple[str, str]:
    """Return the ids of the two rollouts to compare by default: the best and the worst of the shown rollouts."""
    if not rows:
        return "", ""
    by_reward = sorted((row for row in rows if row.reward is not None), key=lambda row: row.reward or 0.0)
    best = by_reward[-1] if by_reward else rows[0]
    others = [row for row in by_reward if row is not best] or [row for row in rows if row is not best]
    return best.rollout_id, others[0].rollout_id if others else best.rollout_id
