"""Outcome of an attempt: success, failure, or an interruption that the agent did not cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from store.models import AttemptStatus, Span

Reason = Literal[
    "error", "resources", "infrastructure", "spool", "timeout", "interrupted", "drained", "cancelled", "superseded"
]

INTERRUPTED: frozenset[Reason] = frozenset({"interrupted", "drained", "cancelled", "superseded"})

CUT_SHORT: frozenset[Reason] = frozenset({"drained", "infrastructure", "interrupted", "spool"})
"""Reasons of failures that the agent did not cause. A plan enqueues such rollouts again."""


@dataclass(slots=True)
class Outcome:
    """Result of an attempt that has ended, as hooks receive it."""

    status: AttemptStatus = "succeeded"
    """The status that is reported to the store."""
    reason: Reason | None = None
    """The reason of a failure or interruption, stored as `reason` in the attempt's metadata; None after success.

    - `error`: the agent raised an error, or returned a value that agents may not return.
    - `resources`: the resources that the rollout needs do not exist.
    - `infrastructure`: the agent raised an error or reached its time limit because the store, the proxy or the model
      server could not be reached.
    - `spool`: not all spans could be stored in time.
    - `timeout`: the attempt took longer than `timeout_seconds`.
    - `interrupted`: the runner was stopped at the end of the training.
    - `drained`: the runner was stopped while others continue, so the rollout is in the queue again.
    - `cancelled`: the rollout was cancelled.
    - `superseded`: another attempt or a user decided the result of the rollout.
    """
    error: BaseException | None = None
    """The exception that caused the failure or interruption; None without an exception."""
    unreachable: str | None = None
    """For the reason `infrastructure`, a description of the part that could not be reached."""
    error_span_id: str | None = None
    """The id of the span in which the exception was raised; None if no span was open."""
    spans: list[Span] = field(default_factory=list[Span])
    """All stored spans of the attempt."""

    @property
    def kind(self) -> Literal["ok", "error", "interrupted"]:
        """`ok` after success, `interrupted` for the reasons in `INTERRUPTED`, and otherwise `error`."""
        if self.reason is None:
            return "ok"
        return "interrupted" if self.reason in INTERRUPTED else "error"

    def fail(self, reason: Reason, error: BaseException | None = None) -> None:
        """Set the status, the reason and the exception of a failure, unless a reason was set before."""
        if self.reason is None:
            self.status = "timeout" if reason == "timeout" else "failed"
            self.reason, self.error = reason, error
