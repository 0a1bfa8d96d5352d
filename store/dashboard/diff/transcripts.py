"""Comparison of two transcripts, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from store.dashboard.diff.matching import Work, opcodes
from store.dashboard.diff.texts import MOST_WORK, Segment, diff, is_comparable

Kind = Literal["same", "changed", "only_a", "only_b", "gap"]

MOST_ROWS: Final = 200
MOST_SHOWN: Final = 250_000
"""The maximum number of characters of all rows together. In HTML, an escaped character may take six bytes."""
_LONGEST: Final = 4_000
_SHORTEST: Final = 160
_MOST_COMPARED: Final = 60_000
"""The maximum number of characters of each transcript that are compared word by word."""
_CONTEXT: Final = 1


@dataclass(frozen=True, slots=True)
class SideMessage:
    """A message, tool call, reward, log line or error of one of the two transcripts."""

    who: str
    """The role of a message or the type of an error; otherwise, the kind of entry and its title."""
    text: str
    span_id: str | None
    unread: int = 0
    """The number of characters by which `text` is truncated."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row of the comparison: a message of transcript a, a message of transcript b, or both.

    The segments of a missing message are empty.
    """

    kind: Kind
    """`gap` stands for omitted equal messages."""
    who_a: str = ""
    who_b: str = ""
    a: list[Segment] = field(default_factory=list[Segment])
    b: list[Segment] = field(default_factory=list[Segment])
    span_a: str | None = None
    span_b: str | None = None
    skipped: int = 0
    """The number of equal messages that a `gap` stands for."""
    is_first: bool = False
    """Whether this is the first difference."""


@dataclass(frozen=True, slots=True)
class TranscriptDiff:
    """The result of comparing two transcripts."""

    rows: list[MessageRow]
    differing: int
    """The number of rows that differ."""
    left_out: int
    """The number of omitted rows."""
    is_rough: bool
    """Whether equal messages may be shown as different, because matching would have taken too long."""


def compare_messages(a: Sequence[SideMessage], b: Sequence[SideMessage], *, folds: bool = True) -> TranscriptDiff:
    """Return the comparison of two transcripts.

    Args:
        a: the first transcript.
        b: the second transcript.
        folds: whether equal messages that are not next to a difference are omitted.
    """
    rows: list[MessageRow] = []
    differing, budget = 0, _MOST_COMPARED
    work = Work(MOST_WORK)
    keys_a, keys_b = ([(message.who, message.text, message.unread) for message in side] for side in (a, b))
    for tag, low, high, start, end in opcodes(keys_a, keys_b, work):
        if tag == "equal":
            rows += _alike(
                a[low:high], b[start:end], is_first=not rows, is_last=(high, end) == (len(a), len(b)), folds=folds
            )
            continue
        for offset in range(max(high - low, end - start)):
            left = a[low + offset] if low + offset < high else None
            right = b[start + offset] if start + offset < end else None
            row, cost = _differing(left, right, budget, work, is_first=not differing)
            rows.append(row)
            differing += 1
            budget -= cost
    return TranscriptDiff(list(_bounded(rows[:MOST_ROWS])), differing, max(0, len(rows) - MOST_ROWS), work.is_spent)


def _alike(
    a: Sequence[SideMessage], b: Sequence[SideMessage], *, is_first: bool, is_last: bool, folds: bool
) -> list[MessageRow]:
    same = [
        MessageRow("same", left.who, right.who, _plain(left.text), _plain(right.text), left.span_id, right.span_id)
        for left, right in zip(a, b, strict=True)
    ]
    head, tail = 0 if is_first else _CONTEXT, 0 if is_last else _CONTEXT
    skipped = len(same) - head - tail
    if not folds or skipped < 2:
        return same
    return [*same[:head], MessageRow("gap", skipped=skipped), *same[len(same) - tail :]]


def _differing(
    left: SideMessage | None, right: SideMessage | None, budget: int, work: Work, *, is_first: bool
) -> tuple[MessageRow, int]:
    """Return the row for two messages that differ, and the number of characters that were compared word by word.

    One of the messages may be missing.
    """
    if left is None:
        assert right is not None  # at least one side has a message
        return MessageRow("only_b", "", right.who, [], _plain(right.text), None, right.span_id, 0, is_first), 0
    if right is None:
        return MessageRow("only_a", left.who, "", _plain(left.text), [], left.span_id, None, 0, is_first), 0
    cost = max(len(left.text), len(right.text))
    if cost <= budget and is_comparable(left.text) and is_comparable(right.text):
        old, new = _compared(left.text, right.text, work)
    else:
        old, new, cost = _plain(left.text), _plain(right.text), 0
    row = MessageRow("changed", left.who, right.who, old, new, left.span_id, right.span_id, 0, is_first)
    return row, cost


def _plain(text: str) -> list[Segment]:
    return [(text, False)]


def _bounded(rows: Sequence[MessageRow]) -> Iterator[MessageRow]:
    """Yield the rows with texts that are truncated so that all rows together have about `MOST_SHOWN` characters."""
    left = MOST_SHOWN
    for row in rows:
        most = max(min(left // 2, _LONGEST), _SHORTEST)
        a, b = _cut(row.a, most), _cut(row.b, most)
        left -= sum(len(text) for text, _ in (*a, *b))
        yield replace(row, a=a, b=b)


def _cut(segments: Sequence[Segment], most: int) -> list[Segment]:
    head: list[Segment] = []
    for text, differs in segments:
        if len(text) > most:
            return [*head, (text[:most], differs), ("…", False)]
        head.append((text, differs))
        most -= len(text)
    return head


def _compared(old: str, new: str, work: Work) -> tuple[list[Segment], list[Segment]]:
    left: list[Segment] = []
    right: list[Segment] = []
    for row in diff(old, new, work).rows:
        if row.kind == "gap":
            left.append(("⋯\n", False))
            right.append(("⋯\n", False))
            continue
        # If a line exists on only one side, the whole line is marked as different.
        left += [(text, differs or row.kind == "removed") for text, differs in row.old]
        right += [(text, differs or row.kind == "added") for text, differs in row.new]
        if row.left is not None:
            left.append(("\n", False))
        if row.right is not None:
            right.append(("\n", False))
    return left or _plain(old), right or _plain(new)
