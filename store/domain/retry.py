"""The rules of retries and of the watchdog.

A sign of life is an event or a heartbeat of an attempt. Times are microseconds since the epoch, and limits are seconds.
"""

from dataclasses import dataclass

from store.domain.events import Json
from store.domain.log_time import LogTime
from store.domain.rollout import ACTIVE, AttemptState, RolloutState

# A time that no clock reaches. It fits into 64 bits.
_NEVER = 2**62


def status_after(attempt: AttemptState, config: Json) -> str:
    """Return the status that a rollout gets from its latest attempt.

    If the attempt failed, timed out or became unresponsive, the rollout returns to the queue under two conditions: its
    config lists the status of the attempt in `retry_condition`, and fewer than `max_attempts` attempts were made. A
    re-run, which repeats a part of the work, has its own count of attempts.
    """
    if attempt.status in {"preparing", "running", "succeeded"}:
        return attempt.status
    if attempt.status in config["retry_condition"] and attempt.tries < config["max_attempts"]:
        return "requeuing"
    return "failed"


@dataclass(slots=True)
class Overdue:
    """The reason why the watchdog ends an attempt."""

    status: str
    """The new status of the attempt: `timeout` or `unresponsive`."""
    limit: float
    """The exceeded limit, in seconds."""
    last_sign: float | None
    """The time of the last sign of life, in seconds since the epoch."""


def judge(rollout: RolloutState, now: int, log_time: LogTime | None = None) -> Overdue | None:
    """Return the reason to end the latest attempt of a rollout at the time `now`; None if there is no reason.

    `timeout_seconds` limits the time since the start of the attempt, and heartbeats do not extend it.
    `unresponsive_seconds` limits the time since the last sign of life, or since the start if there was no sign. A limit
    that is reached but not exceeded is no reason. There is never a reason if the rollout is not active.

    Args:
        rollout: the rollout.
        now: the current timestamp of the log.
        log_time: tells how long ago an event was recorded, as this process measured it. If it is None, the timestamps
            are compared with `now`.
    """
    attempt = rollout.latest
    left = _remaining(rollout, now, log_time)
    if left is None or attempt is None:
        return None
    timeout, silence = left
    if timeout is not None and timeout < 0:
        return Overdue("timeout", rollout.config["timeout_seconds"], attempt.sign_of_life)
    if silence is not None and silence < 0:
        return Overdue("unresponsive", rollout.config["unresponsive_seconds"], attempt.sign_of_life)
    return None


def time_left(rollout: RolloutState, now: int, log_time: LogTime) -> int | None:
    """Return the time until the latest attempt exceeds a limit if it stays silent; None if no attempt can be overdue.

    The arguments are those of `judge`.
    """
    return min((left for left in _remaining(rollout, now, log_time) or () if left is not None), default=None)


def _remaining(rollout: RolloutState, now: int, log_time: LogTime | None) -> tuple[int | None, int | None] | None:
    """Return the times left until `timeout_seconds` and `unresponsive_seconds` are exceeded.

    A time is negative if the limit is exceeded, and None without a limit. Return None if no attempt can be overdue.
    """
    attempt = rollout.latest
    if rollout.status not in ACTIVE or attempt is None or (log_time is not None and log_time.is_lost):
        return None
    timeout, silence = rollout.config["timeout_seconds"], rollout.config["unresponsive_seconds"]
    if timeout is not None:
        timeout = _micros(timeout)
        timeout -= now - attempt.start_at if log_time is None else log_time.since(attempt.start_at)
    if silence is not None:
        limit = _micros(silence)
        if log_time is None:
            silence = limit - (now - _silent_since(attempt))
        else:
            stamp, sign = heartbeat_of(attempt)
            silence = limit - log_time.silence(attempt.attempt_id, stamp, sign, attempt.start_at, limit)
    if log_time is not None and (settling := log_time.settling) > 0:
        timeout, silence = (None if left is None else max(left, settling) for left in (timeout, silence))
    return timeout, silence


def check_at(rollout: RolloutState) -> int | None:
    """Return the timestamp after which the latest attempt is overdue if the clock of the log is correct.

    Return None if the attempt has no limit, or if the rollout is not active.
    """
    attempt = rollout.latest
    if rollout.status not in ACTIVE or attempt is None:
        return None
    timeout, silence = rollout.config["timeout_seconds"], rollout.config["unresponsive_seconds"]
    deadlines: list[int] = []
    if timeout is not None:
        deadlines.append(attempt.start_at + _micros(timeout))
    if silence is not None:
        deadlines.append(_silent_since(attempt) + _micros(silence))
    return max(0, min(min(deadlines), _NEVER)) if deadlines else None


def heartbeat_of(attempt: AttemptState) -> tuple[int, int]:
    """Return when the log recorded the last sign of life, and the time that its sender stated.

    Without a sign of life, the start of the attempt counts.
    """
    return attempt.sign_stamped_at or attempt.start_at, _silent_since(attempt)


def _silent_since(attempt: AttemptState) -> int:
    sign = attempt.sign_of_life
    return _micros(sign) if sign else attempt.start_at


def _micros(seconds: float) -> int:
    return round(max(-_NEVER, min(seconds * 1_000_000, _NEVER)))
