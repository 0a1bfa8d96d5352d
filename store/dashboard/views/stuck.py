"""Rollouts that make no progress, each with a sentence that gives the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.dashboard.views.formats import duration
from store.db.queries.overview import Active, Overview, QueuedRollout
from store.runtime.clock import MICROSECONDS

QUIET_SECONDS: Final = 300.0
"""After this time without a sign of life, an attempt counts as stuck if its config has no `unresponsive_seconds`."""
UNASKED_SECONDS: Final = 60.0
"""A queued rollout counts as stuck if it has waited longer than this time, without any worker requesting work."""
_LATEST: Final = 1e11


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


def stuck(activity: Overview) -> Iterator[Stuck]:
    """Yield the rollouts that make no progress, running rollouts first."""
    for active in activity.active:
        reason = _why_active(active, activity.now)
        if reason is not None:
            since = _sign(active)
            yield Stuck(active.rollout_id, active.status, active.sequence_id, active.worker_id, since, reason)
    for waiting in activity.waiting:
        reason = _why_waiting(waiting, activity)
        if reason is not None:
            yield Stuck(waiting.rollout_id, waiting.status, None, None, waiting.since, reason)


def _sign(active: Active) -> int:
    # The client chooses the time of a heartbeat, so this time may be far in the future.
    return active.started_at if active.last_sign is None else int(min(max(active.last_sign, 0), _LATEST) * MICROSECONDS)


def _why_active(active: Active, now: int) -> str | None:
    config: dict[str, Any] = orjson.loads(active.config)
    runs, silent = _seconds(now - active.started_at), _seconds(now - _sign(active))
    timeout, silence = config.get("timeout_seconds"), config.get("unresponsive_seconds")
    if timeout is not None and runs > timeout:
        return f"Past its time limit of {duration(timeout)}: it has run for {duration(runs)}."
    if silence is not None:
        if silent <= silence:
            return None
        return f"No sign of life for {duration(silent)}; its limit is {duration(silence)}."
    if silent <= QUIET_SECONDS:
        return None
    elsewhere = _elsewhere(active)
    ending = "nothing ends it" if timeout is None else f"its time limit of {duration(timeout)} will end it"
    return f"No sign of life for {duration(silent)}{elsewhere}; it has no limit for silence, so {ending}."


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
