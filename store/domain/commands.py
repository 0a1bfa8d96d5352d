"""Commands: validated and encoded requests to the store, each with a method that requests the rows it needs."""

from dataclasses import dataclass, field

from store.domain.events import Body, Json, SpanRecorded

SpanKey = tuple[str, str, str]
"""rollout_id, attempt_id, span_id."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key for one logical call.

    A repeat with the same key gets the reply of the first call and is not executed.
    """

    scope: str
    """The caller that the key belongs to: keys of different callers never conflict."""
    key: str
    request_hash: bytes
    """SHA-256 of the request; another request under the same key is refused."""


@dataclass(slots=True)
class LoadRequest:
    """The rows that a batch of commands has to load before it is decided."""

    rollouts: set[str] = field(default_factory=set[str])
    attempts: set[str] = field(default_factory=set[str])
    """Ids of attempts that are loaded in addition to the latest attempt of each rollout in `rollouts`."""
    spans: set[SpanKey] = field(default_factory=set[SpanKey])
    counters: set[str] = field(default_factory=set[str])
    draws: dict[str, int] = field(default_factory=dict[str, int])
    """The number of span numbers that the batch draws, by rollout."""
    numbers_of: set[str] = field(default_factory=set[str])
    """Rollouts whose greatest recorded span number is loaded; `reservations_of` contains their streams."""
    reservations_of: set[str] = field(default_factory=set[str])
    """Streams of rollouts whose reservations of span numbers are loaded."""
    plan_keys: set[str] = field(default_factory=set[str])
    workers: set[str] = field(default_factory=set[str])
    worked: set[str] = field(default_factory=set[str])
    """Rollouts whose workers are loaded, because the status of these workers may change."""
    resources: set[str] = field(default_factory=set[str])
    latest_resources: bool = False
    fresh: set[str] = field(default_factory=set[str])
    """Ids generated for new rollouts; the loader checks whether they exist already."""
    bodies_of: set[str] = field(default_factory=set[str])
    """Rollouts whose payload is part of the result."""
    metadata_of: set[str] = field(default_factory=set[str])
    """Rollouts whose attempts' metadata is part of the result."""
    claims: int = 0
    """The number of rollouts that the batch may claim."""
    leavers: int = 0
    """The number of other commands that may remove a rollout from the queue before a claim reads it."""
    joiners: set[str] = field(default_factory=set[str])
    """Rollouts that may return to the queue, so that a claim of the same batch may start an attempt at them."""
    keys: set[str] = field(default_factory=set[str])
    """Idempotency keys of calls that may have been made before."""
    keyed: set[str] = field(default_factory=set[str])
    """Rollouts whose run has calls with a caller's key; `run_keys` contains these keys."""
    run_keys: set[str] = field(default_factory=set[str])
    blobs: set[str] = field(default_factory=set[str])
    """Hashes of blobs that may exist already."""
    artifacts: set[str] = field(default_factory=set[str])
    """Ids of the artifacts that are loaded; `artifacts_of` contains their rollouts."""
    artifacts_of: set[str] = field(default_factory=set[str])
    forked: set[str] = field(default_factory=set[str])
    """Rollouts whose attempts are all needed."""
    labelled: set[str] = field(default_factory=set[str])
    """Rollouts whose labels are needed."""
    threads: set[str] = field(default_factory=set[str])
    whole_threads: set[str] = field(default_factory=set[str])
    """Threads that are loaded completely.

    Other threads are loaded with only the requested checkpoints and tasks' writes.
    """
    thread_namespaces: set[str] = field(default_factory=set[str])
    thread_checkpoints: set[str] = field(default_factory=set[str])
    thread_tasks: set[str] = field(default_factory=set[str])
    due: bool = False
    """Whether to load the rollouts that the watchdog has to check now."""


@dataclass(slots=True, kw_only=True)
class Command:
    """A request; the log records `actor` as the caller."""

    actor: str | None = None
    idempotency: Idempotency | None = None
    """The key under which the request may be repeated."""

    @property
    def size(self) -> int:
        """The size of the payload in bytes. The sum over a batch is limited."""
        return 0

    def request_rows(self, request: LoadRequest) -> None:
        """Add the rows that the decision needs."""
        raise NotImplementedError


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


@dataclass(slots=True, kw_only=True)
class Enqueue(Command):
    """Create rollouts at the tail of the queue, all or none."""

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
    """Create a rollout and its first attempt without the queue."""

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
    """Take rollouts from the head of the queue and start an attempt at each."""

    limit: int
    attempt_ids: list[str]
    """One fresh id per rollout that may be claimed."""
    worker_id: str | None
    owner: Json | None

    def request_rows(self, request: LoadRequest) -> None:
        request.claims += self.limit
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
    queued_at: int
    claim_key: Idempotency | None = None
    """The idempotency key of the claim. It is deleted with the claim."""

    def request_rows(self, request: LoadRequest) -> None:
        if self.claim_key is not None:
            request.keys.add(self.claim_key.key)
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.worked.add(self.rollout_id)
        request.joiners.add(self.rollout_id)


@dataclass(slots=True, kw_only=True)
class StartAttempt(Command):
    """Start another attempt at a rollout, whatever its status."""

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
class UpdateAttempt(Command):
    """Set those fields of an attempt that `fields` lists."""

    rollout_id: str
    attempt_id: str
    """An id, or `latest`."""
    fields: list[str]
    status: str | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    error: Json | None = None
    """The reason for the status."""
    body: Body | None = None

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


@dataclass(slots=True, kw_only=True)
class AnnotateRollout(Command):
    """Add labels to a rollout, remove others, and add a note."""

    rollout_id: str
    added: list[str]
    removed: list[str]
    body: Body | None = None
    """The note."""

    @property
    def size(self) -> int:
        return len(self.body.stored) if self.body else 0

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.labelled.add(self.rollout_id)


@dataclass(slots=True)
class NewSpan:
    """One span to record."""

    rollout_id: str
    fact: SpanRecorded
    body: Body


@dataclass(slots=True, kw_only=True)
class RecordSpans(Command):
    """Record spans, group by group."""

    items: list[NewSpan]
    number: bool = False
    """Whether to replace the own number of each new span by the next number of its rollout."""

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
        request.leavers += 1


@dataclass(slots=True, kw_only=True)
class NumberSpans(Command):
    """Draw the next span number of each given rollout, whether the rollout exists or not.

    The numbers of a rollout that exists are reserved in its stream, a block at a time.
    """

    rollout_ids: list[str]

    def request_rows(self, request: LoadRequest) -> None:
        request.counters.update(self.rollout_ids)
        for rollout_id in self.rollout_ids:
            request.draws[rollout_id] = request.draws.get(rollout_id, 0) + 1


@dataclass(slots=True, kw_only=True)
class PublishResources(Command):
    """Publish resources under a new id, or replace those under a known one."""

    resources_id: str
    body: Body
    is_new: bool
    """Whether the id was generated for this call."""

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
    """JSON text, or None to leave the present value."""

    def request_rows(self, request: LoadRequest) -> None:
        request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class Sweep(Command):
    """Check the rollouts that are due, and end the attempts that are overdue."""

    def request_rows(self, request: LoadRequest) -> None:
        request.due = True
