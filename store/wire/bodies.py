"""What requests carry: bodies as models that ignore unknown keys, and queries, which come as bodies or as parameters.

Where a key that is absent means something else than null, the model's `model_fields_set` says which was given.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from store.errors import Invalid
from store.models import (
    Attempt,
    AttemptError,
    AttemptStatus,
    EnqueueRolloutRequest,
    FilterLogic,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Seal,
    SortOrder,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)
from store.models.enums import Frozen

_LAST: Final = 2**63 - 1


def moment_of(given: Any) -> Any:
    """Return a moment of the log as the store takes it: text as a position or a time, all else as it came.

    Raises:
        Invalid: the text is neither a number nor a time of RFC 3339.
    """
    if not isinstance(given, str):
        return given
    if given.lstrip("-").isdecimal():
        return int(given)
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise Invalid("as_at", f"{given!r} is no position and no time; write 1234 or 2026-11-20T02:00:00Z") from None


def moment_on_wire(as_at: Any) -> Any:
    """Return a moment as it travels: a position as it is, a time as RFC 3339 text."""
    return as_at.isoformat() if isinstance(as_at, datetime) else as_at


Moment = Annotated[
    Any,
    BeforeValidator(moment_of),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string", "format": "date-time"}, {"type": "null"}],
            "description": "As the store stood then: a position of the log, or an RFC 3339 time.",
        }
    ),
]

# -- what changes something ------------------------------------------------------------------------------------------


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
    """POST /queues/rollouts/dequeue; may be left out."""

    limit: int = 1
    worker_id: str | None = None
    wait_seconds: float = 0.0
    """How long to wait for a rollout, in seconds. Beyond Agent-lightning 0.3."""


class StartAttemptBody(Frozen):
    """POST /rollouts/{rollout_id}/attempts; may be left out."""

    worker_id: str | None = None


class UpdateRolloutBody(Frozen):
    """POST /rollouts/{rollout_id}: what is absent stays; null clears, and is refused for status and config."""

    input: TaskInput = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class UpdateAttemptBody(Frozen):
    """POST /rollouts/{rollout_id}/attempts/{attempt_id}: what is absent stays; null is refused."""

    status: AttemptStatus | None = None
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None
    error: AttemptError | None = None
    """Why the status is what it is. Beyond Agent-lightning 0.3."""


class UpdateWorkerBody(Frozen):
    """POST /workers/{worker_id}; may be left out. Null statistics are refused."""

    heartbeat_stats: dict[str, Any] | None = None


class NextSpanBody(Frozen):
    """POST /spans/next."""

    rollout_id: str
    attempt_id: str


class NextSpansBody(Frozen):
    """POST /spans/next/batch. Beyond Agent-lightning 0.3."""

    rollout_attempt_ids: list[tuple[str, str]]


class SpansBatchBody(Frozen):
    """POST /spans/batch. Beyond Agent-lightning 0.3."""

    spans: list[Span]
    number: bool = False
    """Draw the spans' sequence numbers instead of taking those they carry."""


class WaitBody(Frozen):
    """POST /waits/rollouts."""

    rollout_ids: list[str]
    timeout: float | None = None
    """Seconds; null waits for ever."""


class VerifyBody(Frozen):
    """POST /verify; may be left out. Beyond Agent-lightning 0.3."""

    seal: Seal | None = None


# -- queries ---------------------------------------------------------------------------------------------------------


class PastQuery(Frozen):
    """A moment of the log. Beyond Agent-lightning 0.3."""

    as_at: Moment = None


class RolloutPastQuery(PastQuery):
    """A moment of the log, or of one rollout's own history. Beyond Agent-lightning 0.3."""

    at: int | None = None


class HistoryQuery(PastQuery):
    """GET /rollouts/{rollout_id}/history. Beyond Agent-lightning 0.3."""

    after: int = Field(default=0, ge=0)
    """The number of the last event dealt with."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """How many events at most."""


class PageQuery(PastQuery):
    """Which part of the matches, in which order."""

    # They come back in the answer, where JSON's numbers end somewhere.
    limit: int = Field(default=-1, le=_LAST)
    offset: int = Field(default=0, le=_LAST)
    sort_by: str | None = None
    sort_order: SortOrder = "asc"


class RolloutsQuery(PageQuery):
    """GET /rollouts, POST /rollouts/search."""

    status_in: list[RolloutStatus] | None = None
    rollout_id_in: list[str] | None = None
    rollout_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class AttemptsQuery(PageQuery):
    """GET /rollouts/{rollout_id}/attempts, POST /rollouts/{rollout_id}/attempts/search."""

    sort_by: str | None = "sequence_id"
    at: int | None = None


class WorkersQuery(PageQuery):
    """GET /workers, POST /workers/search."""

    status_in: list[WorkerStatus] | None = None
    worker_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class ResourcesQuery(PageQuery):
    """GET /resources."""

    resources_id: str | None = None
    resources_id_contains: str | None = None


class SpansQuery(PageQuery):
    """GET /spans, POST /spans/search."""

    rollout_id: str
    attempt_id: str | None = None
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    filter_logic: FilterLogic = "and"
    sort_by: str | None = "sequence_id"
    at: int | None = None


class LogQuery(Frozen):
    """GET /log. Beyond Agent-lightning 0.3."""

    after: str | None = None
    """The cursor of the last event dealt with."""
    limit: int = Field(default=1000, ge=1, le=10_000)
    """How many events at most."""
    type: list[str] | None = None
    rollout: str | None = None


SORTABLE: Final[dict[type[PageQuery], tuple[str, ...]]] = {
    RolloutsQuery: tuple(Rollout.model_fields),
    AttemptsQuery: tuple(Attempt.model_fields),
    WorkersQuery: tuple(Worker.model_fields),
    ResourcesQuery: tuple(ResourcesUpdate.model_fields),
    SpansQuery: tuple(Span.model_fields),
}
"""The fields by which each query may be sorted, in the order in which a refusal lists them."""
