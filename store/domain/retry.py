"""The rules of retries and of the watchdog."""

from dataclasses import dataclass

from store.domain.events import Json
from store.domain.rollout import ACTIVE, AttemptState, RolloutState

# Later than any clock, and within 64 bits.
_NEVER = 2**62


def status_after(attempt: AttemptState, config: Json) -> str:
    """Return the status that a rollout gets from its latest attempt.

    A failed, timed out or unresponsive attempt returns the rollout to the queue if the config's `retry_condition` lists
    that status and attempts are left. `max_attempts` limits the attempts of each re-run separately.
    """
    if attempt.status in {"preparing", "running", "succeeded"}:
        return attempt.status
    if attempt.status in config["retry_condition"] and attempt.tries < config["max_attempts"]:
        return "requeuing"
    return "failed"


@dataclass(slots=True)
class Overdue:
    """The reason why an attempt is given up."""

    status: str
    """timeout or unresponsive."""
    limit: float
    """The exceeded limit, in seconds."""
    last_sign: float | None
    """The last sign of life, in seconds since the epoch."""


def judge(rollout: RolloutState, now: int) -> Overdue | None:
    """Return the reason to give up the latest attempt of an active rollout at `now` (µs); None if there is none.

    The timeout counts from the attempt's start, and heartbeats do not extend it. Silence counts from the last sign of
    life, or from the start if there was none. A limit must be exceeded, not only reached.
    """
    attempt = rollout.latest
    if rollout.status not in ACTIVE or attempt is None:
        return None
    timeout, silence = rollout.config["timeout_seconds"], rollout.config["unresponsive_seconds"]
    sign = attempt.sign_of_life
    if timeout is not None and now > attempt.start_at + _micros(timeout):
        return Overdue("timeout", timeout, sign)
    if silence is not None and now > _silent_since(attempt) + _micros(silence):
        return Overdue("unresponsive", silence, sign)
    return None


def check_at(rollout: RolloutState) -> int | None:
    """Return the time in µs at which the watchdog has to check the rollout; None if it never has to."""
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


def _silent_since(attempt: AttemptState) -> int:
    sign = attempt.sign_of_life
    return _micros(sign) if sign else attempt.start_at


def _micros(seconds: float) -> int:
    return round(max(-_NEVER, min(seconds * 1_000_000, _NEVER)))
