"""The common part of all tabs of a rollout: the rollout and its attempts, now or as they were after an earlier event.

The events of a rollout are numbered from 1. The selected moment is the moment after one of these events, or now.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import orjson

from store.dashboard.page import PageContent
from store.dashboard.pages.annotations import NOTHING, RolloutAnnotations, annotations_of
from store.dashboard.request import PageRequest
from store.dashboard.views.attempt_lanes import Lane, lanes_of
from store.dashboard.views.costs import cost_of, prices_of
from store.dashboard.views.span_times import KindTime, times_of
from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters, indexing, pages, removal, rollout_history
from store.db.queries import log as log_queries
from store.db.queries import scanners as scanner_queries
from store.db.queries.bodies import payload
from store.db.queries.input_starts import input_titles, title
from store.db.queries.neighbours import Neighbours, neighbours
from store.db.queries.waterfall import SpanRow, SpanRowQuery, span_rows
from store.domain.events import SpanRecorded
from store.domain.rollout import TERMINAL, WAITING
from store.domain.views import ROLLOUT_COLUMNS
from store.errors import Invalid, NotFound
from store.indexing.index import LARGEST_BODY
from store.journal import as_at
from store.models import PaginatedResult, Rollout, Span
from store.models.prices import CostLine
from store.models.queries import SpanQuery, UsageQuery
from store.models.scanners import Scan
from store.semconv import ANNOTATION_SPAN, DROPPED, invalid_rewards
from store.sql.mapping import rollouts as rollout_mapping
from store.wire import paths

TABS: Final = (
    ("transcript", "Transcript"),
    ("waterfall", "Waterfall"),
    ("events", "Events"),
    ("training", "Training"),
    ("raw", "Raw"),
)
MOST_ATTEMPTS: Final = 200
"""The maximum number of attempts that a page shows. If a rollout has more attempts, the page shows the latest."""
_MOST_SPANS: Final = 1_000
"""The maximum number of spans of a rollout for which the head shows the time by kind and the models."""
_MOST_REWARDS: Final = 8
_NEWEST_SPANS: Final = 200
"""The number of newest spans of a rollout that are searched for annotations and invalid rewards."""
_TITLE: Final = 80
_LATEST: Final = frozenset({"", "latest"})


@dataclass(frozen=True, slots=True)
class AttemptShown:
    """One attempt. The times are in seconds since the epoch."""

    attempt_id: str
    sequence_id: int
    status: str
    worker_id: str | None
    start_time: float
    end_time: float | None
    last_heartbeat_time: float | None
    via: str
    error: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class InvalidReward:
    """A reward that is ignored because it is not a finite number. The value is text."""

    attempt_id: str
    span_id: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Looked:
    """A rollout and its attempts at the selected moment."""

    request: PageRequest
    rollout: Rollout
    row: Mapping[str, Any]
    """The columns of the rollout's row in the database at the selected moment, for example its reward and tokens."""
    attempts: Sequence[AttemptShown]
    attempt: AttemptShown | None
    """The selected attempt, by default the latest; None if the rollout has no attempt at the selected moment."""
    is_latest: bool
    """Whether the selected attempt is the latest."""
    at: int | None
    """The number of the event after which the rollout is shown; None for now."""
    last: int
    """The number of the rollout's newest event."""
    position: int | None
    """The log position of the selected moment; None for now."""
    event: Mapping[str, Any] | None
    """The event with the number `at`."""
    waiting: rollout_history.RolloutWait | None = None
    lanes: Sequence[Lane] = field(default_factory=list[Lane])
    annotations: RolloutAnnotations = NOTHING
    neighbours: Neighbours | None = None
    titles: Mapping[str, str] = field(default_factory=dict[str, str])
    """The titles of the neighbours by rollout id."""
    times: Sequence[KindTime] | None = None
    """The time of the selected attempt by kind of span; None if the rollout has too many spans."""
    models: Sequence[str] = ()
    """The models that the selected attempt called, in the order of their first calls."""
    removed_by: Sequence[str] = ()
    """The policies that removed payload of the rollout, if they removed its input or its metadata."""
    invalid_rewards: Sequence[InvalidReward] = ()
    """The rewards that are not finite, in the spans that were read; empty if the rollout has a valid reward."""
    usage: CostLine | None = None
    """The usage of models and its cost now; None at a past moment, or if it is not known yet."""
    scans: Sequence[Scan] = ()
    """The last results of scanners for the selected attempt: matches first, then errors."""

    @property
    def currency(self) -> str:
        """The currency of costs."""
        return prices_of(self.request).currency

    @property
    def rollout_id(self) -> str:
        """The id of the rollout."""
        return self.rollout.rollout_id

    @property
    def title(self) -> str:
        """The title of the task, or the id of the rollout if its input contains no text."""
        return title(self.rollout.input) or self.rollout_id

    async def spans(self, *, limit: int, offset: int = 0, **filters: Any) -> PaginatedResult[Span]:
        """Return the spans of the selected attempt at the selected moment. `filters` sets more fields of the query."""
        if self.attempt is None:
            return PaginatedResult(items=[], limit=limit, offset=offset, total=0)
        attempt_id = self.attempt.attempt_id
        query = SpanQuery.of(
            rollout_id=self.rollout_id, attempt_id=attempt_id, at=self.at, limit=limit, offset=offset, **filters
        )
        return await self.request.store.find_spans(query)

    def with_rewards_of(self, spans: Iterable[Span]) -> Self:
        """Return a copy with the invalid rewards of more spans, if the rollout has no valid reward."""
        if self.row["last_reward"] is not None:
            return self
        rewards = dict.fromkeys((*self.invalid_rewards, *_invalid_rewards(spans)))
        return replace(self, invalid_rewards=list(rewards))

    def url(self, tab: str = "", **params: Any) -> str:
        """Return the path of a tab of this rollout, with the same moment and the same attempt."""
        chosen = None if self.attempt is None or self.is_latest else self.attempt.sequence_id
        segments = ("rollouts", self.rollout_id, tab) if tab else ("rollouts", self.rollout_id)
        return self.request.url(*segments, **({"at": self.at, "attempt": chosen} | params))

    def page(self, tab: str, template: str, values: Mapping[str, Any], **hidden: Any) -> PageContent:
        """Return the page of a tab. Its JSON version contains the values of the common part and `values`."""
        row, rollout = self.row, self.rollout
        when = "" if self.at is None else f"?at={self.at}"
        summary = {name: row[name] for name in _SUMMARY}
        head: dict[str, Any] = {
            "rollout": {name: getattr(rollout, name) for name in _HEAD} | {"config": rollout.config},
            "summary": summary,
            "invalid_rewards": self.invalid_rewards,
            "usage": self.usage,
            "attempts": self.attempts,
            "attempt": None if self.attempt is None else self.attempt.attempt_id,
            "at": self.at,
            "last": self.last,
            "event": self.event,
            "waiting": self.waiting,
            "title": self.title,
            "neighbours": self.neighbours,
            "span_times": self.times,
            "models": self.models,
            "annotations": {"labels": self.annotations.labels, "notes": self.annotations.notes},
            "scans": self.scans,
        }
        frame: dict[str, Any] = {
            "annotated": self.annotations,
            "tab": tab,
            "tabs": TABS,
            "looked": self,
            "why": why(self),
            "can": _can(self),
            "cli_id": shlex.quote(self.rollout_id),
            "api_path": paths.path(paths.ROLLOUT, rollout_id=self.rollout_id) + when,
        }
        return PageContent(
            template, {**head, **values}, f"{self.title} · {dict(TABS)[tab]}", hidden={**frame, **hidden}
        )


_HEAD: Final = ("rollout_id", "status", "mode", "resources_id", "start_time", "end_time")
_SUMMARY: Final = (
    "resources_version",
    "group_id",
    "step",
    "attempt_count",
    "last_reward",
    "spans",
    "tokens_in",
    "tokens_out",
)


async def look(request: PageRequest) -> Looked:
    """Return the rollout whose id is in the path, with its attempts, at the selected moment.

    The parameter `at` is the number of the event after which the rollout is shown. The parameter `attempt` is the id or
    the number of the selected attempt.

    Raises:
        NotFound: there is no such rollout.
        Invalid: the rollout has no event with the number `at`, or does not have the attempt at this moment.
    """
    rollout_id = request.ids["rollout_id"]
    at = request.maybe_whole("at", least=1)
    work = partial(_read, rollout_id=rollout_id, at=at, selector=request.one("attempt"))
    state = await request.store.core.look(work, snapshot=True)
    if state is None:
        raise NotFound.rollout(rollout_id)
    row, attempts, chosen, event = state.row, state.attempts, state.chosen, state.event
    rollout = rollout_mapping.plain_rollout_of_page(row)
    columns = {name: getattr(row, name) for name in ROLLOUT_COLUMNS}
    columns["error"] = _json(row.error)
    times, models = None, list[str]()
    if state.spans is not None and chosen is not None:
        rows = [span for span in state.spans if span.attempt_id == chosen.attempt_id]
        times = times_of(rows)
        models = list(dict.fromkeys(span.model for span in rows if span.model and span.span_kind == "llm"))
    return Looked(
        request,
        rollout,
        columns,
        attempts,
        chosen,
        bool(attempts) and chosen is attempts[-1],
        at,
        state.last,
        state.position,
        event,
        state.waiting,
        lanes_of(attempts, state.turns, _until(rollout, event), state.spans or ()),
        await annotations_of(request, rollout_id, at),
        state.neighbours,
        state.titles,
        times,
        models,
        await removals(request, rollout_id) if DROPPED in (rollout.metadata or {}) else (),
        scans=sorted(
            (scan for scan in state.scans if chosen is not None and scan.attempt_id == chosen.attempt_id),
            key=lambda scan: (not scan.is_match, scan.error is None, scan.scanner, scan.version),
        ),
        usage=None if at is not None else await cost_of(request, UsageQuery(rollout_id_in=[rollout_id])),
        invalid_rewards=state.invalid_rewards,
    )


async def _newest_invalid_rewards(session: ReadSession, rollout_id: str, until: int | None) -> list[InvalidReward]:
    """Return the invalid rewards in the newest annotations and in the newest spans of a rollout.

    The columns of a span contain only valid rewards, so the bodies of these few spans are read. Emitters of rewards
    write annotations. Other spans with rewards are usually among the last spans. Only the newest `_NEWEST_SPANS` spans
    are searched. They are read from the log, where the other spans need not be read.
    """
    stream, types = f"rollout/{rollout_id}", (SpanRecorded.type,)
    rows = await log_queries.stream_events(session, stream, types=types, until=until, limit=_NEWEST_SPANS, newest=True)
    spans = {row.position: fact for row in rows[::-1] if isinstance(fact := log_queries.fact_of(row), SpanRecorded)}
    annotations = [position for position, fact in spans.items() if fact.name == ANNOTATION_SPAN]
    positions = list(dict.fromkeys((*annotations[:_MOST_REWARDS], *list(spans)[:_MOST_REWARDS])))
    bodies = {row.position: row for row in await indexing.events_with_bodies(session, positions, LARGEST_BODY)}
    return [
        InvalidReward(spans[position].attempt_id, spans[position].span_id, *reward)
        for position in positions
        for reward in invalid_rewards(
            (payload(bodies[position].codec, bodies[position].body) or {}).get("attributes") or {}
        )
    ]


def _invalid_rewards(spans: Iterable[Span]) -> list[InvalidReward]:
    return [
        InvalidReward(span.attempt_id, span.span_id, *reward)
        for span in spans
        for reward in invalid_rewards(span.attributes)
    ]


async def removals(request: PageRequest, rollout_id: str) -> list[str]:
    """Return a text for each policy that removed payload of a rollout. See `policies_of`."""
    return await request.store.core.look(partial(removal.policies_of, rollout_id=rollout_id))


def _until(rollout: Rollout, event: Mapping[str, Any] | None) -> float | None:
    if event is not None:
        return event["at"]
    # The attempt of a cancelled rollout may never end, so the chart of attempts ends with the rollout.
    return rollout.end_time if rollout.status in TERMINAL else None


@dataclass(frozen=True, slots=True)
class _State:
    row: NamedRow
    last: int
    attempts: list[AttemptShown]
    chosen: AttemptShown | None
    position: int | None
    event: Mapping[str, Any] | None
    turns: list[dict[str, Any]]
    waiting: rollout_history.RolloutWait | None
    spans: list[SpanRow] | None
    neighbours: Neighbours
    titles: dict[str, str]
    scans: list[Scan]
    invalid_rewards: list[InvalidReward]


async def _read(session: ReadSession, rollout_id: str, at: int | None, selector: str) -> _State | None:
    now = await pages.rollout(session, rollout_id)
    if now is None:
        return None
    last, row, until, event = int(now.stream_version), now, None, None
    if at is not None:
        until = await as_at.moment_of(session, rollout_id, at)
        past = await as_at.rollout(session, rollout_id, until)
        assert past is not None  # the rollout's first event created it
        row = past
        event_rows = await rollout_history.events(session, rollout_id, after=at - 1, limit=1)
        event = event_rows[0]
    attempts = await _attempts(session, rollout_id, until)
    chosen = _chosen(selector, attempts)
    if chosen is None and attempts and attempts[0].sequence_id > 1:
        chosen = _chosen(selector, await _attempts(session, rollout_id, until, limit=-1))
    if chosen is None and selector not in _LATEST:
        raise Invalid("attempt", f"rollout {rollout_id} has no attempt {selector[:80]!r} at this moment")
    # Lanes are drawn for several attempts only. These events are sought among all events of the rollout, so a rollout
    # of 300,000 spans opens 130 ms earlier without them.
    turns = await rollout_history.turns(session, rollout_id, until=until) if len(attempts) > 1 else []
    spans = None
    if row.spans <= _MOST_SPANS:
        spans = await span_rows(session, SpanRowQuery(rollout_id, None, until=until, limit=_MOST_SPANS))
    waiting = None
    if at is None and row.status not in TERMINAL:
        waiting = await rollout_history.waiting(session, rollout_id, row.queued_position)
    near = await neighbours(session, row.group_id, now.first_position)
    titles = await input_titles(session, [one for one in (near.previous, near.next) if one is not None], _TITLE)
    scans = await scanner_queries.scans(session, [rollout_id], None, until)
    invalid: list[InvalidReward] = []
    if row.last_reward is None and row.spans:
        invalid = await _newest_invalid_rewards(session, rollout_id, until)
    return _State(row, last, attempts, chosen, until, event, turns, waiting, spans, near, titles, scans, invalid)


async def _attempts(
    session: ReadSession, rollout_id: str, until: int | None, limit: int = MOST_ATTEMPTS
) -> list[AttemptShown]:
    query = filters.query(filters.ATTEMPTS, sort_by="sequence_id", sort_order="desc", limit=limit)
    if until is None:
        page = await pages.attempts(session, rollout_id, query, _attempt)
    else:
        page = await as_at.attempts(session, rollout_id, query, until, _attempt)
    return page.items[::-1]


def _attempt(row: NamedRow) -> AttemptShown:
    attempt = rollout_mapping.attempt_of_page(row)
    return AttemptShown(
        attempt.attempt_id,
        attempt.sequence_id,
        attempt.status,
        attempt.worker_id,
        attempt.start_time,
        attempt.end_time,
        attempt.last_heartbeat_time,
        row.via,
        _json(row.error),
        attempt.metadata,
    )


def _chosen(selector: str, attempts: Sequence[AttemptShown]) -> AttemptShown | None:
    if selector in _LATEST:
        return attempts[-1] if attempts else None
    return next((attempt for attempt in attempts if selector in {attempt.attempt_id, str(attempt.sequence_id)}), None)


def _json(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, (str, bytes)) else value


def why(looked: Looked) -> str:
    """Return a sentence that says why a queued rollout waits; an empty text if the rollout is not queued."""
    waiting = looked.waiting
    if waiting is None or waiting.ahead is None or looked.rollout.status not in WAITING:
        return ""
    place = "This rollout is next in the queue"
    if waiting.ahead:
        place = f"{waiting.ahead:,} {'rollout is' if waiting.ahead == 1 else 'rollouts are'} ahead of it in the queue"
    latest = looked.attempts[-1] if looked.attempts else None
    if latest is not None:
        place += f", for attempt {latest.sequence_id + 1}; the last attempt ended as {latest.status}"
    if waiting.workers == 0:
        return f"{place}. No worker has ever requested work: start a runner."
    return f"{place}. {waiting.idle_workers:,} of {waiting.workers:,} workers are idle."


def _can(looked: Looked) -> list[str]:
    """Return the actions that this visitor may take now."""
    if looked.at is not None or not looked.request.may("algorithm"):
        return []
    return ["retry"] if looked.rollout.status in TERMINAL else ["cancel"]
