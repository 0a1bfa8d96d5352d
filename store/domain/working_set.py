"""The working set of a batch: the states that were loaded for the batch, and the changes that the batch makes.

It is loaded while the transaction has the write lock of the database. After COMMIT or rollback, it is discarded.

Numbers of spans are drawn one by one, after an event has reserved a block of them. Signals are heartbeats and times
that are stored outside of the log.
"""

import heapq
from dataclasses import dataclass, field

from store.domain import resources, rollout, thread, worker
from store.domain.body import Body
from store.domain.commands import ModelCallKey, ScoreKey, SpanContent, SpanKey
from store.domain.events import (
    Event,
    Fact,
    Json,
    RewardScored,
    RolloutAnnotated,
    RolloutScanned,
    ScannerAdded,
    SpanNumbersReserved,
    SpanRecorded,
    StoreEvent,
)
from store.domain.log_time import LogTime
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, QueuePlace, RolloutState
from store.domain.run_events import AgentFact
from store.domain.thread import CheckpointKey, ThreadState, WriteKey
from store.domain.thread_events import ThreadCheckpointSaved, ThreadFact, ThreadWritesSaved
from store.domain.worker import WorkerSignals, WorkerState
from store.errors import NotFound

EVERYTHING: QueuePlace = (2**63 - 1,)
"""A place behind all places in the queue."""
CallKey = tuple[str, str]
"""The caller who chose an idempotency key, and the key."""
Remark = RolloutAnnotated | SpanNumbersReserved | RewardScored | RolloutScanned
"""The facts about a rollout that change neither its status nor its attempts."""
SignOfLife = SpanRecorded | AgentFact
"""The facts that are frequent signs of life of an attempt.

Such an event changes only the time of the last sign of life and the last position in the attempt's row.
"""


class NeedsHeads(Exception):
    """A claim needs more rows of the queue than are loaded, and the table has more rows."""


class NeedsSpans(Exception):
    """Spans get derived ids, and the rows with these ids are not loaded yet. Nothing was recorded."""

    def __init__(self, keys: set[SpanKey]) -> None:
        super().__init__(keys)
        self.keys = keys


@dataclass(frozen=True, slots=True)
class Answered:
    """The stored reply to a call with an idempotency key."""

    request_hash: bytes
    position: int
    """The position of the last event in the log when the call had been decided."""
    reply: Json

    @property
    def is_repeated(self) -> bool:
        """Whether the reply was already returned to a repeated call."""
        return bool(self.reply.get("repeated"))


@dataclass(frozen=True, slots=True)
class RunKey:
    """The events that a call with a caller's key recorded in the stream of a rollout."""

    kind: str
    version: int
    """The number of the first event in the stream."""
    last_version: int
    """The number of the last event in the stream."""
    attempt_id: str | None


@dataclass(slots=True)
class WorkingSet:
    """The states that were loaded for a batch, and the changes that the batch made.

    The batch has the write lock, so no other writer uses the positions that the working set assigns.
    """

    now: int
    """The time at which the batch took the lock, in microseconds since the epoch."""
    last_stamp: int
    """The greatest timestamp of all events up to now, in microseconds since the epoch."""
    next_position: int
    """The position of the next event."""
    log_time: LogTime | None = None
    """The relation of timestamps to the elapsed time of this process; None if only timestamps are compared."""

    rollouts: dict[str, RolloutState] = field(default_factory=dict[str, RolloutState])
    workers: dict[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    worker_signals: dict[str, WorkerSignals] = field(default_factory=dict[str, WorkerSignals])
    resources: dict[str, ResourcesState] = field(default_factory=dict[str, ResourcesState])
    resource_versions: dict[str, int] = field(default_factory=dict[str, int])
    latest_resources: str | None = None
    store_version: int = 0
    """The version of the last event of the stream `store`, if it was loaded."""
    counters: dict[str, int] = field(default_factory=dict[str, int])
    """For each rollout, the greatest span number that was drawn or recorded."""
    reserved: dict[str, int] = field(default_factory=dict[str, int])
    """For each rollout, the greatest reserved span number, or 0 if no number is reserved.

    A rollout whose reservations were not loaded has no entry.
    """
    spans: dict[SpanKey, SpanContent] = field(default_factory=dict[SpanKey, SpanContent])
    derived_spans: set[SpanKey] = field(default_factory=set[SpanKey])
    """Keys with derived ids whose rows were looked up. `spans` contains the keys that exist."""
    model_calls: dict[ModelCallKey, tuple[int, int]] = field(default_factory=dict[ModelCallKey, tuple[int, int]])
    """For each call of a model, the maximum of `tokens_in` and the maximum of `tokens_out` over its spans."""
    taken: set[str] = field(default_factory=set[str])
    """Those of the ids generated for new rollouts that existing rollouts have."""
    plan_keys: dict[str, str] = field(default_factory=dict[str, str])
    """Ids of rollouts by plan key. A plan key is a caller's key, which at most one rollout has."""
    bodies: dict[int, Body] = field(default_factory=dict[int, Body])
    """Bodies by the positions of their events."""
    answered: dict[CallKey, Answered] = field(default_factory=dict[CallKey, Answered])
    run_keys: dict[tuple[str, str], RunKey] = field(default_factory=dict[tuple[str, str], RunKey])
    """The events of earlier calls, by rollout and by the key of the call."""
    scans: dict[ScoreKey, RolloutScanned] = field(default_factory=dict[ScoreKey, RolloutScanned])
    """The last results of scanners with the requested keys. Decision 117."""
    scanners: dict[str, ScannerAdded] = field(default_factory=dict[str, ScannerAdded])
    """The requested scanners by their streams."""
    scores: dict[ScoreKey, RewardScored] = field(default_factory=dict[ScoreKey, RewardScored])
    """The last scores of the requested keys. Decision 94."""
    blobs: set[str] = field(default_factory=set[str])
    """The hashes of the blobs that exist, among the requested hashes. A blob is a value stored once under its hash."""
    artifacts: dict[tuple[str, str], tuple[int, int | None]] = field(
        default_factory=dict[tuple[str, str], tuple[int, int | None]]
    )
    """Artifacts (saved results), by rollout and artifact id.

    The first value is the number, in the rollout's stream, of the event that saved the artifact. The second value is
    the number of the event that retracted the artifact; None if it was not retracted.
    """
    threads: dict[str, ThreadState] = field(default_factory=dict[str, ThreadState])
    body_hashes: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The hashes of the bodies that contain thread checkpoints, by the positions of their events."""
    due: list[str] = field(default_factory=list[str])
    """Rollouts that the watchdog has to check now."""
    heads: list[tuple[QueuePlace, str]] = field(default_factory=list[tuple[QueuePlace, str]])
    """The loaded part of the queue: a heap of (place in the queue, rollout id)."""
    heads_until: QueuePlace = EVERYTHING
    """The last loaded place of the queue. `EVERYTHING` if the queue is loaded to its end."""

    # The changes.
    events: list[Event] = field(default_factory=list[Event])
    new_blobs: dict[str, Body] = field(default_factory=dict[str, Body])
    command: int = 0
    stamp: int = 0
    queued_before: dict[str, QueuePlace | None] = field(default_factory=dict[str, QueuePlace | None])
    """For each changed rollout, its place in the queue before the batch; None if it was not in the queue."""
    moved: set[str] = field(default_factory=set[str])
    """Rollouts that changed by an event other than a sign of life or a remark."""
    moved_attempts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Attempts that changed by an event other than a sign of life."""
    touched_attempts: dict[tuple[str, str], AttemptState] = field(default_factory=dict[tuple[str, str], AttemptState])
    touched_labels: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Pairs of a rollout and a label that was added or removed."""
    touched_workers: set[str] = field(default_factory=set[str])
    touched_resources: set[str] = field(default_factory=set[str])
    touched_threads: set[str] = field(default_factory=set[str])
    touched_checkpoints: set[tuple[str, CheckpointKey]] = field(default_factory=set[tuple[str, CheckpointKey]])
    """Checkpoints that were saved or deleted, each with the id of its thread."""
    touched_writes: set[tuple[str, WriteKey]] = field(default_factory=set[tuple[str, WriteKey]])
    touched_counters: set[str] = field(default_factory=set[str])
    touched_model_calls: set[ModelCallKey] = field(default_factory=set[ModelCallKey])
    touched_signals: set[str] = field(default_factory=set[str])
    beats: dict[tuple[str, str], AttemptState] = field(default_factory=dict[tuple[str, str], AttemptState])
    """Attempts with a new heartbeat that is not an event."""
    rewatch: dict[str, bool] = field(default_factory=dict[str, bool])
    """Rollouts for which the time of the watchdog's next check may have changed.

    The value is True if the rollout may have a row in the table `watch` that has to be deleted.
    """
    queue_reordered: bool = False
    """Whether a rollout returned to its old place in the queue instead of the end."""
    touched_answers: set[CallKey] = field(default_factory=set[CallKey])
    """Keys of calls whose replies were stored or deleted."""

    @property
    def horizon(self) -> int:
        """A timestamp that is later than the next check of every overdue attempt."""
        return max(self.now, self.last_stamp + 1) if self.log_time is None else self.log_time.horizon

    def begin(self, ordinal: int) -> None:
        """Start the next command with a new ordinal and a new timestamp."""
        self.command = ordinal
        self.stamp = max(self.now, self.last_stamp + 1)

    def tick(self) -> None:
        """Set the timestamp of the next item of a command. The timestamp is later than that of every event so far.

        Commands and items without an event do not advance the timestamp. So timestamps do not depend on which commands
        share a batch. Decision 7.
        """
        self.stamp = max(self.now, self.last_stamp + 1)

    def existing_rollout(self, rollout_id: str) -> RolloutState:
        """Return the state of a rollout that a command requested.

        Raises:
            NotFound: the rollout does not exist.
        """
        state = self.rollouts.get(rollout_id)
        if state is None:
            raise NotFound.rollout(rollout_id)
        return state

    def record_rollout(
        self, rollout_id: str, fact: Fact, *, actor: str | None, cause: int | None = None, body: Body | None = None
    ) -> Event:
        """Append a fact to the stream of a rollout, and apply the new event to the rollout's state."""
        state = self.rollouts.get(rollout_id)
        if rollout_id not in self.queued_before:
            self.queued_before[rollout_id] = state.queue_place if state else None
        if isinstance(fact, Remark) and state is not None:
            # Such a fact changes no status and no attempt, so that the time of the next check does not change.
            event = self._event(f"rollout/{rollout_id}", state.stream_version, fact, actor, cause, body)
            self.rollouts[rollout_id] = rollout.evolve(state, event)
            if isinstance(fact, RolloutAnnotated):
                self.touched_labels.update((rollout_id, label) for label in (*fact.added, *fact.removed))
            elif isinstance(fact, RewardScored):
                self.scores[rollout_id, fact.attempt_id, fact.name, fact.version] = fact
            elif isinstance(fact, RolloutScanned):
                self.scans[rollout_id, fact.attempt_id, fact.scanner, fact.version] = fact
            return event
        if state is None:
            # The stream of a new rollout contains no reservation.
            self.reserved.setdefault(rollout_id, 0)
        was_limited = state is not None and _limited(state)
        event = self._event(f"rollout/{rollout_id}", state.stream_version if state else 0, fact, actor, cause, body)
        state = self.rollouts[rollout_id] = rollout.evolve(state, event)
        attempt_id = getattr(fact, "attempt_id", None)
        if attempt_id is not None:
            self.touched_attempts[rollout_id, attempt_id] = state.attempts[attempt_id]
            self.moved_attempts.add((rollout_id, attempt_id))
        self.moved.add(rollout_id)
        self.rewatch[rollout_id] = self.rewatch.get(rollout_id, False) or was_limited or _limited(state)
        return event

    def record_sign(
        self, state: RolloutState, fact: SignOfLife, *, actor: str | None, body: Body | None = None
    ) -> Event:
        """Append a sign of life of an attempt to the stream of its rollout, and apply the new event to the state."""
        rollout_id, attempt_id = state.rollout_id, fact.attempt_id
        if rollout_id not in self.queued_before:
            # A rollout whose agent shows signs of life rarely waits.
            self.queued_before[rollout_id] = None if state.queued_position is None else state.queue_place
        sign_before = state.attempts[attempt_id].sign_of_life
        event = self._event(f"rollout/{rollout_id}", state.stream_version, fact, actor, None, body)
        state = self.rollouts[rollout_id] = rollout.evolve(state, event)
        self.touched_attempts[rollout_id, attempt_id] = state.attempts[attempt_id]
        # A sign of life usually postpones the next check. Then the row of `watch` is not changed, and the check comes
        # too early, which is harmless. If the last sign of life was in the future, the new sign of life makes the next
        # check earlier, so the row must be changed.
        if sign_before is not None and sign_before > event.at / 1_000_000:
            self.rewatch[rollout_id] = self.rewatch.get(rollout_id, False) or _limited(state)
        return event

    def record_worker(self, worker_id: str, fact: Fact, *, actor: str | None, cause: int | None = None) -> Event:
        """Append a fact to the stream of a worker, and apply the new event to the worker's state."""
        state = self.workers.get(worker_id)
        event = self._event(f"worker/{worker_id}", state.stream_version if state else 0, fact, actor, cause, None)
        self.workers[worker_id] = worker.evolve(state, event)
        self.touched_workers.add(worker_id)
        return event

    def record_resources(self, resources_id: str, fact: Fact, *, actor: str | None, body: Body) -> Event:
        """Append a fact to the stream of a set of resources, and apply the new event to the state of the resources."""
        state = self.resources.get(resources_id)
        event = self._event(f"resources/{resources_id}", state.stream_version if state else 0, fact, actor, None, body)
        self.resources[resources_id] = resources.evolve(state, event)
        self.touched_resources.add(resources_id)
        self.resource_versions[resources_id] = self.resources[resources_id].version
        self.latest_resources = resources_id
        return event

    def record_thread(
        self, thread_id: str, fact: ThreadFact, *, actor: str | None, cause: int | None = None, body: Body | None = None
    ) -> Event:
        """Append a fact to the stream of a thread, and apply the new event to the thread's state."""
        state = self.threads.get(thread_id)
        event = self._event(f"thread/{thread_id}", state.stream_version if state else 0, fact, actor, cause, body)
        checkpoints, writes = (
            (set(state.checkpoints), set(state.writes)) if state else (set[CheckpointKey](), set[WriteKey]())
        )
        state = self.threads[thread_id] = thread.evolve(state, event)
        self.touched_threads.add(thread_id)
        checkpoints -= state.checkpoints.keys()
        writes -= state.writes.keys()
        match fact:
            case ThreadCheckpointSaved():
                checkpoints.add((fact.ns, fact.checkpoint_id))
            case ThreadWritesSaved():
                writes.update((fact.ns, fact.checkpoint_id, fact.task_id, number) for number, _ in fact.writes)
            case _:
                pass
        self.touched_checkpoints.update((thread_id, key) for key in checkpoints)
        self.touched_writes.update((thread_id, key) for key in writes)
        if body is not None:
            self.body_hashes[event.position] = body.sha256
        return event

    def record_scanner(self, stream: str, fact: ScannerAdded, *, actor: str | None, body: Body) -> Event:
        """Append the only event of the stream of a scanner."""
        self.scanners[stream] = fact
        return self._event(stream, 0, fact, actor, None, body)

    def record_store(self, fact: StoreEvent, version: int, *, actor: str | None) -> Event:
        """Append a fact to the stream of the store. `version` is the number of the last event of this stream."""
        return self._event("store", version, fact, actor, None, None)

    def keep_blob(self, body: Body) -> None:
        """Store a body as a blob, unless a blob with the hash of the body exists."""
        name = body.sha256.hex()
        if name not in self.blobs:
            self.blobs.add(name)
            self.new_blobs[name] = body

    def signals_of(self, worker_id: str) -> WorkerSignals:
        """Return the signals of a worker for a change. They are written with the batch."""
        self.touched_signals.add(worker_id)
        return self.worker_signals.setdefault(worker_id, WorkerSignals(worker_id))

    def raise_counter(self, rollout_id: str, value: int) -> None:
        """Raise the span counter of a rollout to at least `value`."""
        counter = self.counters.get(rollout_id)
        if counter is None or value > counter:
            self.counters[rollout_id] = max(value, counter or 0)
            self.touched_counters.add(rollout_id)

    def next_number(self, rollout_id: str) -> int:
        """Draw the next span number of a rollout."""
        number = self.counters.get(rollout_id, 0) + 1
        self.counters[rollout_id] = number
        self.touched_counters.add(rollout_id)
        return number

    def count_model_call(self, call: ModelCallKey, tokens_in: int, tokens_out: int) -> tuple[int, int]:
        """Record that a span reports these tokens for a call; return the maxima that its earlier spans reported."""
        before = self.model_calls.get(call)
        before_in, before_out = before or (0, 0)
        counted = max(before_in, tokens_in), max(before_out, tokens_out)
        if counted != before:
            self.model_calls[call] = counted
            self.touched_model_calls.add(call)
        return before_in, before_out

    def keep_answer(self, key: CallKey, answer: Answered) -> None:
        """Store the reply to a call under its key."""
        self.answered[key] = answer
        self.touched_answers.add(key)

    def forget_answer(self, key: CallKey) -> None:
        """Delete the stored reply under a key, so that a repeated call is executed again."""
        if self.answered.pop(key, None) is not None:
            self.touched_answers.add(key)

    def joins_queue(self, rollout_id: str) -> None:
        """Add a rollout that has just joined the queue to `heads`, so that later claims of this batch can take it."""
        place = self.rollouts[rollout_id].queue_place
        assert place is not None  # it has just joined
        heapq.heappush(self.heads, (place, rollout_id))

    def take_heads(self, limit: int) -> list[str]:
        """Take up to `limit` rollouts from the front of the queue, and return their ids.

        Raises:
            NeedsHeads: the loaded rows do not suffice, and the table may have more rows. No rollout was taken.
        """
        taken: list[tuple[QueuePlace, str]] = []
        while len(taken) < limit:
            if not self.heads or self.heads[0][0] > self.heads_until:
                if self.heads_until == EVERYTHING:
                    break
                for head in taken:
                    heapq.heappush(self.heads, head)
                raise NeedsHeads
            place, rollout_id = heapq.heappop(self.heads)
            # The heap also contains the old places of rollouts that left the queue in this batch. They are skipped.
            if self.rollouts[rollout_id].queue_place == place:
                taken.append((place, rollout_id))
        return [rollout_id for _, rollout_id in taken]

    def _event(
        self, stream: str, version: int, fact: Fact, actor: str | None, cause: int | None, body: Body | None
    ) -> Event:
        position = self.next_position
        event = Event(position, stream, version + 1, self.command, self.stamp, actor, cause, fact, body)
        self.next_position = position + 1
        self.last_stamp = self.stamp
        self.events.append(event)
        if body is not None:
            self.bodies[position] = body
        return event


def _limited(state: RolloutState) -> bool:
    return state.config["timeout_seconds"] is not None or state.config["unresponsive_seconds"] is not None
