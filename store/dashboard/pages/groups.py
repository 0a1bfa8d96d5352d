"""The pages of groups: rollouts of the same task, compared by reward."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.pages.saved_views import views_of
from store.dashboard.request import PageRequest
from store.dashboard.views.pass_at_k import KS, pass_at_k
from store.db.dialect import ReadSession
from store.db.queries.groups import (
    MEMBER_SORTS,
    PASS,
    SORTS,
    SPREADS,
    GroupQuery,
    GroupRow,
    MemberQuery,
    MemberRow,
    group_row,
    group_rows,
    group_values,
    member_rows,
)
from store.db.queries.input_starts import input_titles
from store.errors import Invalid, NotFound
from store.models.missing_rewards import MissingReward

pages = Pages()

TITLE: Final = 160
"""The maximum number of characters of the beginning of an input."""
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
        missing=request.missing_reward(),
        threshold=threshold_of(request),
    )
    (rows, total), titles = await request.store.core.look(partial(_groups, query=query), snapshot=True)
    scale = Scale.of([value for row in rows for value in (row.least, row.most)])
    values = {
        "groups": rows,
        "total": total,
        "limit": query.limit,
        "offset": query.offset,
        "unrewarded": str(query.missing),
        "threshold": query.threshold,
        "tasks": titles,
    }
    hidden = {
        "saved": await views_of(request, "groups"),
        "query": query,
        "missing": query.missing,
        "spreads": SPREADS,
        "ranges": [_range(row, scale) for row in rows],
    }
    return PageContent("groups.html", values, "Groups", hidden=hidden)


async def _groups(session: ReadSession, query: GroupQuery) -> tuple[tuple[list[GroupRow], int], dict[str, str]]:
    """Return a page of groups with the number of all matching groups, and the beginnings of their inputs."""
    rows, total = await group_rows(session, query)
    return (rows, total), await _titles(session, rows)


async def _titles(session: ReadSession, rows: Sequence[GroupRow]) -> dict[str, str]:
    """Return the beginning of the input of a rollout of each group, by group id."""
    starts = await input_titles(session, [row.rollout_id for row in rows], TITLE)
    return {row.group_id: starts[row.rollout_id] for row in rows if row.rollout_id in starts}


def threshold_of(request: PageRequest) -> float:
    """Return the parameter `threshold`, the least value that passes.

    Raises:
        Invalid: the value is not a finite number.
    """
    text = request.one("threshold")
    try:
        threshold = float(text or PASS)
    except ValueError:
        raise Invalid("threshold", f"{text[:80]!r} is not a number; write the least reward that passes") from None
    if not math.isfinite(threshold):
        raise Invalid("threshold", f"{text[:80]!r} is not a finite number; write the least reward that passes")
    return threshold


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
    missing, threshold = request.missing_reward(), threshold_of(request)
    members = await request.store.core.look(
        partial(_members, query=query, missing=missing, threshold=threshold), snapshot=True
    )
    if members is None:
        raise NotFound("group", query.group_id, f"No rollout belongs to a group {query.group_id!r}")
    summary, rows, counted = members.group, members.rows, members.values
    scale = Scale.of([summary.least, summary.most])
    bars = [None if row.reward is None else scale.bar(row.reward) for row in rows]
    first, second = _extremes(rows)
    signals = [_signal(row, summary, missing, counted) for row in rows]
    passes = {k: pass_at_k(summary.counted, summary.passed, k) for k in KS if k <= summary.counted}
    values = {
        "group": summary,
        "rollouts": rows,
        "limit": query.limit,
        "offset": query.offset,
        "unrewarded": str(missing),
        "threshold": threshold,
        "task": members.title,
        "signals": signals,
        "pass_at_k": passes,
    }
    hidden = {"query": query, "bars": bars, "zero": scale.at(0.0), "a": first, "b": second, "missing": missing}
    return PageContent("group.html", values, f"Group {summary.group_id}", hidden=hidden)


@dataclass(frozen=True, slots=True)
class _Members:
    group: GroupRow
    rows: list[MemberRow]
    values: list[float]
    """The values of all rollouts that count in the mean, in ascending order."""
    title: str | None


@dataclass(frozen=True, slots=True)
class Signal:
    """The place of a rollout in its group. All values are None for a rollout that is left out of the mean."""

    counted: float | None
    """The value as which the rollout counts."""
    rank: int | None
    """1 for the greatest value; equal values have equal ranks."""
    advantage: float | None
    """The distance of the value from the mean of the group."""
    normalised: float | None
    """The advantage in standard deviations of the sample; 0 if all values are equal."""


async def _members(
    session: ReadSession, query: MemberQuery, missing: MissingReward, threshold: float
) -> _Members | None:
    row = await group_row(session, query.group_id, missing, threshold)
    if row is None:
        return None
    titles = await _titles(session, [row])
    values = await group_values(session, query.group_id, missing)
    return _Members(row, await member_rows(session, query), values, titles.get(row.group_id))


def _signal(row: MemberRow, group: GroupRow, missing: MissingReward, values: Sequence[float]) -> Signal:
    counted = missing.counted(row.status, row.reward)
    if counted is None or group.mean_counted is None:
        return Signal(None, None, None, None)
    # Equal rewards have a mean that differs in the last digit.
    advantage = counted - group.mean_counted if group.has_variance else 0.0
    normalised = advantage / group.deviation if group.deviation else 0.0
    return Signal(counted, len(values) - bisect_right(values, counted) + 1, advantage, normalised)


def _extremes(rows: Sequence[MemberRow]) -> tuple[str, str]:
    """Return the ids of the two rollouts to compare by default: the best and the worst of the shown rollouts."""
    if not rows:
        return "", ""
    by_reward = sorted((row for row in rows if row.reward is not None), key=lambda row: row.reward or 0.0)
    best = by_reward[-1] if by_reward else rows[0]
    others = [row for row in by_reward if row is not best] or [row for row in rows if row is not best]
    return best.rollout_id, others[0].rollout_id if others else best.rollout_id
