"""Conditions of webhooks. A condition is a function that reads the tables, and an entry of `CONDITIONS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from store.validation.scores import version_key

Settings = Mapping[str, float]
"""The settings of a condition by name."""
_MOST_RUNS: Final = 100
"""The maximum number of ended runs that one check reports; the next check reports the others."""
_MOST_ROLLOUTS: Final = 10_000
_MOST_CONDITIONS: Final = 20
_FEWEST_SCANNED: Final = 5_000
"""The minimum number of rollouts among which a check of a scanner looks for results."""


@dataclass(frozen=True, slots=True)
class ConditionCheck:
    """The arguments of one check of a condition. Times are µs since the epoch."""

    subject: str
    """The part of the name of the condition after the slash; empty if there is none."""
    settings: Settings
    state: int | None
    """The state after the last check; None if the condition did not hold, or was never checked."""
    created_at: int
    """The creation of the webhook. What ended earlier is not reported."""
    now: int


class ConditionReading(NamedTuple):
    """The result of one check."""

    state: int | None
    messages: list[dict[str, Any]]
    """The data of new messages."""


class ConditionKind(NamedTuple):
    """A kind of condition."""

    type: str
    """The type of its messages."""
    page: str
    """The dashboard page that explains a message, below `/ui/`."""
    defaults: Settings
    read: Callable[[ReadSession, ConditionCheck], Awaitable[ConditionReading]]
    is_level: bool = True
    """Whether the condition holds for a time, and is reported once until it has cleared."""
    needs_scanner: bool = False
    """Whether the name contains a scanner: `scanner_rate/loops` or `scanner_rate/loops@v1`."""


def _level(check: ConditionCheck, data: dict[str, Any] | None) -> ConditionReading:
    """Return the reading of a condition that is reported once until it has cleared; `data` is None if it is clear."""
    if data is None:
        return ConditionReading(None, [])
    return ConditionReading(check.state or check.now, [] if check.state is not None else [data])


async def _read_stuck_queue(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    limit = round(check.settings["seconds"] * MICROSECONDS)
    oldest = await waiting_rollouts(session, 1)
    if not oldest or check.now - oldest[0].since < limit:
        return _level(check, None)
    attempt = core_tables.attempts.c
    # Workers without an id leave no signal, only attempts.
    for statement in (
        select(func.max(core_tables.worker_signals.c.last_dequeue_at).label("at")),
        select(func.max(attempt.start_at).label("at")).where(attempt.via == "dequeue"),
    ):
        latest_at = (await session.fetch(session.dialect.sql(statement), {}))[0].at
        if latest_at is not None and check.now - latest_at < limit:
            return _level(check, None)
    rows = await session.fetch(session.dialect.sql(select(func.count().label("n")).select_from(core_tables.queue)), {})
    return _level(check, {"waiting": rows[0].n, "waiting_since": to_seconds(oldest[0].since)})


def _last_ended(size: int, *terms: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Return the rollouts that ended last, the last first.

    There is no index of ends, so this reads all rollouts: 0.05 s for 100,000 on both databases.
    """
    rollout = core_tables.rollouts.c
    return (
        select(rollout.rollout_id, rollout.status, rollout.last_reward, rollout.end_at, rollout.attempt_count)
        .where(one_of(rollout.status, TERMINAL), rollout.end_at.is_not(None), *terms)
        .order_by(rollout.end_at.desc())
        .limit(big(size))
    )


async def _read_failure_rate(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    size = int(check.settings["rollouts"])
    rows = await session.fetch(session.dialect.sql(_last_ended(size)), {})
    failed = sum(row.status == "failed" for row in rows)
    if len(rows) < size or failed <= check.settings["above"] * size:
        return _level(check, None)
    return _level(check, {"failed": failed, "rollouts": size, "above": check.settings["above"]})


async def _read_reward_drop(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    size = int(check.settings["rollouts"])
    is_rewarded = core_tables.rollouts.c.last_reward.is_not(None)
    rows = await session.fetch(session.dialect.sql(_last_ended(2 * size, is_rewarded)), {})
    rewards = [row.last_reward for row in rows]
    if len(rewards) < 2 * size or not all(map(isfinite, rewards)):
        return _level(check, None)
    now, before = fmean(rewards[:size]), fmean(rewards[size:])
    if before - now < check.settings["by"]:
        return _level(check, None)
    return _level(check, {"mean": now, "mean_before": before, "rollouts": size, "by": check.settings["by"]})


async def _read_run_ended(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    rollout, event = core_tables.rollouts.c, core_tables.run_events.c
    since = check.created_at if check.state is None else check.state
    is_run = select(event.rollout_id).where(event.rollout_id == rollout.rollout_id).exists()
    statement = (
        select(rollout.rollout_id, rollout.status, rollout.end_at)
        # No two rollouts end at the same time, so the next check continues after the end of the last run. A run that
        # is retried has its earlier end until it ends again.
        .where(rollout.end_at > big(since), one_of(rollout.status, TERMINAL), is_run)
        .order_by(rollout.end_at)
        .limit(big(_MOST_RUNS))
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    messages = [
        {"rollout_id": row.rollout_id, "status": row.status, "ended_at": to_seconds(row.end_at)} for row in rows
    ]
    return ConditionReading(rows[-1].end_at if rows else check.state, messages)


async def _read_training_idle(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    last = await session.fetch(session.dialect.sql(_last_ended(1)), {})
    limit = round(check.settings["seconds"] * MICROSECONDS)
    # The state is the end that was reported last, so that work between two checks is noticed.
    if not last or last[0].end_at == check.state or last[0].end_at <= check.created_at:
        return ConditionReading(check.state, [])
    status = core_tables.rollouts.c.status
    is_open: Select[Any] = select(core_tables.rollouts.c.rollout_id).where(~one_of(status, TERMINAL)).limit(big(1))
    if check.now - last[0].end_at < limit or await session.fetch(session.dialect.sql(is_open), {}):
        return ConditionReading(check.state, [])
    return ConditionReading(last[0].end_at, [{"idle_since": to_seconds(last[0].end_at)}])


async def _read_scanner_rate(session: ReadSession, check: ConditionCheck) -> ConditionReading:
    name, _, version = check.subject.partition("@")
    if not version:
        event = core_tables.events.c
        # The streams of the versions of this scanner: `A` follows `@`.
        added = (
            select(event.stream)
            .where(event.stream > f"scanner/{name}@", event.stream < f"scanner/{name}A")
            .order_by(event.position.desc())
            .limit(big(1))
        )
        streams = await session.fetch(session.dialect.sql(added), {})
        version = streams[0].stream.rpartition("@")[2] if streams else ""
    size = int(check.settings["rollouts"])
    ended = _last_ended(max(_FEWEST_SCANNED, 20 * size)).subquery("ended")
    attempt, scan = core_tables.attempts.c, core_tables.scans.c
    # This is a scalar subquery, because SQLite would begin a join with all results of the scanner.
    is_match = (
        select(scan.is_match)
        .join_from(core_tables.attempts, core_tables.scans, scan.attempt_id == attempt.attempt_id)
        .where(attempt.rollout_id == ended.c.rollout_id, attempt.sequence_id == ended.c.attempt_count)
        .where(scan.rollout_id == ended.c.rollout_id, scan.scanner == name, scan.version == version)
        .where(scan.is_match.is_not(None))
        .limit(big(1))
        .scalar_subquery()
    )
    results = select(ended.c.end_at, is_match.label("is_match")).subquery("results").c
    statement = (
        select(results.is_match).where(results.is_match.is_not(None)).order_by(results.end_at.desc()).limit(big(size))
    )
    rows = await session.fetch(session.dialect.sql(statement), {})
    matches = sum(row.is_match for row in rows)
    if len(rows) < size or matches <= check.settings["above"] * size:
        return _level(check, None)
    figures = {"matches": matches, "rollouts": size, "above": check.settings["above"]}
    return _level(check, {"scanner": f"{name}@{version}", **figures})


CONDITIONS: Final[dict[str, ConditionKind]] = {
    "stuck_queue": ConditionKind("queue.stuck", "", {"seconds": 300}, _read_stuck_queue),
    "failure_rate": ConditionKind("failure_rate.high", "failures", {"rollouts": 100, "above": 0.5}, _read_failure_rate),
    "reward_drop": ConditionKind("reward_mean.dropped", "rewards", {"rollouts": 100, "by": 0.1}, _read_reward_drop),
    "scanner_rate": ConditionKind(
        "scanner_rate.high", "scanners", {"rollouts": 100, "above": 0.1}, _read_scanner_rate, needs_scanner=True
    ),
    "run_ended": ConditionKind("pipeline_run.ended", "runs", {}, _read_run_ended, is_level=False),
    "training_idle": ConditionKind("training.idle", "", {"seconds": 600}, _read_training_idle, is_level=False),
}
"""All kinds of conditions by name."""


def kind_of(condition: str) -> ConditionKind | None:
    """Return the kind of a condition such as `stuck_queue` or `scanner_rate/loops`; None if there is no such kind."""
    return CONDITIONS.get(condition.partition("/")[0])


def parse_conditions(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the settings of conditions by name, as `checked_conditions` does.

    Args:
        texts: conditions in the form `failure_rate` or `failure_rate:rollouts=50,above=0.3`.

    Raises:
        Invalid: a condition or a setting does not exist, or a value is invalid.
    """
    conditions: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        settings = conditions[name] = {}
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            try:
                settings[key] = float(value)
            except ValueError:
                raise Invalid("conditions", f"{part!r} is not a setting with a number; write {name}:NAME=1") from None
    return checked_conditions(conditions)


def checked_conditions(conditions: Mapping[str, Settings]) -> dict[str, dict[str, float]]:
    """Return conditions with all their settings; missing ones have their defaults.

    Without conditions, return all conditions that need no scanner.

    Raises:
        Invalid: a condition or a setting does not exist, or a value is out of range.
    """
    if len(conditions) > _MOST_CONDITIONS:
        raise Invalid("conditions", f"has {len(conditions)} conditions; the limit is {_MOST_CONDITIONS}")
    checked: dict[str, dict[str, float]] = {}
    for name, settings in (
        conditions or {name: {} for name, one in CONDITIONS.items() if not one.needs_scanner}
    ).items():
        kind, (_, slash, scanner) = kind_of(name), name.partition("/")
        if kind is None or bool(slash) != kind.needs_scanner or bool(scanner) != kind.needs_scanner:
            names = ", ".join(f"{key}/SCANNER" if one.needs_scanner else key for key, one in CONDITIONS.items())
            raise Invalid("conditions", f"{name[:80]!r} is not a condition; the conditions are {names}")
        if slash:
            version_key(scanner if "@" in scanner else f"{scanner}@v1", "conditions")
        for key, value in settings.items():
            if key not in kind.defaults:
                choices = ", ".join(kind.defaults) or "none"
                raise Invalid("conditions", f"{key[:80]!r} is not a setting of {name}; its settings are: {choices}")
            is_share = key == "above"
            if not isfinite(value) or value < 0 or (is_share and value >= 1):
                example = 0.5 if is_share else kind.defaults[key]
                raise Invalid("conditions", f"{key}={value:g} of {name} is out of range; write {key}={example:g}")
            if key == "rollouts" and not (float(value).is_integer() and 1 <= value <= _MOST_ROLLOUTS):
                raise Invalid(
                    "conditions", f"rollouts={value:g} of {name} is not an integer from 1 to {_MOST_ROLLOUTS}"
                )
        checked[name] = {**kind.defaults, **settings}
    return checked
