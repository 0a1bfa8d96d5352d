"""Timeline of a replay: which rollouts wait, run and have ended, and the events of the replay.

Claims and ends happen in the order of their recorded times. The timeline takes its next step only while a call waits
for this step. So an algorithm can react to each end before the next end, even if the reaction takes long.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from store.replaying.recordings import RecordedRollout

_TURNS: Final = 8
"""The number of turns of the event loop in which the tasks of an algorithm can react to a step."""

State = Literal["queuing", "requeuing", "running", "ended"]


@dataclass(slots=True)
class ReplayEvent:
    """An event of a replay."""

    type: str
    rollout_id: str
    at: float
    number: int
    """The number of the event in the stream of its rollout."""
    data: dict[str, Any]


@dataclass
class Timeline:
    """States and events of the rollouts of a replay. All methods may be called from any thread."""

    events: list[ReplayEvent] = field(default_factory=list[ReplayEvent])
    states: dict[str, State] = field(default_factory=dict[str, State])
    """The state of each rollout that was enqueued, in the order of enqueueing."""
    open: dict[str, None] = field(default_factory=dict[str, None])
    """The rollouts that have not ended, in the order of enqueueing."""
    now: float = 0.0
    """The recorded time of the last step."""
    _steps: list[tuple[float, int, State, RecordedRollout]] = field(
        default_factory=list[tuple[float, int, State, RecordedRollout]]
    )
    _counter: int = 0
    _versions: dict[str, int] = field(default_factory=dict[str, int])
    _changes: int = 0
    """A counter that increases with each change of the timeline and with each end of a call."""
    _busy: int = 0
    """The number of calls in flight that do not wait for a step."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = field(
        default_factory=dict[asyncio.Event, asyncio.AbstractEventLoop]
    )

    def enqueue(self, recording: RecordedRollout) -> None:
        """Put a rollout into the queue."""
        with self._lock:
            self._open(recording, "queuing")
            data = {
                "mode": recording.mode,
                "resources_id": recording.resources_id,
                "resources_version": None,
                "group": recording.group,
                "step": recording.step,
                "plan_key": recording.plan_key,
            }
            self._record("rollout.enqueued", recording, data)
            self._schedule(recording)
        self._wake()

    def requeue(self, recording: RecordedRollout) -> None:
        """Put a rollout that has ended into the queue again. It will end in the same way."""
        with self._lock:
            before = recording.status
            self._open(recording, "requeuing")
            self._record("rollout.status_changed", recording, {"from": before, "to": "requeuing", "reason": "manual"})
            self._schedule(recording)
        self._wake()

    def _open(self, recording: RecordedRollout, state: State) -> None:
        self.states[recording.rollout_id] = state
        self.open[recording.rollout_id] = None

    def _schedule(self, recording: RecordedRollout) -> None:
        if recording.claimed_at is not None:
            self._push(recording.claimed_at, "running", recording)
        self._push(recording.ended_at, "ended", recording)

    def _push(self, at: float, state: State, recording: RecordedRollout) -> None:
        self._counter += 1
        heapq.heappush(self._steps, (at, self._counter, state, recording))

    def upcoming(self, count: int) -> list[str]:
        """Return the ids of the rollouts that end next, at most `count`."""
        with self._lock:
            ends = heapq.nsmallest(count, (step for step in self._steps if step[2] == "ended"))
        return [recording.rollout_id for _, _, _, recording in ends]

    def advance(self) -> bool:
        """Take the next step; return False if there is none."""
        with self._lock:
            if not self._steps:
                return False
            self._take()
        self._wake()
        return True

    def _take(self) -> None:
        at, _, state, recording = heapq.heappop(self._steps)
        self.now = max(self.now, at)
        if state == "ended":
            del self.open[recording.rollout_id]
        self._move(recording, state)

    def _take_claims(self) -> bool:
        """Take the claims before the next end; return whether there was a claim."""
        is_taken = False
        with self._lock:
            while self._steps and self._steps[0][2] == "running":
                self._take()
                is_taken = True
        if is_taken:
            self._wake()
        return is_taken

    def _move(self, recording: RecordedRollout, state: State) -> None:
        before = self.states[recording.rollout_id]
        self.states[recording.rollout_id] = state
        to = recording.status if state == "ended" else state
        reason = "attempt" if state == "ended" else "claimed"
        self._record("rollout.status_changed", recording, {"from": before, "to": to, "reason": reason})

    def _record(self, kind: str, recording: RecordedRollout, data: dict[str, Any]) -> None:
        self.now = max(self.now, recording.created_at)
        number = self._versions[recording.rollout_id] = self._versions.get(recording.rollout_id, 0) + 1
        self.events.append(ReplayEvent(kind, recording.rollout_id, self.now, number, data))

    @contextmanager
    def call(self) -> Generator[None]:
        """Mark a call of the algorithm that does not wait; meanwhile, no step is taken."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
            self._wake()

    async def step(self) -> None:
        """Wait until the algorithm does nothing but wait, and take the next step.

        If `changes` increases first, return without a step. Claims are taken at once, because the algorithm can react
        to them before the next end.
        """
        if self._take_claims():
            return
        seen = self._changes
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if self._busy or self._changes != seen:
                await self.change(seen)
                return
        if not self.advance():
            await self.change(seen)

    async def change(self, seen: int) -> None:
        """Wait until the number of changes is no longer `seen`."""
        event = asyncio.Event()
        self._waiters[event] = asyncio.get_running_loop()
        try:
            if self._changes == seen:
                await event.wait()
        finally:
            self._waiters.pop(event, None)

    @property
    def changes(self) -> int:
        """A counter that increases with each change of the timeline and with each end of a call."""
        return self._changes

    def _wake(self) -> None:
        with self._lock:
            self._changes += 1
            waiters = list(self._waiters.items())
        for event, loop in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                # The loop is closed, and its wait has ended.
                self._waiters.pop(event, None)
