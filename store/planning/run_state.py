"""State of a run after each event that changes it: its attempts, its head, its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from store.domain.events import (
    AttemptStarted,
    AttemptStatusChanged,
    ClaimReleased,
    Event,
    RolloutEnqueued,
    RolloutStarted,
    RolloutStatusChanged,
)
from store.domain.rollout import TERMINAL, AttemptState, RolloutState, evolve
from store.domain.run_events import AttemptForked, HeadMoved
from store.models.enums import AttemptStatus, RolloutStatus
from store.models.run_frames import RunOutcome
from store.models.runs import Fork

TURNS: Final = tuple(
    fact.type
    for fact in (
        RolloutEnqueued,
        RolloutStarted,
        RolloutStatusChanged,
        HeadMoved,
        AttemptStarted,
        AttemptForked,
        AttemptStatusChanged,
        ClaimReleased,
    )
)
"""The types of events that change the state of a run."""
CUT_OFF: Final = "Run did not complete (server restarted)"
"""The error of an attempt that was unresponsive or exceeded its time limit."""
UNKNOWN: Final = "unknown error"

_OVERDUE: Final = frozenset({"timeout", "unresponsive"})
Move = Literal["fork", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Turn:
    """An event that changes the state of a run."""

    event: Event
    fork: Fork | None = None
    """The fork that the body of an `attempt.forked` event describes; None if the body was not read."""

    @property
    def version(self) -> int:
        """The version of the event in the run's stream."""
        return self.event.version


@dataclass(slots=True)
class RunState:
    """The state of a run after the turns that were applied to it."""

    _rollout: RolloutState | None = None

    def take(self, turn: Turn) -> Move | None:
        """Apply the next turn, and return how it moved the head from one attempt to another.

        The result is `fork` if the head moved from the base of a new fork to that fork. It is `elsewhere` for any other
        move, and None if the head did not move or if there was no head.

        Raises:
            Corrupt: the turn contradicts the turns before it, so the log was changed from outside.
        """
        head_before = self.head
        self._rollout = evolve(self._rollout, turn.event, may_skip=True)
        match turn.event.fact:
            case AttemptStarted(via="fork"):
                # The next event, `attempt.forked`, describes how the fork changes the view.
                return None
            case AttemptForked(attempt_id=attempt_id, base=base):
                return "fork" if self._rollout.attempts[attempt_id].head_before == base else "elsewhere"
            case AttemptStarted():
                return None if head_before is None else "elsewhere"
            case HeadMoved():
                return "elsewhere"
            case _:
                return None if self.head == head_before else "elsewhere"

    @property
    def head(self) -> int | None:
        """The sequence id of the attempt whose view is the view of the run; None before the first attempt."""
        return None if self._rollout is None else self._rollout.head

    @property
    def rollout_status(self) -> RolloutStatus:
        """The status of the rollout."""
        return "queuing" if self._rollout is None else cast("RolloutStatus", self._rollout.status)

    def number_of(self, attempt_id: str) -> int | None:
        """Return the sequence id of an attempt; None for an unknown attempt or a released claim."""
        attempt = None if self._rollout is None else self._rollout.attempt(attempt_id)
        return None if attempt is None else attempt.sequence_id

    def status_of(self, attempt: int | None) -> AttemptStatus | None:
        """Return the status of an attempt; None if the attempt does not exist."""
        state = self._attempt(attempt)
        return None if state is None else cast("AttemptStatus", state.status)

    def outcome_of(self, attempt: int | None) -> RunOutcome | None:
        """Return the outcome of an attempt, or of the rollout if `attempt` is None; None before its end.

        For the latest attempt, the result is the outcome of the rollout, because the status of the attempt does not
        show whether a failure is final or will be retried.
        """
        if attempt is None or attempt == self._latest:
            return cast("RunOutcome", self.rollout_status) if self.rollout_status in TERMINAL else None
        status = self.status_of(attempt)
        if status == "succeeded":
            return "succeeded"
        return "failed" if status == "failed" or status in _OVERDUE else None

    def error_of(self, attempt: int | None) -> str:
        """Return a readable reason why an attempt failed. None stands for the latest attempt."""
        state = self._attempt(attempt or self._latest)
        if state is not None and state.status in _OVERDUE:
            return CUT_OFF
        if state is None or state.error is None:
            return UNKNOWN
        return str(state.error.get("message") or state.error.get("type") or UNKNOWN)

    @property
    def _latest(self) -> int | None:
        return None if self._rollout is None else self._rollout.attempt_count or None

    def _attempt(self, number: int | None) -> AttemptState | None:
        """Return an attempt by its sequence id; None for an unknown attempt or a released claim."""
        attempts = () if self._rollout is None else self._rollout.attempts.values()
        return next(
            (attempt for attempt in attempts if attempt.sequence_id == number and attempt.released_position is None),
            None,
        )
