"""Rollouts that make no progress, each with a sentence that gives the reason, and the causes that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from store.dashboard.views.formats import duration
from store.db.queries.overview import Active, Overview, QueuedRollout
from store.runtime.clock import MICROSECONDS

QUIET_SECONDS: Final = 300.0
"""After this time without a sign of life, an attempt counts as stuck if its config has no `unresponsive_seconds`."""
UNASKED_SECONDS: Final = 60.0
"""A queued rollout counts as stuck if it has waited longer than this time, without any worker requesting work."""
_LATEST: Final = 1e11

Why = Literal["unclaimed", "silent", "unresponsive", "overdue"]
"""A kind of cause: no worker claims work; an attempt gives no sign and has no limit for that; it is past this limit; it
is past its time limit."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rollout that makes no progress."""

    rollout_id: str
    status: str
    attempt: int | None
    worker_id: str | None
    since: int
    """The time at which the rollout stopped making progress, in µs since the epoch."""
    reason: str
    cause: Why = "unclaimed"
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StuckCause:
    """Rollouts that make no progress for the same reason."""

    cause: Why
    sentence: str
    count: int
    oldest_at: int
    """The time at which the first of them stopped making progress, in µs since the epoch."""
    statuses: dict[str, int]
    """The number of these rollouts by status."""
    steps: list[int]
    workers: list[str]
    """The ids of their workers."""
    rollout_ids: list[str]


def causes(entries: Iterable[Stuck], activity: Overview) -> list[StuckCause]:
    """Group rollouts that make no progress by cause, the cause of most rollouts first."""
    groups: dict[Why, list[Stuck]] = {}
    for entry in entries:
        groups.setdefault(entry.cause, []).append(entry)
    folded = [
        StuckCause(
            cause,
            _sentence(cause, members, activity),
            len(members),
            min(member.since for member in members),
            dict(Counter(member.status for member in members)),
            sorted({member.step for member in members if member.step is not None}),
            sorted({member.worker_id for member in members if member.worker_id}),
            [member.rollout_id for member in members],
        )
        for cause, members in groups.items()
    ]
    return sorted(folded, key=lambda one: -one.count)


def _sentence(cause: Why, members: list[Stuck], activity: Overview) -> str:
    if cause == "unclaimed":
        last_request = activity.workers.last_asked_at
        if last_request is None:
            return "No worker has ever asked for work."
        return f"No worker has asked for work for {duration(_seconds(activity.now - last_request))}."
    is_one = len(members) == 1
    if cause == "overdue":
        return "It is past its time limit." if is_one else "They are past their time limits."
    # All of them have been silent for at least this time.
    silence = duration(_seconds(activity.now - max(member.since for member in members)))
    limit = ", longer than its limit" if is_one else ", longer than their limits"
    subject = "Its worker has" if is_one else "Their workers have"
    return f"{subject} given no sign of life for {silence}{limit if cause == 'unresponsive' else ''}."


def stuck(activity: Overview) -> Iterator[Stuck]:
    """Yield the rollouts that make no progress, running rollouts first."""
    for active in activity.active:
        entry = stuck_active(active, activity.now)
        if entry is not None:
            yield entry
    for waiting in activity.waiting:
        reason = _why_waiting(waiting, activity)
        if reason is not None:
            yield Stuck(waiting.rollout_id, waiting.status, None, None, waiting.since, reason, step=waiting.step)


def stuck_active(active: Active, now: int) -> Stuck | None:
    """Return an active rollout with the reason why it makes no progress; None if it makes progress."""
    why = _why_active(active, now)
    if why is None:
        return None
    cause, reason = why
    status, attempt = active.status, active.sequence_id
    return Stuck(active.rollout_id, status, attempt, active.worker_id, _sign(active), reason, cause, active.step)


def _sign(active: Active) -> int:
    # The client chooses the time of a heartbeat, so this time may be far in the future.
    return active.started_at if active.last_sign is None else int(min(max(active.last_sign, 0), _LATEST) * MICROSECONDS)


def _why_active(active: Active, now: int) -> tuple[Why, str] | None:
    config: dict[str, Any] = orjson.loads(active.config)
    runs, silent = _seconds(now - active.started_at), _seconds(now - _sign(active))
    timeout, silence = config.get("timeout_seconds"), config.get("unresponsive_seconds")
    if timeout is not None and runs > timeout:
        return "overdue", f"Past its time limit of {duration(timeout)}: it has run for {duration(runs)}."
    if silence is not None:
        if silent <= silence:
            return None
        return "unresponsive", f"No sign of life for {duration(silent)}; its limit is {duration(silence)}."
    if silent <= QUIET_SECONDS:
        return None
    elsewhere = _elsewhere(active)
    ending = "nothing ends it" if timeout is None else f"its time limit of {duration(timeout)} will end it"
    return "silent", f"No sign of life for {duration(silent)}{elsewhere}; it has no limit for silence, so {ending}."


def _elsewhere(active: Active) -> str:
    if active.worker_id is None or active.worker_rollout_id == active.rollout_id:
        return ""
    return ", and its worker is " + ("idle" if active.worker_rollout_id is None else "on another rollout")


def _why_waiting(waiting: QueuedRollout, activity: Overview) -> str | None:
    waits = _seconds(activity.now - waiting.since)
    last_request = activity.workers.last_asked_at
    if waits <= UNASKED_SECONDS:
        return None
    if last_request is None:
        return f"Waits for {duration(waits)}; no worker has ever requested work."
    unasked = _seconds(activity.now - last_request)
    if unasked <= UNASKED_SECONDS:
        return None
    return f"Waits for {duration(waits)}; no worker has requested work for {duration(unasked)}."


def _seconds(micros: int) -> float:
    return micros / MICROSECONDS
