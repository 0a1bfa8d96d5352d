"""Commands: validated and encoded requests to change the store.

Each command lists the rows that the decision about it needs, so that these rows are loaded first. To draw a span number
means to assign the next free number.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from store.domain.body import Body
from store.domain.events import Json, SpanRecorded

SpanKey = tuple[str, str, str]
"""rollout_id, attempt_id, span_id."""
ModelCallKey = tuple[str, str, str]
"""Rollout, attempt, and the response id of a call of a model."""
ScoreKey = tuple[str, str, str, str]
"""Rollout, attempt, name of the reward, version of the reward."""


def derived_span_id(trace_id: str, span_id: str) -> str:
    """Return the id under which a span is recorded if its attempt has a span of another trace with its id.

    The id depends only on the two ids, so a repeat of the span gets the same id: 16 hexadecimal digits.
    """
    return hashlib.sha256(f"{trace_id}/{span_id}".encode()).hexdigest()[:16]


class SpanContent(NamedTuple):
    """The values that distinguish a repeat of a span from another span with the same key.

    The sequence id is not compared, because the sender of a repeat may draw a new one.
    """

    trace_id: str
    parent_id: str | None
    name: str
    start: float | None
    end: float | None
    status_code: str
    status_message: str | None
    body_sha256: bytes

    def is_repeated_by(self, other: "SpanContent") -> bool:
        """Return whether `other` is a repeat of this span.

        Times that `other` lacks are not compared. A parent that was recorded under a derived id is the same parent.
        """
        if self == other:
            return True
        parents = (other.parent_id, other.parent_id and derived_span_id(other.trace_id, other.parent_id))
        return self.parent_id in parents and self == other._replace(
            parent_id=self.parent_id,
            start=self.start if other.start is None else other.start,
            end=self.end if other.end is None else other.end,
        )


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key for one logical call.

    A repeat with the same key gets the reply of the first call and is not executed.
    """

    scope: str
    """The caller who chose the key. Equal keys of different callers do not conflict."""
    key: str
    request_hash: bytes
    """SHA-256 of the request. A request with the same key and another hash is refused."""


@dataclass(slots=True)
class LoadRequest:
    """The rows that must be loaded before the commands of a batch can be decided."""

    rollouts: set[str] = field(default_factory=set[str])
    attempts: set[str] = field(default_factory=set[str])
    """Ids of attempts that are loaded in addition to the latest attempt of each rollout in `rollouts`."""
    spans: set[SpanKey] = field(default_factory=set[SpanKey])
    model_calls: set[ModelCallKey] = field(default_factory=set[ModelCallKey])
    """Calls of models that spans of the batch record. Earlier spans may have recorded them too."""
    counters: set[str] = field(default_factory=set[str])
    draws: dict[str, int] = field(default_factory=dict[str, int])
    """For each rollout, how many span numbers the batch draws."""
    numbers_of: set[str] = field(default_factory=set[str])
    """Rollouts whose greatest recorded span number is loaded; `reservations_of` contains their streams."""
    reservations_of: set[str] = field(default_factory=set[str])
    """Streams of rollouts whose events about reserved blocks of span numbers are loaded."""
    plan_keys: set[str] = field(default_factory=set[str])
    workers: set[str] = field(default_factory=set[str])
    worked: set[str] = field(default_factory=set[str])
    """Rollouts whose workers are loaded, because the status of these workers may change."""
    resources: set[str] = field(default_factory=set[str])
    latest_resources: bool = False
    store_stream: bool = False
    """Whether the version of the stream `store` is loaded."""
    fresh: set[str] = field(default_factory=set[str])
    """Ids generated for new rollouts; the loader checks whether they exist already."""
    bodies_of: set[str] = field(default_factory=set[str])
    """Rollouts whose input and metadata are loaded, because a command returns them."""
    metadata_of: set[str] = field(default_factory=set[str])
    """Rollouts for which the metadata of the attempts are loaded, because a command returns them."""
    claims: int = 0
    """The maximum number of rollouts that the batch claims."""
    leavers: int = 0
    """The number of commands, other than claims, that may take a rollout out of the queue before a claim does."""
    joiners: set[str] = field(default_factory=set[str])
    """Rollouts that may return to the queue, so that a claim of the same batch may start an attempt at them."""
    keys: set[str] = field(default_factory=set[str])
    """Idempotency keys of calls that may have been executed before."""
    keyed: set[str] = field(default_factory=set[str])
    """Rollouts to which the keys in `run_keys` belong."""
    run_keys: set[str] = field(default_factory=set[str])
    """Keys that callers gave to calls about one rollout. A key may belong to an earlier call, which is loaded."""
    blobs: set[str] = field(default_factory=set[str])
    """Hashes of blobs that may exist already. A blob is a large value that is stored once under its hash."""
    artifacts: set[str] = field(default_factory=set[str])
    """Ids of the artifacts (saved results) that are loaded; `artifacts_of` contains their rollouts."""
    artifacts_of: set[str] = field(default_factory=set[str])
    forked: set[str] = field(default_factory=set[str])
    """Rollouts for which all attempts are loaded."""
    labelled: set[str] = field(default_factory=set[str])
    """Rollouts whose labels are loaded."""
    scores: set[ScoreKey] = field(default_factory=set[ScoreKey])
    scans: set[ScoreKey] = field(default_factory=set[ScoreKey])
    scanners: set[str] = field(default_factory=set[str])
    """Streams of scanners whose first events are loaded."""
    threads: set[str] = field(default_factory=set[str])
    """LangGraph threads, which contain checkpoints, and writes of tasks on these checkpoints."""
    whole_threads: set[str] = field(default_factory=set[str])
    """Those of `threads` that are loaded completely.

    Of the other threads, only the requested checkpoints and the writes of the requested tasks are loaded.
    """
    thread_namespaces: set[str] = field(default_factory=set[str])
    thread_checkpoints: set[str] = field(default_factory=set[str])
    thread_tasks: set[str] = field(default_factory=set[str])
    due: int = 0
    """The maximum number of rollouts to load because their time limits must be checked now."""


@dataclass(slots=True, kw_only=True)
class Command:
    """A request; the log records `actor` as the caller."""

    actor: str | None = None
    idempotency: Idempotency | None = None
    """The caller's key for the request; None if a repeat of the request is executed again."""

    @property
    def size(self) -> int:
        """The size of the bodies in bytes. The total size of a batch is limited."""
        return 0

    def request_rows(self, request: LoadRequest) -> None:
        """Add to `request` the rows that must be loaded before this command is decided."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class CommandGroup(Command):
    """Commands of one call, which are decided in their order and committed together. Decision 95.

    The result is a list with the result or the error of each command. A refused command does not affect the others.
    """

    parts: list[Command]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def identify(self, actor: str | None, idempotency: Idempotency | None) -> None:
        """Set the caller of the commands, and the caller's key.

        Each command gets a key of its own, because a repeat of the call decides those again that were refused.
        """
        for number, part in enumerate(self.parts):
            part.actor = part.actor or actor
            if idempotency is not None:
                part.idempotency = replace(idempotency, key=f"{idempotency.key}.{number}")


@dataclass(slots=True)
class NewRollout:
    """One rollout to create."""

    rollout_id: str
    input_sha256: str
    body: Body
    mode: str | None
    resources_id: str | None
    config: Json
    group: str | None
    step: int | None
    plan_key: str | None
    """The caller's key for the rollout. The store contains at most one rollout with this key."""


@dataclass(slots=True, kw_only=True)
class Enqueue(Command):
    """Create rollouts at the end of the queue: all of them or, if one is refused, none."""

    items: list[NewRollout]

    @property
    def size(self) -> int:
        return sum(len(item.body.stored) for item in self.items)

    def request_rows(self, request: LoadRequest) -> None:
        for item in self.items:
            request.fresh.add(item.rollout_id)
            if item.plan_key is not None:
                request.plan_keys.add(item.plan_key)
            if item.resources_id is None:
                request.latest_resources = True
            else:
                request.resources.add(item.resources_id)


@dataclass(slots=True, kw_only=True)
class StartRollout(Command):
    """Create a rollout that skips the queue, and start its first attempt."""

    item: NewRollout
    attempt_id: str
    worker_id: str | None
    owner: Json | None

    @property
    def size(self) -> int:
        return len(self.item.body.stored)

    def request_rows(self, request: LoadRequest) -> None:
        Enqueue(items=[self.item]).request_rows(request)
        if self.worker_id is not None:
            request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class Claim(Command):
    """Take rollouts from the front of the queue, and start an attempt at each of them."""

    limit: int
    attempt_ids: list[str]
    """One new id for each rollout that may be claimed."""
    worker_id: str | None
    owner: Json | None
    rollout_ids: list[str] | None = None
    """The rollouts to take, of which those are skipped that no longer wait; None for the front of the queue."""

    def request_rows(self, request: LoadRequest) -> None:
        if self.rollout_ids is None:
            request.claims += self.limit
        else:
            request.leavers += len(self.rollout_ids)
            request.rollouts.update(self.rollout_ids)
            request.bodies_of.update(self.rollout_ids)
            request.metadata_of.update(self.rollout_ids)
        request.attempts.update(self.attempt_ids)
        if self.worker_id is not None:
            request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class ReleaseClaim(Command):
    """Undo a claim whose caller has stopped waiting."""

    rollout_id: str
    attempt_id: str
    claim_position: int
    """The position of the `attempt.started` event of the claim."""
    status_before: str
    """The status of the rollout before the claim."""
    queued_at: int
    """The position of the rollout in the queue before the claim."""
    claim_key: Idempotency | None = None
    """The idempotency key of the claim. The stored reply under this key is deleted."""

    def request_rows(self, request: LoadRequest) -> None:
        if self.claim_key is not None:
            request.keys.add(self.claim_key.key)
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.worked.add(self.rollout_id)
        request.joiners.add(self.rollout_id)


@dataclass(slots=True, kw_only=True)
class StartAttempt(Command):
    """Start another attempt at a rollout. The rollout may have any status."""

    rollout_id: str
    attempt_id: str
    worker_id: str | None
    owner: Json | None

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.bodies_of.add(self.rollout_id)
        request.metadata_of.add(self.rollout_id)
        request.leavers += 1
        if self.worker_id is not None:
            request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class AmendRollout(Command):
    """Set those fields of a rollout that `fields` lists."""

    rollout_id: str
    fields: list[str]
    mode: str | None = None
    resources_id: str | None = None
    config: Json | None = None
    status: str | None = None
    body: Body | None = None

    @property
    def size(self) -> int:
        return len(self.body.stored) if self.body else 0

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.bodies_of.add(self.rollout_id)
        if self.resources_id is not None:
            request.resources.add(self.resources_id)
        if self.status is not None:
            request.leavers += 1
            request.joiners.add(self.rollout_id)


@dataclass(slots=True, kw_only=True)
class LimitSilence(Command):
    """Set `unresponsive_seconds` of a rollout without time limits, so that the watchdog ends its silent attempt.

    If the rollout has no retry condition either, its unresponsive attempts are retried.
    """

    rollout_id: str
    attempt_id: str
    unresponsive_seconds: float
    max_attempts: int

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)


@dataclass(slots=True, kw_only=True)
class UpdateAttempt(Command):
    """Set those fields of an attempt that `fields` lists."""

    rollout_id: str
    attempt_id: str
    """The id of the attempt, or `latest` for the latest attempt of the rollout."""
    fields: list[str]
    status: str | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    error: Json | None = None
    """The reason for the status."""
    body: Body | None = None
    requeues: bool = False
    """Whether the rollout returns to the queue, and the attempt does not count. Only the active attempt requeues."""

    @property
    def size(self) -> int:
        return len(self.body.stored) if self.body else 0

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.metadata_of.add(self.rollout_id)
        request.worked.add(self.rollout_id)
        if self.worker_id:
            request.workers.add(self.worker_id)
        if self.status is not None:
            request.leavers += 1
            request.joiners.add(self.rollout_id)


@dataclass(slots=True)
class NewSpan:
    """One span to record."""

    rollout_id: str
    fact: SpanRecorded
    body: Body
    content: SpanContent

    @property
    def key(self) -> SpanKey:
        """The key under which the span is recorded."""
        return self.rollout_id, self.fact.attempt_id, self.fact.span_id


@dataclass(frozen=True, slots=True)
class SpansOutcome:
    """The result of `RecordSpans`."""

    numbers: list[tuple[int, int]]
    """The index in the call and the sequence id of each new span."""
    conflicts: list[int]
    """The indexes of the spans that were not recorded because another span has their key."""
    derived: list[int]
    """The indexes of the spans that are recorded under derived ids; see `derived_span_id`."""


@dataclass(slots=True, kw_only=True)
class RecordSpans(Command):
    """Record spans. The spans of one attempt form a group. If a group is refused, the groups before it are recorded.

    A span whose key and content are recorded is a repeat, and is skipped. A span whose key is recorded with other
    content is a conflict: it is not recorded, and all other spans are.
    """

    items: list[NewSpan]
    number: bool = False
    """Whether each new span gets the next number of its rollout instead of the number that the caller gave."""
    rename: Callable[[NewSpan, str], NewSpan] | None = None
    """Function that returns a span under another id, with its original id in an attribute. None: no ids are derived."""
    derived: set[int] = field(default_factory=set[int])
    """The indexes of the items that have derived ids."""

    def derive(self, indexes: Iterable[int]) -> None:
        """Replace the ids of items by derived ids, also in the parent ids of children in the same trace."""
        assert self.rename is not None
        parents: dict[tuple[str, str, str, str | None], str] = {}
        for index in indexes:
            item = self.items[index]
            fact = item.fact
            span_id = derived_span_id(fact.trace_id, fact.span_id)
            parents[item.rollout_id, fact.attempt_id, fact.trace_id, fact.span_id] = span_id
            self.items[index] = self.rename(item, span_id)
            self.derived.add(index)
        for item in self.items:
            fact = item.fact
            parent = (item.rollout_id, fact.attempt_id, fact.trace_id, fact.parent_id)
            fact.parent_id = parents.get(parent, fact.parent_id)

    @property
    def size(self) -> int:
        size = 0
        for item in self.items:
            size += len(item.body.stored)
        return size

    def request_rows(self, request: LoadRequest) -> None:
        for item in self.items:
            request.rollouts.add(item.rollout_id)
            request.attempts.add(item.fact.attempt_id)
            request.counters.add(item.rollout_id)
            if self.number:
                request.draws[item.rollout_id] = request.draws.get(item.rollout_id, 0) + 1
            request.spans.add((item.rollout_id, item.fact.attempt_id, item.fact.span_id))
            if item.fact.response_id is not None:
                request.model_calls.add((item.rollout_id, item.fact.attempt_id, item.fact.response_id))
        request.leavers += 1


@dataclass(slots=True, kw_only=True)
class NumberSpans(Command):
    """Draw the next span number of each given rollout, whether the rollout exists or not.

    If the rollout exists, an event in its stream reserves a block of numbers, and later draws use up this block.
    """

    rollout_ids: list[str]

    def request_rows(self, request: LoadRequest) -> None:
        request.counters.update(self.rollout_ids)
        for rollout_id in self.rollout_ids:
            request.draws[rollout_id] = request.draws.get(rollout_id, 0) + 1


@dataclass(slots=True, kw_only=True)
class PublishResources(Command):
    """Publish resources under a new id, or replace the resources under an existing id."""

    resources_id: str
    body: Body
    is_new: bool
    """Whether the store generated the id for this call. Then another id may replace it."""

    @property
    def size(self) -> int:
        return len(self.body.stored)

    def request_rows(self, request: LoadRequest) -> None:
        request.resources.add(self.resources_id)


@dataclass(slots=True, kw_only=True)
class BeatWorker(Command):
    """Record a worker's heartbeat."""

    worker_id: str
    heartbeat_stats: str | None
    """JSON text, or None to keep the stored value."""

    def request_rows(self, request: LoadRequest) -> None:
        request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class Sweep(Command):
    """Check the rollouts whose time of a check has come, and end the attempts that have exceeded a time limit."""

    limit: int = 1000
    """The maximum number of rollouts to check."""

    def request_rows(self, request: LoadRequest) -> None:
        request.due = max(request.due, self.limit)
