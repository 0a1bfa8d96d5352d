"""State of a run after each fact that changes it: its attempts, its head, its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from store.models.enums import AttemptStatus, RolloutStatus
from store.models.run_frames import RunOutcome
from store.models.runs import Fork

TURNS: Final = (
    "rollout.enqueued",
    "rollout.started",
    "rollout.status_changed",
    "rollout.head_moved",
    "attempt.started",
    "attempt.forked",
    "attempt.status_changed",
    "claim.released",
)
"""The types of events that change the state of a run."""
CUT_OFF: Final = "Run did not complete (server restarted)"
"""The error of an attempt that was unresponsive or exceeded its time limit."""
UNKNOWN: Final = "unknown error"

_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_OVERDUE: Final = frozenset({"timeout", "unresponsive"})
Move = Literal["fork", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Turn:
    """An event that changes the state of a run."""

    version: int
    type: str
    data: Mapping[str, Any]
    fork: Fork | None = None
    """The fork of `attempt.forked`, if it was read."""


@dataclass(slots=True)
class _Attempt:
    status: AttemptStatus
    head_before: int | None
    error: Mapping[str, Any] | None = None


@dataclass(slots=True)
class RunState:
    """The state of a run after the turns that it took, in their order."""

    head: int | None = None
    """The attempt whose view is the view of the run."""
    rollout_status: RolloutStatus = "queuing"
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    """Sequence ids by attempt ids."""
    _attempts: dict[int, _Attempt] = field(default_factory=dict[int, _Attempt])
    """The attempts, without released claims, by their sequence ids."""

    def take(self, turn: Turn) -> Move | None:
        """Apply the next turn; return `fork` if the head moved to a fork of it, `elsewhere` if it moved otherwise."""
        data = turn.data
        match turn.type:
            case "rollout.started":
                self.rollout_status = "preparing"
            case "rollout.status_changed":
                self.rollout_status = data["to"]
            case "attempt.started":
                return self._start(data)
            case "attempt.forked":
                before = self._attempts[self._numbers[data["attempt_id"]]].head_before
                return "fork" if before == data["base"] else "elsewhere"
            case "attempt.status_changed":
                attempt = self._attempts.get(self._numbers.get(data["attempt_id"], 0))
                if attempt is not None:
                    attempt.status, attempt.error = data["to"], data.get("error") or attempt.error
            case "rollout.head_moved":
                self.head = data["to"]
                return "elsewhere"
            case "claim.released":
                return self._release(data)
            case _:
                pass
        return None

    def _start(self, data: Mapping[str, Any]) -> Move | None:
        before, number = self.head, data["sequence"]
        self._numbers[data["attempt_id"]] = self.head = number
        self._attempts[number] = _Attempt("preparing", before)
        # The event `attempt.forked`, which comes next, describes what a fork does to the view.
        return None if before is None or data["via"] == "fork" else "elsewhere"

    def _release(self, data: Mapping[str, Any]) -> Move | None:
        self.rollout_status = data["to"]
        released = self._attempts.pop(data["sequence"])
        del self._numbers[data["attempt_id"]]
        if self.head != data["sequence"]:
            return None
        self.head = released.head_before
        return "elsewhere"

    def number_of(self, attempt_id: str) -> int | None:
        """Return the sequence id of an attempt; None for an unknown or released one."""
        return self._numbers.get(attempt_id)

    def status_of(self, attempt: int | None) -> AttemptStatus | None:
        """Return the status of an attempt; None if it does not exist."""
        known = self._attempts.get(attempt or 0)
        return None if known is None else known.status

    def outcome_of(self, attempt: int | None) -> RunOutcome | None:
        """Return the outcome of an attempt, or of the rollout if `attempt` is None; None while it has not ended.

        The latest attempt has the outcome of the rollout, which alone determines whether a failure is final or retried.
        """
        latest = max(self._attempts, default=None)
        if attempt is None or attempt == latest:
            return cast("RunOutcome", self.rollout_status) if self.rollout_status in _ENDED else None
        status = self.status_of(attempt)
        if status == "succeeded":
            return "succeeded"
        return "failed" if status == "failed" or status in _OVERDUE else None

    def error_of(self, attempt: int | None) -> str:
        """Return a readable reason why an attempt failed; `attempt` None stands for the latest."""
        known = self._attempts.get(attempt or max(self._attempts, default=0))
        if known is not None and known.status in _OVERDUE:
            return CUT_OFF
        if known is None or known.error is None:
            return UNKNOWN
        return str(known.error.get("message") or known.error.get("type") or UNKNOWN)
