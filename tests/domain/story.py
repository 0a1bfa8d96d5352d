"""Given, when and then for the domain: commands decided in memory, each in its own batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count, islice
from typing import Any

from store.domain import retry
from store.domain.body import Body
from store.domain.commands import (
    AmendRollout,
    BeatWorker,
    Claim,
    Command,
    Enqueue,
    NewRollout,
    NewSpan,
    NumberSpans,
    PublishResources,
    RecordSpans,
    ReleaseClaim,
    SpanContent,
    StartAttempt,
    StartRollout,
    Sweep,
    UpdateAttempt,
)
from store.domain.decide import decide
from store.domain.events import AttemptStatusChanged, Event, Fact, Json, RolloutStatusChanged, SpanRecorded
from store.domain.rollout import AttemptState, RolloutState
from store.domain.views import ClaimView
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import WorkingSet

SECOND = 1_000_000
NOW = 1_750_000_000 * SECOND
RETRY: dict[str, Any] = {"max_attempts": 3, "retry_condition": ["failed", "timeout", "unresponsive"]}
BODY = Body(codec=0, raw_len=2, stored=b"{}", sha256=b"\x01" * 32)


class Story:
    """A store without a store: what was decided so far, under a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW
        self.working_set = WorkingSet(now=NOW, last_stamp=0, next_position=1)
        self.log: list[Event] = []
        self.watch: dict[str, int] = {}
        """When the watchdog looks at a rollout again, kept as the writer keeps it."""
        self.events: list[Event] = []
        """What the last command added to the log."""

    def tell(self, *commands: Command) -> Any:
        """Decide commands that share a batch and return the answer to the last.

        Raises:
            StoreError: the last was refused; what the contract keeps of it is kept.
        """
        working_set = self.working_set
        working_set.now = self.now
        working_set.events.clear()
        answer = None
        try:
            for ordinal, command in enumerate(commands):
                working_set.begin(ordinal)
                answer = decide(command, working_set)
        finally:
            self._commit()
        return answer

    def _commit(self) -> None:
        working_set = self.working_set
        self.events = list(working_set.events)
        self.log += self.events
        for rollout_id in working_set.rewatch:
            at = retry.check_at(working_set.rollouts[rollout_id])
            if at is not None:
                self.watch[rollout_id] = at
            elif working_set.rewatch[rollout_id]:
                self.watch.pop(rollout_id, None)
        for changed in (
            working_set.rewatch,
            working_set.queued_before,
            working_set.touched_attempts,
            working_set.beats,
        ):
            changed.clear()
        for touched in (
            working_set.touched_workers,
            working_set.touched_resources,
            working_set.touched_counters,
            working_set.touched_signals,
        ):
            touched.clear()
        working_set.due.clear()

    def passes(self, seconds: float) -> Story:
        """Move the clock."""
        self.now += round(seconds * SECOND)
        return self

    def sweep(self, *, everything: bool = False) -> int:
        """Send the watchdog: to what the alarm clock says is due, or to every rollout there is."""
        stamp = max(self.now, self.working_set.last_stamp + 1)
        due = (
            self.working_set.rollouts
            if everything
            else [rollout_id for rollout_id, at in self.watch.items() if at < stamp]
        )
        self.working_set.due = list(due)
        return self.tell(Sweep(actor="watchdog"))

    def claim(self, worker_id: str | None = None, limit: int = 1) -> list[ClaimView]:
        """Claim from the head of the queue; attempts are called a1, a2 … as far as nobody is called that."""
        taken = {attempt_id for state in self.working_set.rollouts.values() for attempt_id in state.attempts}
        free = (f"a{number}" for number in count(1) if f"a{number}" not in taken)
        return self.tell(claim(list(islice(free, limit)), worker_id))

    def copy(self) -> Story:
        """Return a story that goes on by itself."""
        return copy.deepcopy(self)

    @property
    def facts(self) -> list[Fact]:
        """What the last command added to the log."""
        return [event.fact for event in self.events]

    @property
    def causes(self) -> list[str | None]:
        """For each new event, the type of the event that caused it."""
        types = {event.position: event.fact.type for event in self.log}
        return [None if event.cause is None else types[event.cause] for event in self.events]

    def rollout(self, rollout_id: str = "r1") -> RolloutState:
        """A rollout as it is."""
        return self.working_set.rollouts[rollout_id]

    def attempt(self, attempt_id: str = "a1", rollout_id: str = "r1") -> AttemptState:
        """An attempt as it is."""
        return self.working_set.rollouts[rollout_id].attempts[attempt_id]

    def worker(self, worker_id: str = "w1") -> WorkerState:
        """A worker as it is."""
        return self.working_set.workers[worker_id]

    def signals(self, worker_id: str = "w1") -> WorkerSignals:
        """What a worker last said of itself."""
        return self.working_set.worker_signals[worker_id]

    def statuses(self, rollout_id: str = "r1") -> tuple[str, ...]:
        """The status of a rollout, followed by those of its attempts."""
        state = self.rollout(rollout_id)
        return (state.status, *(attempt.status for attempt in state.attempts.values()))

    @property
    def queue(self) -> list[str]:
        """Who waits, the head first."""
        waiting = [state for state in self.working_set.rollouts.values() if state.queued_position is not None]
        return [state.rollout_id for state in sorted(waiting, key=lambda state: state.queued_position or 0)]


def config(**fields: Any) -> Json:
    """Return a whole config."""
    plain: Json = {"max_attempts": 1, "retry_condition": [], "timeout_seconds": None, "unresponsive_seconds": None}
    return plain | fields


def new(rollout_id: str, **fields: Any) -> NewRollout:
    """Return a rollout to create; every field of its config may be given here too."""
    limits = {name: fields.pop(name) for name in config() if name in fields}
    plain: Json = {"mode": None, "resources_id": None, "group": None, "step": None, "plan_key": None}
    plain |= {"input_sha256": "00" * 32, "body": BODY, "config": config(**limits)}
    return NewRollout(rollout_id, **(plain | fields))


def enqueue(*rollouts: str | NewRollout, **fields: Any) -> Enqueue:
    """Return the command that creates waiting rollouts."""
    return Enqueue(
        items=[rollout if isinstance(rollout, NewRollout) else new(rollout, **fields) for rollout in rollouts]
    )


def start(rollout_id: str = "r1", worker_id: str | None = None, **fields: Any) -> StartRollout:
    """Return the command that creates a rollout and its attempt a1."""
    item = new(rollout_id, **fields)
    return StartRollout(item=item, attempt_id="a1", worker_id=worker_id, owner=None, actor=_actor(worker_id))


def claim(attempt_ids: Sequence[str], worker_id: str | None = None) -> Claim:
    """Return the command that claims as many rollouts as there are ids."""
    ids = list(attempt_ids)
    return Claim(limit=len(ids), attempt_ids=ids, worker_id=worker_id, owner=None, actor=_actor(worker_id))


def release(claimed: ClaimView) -> ReleaseClaim:
    """Return the command that undoes a claim."""
    assert claimed.rollout.attempt is not None
    return ReleaseClaim(
        rollout_id=claimed.rollout.row[0],
        attempt_id=claimed.rollout.attempt.row[1],
        claim_position=claimed.claim_position,
        status_before=claimed.status_before,
        queued_at=claimed.queued_at,
        actor="store",
    )


def attempt(attempt_id: str, rollout_id: str = "r1", worker_id: str | None = None) -> StartAttempt:
    """Return the command that starts another attempt."""
    return StartAttempt(
        rollout_id=rollout_id, attempt_id=attempt_id, worker_id=worker_id, owner=None, actor=_actor(worker_id)
    )


def amend(rollout_id: str = "r1", status: str | None = None, **fields: Any) -> AmendRollout:
    """Return the command that sets fields of a rollout; `input` and `metadata` are whatever the body holds."""
    body = BODY if {"input", "metadata"} & fields.keys() else None
    columns = {name: value for name, value in fields.items() if name not in {"input", "metadata"}}
    return AmendRollout(rollout_id=rollout_id, fields=list(fields), status=status, body=body, **columns)


def report(
    status: str | None = None, attempt_id: str = "latest", rollout_id: str = "r1", **fields: Any
) -> UpdateAttempt:
    """Return the command that sets fields of an attempt."""
    columns = {name: value for name, value in fields.items() if name != "metadata"}
    body = BODY if "metadata" in fields else None
    return UpdateAttempt(
        rollout_id=rollout_id, attempt_id=attempt_id, fields=list(fields), status=status, body=body, **columns
    )


def span(number: int = 1, attempt_id: str = "a1", rollout_id: str = "r1", **fields: Any) -> NewSpan:
    """Return a span; its id follows from its number unless it is given."""
    plain: Json = {"span_id": f"s{number}", "trace_id": "t", "name": "step", "status_code": "OK"}
    fact = SpanRecorded(attempt_id=attempt_id, sequence_id=number, **(plain | fields))
    content = SpanContent(
        fact.trace_id,
        fact.parent_id,
        fact.name,
        fact.start,
        fact.end,
        fact.status_code,
        fact.status_message,
        BODY.sha256,
    )
    return NewSpan(rollout_id, fact, BODY, content)


def record(*spans: NewSpan, number: bool = False) -> RecordSpans:
    """Return the command that records spans."""
    return RecordSpans(items=list(spans), number=number)


def number(*rollout_ids: str) -> NumberSpans:
    """Return the command that draws span numbers."""
    return NumberSpans(rollout_ids=list(rollout_ids))


def publish(resources_id: str) -> PublishResources:
    """Return the command that publishes resources."""
    return PublishResources(resources_id=resources_id, body=BODY, is_new=False)


def beat(worker_id: str = "w1", stats: str | None = None) -> BeatWorker:
    """Return the command that records a worker's heartbeat."""
    return BeatWorker(worker_id=worker_id, heartbeat_stats=stats, actor=f"worker:{worker_id}")


def _actor(worker_id: str | None) -> str | None:
    return f"worker:{worker_id}" if worker_id else None


def moved(before: str, after: str, reason: str) -> RolloutStatusChanged:
    return RolloutStatusChanged(from_=before, to=after, reason=reason)


def became(attempt_id: str, before: str, after: str, reason: str) -> AttemptStatusChanged:
    return AttemptStatusChanged(attempt_id=attempt_id, from_=before, to=after, reason=reason)
