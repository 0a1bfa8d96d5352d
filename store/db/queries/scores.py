"""Reads of scores, which versions of reward functions gave to attempts. Decision 94."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, Subquery, bindparam, func, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import Dialect, NamedRow, ReadSession
from store.db.queries.bodies import payload
from store.db.queries.paging import compiled
from store.db.queries.rewards import AttemptRewards, rewards_of
from store.db.tables import core as core_tables
from store.models.scores import RewardVersion, Score, ScoreError
from store.semconv import PRIMARY
from store.validation.scores import VersionKey

_IDS_AT_ONCE = 5000
_END = 2**63 - 1


async def scores(
    session: ReadSession, rollout_ids: Sequence[str], version: VersionKey | None, until: int | None
) -> list[Score]:
    """Return the last score of each reward name and version for each attempt of some rollouts, up to a position."""

    def build() -> Select[Any]:
        score, event, body = core_tables.scores.c, core_tables.events.c, core_tables.bodies.c
        joined = core_tables.scores.join(core_tables.events, event.position == score.position).outerjoin(
            core_tables.bodies, body.position == score.position
        )
        columns: list[ColumnElement[Any]] = [*score]
        return (
            select(*columns, event.version.label("number"), event.at, body.codec, body.body)
            .select_from(joined)
            .where(*_conditions(session.dialect, version))
            .order_by(score.rollout_id, score.position)
        )

    rows = await session.fetch(
        compiled(session, ("scores", version is None), build), _params(session.dialect, rollout_ids, version, until)
    )
    last = {(row.rollout_id, row.attempt_id, row.name, row.version): row for row in rows}
    return [_score(row) for row in rows if row is last[row.rollout_id, row.attempt_id, row.name, row.version]]


async def rewards_of_version(
    session: ReadSession, rollout_ids: Iterable[str], version: VersionKey | None, *, until: int | None = None
) -> dict[tuple[str, str], AttemptRewards]:
    """Return the rewards of the attempts of some rollouts, by rollout id and attempt id.

    If `version` is None, these are the recorded rewards. For a version, `by_name` contains its dimensions, and its
    value as `primary`. Attempts without a value are left out. If `until` is given, only events up to this position
    count.
    """
    if version is None:
        return await rewards_of(session, rollout_ids, until=until)
    distinct = list(dict.fromkeys(rollout_ids))
    rewards: dict[tuple[str, str], AttemptRewards] = {}

    def build() -> Select[Any]:
        score = core_tables.scores.c
        columns: list[ColumnElement[Any]] = [score.rollout_id, score.attempt_id, score.value, score.dimensions]
        return select(*columns).where(*_conditions(session.dialect, version), score.value.is_not(None))

    sql = compiled(session, "scored_rewards", build)
    for start in range(0, len(distinct), _IDS_AT_ONCE):
        part = distinct[start : start + _IDS_AT_ONCE]
        for row in await session.fetch(sql, _params(session.dialect, part, version, until)):
            by_name = {PRIMARY: row.value} | _dimensions(row.dimensions) | {PRIMARY: row.value}
            rewards[row.rollout_id, row.attempt_id] = AttemptRewards(row.value, by_name)
    return rewards


async def versions(session: ReadSession, until: int | None) -> list[RewardVersion]:
    """Return the versions of rewards that have scores up to a position of the log, sorted by name and version."""

    def build() -> Select[Any]:
        score = core_tables.scores.c
        columns: list[ColumnElement[Any]] = [score.name, score.version, score.rollout_id, score.attempt_id]
        of_attempt = (
            select(
                *columns,
                func.count(score.value).label("values_of_attempt"),
                func.max(score.code_sha256).label("code_sha256"),
            )
            .where(score.position <= bindparam("until", type_=BigInteger))
            .group_by(*columns)
            .subquery("of_attempt")
        )
        attempt = of_attempt.c
        columns: list[ColumnElement[Any]] = [
            attempt.name,
            attempt.version,
            attempt.code_sha256,
            func.count().label("attempts"),
            func.sum(attempt.values_of_attempt).label("scores"),
        ]
        return (
            select(*columns)
            .group_by(attempt.name, attempt.version, attempt.code_sha256)
            .order_by(attempt.name, attempt.version, attempt.code_sha256)
        )

    rows = await session.fetch(compiled(session, "reward_versions", build), {"until": _END if until is None else until})
    by_key: dict[VersionKey, list[NamedRow]] = {}
    for row in rows:
        by_key.setdefault(VersionKey(row.name, row.version), []).append(row)
    return [
        RewardVersion(
            name=key.name,
            version=key.version,
            code_sha256=sorted(row.code_sha256 for row in of_key if row.code_sha256 is not None),
            scores=sum(int(row.scores) for row in of_key),
            failures=sum(row.attempts - int(row.scores) for row in of_key),
        )
        for key, of_key in by_key.items()
    ]


def scored_reward(version: VersionKey | None = None) -> ColumnElement[Any]:
    """Return an expression for the value of a version for the latest attempt in a row of `rollouts`; null if none.

    If `version` is None, the parameters `reward_name` and `reward_version` of the statement select the version.
    """
    rollout = core_tables.rollouts.c
    name, number = (None, None) if version is None else version
    scored, attempts = core_tables.scores.alias("scored"), core_tables.attempts.alias("scored_attempts")
    score, attempt = scored.c, attempts.c
    joined = scored.join(attempts, (attempt.rollout_id == score.rollout_id) & (attempt.attempt_id == score.attempt_id))
    return (
        select(score.value)
        .select_from(joined)
        .where(
            score.rollout_id == rollout.rollout_id,
            score.name == _word("reward_name", name),
            score.version == _word("reward_version", number),
            score.value.is_not(None),
            attempt.sequence_id == rollout.attempt_count,
            attempt.released_position.is_(None),
        )
        .limit(1)
        .correlate(core_tables.rollouts)
        .scalar_subquery()
    )


def _word(parameter: str, value: str | None) -> ColumnElement[str]:
    if value is None:
        return bindparam(parameter, type_=Text)
    return bindparam(None, value, type_=Text)


def scored_rewards(version: VersionKey) -> Subquery:
    """Return the rows `rollout_id` and `reward` of the rollouts whose latest attempts have a value of a version.

    `scored_reward` gives the same values. This subquery is for statements that use the value several times.
    """
    reward = scored_reward(version)
    columns: list[ColumnElement[Any]] = [core_tables.rollouts.c.rollout_id, reward.label("reward")]
    return select(*columns).where(reward.is_not(None)).subquery("scored_rewards")


def _conditions(dialect: Dialect, version: VersionKey | None) -> list[ColumnElement[bool]]:
    score = core_tables.scores.c
    conditions = [
        dialect.any_of(score.rollout_id, "rollouts"),
        score.position <= bindparam("until", type_=BigInteger),
    ]
    if version is not None:
        conditions.append(score.name == bindparam("reward_name", type_=Text))
        conditions.append(score.version == bindparam("reward_version", type_=Text))
    return conditions


def _params(
    dialect: Dialect, rollout_ids: Sequence[str], version: VersionKey | None, until: int | None
) -> dict[str, Any]:
    params = {"rollouts": dialect.list_param(rollout_ids), "until": _END if until is None else until}
    return params if version is None else {**params, "reward_name": version.name, "reward_version": version.version}


def _dimensions(text: str | None) -> dict[str, float]:
    return {} if text is None else dict(orjson.loads(text))


def _score(row: NamedRow) -> Score:
    body = payload(row.codec, row.body) or {}
    return Score(
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        name=row.name,
        version=row.version,
        value=row.value,
        dimensions=_dimensions(row.dimensions),
        error=None if row.error is None else ScoreError(**orjson.loads(row.error)),
        code_sha256=row.code_sha256,
        explanation=body.get("explanation"),
        number=row.number,
        at=row.at / 1_000_000,
    )
