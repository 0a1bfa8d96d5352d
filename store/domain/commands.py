"""Commands: requests to the store, validated and encoded, each with the rows its decision needs."""

from dataclasses import dataclass, field

from store.domain.events import Body, Json, SpanRecorded

SpanKey = tuple[str, str, str]
"""rollout_id, attempt_id, span_id."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key for one logical call. A repeat with the same key gets the first answer and is not executed."""

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
    """Ids of attempts named, in addition to the latest of each rollout named."""
    spans: set[SpanKey] = field(default_factory=set[SpanKey])
    counters: set[str] = field(default_factory=set[str])
    plan_keys: set[str] = field(default_factory=set[str])
    workers: set[str] = field(default_factory=set[str])
    worked: set[str] = field(default_factory=set[str])
    """Rollouts whose workers may change their status."""
    resources: set[str] = field(default_factory=set[str])
    latest_resources: bool = False
    fresh: set[str] = field(default_factory=set[str])
    """Ids generated for new rollouts, which must not exist."""
    bodies_of: set[str] = field(default_factory=set[str])
    """Rollouts whose payload is part of the answer."""
    metadata_of: set[str] = field(default_factory=set[str])
    """Rollouts whose attempts' metadata is part of the answer."""
    claims: int = 0
    """How many rollouts the batch may claim."""
    leavers: int = 0
    """How many other commands may take a rollout off the queue before a claim sees it."""
    joiners: set[str] = field(default_factory=set[str])
    """Rollouts that may go back to the queue, where a claim of the same batch may take them."""
    keys: set[str] = field(default_factory=set[str])
    """Keys of calls that may have been made before."""
    keyed: set[str] = field(default_factory=set[str])
    """Rollouts with calls under a caller's key, and those keys."""
    run_keys: set[str] = field(default_factory=set[str])
    blobs: set[str] = field(default_factory=set[str])
    """Hashes of blobs that may exist already."""
    artifacts: set[str] = field(default_factory=set[str])
    """Ids of artefacts named, and the rollouts they belong to."""
    artifacts_of: set[str] = field(default_factory=set[str])
    forked: set[str] = field(default_factory=set[str])
    """Rollouts whose attempts are all needed."""
    labelled: set[str] = field(default_factory=set[str])
    """Rollouts whose labels are needed."""
    threads: set[str] = field(default_factory=set[str])
    whole_threads: set[str] = field(default_factory=set[str])
    """Threads that are needed whole; of others only the checkpoints and the writes of tasks that are named."""
    thread_namespaces: set[str] = field(default_factory=set[str])
    thread_checkpoints: set[str] = field(default_factory=set[str])
    thread_tasks: set[str] = field(default_factory=set[str])
    due: bool = False
    """Rollouts that the watchdog has to check now."""


@dataclass(slots=True, kw_only=True)
class Command:
    """A request; the log records `actor` as the caller."""

    actor: str | None = None
    idempotency: Idempotency | None = None
    """The key under which the request may be repeated."""

    @property
    def size(self) -> int:
        """The bytes of payload it carries; they limit the size of a batch."""
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
    """The key of the claim, which is deleted with it."""

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
    """Set the fields of a rollout that `fields` names."""

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
    """Set the fields of an attempt that `fields` names."""

    rollout_id: str
    attempt_id: str
    """An id, or `latest`."""
    fields: list[str]
    status: str | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    error: Json | None = None
    """Why the status is what it is."""
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
    """Give each span the next number of its rollout instead of the one it carries."""

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
            request.spans.add((item.rollout_id, item.fact.attempt_id, item.fact.span_id))
        request.leavers += 1


@dataclass(slots=True, kw_only=True)
class NumberSpans(Command):
    """Draw the next span number of each rollout named, known or not."""

    rollout_ids: list[str]

    def request_rows(self, request: LoadRequest) -> None:
        request.counters.update(self.rollout_ids)


@dataclass(slots=True, kw_only=True)
class PublishResources(Command):
    """Publish resources under a new id, or replace those under a known one."""

    resources_id: str
    body: Body
    is_new: bool
    """The id was generated for this call."""

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
    """JSON text, or None to leave what is there."""

    def request_rows(self, request: LoadRequest) -> None:
        request.workers.add(self.worker_id)


@dataclass(slots=True, kw_only=True)
class Sweep(Command):
    """Check the rollouts that are due, and end the attempts that are overdue."""

    def request_rows(self, request: LoadRequest) -> None:
        request.due = True
