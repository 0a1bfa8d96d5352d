"""The comparison page: the fields, transcripts and spans of two rollouts or attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from store.dashboard.diff.span_paths import PathRow, compare_paths
from store.dashboard.diff.transcripts import SideMessage, TranscriptDiff, compare_messages
from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.transcripts.side_messages import messages
from store.dashboard.transcripts.turns import blocks_of
from store.dashboard.views import compared
from store.dashboard.views.formats import compact, duration, pretty
from store.dashboard.views.transcript import transcript
from store.db.queries.compared_rollouts import compared_rows
from store.db.queries.groups import group_row
from store.db.queries.rollout_list import RolloutListQuery
from store.db.queries.waterfall import SpanRow, SpanRowQuery, span_rows
from store.errors import Invalid, NotFound
from store.models import Attempt, Rollout, Span
from store.models.queries import SpanQuery
from store.semconv import GROUP_KEY, STEP_KEY

pages = Pages()

_LEAST_DIFFERENCE: Final = 0.0005
"""The least difference of two rewards that three decimals show."""
MOST_SIDES: Final = 8
"""The maximum number of rollouts whose fields are compared. Transcripts and spans are those of the first two."""
MOST_SPANS: Final = 10_000
"""The maximum number of spans of each side that are compared by name."""
MOST_READ: Final = 300
"""The maximum number of spans of each side that are read for the transcripts."""
MOST_MESSAGES: Final = 5_000
"""The maximum number of messages of each side that are compared."""
MOST_PATHS: Final = 500
"""The maximum number of paths that the page shows."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    selector: str
    """The value of the parameter that selects this side."""
    rollout: Rollout
    attempt: Attempt | None
    rows: Sequence[SpanRow]
    """The spans without payload, which are compared by path."""
    spans: Sequence[Span]
    """The spans with payload, from which the transcript is made."""
    total: int
    """The number of all spans of the attempt."""
    resources_version: int | None


@dataclass(frozen=True, slots=True)
class ComparedField:
    """A field of both sides."""

    name: str
    kind: str
    """The format of the field's values: status, number, count, duration or text."""
    a: Any
    b: Any
    others: Sequence[Any] = ()
    """The values of the sides after the first two."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of all sides."""
        return (self.a, self.b, *self.others)

    @property
    def differs(self) -> bool:
        """Whether the sides have different values."""
        return any(value != self.a for value in self.values)

    @property
    def is_marked(self) -> bool:
        """Whether the difference deserves attention. Two executions always differ in durations and counts."""
        if self.kind == "number" and None not in self.values:
            return max(self.values) - min(self.values) >= _LEAST_DIFFERENCE
        return self.differs and self.kind not in {"count", "duration"}

    @property
    def difference(self) -> float | None:
        """The number `b` minus `a`; None for other kinds, if a side has no value, or of more than two sides."""
        if self.kind not in {"number", "count", "duration"} or None in self.values or self.others:
            return None
        return self.b - self.a

    @property
    def text(self) -> str:
        """The difference with its size: `0.4 s faster`, `+0.125`, `−12`; empty without a difference."""  # noqa: RUF002
        if self.difference is None or not self.differs or self.name == "Attempt":
            return ""
        if self.kind == "duration":
            return speed_text(self.difference)
        return compared.signed(self.difference, "reward" if self.kind == "number" else "count").removesuffix(".0")


def speed_text(seconds: float) -> str:
    """Return how much longer something took: `0.4 s slower`, or `0.4 s faster` for a negative number."""
    return f"{duration(abs(seconds))} {'slower' if seconds > 0 else 'faster'}"


def path_text(path: PathRow) -> str:
    """Return in words how a path differs, with the size of the difference."""
    match path.change:
        case "count":
            more = path.b.count - path.a.count
            return f"{abs(more)} {'more' if more > 0 else 'fewer'}"
        case "slower" | "faster":
            return speed_text(path.b.seconds - path.a.seconds)
        case "only a" | "only b":
            return f"only in {path.change[-1].upper()}"
        case "status":
            return "other status"
        case "same":
            return "alike"


@pages.get("/ui/compare")
async def compare(request: PageRequest) -> PageContent | Done:
    """Compare `a` with `b`, or lead to the comparison of selections if one of them is a group.

    `a` and `b` are rollout ids. An id may be followed by `:` and an attempt; the default is the latest attempt. Fields
    are compared for every value of `b`, transcripts and spans for the first.
    """
    a, names, shows_all = request.one("a").strip(), request.several("b"), request.among("all", ("0", "1"), "0") == "1"
    b, *others = [name.strip() for name in names] or [""]
    if not a or not b:
        hidden = {"shows_all": shows_all, "others": others}
        return PageContent("compare.html", {"a": a, "b": b, "sides": None}, "Compare", hidden=hidden)
    if len(others) + 2 > MOST_SIDES:
        raise Invalid("b", f"has {len(others) + 1} values; pass at most {MOST_SIDES - 1}")
    try:
        left, right = await _side(request, a), await _side(request, b)
        further = [await _side(request, name) for name in others]
    except NotFound:
        if others:
            raise
        groups = [await request.store.core.look(partial(group_row, group_id=name)) for name in (a, b)]
        if not any(groups):
            raise
        sides = zip((a, b), groups, strict=True)
        one, other = (urlencode({"id" if group is None else "group": name}) for name, group in sides)
        path, _, query = request.url("cohorts", a=one, b=other).partition("?")
        return Done(f"{path}{'.json' if request.is_twin else ''}?{query}")
    # Matching long texts takes time, so it runs in a thread and does not block other requests.
    diff, is_whole, paths = await asyncio.to_thread(_compared, left, right, shows_all=shows_all)
    changed = [path for path in paths if shows_all or path.change != "same"]
    facts = _facts(left, right, *further)
    values = {
        "a": a,
        "b": b,
        "sides": [_named(side) for side in (left, right, *further)],
        "facts": [
            {
                "name": f.name,
                "a": f.a,
                "b": f.b,
                "others": f.others,
                "differs": f.differs,
                "difference": f.difference,
            }
            for f in facts
        ],
        "said": diff.rows,
        "said_differing": diff.differing,
        "said_left_out": diff.left_out,
        "said_is_rough": diff.is_rough,
        "said_is_whole": is_whole,
        "paths": [_path(path) for path in changed[:MOST_PATHS]],
        "paths_in_all": len(paths),
        "paths_differing": sum(path.change != "same" for path in paths),
        "paths_are_whole": max(len(left.rows), len(right.rows)) < MOST_SPANS and len(changed) <= MOST_PATHS,
    }
    texts = [path_text(path) for path in changed[:MOST_PATHS]]
    hidden = {"shows_all": shows_all, "drawn_facts": facts, "path_texts": texts, "others": others}
    return PageContent("compare.html", values, f"{a} and {b}", hidden=hidden)


def _compared(left: Side, right: Side, *, shows_all: bool) -> tuple[TranscriptDiff, bool, list[PathRow]]:
    a, b = _messages(left), _messages(right)
    is_whole = max(left.total, right.total) <= MOST_READ and max(len(a), len(b)) <= MOST_MESSAGES
    is_whole = is_whole and not any(message.unread for message in (*a, *b))
    diff = compare_messages(a[:MOST_MESSAGES], b[:MOST_MESSAGES], folds=not shows_all)
    return diff, is_whole, compare_paths(left.rows, right.rows)


def _messages(side: Side) -> list[SideMessage]:
    content = side.rollout.input
    task = SideMessage("task", content if isinstance(content, str) else pretty(content), None)
    # Texts are compared in full, since two responses may differ beyond the part that a transcript shows.
    return [task, *messages(blocks_of(transcript(side.spans, full=[span.span_id for span in side.spans])))]


def _named(side: Side) -> dict[str, Any]:
    attempt = side.attempt
    return {
        "rollout_id": side.rollout.rollout_id,
        "attempt_id": None if attempt is None else attempt.attempt_id,
        "attempt": None if attempt is None else attempt.sequence_id,
    }


def _path(path: PathRow) -> dict[str, Any]:
    return {"name": path.name, "depth": path.depth, "change": path.change, "a": path.a, "b": path.b}


async def _side(request: PageRequest, selector: str) -> Side:
    """Return one side of the comparison.

    Raises:
        NotFound: there is no such rollout, or it has no such attempt.
    """
    store = request.store
    rollout, attempt_selector = await store.get_rollout_by_id(selector), ""
    if rollout is None and ":" in selector:
        rollout_id, _, attempt_selector = selector.rpartition(":")
        rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound.rollout(selector)
    attempt = _chosen(rollout.rollout_id, (await store.query_attempts(rollout.rollout_id)).items, attempt_selector)
    of_rollout = RolloutListQuery(ids=(rollout.rollout_id,))
    (row,) = await store.core.look(partial(compared_rows, query=of_rollout, side=selector))
    if attempt is None:
        return Side(selector, rollout, None, [], [], 0, row.resources_version)
    ids = rollout.rollout_id, attempt.attempt_id
    rows = await store.core.look(partial(span_rows, query=SpanRowQuery(*ids, limit=MOST_SPANS)))
    read = await store.find_spans(
        SpanQuery.of(rollout_id=rollout.rollout_id, attempt_id=attempt.attempt_id, limit=MOST_READ)
    )
    return Side(selector, rollout, attempt, rows, read.items, read.total, row.resources_version)


def _chosen(rollout_id: str, attempts: Sequence[Attempt], selector: str) -> Attempt | None:
    if not selector or selector == "latest":
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if selector in {attempt.attempt_id, str(attempt.sequence_id)}:
            return attempt
    raise NotFound.attempt(selector, rollout_id)


def _facts(*sides: Side) -> list[ComparedField]:
    a, b, *others = [_facts_of(side) for side in sides]
    return [ComparedField(name, kind, a[name], b[name], [other[name] for other in others]) for name, kind in _FACTS]


_FACTS: Final = (
    ("Status", "status"),
    ("Mode", "text"),
    ("Attempt", "count"),
    ("Attempt's status", "status"),
    ("Reward", "number"),
    ("Tokens in", "count"),
    ("Tokens out", "count"),
    ("Spans", "count"),
    ("Failed spans", "count"),
    ("Took", "duration"),
    ("Worker", "text"),
    ("Resources", "text"),
    ("Resources version", "text"),
    ("Group", "text"),
    ("Step", "text"),
    ("Metadata", "text"),
)
"""The compared fields and their formats."""


def _tokens(counted: Iterable[tuple[SpanRow, int | None]]) -> int | None:
    """Return the sum of the tokens of calls; None if no span reports them. A call of several spans counts once."""
    calls: dict[str | int, int] = {}
    for row, tokens in counted:
        if tokens is not None:
            call = row.response_id or row.position
            calls[call] = max(calls.get(call, 0), tokens)
    return sum(calls.values()) if calls else None


def _facts_of(side: Side) -> dict[str, Any]:
    rollout, attempt, rows = side.rollout, side.attempt, side.rows
    metadata = dict(rollout.metadata or {})
    group, step = metadata.pop(GROUP_KEY, None), metadata.pop(STEP_KEY, None)
    rewards = [row.reward for row in rows if row.reward is not None]
    start, end = (rollout.start_time, rollout.end_time) if attempt is None else (attempt.start_time, attempt.end_time)
    return {
        "Status": rollout.status,
        "Mode": rollout.mode,
        "Attempt": None if attempt is None else attempt.sequence_id,
        "Attempt's status": None if attempt is None else attempt.status,
        "Reward": rewards[-1] if rewards else None,
        "Tokens in": _tokens((row, row.tokens_in) for row in rows),
        "Tokens out": _tokens((row, row.tokens_out) for row in rows),
        "Spans": side.total,
        "Failed spans": sum(row.status == "ERROR" for row in rows),
        "Took": None if end is None else end - start,
        "Worker": None if attempt is None else attempt.worker_id,
        "Resources": rollout.resources_id,
        "Resources version": side.resources_version,
        "Group": group,
        "Step": step,
        "Metadata": compact(metadata, 400) if metadata else None,
    }
