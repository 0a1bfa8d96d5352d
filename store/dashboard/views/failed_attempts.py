"""Failed attempts, grouped by status and error type, and in each group by message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.db.queries.failures import FailedAttempt

_VARIES: Final = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)?", re.IGNORECASE)
"""The parts in which otherwise equal messages differ: numbers, addresses, ids."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """A failed attempt and its error."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    status: str
    worker_id: str | None
    at: int
    """The time at which the attempt failed or was last active, in µs since the epoch."""
    type: str | None
    """The error type; None if no error was reported."""
    message: str
    span_id: str | None


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """Failures whose messages are equal except for numbers and ids."""

    message: str
    """The message with `#` in place of numbers and ids."""
    count: int
    first_at: int
    last_at: int
    newest: AttemptFailure
    """The newest of these failures."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Failures with the same status and the same error type."""

    status: str
    type: str | None
    count: int
    rollouts: int
    """The number of rollouts with such failures."""
    workers: int
    """The number of workers with such failures."""
    first_at: int
    last_at: int
    newest: AttemptFailure
    """The newest of these failures."""
    sayings: Sequence[FailureMessage]
    """The messages of these failures, the most frequent message first."""
    left_out: int
    """The number of further messages, which `sayings` does not contain."""


def read(attempt: FailedAttempt) -> AttemptFailure:
    """Return a failed attempt with its decoded error."""
    error: dict[str, Any] = orjson.loads(attempt.error) if attempt.error else {}
    return AttemptFailure(
        attempt.rollout_id,
        attempt.attempt_id,
        attempt.sequence_id,
        attempt.status,
        attempt.worker_id,
        attempt.at,
        error.get("type") or None,
        error.get("message") or "",
        error.get("span_id"),
    )


def alike(message: str) -> str:
    """Return a message with `#` in place of numbers and ids."""
    return _VARIES.sub("#", message)


def kinds(failures: Iterable[AttemptFailure], most_messages: int) -> list[Kind]:
    """Group failures by status and error type, and return the groups, the largest group first.

    Args:
        failures: the failures, which the caller must pass newest first.
        most_messages: the maximum number of messages in each group.
    """
    groups: dict[tuple[str, str | None], list[AttemptFailure]] = {}
    for failure in failures:
        groups.setdefault((failure.status, failure.type), []).append(failure)
    ordered = [_kind(status, error_type, members, most_messages) for (status, error_type), members in groups.items()]
    return sorted(ordered, key=lambda kind: (-kind.count, -kind.last_at))


def _kind(status: str, error_type: str | None, members: list[AttemptFailure], most_messages: int) -> Kind:
    by_message: dict[str, list[AttemptFailure]] = {}
    for member in members:
        by_message.setdefault(alike(member.message), []).append(member)
    messages = sorted((_message(text, same) for text, same in by_message.items()), key=lambda message: -message.count)
    return Kind(
        status,
        error_type,
        len(members),
        len({member.rollout_id for member in members}),
        len({member.worker_id for member in members if member.worker_id}),
        min(member.at for member in members),
        max(member.at for member in members),
        members[0],
        messages[:most_messages],
        max(0, len(messages) - most_messages),
    )


def _message(message: str, members: list[AttemptFailure]) -> FailureMessage:
    times = [member.at for member in members]
    # A message that occurs once is shown unchanged.
    text = members[0].message if len(members) == 1 else message
    return FailureMessage(text, len(members), min(times), max(times), members[0])
