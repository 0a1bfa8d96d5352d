"""Comparison of two texts: removed, added and changed lines, and the changed words within lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from store.dashboard.diff.matching import Work, grouped, opcodes

MOST_LINES: Final = 3_000
"""The maximum number of lines of each text."""
MOST_CHARACTERS: Final = 300_000
"""The maximum number of characters of each text."""
MOST_ROWS: Final = 2_000
"""The maximum number of rows of a comparison."""
MOST_WORK: Final = 2_000_000
"""The default budget for matching, which is used up in about two seconds."""
_CONTEXT: Final = 3
_LONGEST_LINE: Final = 2_000
"""The maximum number of characters of lines whose words are compared."""
_MOST_PAIRS: Final = 200
"""The number of pairs of lines after which the words of lines are no longer compared."""

_LEAST_SHARE: Final = 0.4
"""The least share of common words, by characters, with which the different words of two lines are marked."""

Segment = tuple[str, bool]
"""A part of a line, and whether it differs from the line of the other text."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One row of the comparison: a line of the old text on the left, a line of the new text on the right, or both."""

    kind: Literal["same", "changed", "removed", "added", "gap"]
    """`gap` stands for omitted equal lines."""
    left: int | None
    """The number of the old line, from 1; None without an old line."""
    right: int | None
    """The number of the new line, from 1; None without a new line."""
    old: list[Segment]
    """The parts of the old line."""
    new: list[Segment]
    """The parts of the new line."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two texts."""

    rows: list[DiffRow]
    removed: int
    """The number of lines of the old text that are missing in the new text."""
    added: int
    """The number of lines of the new text that are missing in the old text."""
    is_cut: bool
    """Whether rows were omitted."""
    is_rough: bool
    """Whether equal parts may be shown as different, because matching would have taken too long."""


def is_comparable(text: str) -> bool:
    """Return whether a text is small enough for `diff`."""
    return len(text) <= MOST_CHARACTERS and len(text.splitlines()) < MOST_LINES


def diff(old: str, new: str, work: Work | None = None) -> Diff:
    """Compare two texts line by line. The result contains up to three equal lines around each difference.

    The caller must check both texts with `is_comparable` first.

    Args:
        old: the old text.
        new: the new text.
        work: the budget for matching, which this call reduces; None for a budget of `MOST_WORK`.
    """
    budget = Work(MOST_WORK if work is None else work.left)
    before, after = old.splitlines(), new.splitlines()
    rows: list[DiffRow] = []
    removed = added = pairs = 0
    for group in grouped(opcodes(before, after, budget), _CONTEXT):
        if rows or group[0][1] or group[0][3]:
            rows.append(DiffRow("gap", None, None, [], []))
        for tag, low, high, start, end in group:
            if tag == "equal":
                rows += [_same(low + index, start + index, before[low + index]) for index in range(high - low)]
                continue
            removed += high - low
            added += end - start
            rows += _block(before, after, (low, high), (start, end), budget if pairs < _MOST_PAIRS else None)
            pairs += min(high - low, end - start)
        if len(rows) > MOST_ROWS:
            break
    if work is not None:
        work.left = budget.left
        work.is_spent |= budget.is_spent
    return Diff(rows[:MOST_ROWS], removed, added, len(rows) > MOST_ROWS, budget.is_spent)


def _same(left: int, right: int, line: str) -> DiffRow:
    return DiffRow("same", left + 1, right + 1, [(line, False)], [(line, False)])


def _block(
    before: Sequence[str],
    after: Sequence[str],
    old_range: tuple[int, int],
    new_range: tuple[int, int],
    words: Work | None,
) -> list[DiffRow]:
    """Return the rows for old lines that were replaced by new lines.

    Pairs of an old and a new line come first, and then the remaining lines of the text that has more lines here.
    """
    paired = min(old_range[1] - old_range[0], new_range[1] - new_range[0])
    rows: list[DiffRow] = []
    for index in range(paired):
        left, right = old_range[0] + index, new_range[0] + index
        old, new = _words(before[left], after[right], words)
        rows.append(DiffRow("changed", left + 1, right + 1, old, new))
    rows += [
        DiffRow("removed", line + 1, None, [(before[line], False)], [])
        for line in range(old_range[0] + paired, old_range[1])
    ]
    rows += [
        DiffRow("added", None, line + 1, [], [(after[line], False)])
        for line in range(new_range[0] + paired, new_range[1])
    ]
    return rows


def _words(old: str, new: str, work: Work | None) -> tuple[list[Segment], list[Segment]]:
    if work is None or max(len(old), len(new)) > _LONGEST_LINE:
        return [(old, True)], [(new, True)]
    before, after = re.findall(r"\w+|\s+|.", old), re.findall(r"\w+|\s+|.", new)
    left: list[Segment] = []
    right: list[Segment] = []
    common = 0
    for tag, low, high, start, end in opcodes(before, after, work):
        if tag == "equal":
            common += sum(len(word) for word in before[low:high] if not word.isspace())
        if high > low:
            left.append(("".join(before[low:high]), tag != "equal"))
        if end > start:
            right.append(("".join(after[start:end]), tag != "equal"))
    length = max(sum(len(word) for word in words if not word.isspace()) for words in (before, after))
    if common < _LEAST_SHARE * length:
        return [(old, True)], [(new, True)]
    return left, right
