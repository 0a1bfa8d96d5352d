"""How a run stands after each of the facts that change it: its attempts, its head, how it ended."""

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
"""The facts that change how a run stands."""
CUT_OFF: Final = "Run did not complete (server restarted)"
"""What is said of an attempt that went silent or took too long."""
UNKNOWN: Final = "unknown error"

_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_OVERDUE: Final = frozenset({"timeout", "unresponsive"})
Move = Literal["fork", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A fact that changes how a run stands."""

    version: int
    type: str
    data: Mapping[str, Any]
    fork: Fork | None = None
    """Of `attempt.forked`, where it is asked for."""


@dataclass(slots=True)
class _Attempt:
    status: AttemptStatus
    head_before: int | None
    error: Mapping[str, Any] | None = None


@dataclass(slots=True)
class RunState:
    """How a run stands after the facts that it was given, in their order."""

    head: int | None = None
    """The attempt whose view is the run's."""
    rollout_status: RolloutStatus = "queuing"
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    """Sequence ids by attempt ids."""
    _attempts: dict[int, _Attempt] = field(default_factory=dict[int, _Attempt])
    """Those that count, by their sequence ids."""

    def take(self, turn: Turn) -> Move | None:
        """Take in the next fact; say whether the head went on to a fork of what it was, or elsewhere."""
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
        # What a fork does to the view is said by its own fact, which comes next.
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
        """Return the sequence id of an attempt; None for one that does not count."""
        return self._numbers.get(attempt_id)

    def status_of(self, attempt: int | None) -> AttemptStatus | None:
        """Return the status of an attempt; None where there is none."""
        known = self._attempts.get(attempt or 0)
        return None if known is None else known.status

    def outcome_of(self, attempt: int | None) -> RunOutcome | None:
        """Return how an attempt's run has ended; None while it has not. Of None, how the rollout has.

        The rollout follows its latest attempt: whether a failure is final, or another attempt comes, it knows alone.
        """
        latest = max(self._attempts, default=None)
        if attempt is None or attempt == latest:
            return cast("RunOutcome", self.rollout_status) if self.rollout_status in _ENDED else None
        status = self.status_of(attempt)
        if status == "succeeded":
            return "succeeded"
        return "failed" if status == "failed" or status in _OVERDUE else None

    def error_of(self, attempt: int | None) -> str:
        """Return why an attempt failed, of None the latest, in words for people."""
        known = self._attempts.get(attempt or max(self._attempts, default=0))
        if known is not None and known.status in _OVERDUE:
            return CUT_OFF
        if known is None or known.error is None:
            return UNKNOWN
        return str(known.error.get("message") or known.error.get("type") or UNKNOWN)
