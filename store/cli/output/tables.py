"""Tables of rollouts, attempts, spans and other objects: their columns, and how tables are printed.

A terminal gets aligned tables with ages such as `3 min ago`. Another program that reads the output gets tab-separated
lines with exact values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from store import semconv
from store.cli.output.printing import STYLES, compact, console, fitted, is_terminal, line, printable, width_of
from store.cli.output.times import ago, duration, local, utc
from store.narration.events import reward_text

if TYPE_CHECKING:
    from store.models import Attempt, Difference, ResourcesUpdate, Rollout, Span
    from store.models.rollouts import ObservedWorker

T = TypeVar("T")
Now = float | None
"""The current time in seconds since 1970, from which ages are computed.

None means that the rows show the store as it was in the past. Then times are not shown as ages.
"""

_GAP: Final = "  "
_LEAST: Final = 12
_OPEN_ATTEMPT: Final = frozenset({"preparing", "running"})


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: its exact text for programs, and optionally a different text for a terminal."""

    title: str
    exact: Callable[[T], str]
    """Returns the text for programs."""
    terminal_text: Callable[[T, Now], str] | None = None
    """Returns the text for a terminal. None means that a terminal also gets the exact text."""
    terminal_title: str | None = None
    """The title on a terminal; None for `title`."""
    is_status: bool = False
    """Whether a terminal shows the text in the style of the status that it names."""
    right: bool = False
    """Whether a terminal aligns the text to the right."""
    shrinks: bool = False
    """Whether the column is truncated if the terminal is too narrow."""


def print_table(columns: Sequence[Column[T]], rows: Sequence[T], *, is_past: bool = False, indent: str = "") -> None:
    """Print a table: aligned on a terminal, otherwise tab-separated.

    Args:
        columns: the columns of the table.
        rows: one object per row.
        is_past: whether the rows show the store as it was in the past; then times are not shown as ages.
        indent: the text before each line on a terminal.
    """
    if is_terminal():
        _print_aligned(columns, rows, None if is_past else time.time(), indent)
        return
    line("\t".join(column.title for column in columns))
    for row in rows:
        line("\t".join(printable(column.exact(row)) for column in columns))


def _print_aligned(columns: Sequence[Column[T]], rows: Sequence[T], now: Now, indent: str) -> None:
    from rich.text import Text

    cells = [
        [printable(column.terminal_text(row, now) if column.terminal_text else column.exact(row)) for column in columns]
        for row in rows
    ]
    used = [index for index, _ in enumerate(columns) if not rows or any(row[index] for row in cells)]
    heads = [column.terminal_title or column.title for column in columns]
    widths = {index: max([width_of(heads[index]), *(width_of(row[index]) for row in cells)]) for index in used}
    terminal = console()
    _shrink(widths, [index for index in used if columns[index].shrinks], terminal.width - len(indent))
    titles = Text(indent, end="")
    for index in used:
        titles.append(_padded(heads[index], widths[index], right=columns[index].right) + _GAP, "dim")
    titles.rstrip()
    terminal.print(titles)
    for row in cells:
        text = Text(indent, end="")
        for index in used:
            cell = fitted(row[index], widths[index])
            style = STYLES.get(cell) if columns[index].is_status else None
            text.append(_padded(cell, widths[index], right=columns[index].right) + _GAP, style)
        text.rstrip()
        terminal.print(text)


def _shrink(widths: dict[int, int], shrinking: Sequence[int], available: int) -> None:
    """Reduce the widths of the columns in `shrinking`, the widest column first, until the table fits."""
    excess = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - available
    while excess > 0:
        widest = max((index for index in shrinking if widths[index] > _LEAST), key=widths.__getitem__, default=None)
        if widest is None:
            return
        widths[widest] -= 1
        excess -= 1


def _padded(text: str, width: int, *, right: bool) -> str:
    gap = " " * max(0, width - width_of(text))
    return gap + text if right else text + gap


def time_column(title: str, read: Callable[[T], float | None]) -> Column[T]:
    """Return a column of times. A terminal gets ages, or local times in tables of the past; otherwise, times in UTC."""
    return Column(
        title, lambda row: utc(read(row)), lambda row, now: local(read(row)) if now is None else ago(read(row), now)
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")


def _span_seconds(span: Span) -> float | None:
    return None if span.start_time is None or span.end_time is None else span.end_time - span.start_time


def _attempt_seconds(attempt: Attempt) -> float | None:
    return None if attempt.end_time is None else attempt.end_time - attempt.start_time


def _exact_seconds(attempt: Attempt | None) -> str:
    return "" if attempt is None else _number(_attempt_seconds(attempt))


def _took(attempt: Attempt | None, now: Now) -> str:
    """Return the duration of an attempt as text. For a running attempt, this is the duration until now."""
    if attempt is None:
        return ""
    seconds = _attempt_seconds(attempt)
    if seconds is not None:
        return duration(seconds)
    if now is None or attempt.status not in _OPEN_ATTEMPT:
        return ""
    return f"{duration(max(0.0, now - attempt.start_time))} …"


def rewards_of(span: Span) -> list[tuple[str, float]]:
    """Return the rewards of a span with their names, the primary reward first."""
    return list(semconv.summarise(span.name, span.attributes).rewards)


def _latest(rollout: Rollout) -> Attempt | None:
    from store.models import AttemptedRollout

    return rollout.attempt if isinstance(rollout, AttemptedRollout) else None


def _latest_number(rollout: Rollout) -> str:
    attempt = _latest(rollout)
    return str(attempt.sequence_id) if attempt else ""


def _latest_worker(rollout: Rollout) -> str:
    attempt = _latest(rollout)
    return (attempt.worker_id or "") if attempt else ""


def _kinds(update: ResourcesUpdate) -> str:
    return ", ".join(f"{name} ({resource.resource_type})" for name, resource in update.resources.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


ROLLOUTS: Final[tuple[Column[Rollout], ...]] = (
    Column("rollout", lambda rollout: rollout.rollout_id),
    Column("status", lambda rollout: rollout.status, is_status=True),
    Column("mode", lambda rollout: rollout.mode or ""),
    Column("attempt", _latest_number, right=True),
    Column("worker", _latest_worker),
    time_column("created", lambda rollout: rollout.start_time),
    # The duration of the latest attempt, without the time in the queue.
    Column(
        "seconds",
        lambda rollout: _exact_seconds(_latest(rollout)),
        lambda rollout, now: _took(_latest(rollout), now),
        "took",
        right=True,
    ),
    Column("reward", lambda rollout: "" if rollout.reward is None else f"{rollout.reward:.10g}", right=True),
    Column("resources", lambda rollout: rollout.resources_id or ""),
    Column("input", lambda rollout: compact(rollout.input), shrinks=True),
)

ATTEMPTS: Final[tuple[Column[Attempt], ...]] = (
    Column("#", lambda attempt: str(attempt.sequence_id), right=True),
    Column("attempt", lambda attempt: attempt.attempt_id),
    Column("status", lambda attempt: attempt.status, is_status=True),
    Column("worker", lambda attempt: attempt.worker_id or ""),
    time_column("started", lambda attempt: attempt.start_time),
    Column(
        "seconds",
        _exact_seconds,
        _took,
        "took",
        right=True,
    ),
    time_column("heartbeat", lambda attempt: attempt.last_heartbeat_time),
    Column("metadata", lambda attempt: compact(attempt.metadata) if attempt.metadata else "", shrinks=True),
)

SPANS: Final[tuple[Column[Span], ...]] = (
    Column("#", lambda span: str(span.sequence_id), right=True),
    Column("span", lambda span: span.span_id),
    Column("attempt", lambda span: span.attempt_id),
    Column("name", lambda span: span.name, shrinks=True),
    Column("status", lambda span: span.status.status_code, is_status=True),
    time_column("started", lambda span: span.start_time),
    Column(
        "seconds",
        lambda span: _number(_span_seconds(span)),
        lambda span, _: "" if _span_seconds(span) is None else duration(_span_seconds(span) or 0.0),
        "took",
        right=True,
    ),
    Column("parent", lambda span: span.parent_id or ""),
    Column("rewards", lambda span: ", ".join(reward_text(name, value) for name, value in rewards_of(span))),
)

RESOURCES: Final[tuple[Column[ResourcesUpdate], ...]] = (
    Column("resources", lambda update: update.resources_id),
    Column("version", lambda update: str(update.version), right=True),
    time_column("published", lambda update: update.create_time),
    time_column("updated", lambda update: update.update_time),
    Column("holds", _kinds, shrinks=True),
)

WORKERS: Final[tuple[Column[ObservedWorker], ...]] = (
    Column("worker", lambda worker: worker.worker_id),
    Column("status", lambda worker: worker.state, is_status=True),
    Column("rollout", lambda worker: worker.current_rollout_id or ""),
    Column("attempt", lambda worker: worker.current_attempt_id or ""),
    time_column("heartbeat", lambda worker: worker.last_heartbeat_time),
    time_column("asked", lambda worker: worker.last_dequeue_time),
    time_column("busy since", lambda worker: worker.last_busy_time),
    time_column("idle since", lambda worker: worker.last_idle_time),
    Column("stats", lambda worker: compact(worker.heartbeat_stats) if worker.heartbeat_stats else "", shrinks=True),
)

DIFFERENCES: Final[tuple[Column[Difference], ...]] = (
    Column("check", lambda difference: difference.check),
    Column("key", lambda difference: difference.key),
    Column("field", lambda difference: difference.field or ""),
    Column("expected", lambda difference: _value(difference.expected), shrinks=True),
    Column("found", lambda difference: _value(difference.found), shrinks=True),
)
