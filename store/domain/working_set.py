"""The rows that a batch works on, and the events that it adds.

A working set is loaded under the write lock, changed by one decision after another, and discarded after COMMIT or
rollback.
"""

import heapq
from dataclasses import dataclass, field

from store.domain import resources, rollout, thread, worker
from store.domain.commands import SpanKey
from store.domain.events import Body, Event, Fact, Json, RolloutAnnotated, SpanNumbersReserved, SpanRecorded
from store.domain.resources import ResourcesState
from store.domain.rollout import AttemptState, RolloutState
from store.domain.run_events import (
    ArtifactSaved,
    CheckpointRejected,
    CheckpointSaved,
    PhaseCompleted,
    PhaseSkipped,
    PhaseStarted,
    RunEvent,
)
from store.domain.thread import CheckpointKey, ThreadState, WriteKey
from store.domain.thread_events import ThreadCheckpointSaved, ThreadFact, ThreadWritesSaved
from store.domain.worker import WorkerSignals, WorkerState

EVERYTHING = 2**63 - 1
CallKey = tuple[str, str]
"""The scope of the key, and the key."""


# Events that are signs of life of an attempt. They are frequent, and they change nothing else in the attempt's row.
_Sign = (
    SpanRecorded
    | RunEvent
    | PhaseStarted
    | PhaseCompleted
    | PhaseSkipped
    | CheckpointSaved
    | CheckpointRejected
    | ArtifactSaved
)


class NeedsHeads(Exception):
    """A claim used up the loaded rows of the queue, and the table has more rows."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The stored reply to a call with an idempotency key."""

    request_hash: bytes
    position: int
    """The position of the last event when the call was decided."""
    reply: Json

    @property
    def is_repeated(self) -> bool:
        """Whether the reply was returned a second time."""
        return bool(self.reply.get("repeated"))


@dataclass(frozen=True, slots=True)
class RunKey:
    """The events that a call with a caller's key wrote to a rollout's stream."""

    kind: str
    version: int
    last_version: int
    attempt_id: str | None


@dataclass(slots=True)
class WorkingSet:
    """The rows that a batch loaded and the changes that it made.

    The batch has the write lock, so no other writer uses the positions that it assigns.
    """

    now: int
    """The clock when the batch took the lock, in µs."""
    last_stamp: int
    """The greatest timestamp of an event so far."""
    next_position: int

    rollouts: dict[str, RolloutState] = field(default_factory=dict[str, RolloutState])
    workers: dict[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    worker_signals: dict[str, WorkerSignals] = field(default_factory=dict[str, WorkerSignals])
    resources: dict[str, ResourcesState] = field(default_factory=dict[str, ResourcesState])
    resource_versions: dict[str, int] = field(default_factory=dict[str, int])
    latest_resources: str | None = None
    counters: dict[str, int] = field(default_factory=dict[str, int])
    """The greatest span number of each rollout that was drawn or recorded."""
    reserved: dict[str, int] = field(default_factory=dict[str, int])
    """The greatest span number of each rollout that its stream reserves, 0 if none; absent if it was not looked up."""
    spans: set[SpanKey] = field(default_factory=set[SpanKey])
    taken: set[str] = field(default_factory=set[str])
    """The ids generated for new rollouts that exist already."""
    plan_keys: dict[str, str] = field(default_factory=dict[str, str])
    bodies: dict[int, Body] = field(default_factory=dict[int, Body])
    answered: dict[CallKey, Answered] = field(default_factory=dict[CallKey, Answered])
    run_keys: dict[tuple[str, str], RunKey] = field(default_factory=dict[tuple[str, str], RunKey])
    """By rollout and key."""
    blobs: set[str] = field(default_factory=set[str])
    """The requested hashes whose blobs exist."""
    artifacts: dict[tuple[str, str], tuple[int, int | None]] = field(
        default_factory=dict[tuple[str, str], tuple[int, int | None]]
    )
    """By rollout and id: the versions at which the artifact was saved and retracted."""
    threads: dict[str, ThreadState] = field(default_factory=dict[str, ThreadState])
    body_hashes: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The hashes of the bodies of thread checkpoints, by position."""
    due: list[str] = field(default_factory=list[str])
    heads: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """A heap of (queued position, rollout id)."""
    heads_until: int = EVERYTHING
    """Rows of the queue beyond this position are not loaded."""

    # The changes.
    events: list[Event] = field(default_factory=list[Event])
    new_blobs: dict[str, Body] = field(default_factory=dict[str, Body])
    command: int = 0
    stamp: int = 0
    queued_before: dict[str, int | None] = field(default_factory=dict[str, int | None])
    """The place in the queue before the batch, for each changed rollout."""
    moved: set[str] = field(default_factory=set[str])
    """Rollouts changed by events other than signs of life, annotations and reservations of span numbers."""
    moved_attempts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Attempts changed by events other than signs of life."""
    touched_attempts: dict[tuple[str, str], AttemptState] = field(default_factory=dict[tuple[str, str], AttemptState])
    touched_labels: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Pairs of a rollout and a label that was added or removed."""
    touched_workers: set[str] = field(default_factory=set[str])
    touched_resources: set[str] = field(default_factory=set[str])
    touched_threads: set[str] = field(default_factory=set[str])
    touched_checkpoints: set[tuple[str, CheckpointKey]] = field(default_factory=set[tuple[str, CheckpointKey]])
    """Checkpoints of threads that were saved or deleted."""
    touched_writes: set[tuple[str, WriteKey]] = field(default_factory=set[tuple[str, WriteKey]])
    touched_counters: set[str] = field(default_factory=set[str])
    touched_signals: set[str] = field(default_factory=set[str])
    beats: dict[tuple[str, str], AttemptState] = field(default_factory=dict[tuple[str, str], AttemptState])
    rewatch: dict[str, bool] = field(default_factory=dict[str, bool])
    """Rollouts whose next check by the watchdog may have changed; True if a row of `watch` may have to be deleted."""
    queue_reordered: bool = False
    touched_answers: set[CallKey] = field(default_factory=set[CallKey])
    """Keys of calls whose replies were stored or deleted."""

    def begin(self, ordinal: int) -> None:
        """Start the next command with a new ordinal and a new timestamp."""
        self.command = ordinal
        self.stamp = max(self.now, self.last_stamp + 1)

    def tick(self) -> None:
        """Set the timestamp of the next item. It is later than every event before it.

        Commands and items without an event do not advance the timestamp, so it does not matter which commands share a
        batch.
        """
        self.stamp = max(self.now, self.last_stamp + 1)

    def record_rollout(
        self, rollout_id: str, fact: Fact, *, actor: str | None, cause: int | None = None, body: Body | None = None
    ) -> Event:
        """Append a fact to a rollout's stream and evolve its state."""
        state = self.rollouts.get(rollout_id)
        if rollout_id not in self.queued_before:
            self.queued_before[rollout_id] = state.queued_position if state else None
        if isinstance(fact, _Sign) and state is not None:
            return self._record_sign(state, fact, actor, cause, body)
        if isinstance(fact, RolloutAnnotated | SpanNumbersReserved) and state is not None:
            return self._record_aside(state, fact, actor, cause, body)
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

    def _record_sign(
        self, state: RolloutState, fact: _Sign, actor: str | None, cause: int | None, body: Body | None
    ) -> Event:
        rollout_id, attempt_id = state.rollout_id, fact.attempt_id
        sign_before = state.attempts[attempt_id].sign_of_life
        event = self._event(f"rollout/{rollout_id}", state.stream_version, fact, actor, cause, body)
        state = self.rollouts[rollout_id] = rollout.evolve(state, event)
        self.touched_attempts[rollout_id, attempt_id] = state.attempts[attempt_id]
        # A sign of life usually postpones the next check. The row of `watch` then stays, and the check comes too early,
        # which is harmless. If the last sign of life was in the future, the new one brings the check forward.
        if sign_before is not None and sign_before > event.at / 1_000_000:
            self.rewatch[rollout_id] = self.rewatch.get(rollout_id, False) or _limited(state)
        return event

    def _record_aside(
        self,
        state: RolloutState,
        fact: RolloutAnnotated | SpanNumbersReserved,
        actor: str | None,
        cause: int | None,
        body: Body | None,
    ) -> Event:
        """Append an event that changes no status and no attempt, so that the watchdog need not check the rollout."""
        event = self._event(f"rollout/{state.rollout_id}", state.stream_version, fact, actor, cause, body)
        self.rollouts[state.rollout_id] = rollout.evolve(state, event)
        if isinstance(fact, RolloutAnnotated):
            self.touched_labels.update((state.rollout_id, label) for label in (*fact.added, *fact.removed))
        return event

    def record_worker(self, worker_id: str, fact: Fact, *, actor: str | None, cause: int | None = None) -> Event:
        """Append a fact to a worker's stream and evolve its state."""
        state = self.workers.get(worker_id)
        event = self._event(f"worker/{worker_id}", state.stream_version if state else 0, fact, actor, cause, None)
        self.workers[worker_id] = worker.evolve(state, event)
        self.touched_workers.add(worker_id)
        return event

    def record_resources(self, resources_id: str, fact: Fact, *, actor: str | None, body: Body) -> Event:
        """Append a fact to a resources stream and evolve its state."""
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
        """Append a fact to a thread's stream and evolve its state."""
        state = self.threads.get(thread_id)
        event = self._event(f"thread/{thread_id}", state.stream_version if state else 0, fact, actor, cause, body)
        kept = (set(state.checkpoints), set(state.writes)) if state else (set[CheckpointKey](), set[WriteKey]())
        state = self.threads[thread_id] = thread.evolve(state, event)
        self.touched_threads.add(thread_id)
        checkpoints, writes = kept[0] - state.checkpoints.keys(), kept[1] - state.writes.keys()
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

    def keep_blob(self, body: Body) -> None:
        """Add a body to the blobs, unless a blob with its hash exists."""
        name = body.sha256.hex()
        if name not in self.blobs:
            self.blobs.add(name)
            self.new_blobs[name] = body

    def signals_of(self, worker_id: str) -> WorkerSignals:
        """Return the signals of a worker, which the caller is about to change."""
        self.touched_signals.add(worker_id)
        return self.worker_signals.setdefault(worker_id, WorkerSignals(worker_id))

    def raise_counter(self, rollout_id: str, value: int) -> None:
        """Raise the span counter of a rollout to at least `value`."""
        known = self.counters.get(rollout_id)
        if known is None or value > known:
            self.counters[rollout_id] = max(value, known or 0)
            self.touched_counters.add(rollout_id)

    def next_number(self, rollout_id: str) -> int:
        """Take the next span number of a rollout."""
        number = self.counters.get(rollout_id, 0) + 1
        self.counters[rollout_id] = number
        self.touched_counters.add(rollout_id)
        return number

    def keep_answer(self, key: CallKey, answer: Answered) -> None:
        """Store the reply to a call under its key."""
        self.answered[key] = answer
        self.touched_answers.add(key)

    def forget_answer(self, key: CallKey) -> None:
        """Delete the reply under a key, so that the call can be executed again."""
        if self.answered.pop(key, None) is not None:
            self.touched_answers.add(key)

    def joins_queue(self, rollout_id: str) -> None:
        """Add a rollout that has just joined the queue, so that later claims of this batch see it."""
        position = self.rollouts[rollout_id].queued_position
        assert position is not None  # it has just joined
        heapq.heappush(self.heads, (position, rollout_id))

    def take_heads(self, limit: int) -> list[str]:
        """Take up to `limit` rollouts from the head of the queue.

        Raises:
            NeedsHeads: the table may have more rows than are loaded; nothing was taken.
        """
        taken: list[tuple[int, str]] = []
        while len(taken) < limit:
            if not self.heads or self.heads[0][0] > self.heads_until:
                if self.heads_until == EVERYTHING:
                    break
                for head in taken:
                    heapq.heappush(self.heads, head)
                raise NeedsHeads
            position, rollout_id = heapq.heappop(self.heads)
            # A rollout that left the queue in this batch is still in the heap at its old place, which is skipped.
            if self.rollouts[rollout_id].queued_position == position:
                taken.append((position, rollout_id))
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
