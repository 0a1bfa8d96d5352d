"""Failed attempts, read and put together by what they said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from store.db.reports.failure_rows import FailedAttempt

_VARIES: Final = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)?", re.IGNORECASE)
"""What differs between messages that say the same: numbers, addresses, ids."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """An attempt that came to nothing, and what it said."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    status: str
    worker_id: str | None
    at: int
    """When it was last heard of, in µs."""
    type: str | None
    """The kind of error; None where no reason was given."""
    message: str
    span_id: str | None


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """Failures with the same message, but for the numbers and ids in it."""

    message: str
    """With `#` for what differs."""
    count: int
    first_at: int
    last_at: int
    newest: AttemptFailure


@dataclass(frozen=True, slots=True)
class Kind:
    """Failures of one kind: those that ended with the same status and the same type of error."""

    status: str
    type: str | None
    count: int
    rollouts: int
    """How many rollouts they belong to."""
    workers: int
    first_at: int
    last_at: int
    newest: AttemptFailure
    sayings: Sequence[FailureMessage]
    """The most frequent first."""
    left_out: int
    """How many other messages there are."""


def read(attempt: FailedAttempt) -> AttemptFailure:
    """Return a failed attempt with what its error says."""
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
    """Return a message with `#` for its numbers and ids."""
    return _VARIES.sub("#", message)


def kinds(failures: Iterable[AttemptFailure], most_sayings: int) -> list[Kind]:
    """Return failures, which come newest first, by their kinds: the most frequent kind first."""
    found: dict[tuple[str, str | None], list[AttemptFailure]] = {}
    for failure in failures:
        found.setdefault((failure.status, failure.type), []).append(failure)
    made = [_kind(status, error_type, members, most_sayings) for (status, error_type), members in found.items()]
    return sorted(made, key=lambda kind: (-kind.count, -kind.last_at))


def _kind(status: str, error_type: str | None, members: list[AttemptFailure], most_sayings: int) -> Kind:
    by_saying: dict[str, list[AttemptFailure]] = {}
    for member in members:
        by_saying.setdefault(alike(member.message), []).append(member)
    sayings = sorted((_saying(text, said) for text, said in by_saying.items()), key=lambda saying: -saying.count)
    return Kind(
        status,
        error_type,
        len(members),
        len({member.rollout_id for member in members}),
        len({member.worker_id for member in members if member.worker_id}),
        min(member.at for member in members),
        max(member.at for member in members),
        members[0],
        sayings[:most_sayings],
        max(0, len(sayings) - most_sayings),
    )


def _saying(message: str, members: list[AttemptFailure]) -> FailureMessage:
    times = [member.at for member in members]
    # A message that is there once is shown as it was.
    shown = members[0].message if len(members) == 1 else message
    return FailureMessage(shown, len(members), min(times), max(times), members[0])
