"""Two transcripts side by side: what was said alike, and where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from store.dashboard.diff.matching import Work, opcodes
from store.dashboard.diff.texts import MOST_WORK, Segment, diff, is_comparable
from store.dashboard.views.transcript import Entry

Kind = Literal["same", "changed", "only_a", "only_b", "gap"]

MOST_ROWS: Final = 200
MOST_SHOWN: Final = 250_000
"""Characters of all rows together; escaped, one may take six bytes."""
_LONGEST: Final = 4_000
_SHORTEST: Final = 160
_MOST_COMPARED: Final = 60_000
"""Characters of one side that are compared word by word."""
_CONTEXT: Final = 1
_SAYS: Final = frozenset({"message", "tool", "reward", "log", "error"})


@dataclass(frozen=True, slots=True)
class SideMessage:
    """What one side said at one place."""

    who: str
    text: str
    span_id: str | None
    unread: int = 0
    """How many more characters it has."""


@dataclass(frozen=True, slots=True)
class SaidRow:
    """One place in both transcripts; a side that says nothing there has no segments."""

    kind: Kind
    """`gap` stands for sayings that are the same and left out."""
    who_a: str = ""
    who_b: str = ""
    a: list[Segment] = field(default_factory=list[Segment])
    b: list[Segment] = field(default_factory=list[Segment])
    span_a: str | None = None
    span_b: str | None = None
    skipped: int = 0
    is_first: bool = False
    """Whether this is where they part."""


@dataclass(frozen=True, slots=True)
class SaidDiff:
    """The places of two transcripts."""

    rows: list[SaidRow]
    differing: int
    """How many places differ."""
    left_out: int
    """How many rows there are beyond these."""
    is_rough: bool
    """Whether more may be alike than is shown to be."""


def sayings(entries: Sequence[Entry]) -> list[SideMessage]:
    """Return what is compared of a transcript: all but the spans that say nothing."""
    return [_saying(entry) for entry in entries if entry.kind in _SAYS]


def _saying(entry: Entry) -> SideMessage:
    texts = (entry.text, entry.thinking, entry.result, *(call.arguments for call in entry.calls))
    unread = sum(text.length - len(text.shown) for text in texts if text is not None)
    return SideMessage(_who(entry), _text(entry), entry.span_id, unread)


def _who(entry: Entry) -> str:
    return entry.title if entry.kind in {"message", "error"} else f"{entry.kind} {entry.title}"


def _text(entry: Entry) -> str:
    parts = [f"{name}: {value:g}" for name, value in entry.rewards] if entry.kind == "reward" else []
    if entry.thinking is not None:
        parts.append(f"(thinking) {entry.thinking.shown}")
    if entry.text is not None:
        parts.append(entry.text.shown)
    parts += [f"{call.name}({call.arguments.shown})" for call in entry.calls]
    if entry.result is not None:
        parts.append(entry.result.shown)
    return "\n".join(parts)


def compare_sayings(a: Sequence[SideMessage], b: Sequence[SideMessage], *, folds: bool = True) -> SaidDiff:
    """Return the places of two transcripts.

    Args:
        a: one transcript.
        b: the other.
        folds: whether sayings that are the same are left out where none beside them differs.
    """
    rows: list[SaidRow] = []
    differing, budget = 0, _MOST_COMPARED
    work = Work(MOST_WORK)
    keys_a, keys_b = ([(each.who, each.text, each.unread) for each in side] for side in (a, b))
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
    return SaidDiff(list(_bounded(rows[:MOST_ROWS])), differing, max(0, len(rows) - MOST_ROWS), work.is_spent)


def _alike(
    a: Sequence[SideMessage], b: Sequence[SideMessage], *, is_first: bool, is_last: bool, folds: bool
) -> list[SaidRow]:
    same = [
        SaidRow("same", left.who, right.who, _plain(left.text), _plain(right.text), left.span_id, right.span_id)
        for left, right in zip(a, b, strict=True)
    ]
    head, tail = 0 if is_first else _CONTEXT, 0 if is_last else _CONTEXT
    skipped = len(same) - head - tail
    if not folds or skipped < 2:
        return same
    return [*same[:head], SaidRow("gap", skipped=skipped), *same[len(same) - tail :]]


def _differing(
    left: SideMessage | None, right: SideMessage | None, budget: int, work: Work, *, is_first: bool
) -> tuple[SaidRow, int]:
    """Return a row, and how many characters were compared for it."""
    if left is None:
        assert right is not None  # one side has something there
        return SaidRow("only_b", "", right.who, [], _plain(right.text), None, right.span_id, 0, is_first), 0
    if right is None:
        return SaidRow("only_a", left.who, "", _plain(left.text), [], left.span_id, None, 0, is_first), 0
    cost = max(len(left.text), len(right.text))
    if cost <= budget and is_comparable(left.text) and is_comparable(right.text):
        old, new = _compared(left.text, right.text, work)
    else:
        old, new, cost = _plain(left.text), _plain(right.text), 0
    row = SaidRow("changed", left.who, right.who, old, new, left.span_id, right.span_id, 0, is_first)
    return row, cost


def _plain(text: str) -> list[Segment]:
    return [(text, False)]


def _bounded(rows: Sequence[SaidRow]) -> Iterator[SaidRow]:
    """Yield rows with their texts cut: each to what is readable, the last ones to what is left."""
    left = MOST_SHOWN
    for row in rows:
        most = max(min(left // 2, _LONGEST), _SHORTEST)
        a, b = _cut(row.a, most), _cut(row.b, most)
        left -= sum(len(text) for text, _ in (*a, *b))
        yield replace(row, a=a, b=b)


def _cut(segments: Sequence[Segment], most: int) -> list[Segment]:
    shown: list[Segment] = []
    for text, differs in segments:
        if len(text) > most:
            return [*shown, (text[:most], differs), ("…", False)]
        shown.append((text, differs))
        most -= len(text)
    return shown


def _compared(old: str, new: str, work: Work) -> tuple[list[Segment], list[Segment]]:
    left: list[Segment] = []
    right: list[Segment] = []
    for row in diff(old, new, work).rows:
        if row.kind == "gap":
            left.append(("⋯\n", False))
            right.append(("⋯\n", False))
            continue
        # What only one side has differs as a whole.
        left += [(text, differs or row.kind == "removed") for text, differs in row.old]
        right += [(text, differs or row.kind == "added") for text, differs in row.new]
        if row.left is not None:
            left.append(("\n", False))
        if row.right is not None:
            right.append(("\n", False))
    return left or _plain(old), right or _plain(new)
