"""How an attempt ended: it went well, it failed, or it was interrupted and says nothing about the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from store.models import AttemptStatus, Span

Reason = Literal["error", "resources", "spool", "timeout", "interrupted", "cancelled", "superseded"]

WORKER_GONE: Final = "WorkerGone"
"""The type of the error of attempts whose runner's process was gone."""

INTERRUPTED: frozenset[Reason] = frozenset({"interrupted", "cancelled", "superseded"})


@dataclass(slots=True)
class Outcome:
    """What a runner knows of an attempt that is over; hooks get it."""

    status: AttemptStatus = "succeeded"
    """As it is reported to the store."""
    reason: Reason | None = None
    """Why it did not succeed; in the attempt's metadata as `reason`.

    - `error`: the agent raised, or returned what no agent may return.
    - `resources`: the store has not the resources that the rollout needs.
    - `spool`: the store did not take all of its spans in time.
    - `timeout`: it took longer than `timeout_seconds`.
    - `interrupted`: the runner was stopped.
    - `cancelled`: the rollout was cancelled.
    - `superseded`: another attempt, or somebody, decided the rollout.
    """
    error: BaseException | None = None
    """What was raised."""
    error_span_id: str | None = None
    """The span in which it was raised."""
    spans: list[Span] = field(default_factory=list[Span])
    """All spans of the attempt, as they are stored."""

    @property
    def kind(self) -> Literal["ok", "error", "interrupted"]:
        """`interrupted` where the attempt says nothing about the agent."""
        if self.reason is None:
            return "ok"
        return "interrupted" if self.reason in INTERRUPTED else "error"

    def fail(self, reason: Reason, error: BaseException | None = None) -> None:
        """Say that it did not succeed, unless that was said before."""
        if self.reason is None:
            self.status = "timeout" if reason == "timeout" else "failed"
            self.reason, self.error = reason, error
