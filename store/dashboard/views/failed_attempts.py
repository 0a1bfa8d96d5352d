"""Failed attempts, grouped by status and error type, and in each group by message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from store.dashboard.views.figure_cache import FigureCache
from store.db.dialect import ReadSession
from store.db.queries.failures import FailedAttempt, failed_attempts, failed_counts, failed_span_names
from store.db.queries.scan import spans_with

_VARIES: Final = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)?", re.IGNORECASE)
"""The parts in which otherwise equal messages differ: numbers, addresses, ids."""

MOST: Final = 10_000
"""The maximum number of failed attempts that pages read. If there are more, they read the newest."""
MOST_IDS: Final = 100
"""The maximum number of rollouts that a link names by their ids."""


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
    step: int | None = None
    """The training step of the rollout."""
    span_name: str | None = None
    """The name of the span in which the attempt failed; None if it is not known."""


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
    rollouts: int
    """The number of rollouts with such failures."""
    rollout_ids: Sequence[str]
    """The ids of these rollouts, the newest failure first; empty if there are more than `MOST_IDS`."""
    spans: dict[str, int]
    """The number of these failures by the name of the span in which they happened, the most frequent name first."""
    steps: dict[int, int]
    """The number of these failures by training step, sorted by step."""


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
    spans: dict[str, int]
    """The number of these failures by the name of the span in which they happened, the most frequent name first."""
    steps: dict[int, int]
    """The number of these failures by training step, sorted by step."""


def read(attempt: FailedAttempt, error: dict[str, Any], span_name: str | None) -> AttemptFailure:
    """Return a failed attempt with its decoded error and the name of the span in which it failed."""
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
        attempt.step,
        span_name,
    )


@dataclass(frozen=True, slots=True)
class _BlockFailure:
    """A failure with the block of its rollout, and the position by which failures are sorted."""

    block: int
    position: int
    failure: AttemptFailure


async def newest_failures(session: ReadSession, cache: FigureCache) -> tuple[list[AttemptFailure], int]:
    """Return the newest failed attempts, at most `MOST`, newest first, and the number of all.

    A failure has the name of the span in which it happened: that of the error or the last span with an error status.
    """
    total = sum(part.attempts for part in await cache.rows(session, "failed attempts", failed_counts))
    # With more than `MOST` failures, the rows of a block would depend on the failures in other blocks.
    failures = await (cache.read if total > MOST else cache.rows)(session, ("failures", total > MOST), _newest)
    return [entry.failure for entry in sorted(failures, key=lambda entry: -entry.position)], total


async def _newest(session: ReadSession, block: int | None = None) -> list[_BlockFailure]:
    attempts = await failed_attempts(session, block, limit=MOST)
    errors: list[dict[str, Any]] = [orjson.loads(attempt.error) if attempt.error else {} for attempt in attempts]
    # The names are read before the failures are built, because copies of thousands of failures take time.
    places = [(attempt.rollout_id, attempt.attempt_id) for attempt in attempts]
    span_ids: list[str | None] = [error.get("span_id") for error in errors]
    keys = [(*place, span_id) for place, span_id in zip(places, span_ids, strict=True) if span_id]
    names = {(row.rollout_id, row.attempt_id, row.span_id): row.name for row in await spans_with(session, keys)}
    unnamed = [rollout_id for (rollout_id, _), span_id in zip(places, span_ids, strict=True) if not span_id]
    last = await failed_span_names(session, unnamed) if unnamed else {}
    return [
        _BlockFailure(
            attempt.block,
            attempt.last_position,
            read(attempt, error, names.get((*place, span_id or "")) or last.get(place)),
        )
        for attempt, error, place, span_id in zip(attempts, errors, places, span_ids, strict=True)
    ]


@lru_cache(maxsize=4096)
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


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Failures with the same status, error type and message."""

    status: str
    type: str | None
    message: str
    count: int
    rollouts: int
    """The number of rollouts with such failures."""
    rollout_ids: Sequence[str]
    """The ids of these rollouts; empty if there are more than `MOST_IDS`."""
    spans: dict[str, int]
    """The number of these failures by the name of the span in which they happened."""
    steps: dict[int, int]
    """The number of these failures by training step."""
    newest: AttemptFailure
    """The newest of these failures."""


def rows(groups: Iterable[Kind]) -> list[FailureRow]:
    """Return the messages of all kinds, the most frequent message first."""
    messages = [
        FailureRow(
            kind.status,
            kind.type,
            saying.message,
            saying.count,
            saying.rollouts,
            saying.rollout_ids,
            saying.spans,
            saying.steps,
            saying.newest,
        )
        for kind in groups
        for saying in kind.sayings
    ]
    return sorted(messages, key=lambda row: -row.count)


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
        _spans(members),
        _steps(members),
    )


def _spans(members: Iterable[AttemptFailure]) -> dict[str, int]:
    return dict(Counter(member.span_name for member in members if member.span_name).most_common())


def _steps(members: Iterable[AttemptFailure]) -> dict[int, int]:
    return dict(sorted(Counter(member.step for member in members if member.step is not None).items()))


def _message(message: str, members: list[AttemptFailure]) -> FailureMessage:
    times = [member.at for member in members]
    # A message that occurs once is shown unchanged.
    text = members[0].message if len(members) == 1 else message
    rollout_ids = list(dict.fromkeys(member.rollout_id for member in members))
    return FailureMessage(
        text,
        len(members),
        min(times),
        max(times),
        members[0],
        len(rollout_ids),
        rollout_ids if len(rollout_ids) <= MOST_IDS else [],
        _spans(members),
        _steps(members),
    )
