"""Queries for the rewards of rollouts, and an SQL expression for the final reward of a rollout. Decision 55.

A reward has one or more named values; the first is the primary value. The last reward of an attempt is the reward of
its last span that has a reward. Spans are ordered as in `query_spans`: by number, and among equal numbers by start and
then by end, with null values last. The order in which spans arrive does not matter. The numbers and times of spans are
read from their events, which can be found by position. The table `spans` has no index on the position.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, bindparam, case, null, select
from sqlalchemy.types import BigInteger

from store.db.data_blocks import json_of
from store.db.dialect import Dialect, ReadSession
from store.db.queries.paging import compiled
from store.db.tables import core as core_tables
from store.semconv import PRIMARY

_IDS_AT_ONCE = 5000
_END = 2**63 - 1


class AttemptRewards(NamedTuple):
    """The rewards of an attempt."""

    final: float
    """The primary value of the last reward."""
    by_name: dict[str, float]
    """The last value of each name."""


async def rewards_of(
    session: ReadSession, rollout_ids: Iterable[str], *, until: int | None = None
) -> dict[tuple[str, str], AttemptRewards]:
    """Return the rewards of the attempts of some rollouts, by rollout id and attempt id.

    Attempts without a reward are left out. If `until` is given, only events up to this position count.
    """
    distinct = list(dict.fromkeys(rollout_ids))
    rewards: dict[tuple[str, str], AttemptRewards] = {}
    sql = compiled(session, "rewards_of", lambda: _recorded(session.dialect))
    for start in range(0, len(distinct), _IDS_AT_ONCE):
        part = session.dialect.list_param(distinct[start : start + _IDS_AT_ONCE])
        rows = await session.fetch(sql, {"wanted": part, "until": _END if until is None else until})
        # For each attempt and each position of a span's event: the data of the event, and the values of the reward.
        spans: defaultdict[tuple[str, str], dict[int, tuple[str, list[tuple[str, float]]]]] = defaultdict(dict)
        for row in rows:
            _, values = spans[row.rollout_id, row.attempt_id].setdefault(row.position, (row.data, []))
            values.append((row.name or PRIMARY, row.value))
        rewards.update((key, _last_of(of_attempt)) for key, of_attempt in spans.items())
    return rewards


def _recorded(dialect: Dialect) -> Select[Any]:
    reward, event = core_tables.rewards.c, core_tables.events.c
    columns: list[ColumnElement[Any]] = [
        reward.rollout_id,
        reward.attempt_id,
        event.position,
        reward.name,
        reward.value,
        event.data,
    ]
    return (
        select(*columns)
        .select_from(core_tables.rewards.join(core_tables.events, event.position == reward.position))
        .where(dialect.any_of(reward.rollout_id, "wanted"), reward.position <= bindparam("until", type_=BigInteger))
        .order_by(reward.rollout_id, reward.position, reward.ordinal)
    )


def _last_of(spans: dict[int, tuple[str, list[tuple[str, float]]]]) -> AttemptRewards:
    ordered = list(spans)
    if len(ordered) > 1:
        ordered.sort(key=lambda position: (*_place(json_of(spans[position][0])), position))
    by_name = {name: value for position in ordered for name, value in spans[position][1]}
    return AttemptRewards(spans[ordered[-1]][1][0][1], by_name)


def _place(data: dict[str, Any]) -> tuple[int, float, float]:
    start, end = data.get("start"), data.get("end")
    return data["sequence_id"], inf if start is None else start, inf if end is None else end


def final_reward(dialect: Dialect) -> ColumnElement[Any]:
    """Return an expression for the final reward of the latest attempt in a row of `rollouts`; null without a reward.

    The expression looks up each reward of the rollout. Rollouts without a reward need no lookup.
    """
    rollout = core_tables.rollouts.c
    rewards, attempts, events = (
        table.alias(f"final_{table.name}") for table in (core_tables.rewards, core_tables.attempts, core_tables.events)
    )
    reward, attempt = rewards.c, attempts.c
    start, end = (dialect.json_number(events.c.data, name) for name in ("start", "end"))
    joined = rewards.join(
        attempts, (attempt.rollout_id == reward.rollout_id) & (attempt.attempt_id == reward.attempt_id)
    ).join(events, events.c.position == reward.position)
    last = (
        select(reward.value)
        .select_from(joined)
        .where(
            reward.rollout_id == rollout.rollout_id,
            reward.ordinal == 0,
            attempt.sequence_id == rollout.attempt_count,
            attempt.released_position.is_(None),
        )
        .order_by(
            dialect.json_number(events.c.data, "sequence_id").desc(),
            start.is_(None).desc(),
            start.desc(),
            end.is_(None).desc(),
            end.desc(),
            reward.position.desc(),
        )
        .limit(1)
        .correlate(core_tables.rollouts)
        .scalar_subquery()
    )
    return case((rollout.last_reward.is_(None), null()), else_=last)
