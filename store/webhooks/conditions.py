"""Conditions of webhooks. Each condition is a reading of the tables, and an entry of `CONDITIONS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, func, select

from store.db.dialect import ReadSession
from store.db.queries.expressions import big, one_of
from store.db.queries.overview import waiting_rollouts
from store.db.tables import core as core_tables
from store.domain.rollout import TERMINAL
from store.errors import Invalid
from store.runtime.clock import MICROSECONDS, to_seconds

Settings = Mapping[str, float]
"""The settings of a condition by name."""
_MOST_RUNS: Final = 100
"""The maximum number of ended runs that one check reports; the next check reports the others."""
_MOST_ROLLOUTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Check:
    """The arguments of one check of a condition. Times are µs since the epoch."""

    settings: Settings
    state: int | None
    """The state after the last check; None if the condition did not hold, or was never checked."""
    created_at: int
    """The creation of the webhook. What ended earlier is not reported."""
    now: int


class Reading(NamedTuple):
    """The result of one check."""

    state: int | None
    messages: list[dict[str, Any]]
    """The data of new messages."""


class Condition(NamedTuple):
    """A kind of condition."""

    type: str
    """The type of its messages."""
    page: str
    """The dashboard page that explains a message, below `/ui/`."""
    defaults: Settings
    read: Callable[[ReadSession, Check], Awaitable[Reading]]


def _level(check: Check, data: dict[str, Any] | None) -> Reading:
    """Return the reading of a condition that is reported once until it has cleared; `data` is None if it is clear."""
    if data is None:
        return Reading(None, [])
    return Reading(check.state or check.now, [] if check.state is not None else [data])


async def _read_stuck_queue(session: ReadSession, check: Check) -> Reading:
    limit = round(check.settings["seconds"] * MICROSECONDS)
    oldest = await waiting_rollouts(session, 1)
    if not oldest or check.now - oldest[0].since < limit:
        return _level(check, None)
    attempt = core_tables.attempts.c
    # Workers without an id leave no signal, only attempts.
    for latest in (
        select(func.max(core_tables.worker_signals.c.last_dequeue_at).label("at")),
        select(func.max(attempt.start_at).label("at")).where(attempt.via == "dequeue"),
    ):
        asked_at = (await session.fetch(session.dialect.sql(latest), {}))[0].at
        if asked_at is not None and check.now - asked_at < limit:
            return _level(check, None)
    rows = await session.fetch(session.dialect.sql(select(func.count().label("n")).select_from(core_tables.queue)), {})
    return _level(check, {"waiting": rows[0].n, "waiting_since": to_seconds(oldest[0].since)})


async def _ended(session: ReadSession, limit: int, *terms: ColumnElement[bool]) -> list[Any]:
    """Return the rollouts that ended last, the last first."""
    rollout = core_tables.rollouts.c
    statement = (
        select(rollout.rollout_id, rollout.status, rollout.last_reward, rollout.end_at)
        .where(one_of(rollout.status, TERMINAL), rollout.end_at.is_not(None), *terms)
        .order_by(rollout.end_at.desc())
        .limit(big(limit))
    )
    return list(await session.fetch(session.dialect.sql(statement), {}))


async def _read_failure_rate(session: ReadSession, check: Check) -> Reading:
    size = int(check.settings["rollouts"])
    rows = await _ended(session, size)
    failed = sum(row.status == "failed" for row in rows)
    if len(rows) < size or failed <= check.settings["above"] * size:
        return _level(check, None)
    return _level(check, {"failed": failed, "rollouts": size, "above": check.settings["above"]})


async def _read_reward_drop(session: ReadSession, check: Check) -> Reading:
    size = int(check.settings["rollouts"])
    rows = await _ended(session, 2 * size, core_tables.rollouts.c.last_reward.is_not(None))
    rewards = [row.last_reward for row in rows]
    if len(rewards) < 2 * size or not all(map(isfinite, rewards)):
        return _level(check, None)
    now, before = fmean(rewards[:size]), fmean(rewards[size:])
    if before - now < check.settings["by"]:
        return _level(check, None)
    return _level(check, {"mean": now, "mean_before": before, "rollouts": size, "by": check.settings["by"]})


async def _read_run_ended(session: ReadSession, check: Check) -> Reading:
    rollout, event = core_tables.rollouts.c, core_tables.run_events.c
    since = check.created_at if check.state is None else check.state
    is_run = select(event.rollout_id).where(event.rollout_id == rollout.rollout_id).exists()
    statement = (
        select(rollout.rollout_id, rollout.status, rollout.end_at)
        # A run that is retried has its earlier end until it ends again.
        .where(rollout.end_at > big(since), one_of(rollout.status, TERMINAL), is_run)
        .order_by(rollout.end_at)
        .limit(big(_MOST_RUNS))
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    messages = [
        {"rollout_id": row.rollout_id, "status": row.status, "ended_at": to_seconds(row.end_at)} for row in rows
    ]
    return Reading(rows[-1].end_at if rows else check.state, messages)


async def _read_training_idle(session: ReadSession, check: Check) -> Reading:
    last = await _ended(session, 1)
    limit = round(check.settings["seconds"] * MICROSECONDS)
    # The state is the end that was reported last, so that work between two checks is noticed.
    if not last or last[0].end_at in {check.state, None} or last[0].end_at <= check.created_at:
        return Reading(check.state, [])
    status = core_tables.rollouts.c.status
    is_open: Select[Any] = select(core_tables.rollouts.c.rollout_id).where(~one_of(status, TERMINAL)).limit(big(1))
    if check.now - last[0].end_at < limit or await session.fetch(session.dialect.sql(is_open), {}):
        return Reading(check.state, [])
    return Reading(last[0].end_at, [{"idle_since": to_seconds(last[0].end_at)}])


CONDITIONS: Final[dict[str, Condition]] = {
    "stuck_queue": Condition("queue.stuck", "", {"seconds": 300}, _read_stuck_queue),
    "failure_rate": Condition("failure_rate.high", "rollouts", {"rollouts": 100, "above": 0.5}, _read_failure_rate),
    "reward_drop": Condition("reward.dropped", "rewards", {"rollouts": 100, "by": 0.1}, _read_reward_drop),
    "run_ended": Condition("run.ended", "runs", {}, _read_run_ended),
    "training_idle": Condition("training.idle", "", {"seconds": 600}, _read_training_idle),
}
"""All conditions by name."""


def parse_conditions(texts: list[str]) -> dict[str, dict[str, float]]:
    """Return the settings of conditions by name. Without texts, all conditions are used with their defaults.

    Args:
        texts: conditions in the form `failure_rate` or `failure_rate:rollouts=50,above=0.3`.

    Raises:
        Invalid: a condition or a setting does not exist, or a value is invalid.
    """
    conditions: dict[str, dict[str, float]] = {}
    for text in texts or CONDITIONS:
        name, _, rest = text.partition(":")
        if name not in CONDITIONS:
            raise Invalid("--on", f"{name!r} is not a condition; the conditions are {', '.join(CONDITIONS)}")
        settings = conditions[name] = dict(CONDITIONS[name].defaults)
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            if key not in settings:
                choices = ", ".join(settings) or "none"
                raise Invalid("--on", f"{key!r} is not a setting of {name}; its settings are: {choices}")
            try:
                settings[key] = float(value)
            except ValueError:
                raise Invalid("--on", f"{value!r} is not a number; write {name}:{key}={settings[key]:g}") from None
            if not isfinite(settings[key]) or settings[key] < 0 or (key == "above" and settings[key] >= 1):
                raise Invalid("--on", f"{key}={value} is out of range; {name}:{key}={0.5 if key == 'above' else 1}")
            if key == "rollouts" and not (settings[key].is_integer() and 1 <= settings[key] <= _MOST_ROLLOUTS):
                raise Invalid("--on", f"rollouts={value} is not an integer from 1 to {_MOST_ROLLOUTS}")
    return conditions
