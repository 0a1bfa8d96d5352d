"""Matching of two sequences with a limit on the work, because matching is slow if many elements repeat in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

EQUAL: Final = "equal"

Opcode = tuple[str, int, int, int, int]
"""An opcode as in difflib: `equal`, `replace`, `delete` or `insert`, then start and end in each sequence."""


@dataclass(slots=True)
class Work:
    """A budget of work."""

    left: int
    """The number of pairs of equal elements that may still be examined."""
    is_spent: bool = False
    """Whether the budget was too small to match everything."""


def opcodes(a: Sequence[Hashable], b: Sequence[Hashable], work: Work) -> list[Opcode]:
    """Return the opcodes that change `a` into `b`.

    If matching takes too much work, one replacement covers all between the equal start and the equal end.
    """
    shortest = min(len(a), len(b))
    head = next((at for at in range(shortest) if a[at] != b[at]), shortest)
    tail = next((at for at in range(shortest - head) if a[-1 - at] != b[-1 - at]), shortest - head)
    ends = len(a) - tail, len(b) - tail
    found: list[Opcode] = [(EQUAL, 0, head, 0, head)] if head else []
    found += _between(a[head : ends[0]], b[head : ends[1]], head, work)
    return [*found, (EQUAL, ends[0], len(a), ends[1], len(b))] if tail else found


def _between(a: Sequence[Hashable], b: Sequence[Hashable], at: int, work: Work) -> Iterator[Opcode]:
    counts = Counter(b)
    pairs = sum(count * counts[each] for each, count in Counter(a).items())
    if pairs <= work.left:
        work.left -= pairs
        for tag, low, high, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            yield tag, at + low, at + high, at + start, at + end
        return
    work.is_spent = True
    yield "replace", at, at + len(a), at, at + len(b)


def grouped(found: Sequence[Opcode], context: int) -> Iterator[list[Opcode]]:
    """Yield groups of differences with `context` equal elements around them, as `difflib` does."""
    group: list[Opcode] = []
    for place, (tag, low, high, start, end) in enumerate(found):
        if tag != EQUAL:
            group.append((tag, low, high, start, end))
            continue
        before = 0 if place == 0 else context
        after = 0 if place == len(found) - 1 else context
        if high - low <= before + after:
            group.append((tag, low, high, start, end))
            continue
        if group:
            yield [*group, (EQUAL, low, low + before, start, start + before)]
        group = [(EQUAL, high - after, high, end - after, end)]
    if any(tag != EQUAL for tag, *_ in group):
        yield group
