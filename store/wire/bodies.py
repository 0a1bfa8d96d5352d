"""Models of request bodies and of some query strings; `models.queries` has the others.

The models ignore unknown keys. Some bodies distinguish an absent key from null: `model_fields_set` of the model
contains the keys that the request has.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from store.models import (
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Seal,
    Span,
    TaskInput,
)
from store.models.enums import Frozen
from store.models.queries import PastQuery


def moment_on_wire(as_at: Any) -> Any:
    """Return a moment of the log as it is sent in a request: a position unchanged, a datetime as RFC 3339 text."""
    return as_at.isoformat() if isinstance(as_at, datetime) else as_at


# -- calls that change something -------------------------------------------------------------------------------------


class StartRolloutBody(Frozen):
    """POST /rollouts."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    worker_id: str | None = None


class EnqueueBody(Frozen):
    """POST /queues/rollouts/enqueue."""

    rollouts: list[EnqueueRolloutRequest]


class DequeueBody(Frozen):
    """POST /queues/rollouts/dequeue; the body is optional."""

    limit: int = 1
    worker_id: str | None = None
    wait_seconds: float = 0.0
    """The maximum time to wait for a rollout, in seconds. Not part of Agent-lightning 0.3."""


class ClaimRunsBody(DequeueBody):
    """POST /queues/rollouts/claim-runs."""

    resources_ids: list[str]
    """The ids of resources with the phase graph of the runs."""


class StartAttemptBody(Frozen):
    """POST /rollouts/{rollout_id}/attempts; the body is optional."""

    worker_id: str | None = None


class UpdateRolloutBody(Frozen):
    """POST /rollouts/{rollout_id}. Absent fields do not change; null clears a field, but is refused for status and
    config.
    """

    input: TaskInput = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class UpdateAttemptBody(Frozen):
    """POST /rollouts/{rollout_id}/attempts/{attempt_id}. Absent fields do not change; null is refused."""

    status: AttemptStatus | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None
    error: AttemptError | None = None
    """The error that caused the status. Not part of Agent-lightning 0.3."""


class UpdateWorkerBody(Frozen):
    """POST /workers/{worker_id}; the body is optional. Null is refused for `heartbeat_stats`."""

    heartbeat_stats: dict[str, Any] | None = None


class NextSpanBody(Frozen):
    """POST /spans/next."""

    rollout_id: str
    attempt_id: str


class NextSpansBody(Frozen):
    """POST /spans/next/batch. Not part of Agent-lightning 0.3."""

    rollout_attempt_ids: list[tuple[str, str]]


class SpansBatchBody(Frozen):
    """POST /spans/batch. Not part of Agent-lightning 0.3."""

    spans: list[Span]
    number: bool = False
    """Whether the store assigns new sequence numbers to the spans, instead of using the numbers in the request."""


class WaitBody(Frozen):
    """POST /waits/rollouts."""

    rollout_ids: list[str]
    timeout: float | None = None
    """The maximum time to wait, in seconds; null for no limit."""


class VerifyBody(Frozen):
    """POST /verify; the body is optional. Not part of Agent-lightning 0.3."""

    seal: Seal | None = None


# -- queries ---------------------------------------------------------------------------------------------------------


class HistoryQuery(PastQuery):
    """GET /rollouts/{rollout_id}/history. Not part of Agent-lightning 0.3."""

    after: int = Field(default=0, ge=0)
    """The number of the last event that the caller has processed."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """The maximum number of events."""


class LogQuery(Frozen):
    """GET /log. Not part of Agent-lightning 0.3."""

    after: str | None = None
    """The cursor of the last event that the caller has processed."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """The maximum number of events."""
    type: list[str] | None = None
    rollout: str | None = None
