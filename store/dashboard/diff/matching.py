"""Matching of two sequences with a limit on the work.

Matching without a limit would be slow if the same elements occur many times in both sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

EQUAL: Final = "equal"

Opcode = tuple[str, int, int, int, int]
"""An opcode as in `difflib`.

The string is `equal`, `replace`, `delete` or `insert`. The integers are the start and the end of the range in the first
sequence, and then in the second sequence.
"""


@dataclass(slots=True)
class Work:
    """The budget for matching."""

    left: int
    """The number of pairs of equal elements that may still be examined."""
    is_spent: bool = False
    """Whether a part was not matched because it needed more than the rest of the budget."""


def opcodes(a: Sequence[Hashable], b: Sequence[Hashable], work: Work) -> list[Opcode]:
    """Return the opcodes that change `a` into `b`.

    The equal elements at the start and at the end of the sequences are always found. If matching the elements between
    them needs more work than `work` allows, these elements are returned as one `replace`.
    """
    shortest = min(len(a), len(b))
    head = next((at for at in range(shortest) if a[at] != b[at]), shortest)
    tail = next((at for at in range(shortest - head) if a[-1 - at] != b[-1 - at]), shortest - head)
    ends = len(a) - tail, len(b) - tail
    codes: list[Opcode] = [(EQUAL, 0, head, 0, head)] if head else []
    codes += _between(a[head : ends[0]], b[head : ends[1]], head, work)
    return [*codes, (EQUAL, ends[0], len(a), ends[1], len(b))] if tail else codes


def _between(a: Sequence[Hashable], b: Sequence[Hashable], offset: int, work: Work) -> Iterator[Opcode]:
    counts = Counter(b)
    pairs = sum(count * counts[element] for element, count in Counter(a).items())
    if pairs <= work.left:
        work.left -= pairs
        for tag, low, high, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            yield tag, offset + low, offset + high, offset + start, offset + end
        return
    work.is_spent = True
    yield "replace", offset, offset + len(a), offset, offset + len(b)


def grouped(codes: Sequence[Opcode], context: int) -> Iterator[list[Opcode]]:
    """Yield the differences in groups, each with up to `context` equal elements before and after, as `difflib` does."""
    group: list[Opcode] = []
    for index, (tag, low, high, start, end) in enumerate(codes):
        if tag != EQUAL:
            group.append((tag, low, high, start, end))
            continue
        before = 0 if index == 0 else context
        after = 0 if index == len(codes) - 1 else context
        if high - low <= before + after:
            group.append((tag, low, high, start, end))
            continue
        if group:
            yield [*group, (EQUAL, low, low + before, start, start + before)]
        group = [(EQUAL, high - after, high, end - after, end)]
    if any(tag != EQUAL for tag, *_ in group):
        yield group
