"""Calls as values: the fields, the result and the HTTP route of each call that changes a store. Decision 91.

A method of the interface builds the value of its call, and the store executes the value. The interface describes the
fields: they are the arguments of the method. A value is not validated when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform

from pydantic import BaseModel

from store.models.annotations import AnnotateResult
from store.models.enums import UNSET, AttemptStatus, RolloutMode, RolloutStatus, TaskInput, Unset
from store.models.finished_attempts import FinishedAttempt
from store.models.phases import PhaseGraph
from store.models.resources import ResourcesUpdate, ResourceUnion
from store.models.rollouts import (
    Attempt,
    AttemptedRollout,
    AttemptError,
    EnqueueRolloutRequest,
    ObservedWorker,
    Rollout,
    RolloutConfig,
    Worker,
)
from store.models.runs import ArtifactRef, CheckpointRef, ForkResult, OnActive, OnMissing, RunEvent
from store.models.scanners import NewScan, NewScanner
from store.models.scores import NewScore
from store.models.spans import Span
from store.models.trainer_metrics import NotFinite

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRoute:
    """The HTTP route of a call: a POST whose path and body contain the fields of the call."""

    path: str
    """The template of the path below the prefix of the protocol. Its ids are fields of the call."""
    role: Literal["runner", "algorithm"]
    """The role that the route requires if keys are required."""
    tag: str
    """The section of the OpenAPI document."""
    status: int = 200
    operation: str = ""
    """The id of the operation in the OpenAPI document; empty for the name of the method."""
    body: str | None = None
    """The field that is the whole body; None if the body is an object of the fields that are not in the path."""
    is_body_optional: bool = False
    response: Any = None
    """The model of the response; None for the result of the call."""
    key: str | None = None
    """The only key of the response, which contains the result; None if the response is the result."""
    is_addition: bool = False
    """Whether servers of Agent-lightning do not have the route."""
    has_own_statuses: bool = False
    """Whether each class of errors has its own status, because Agent-lightning's clients do not call the route."""
    is_located: bool = False
    """Whether the response contains the path of the object that the call created."""


@dataclass_transform(frozen_default=True)
def _value(kind: type[C]) -> type[C]:
    """Make a class a dataclass. Only the type checker refuses to set fields, because a check would cost 3 µs a call."""
    # The base class compares and shows values. Methods that dataclasses generate would take 1 ms of each import.
    return dataclass(kind, repr=False, eq=False, match_args=False)


class ChangingCall(Generic[T]):
    """Base of the calls that change a store; `T` is the type of the result."""

    method: ClassVar[str]
    """The method of the store, such as `enqueue_rollout` or `runs.fork`."""
    route: ClassVar[CallRoute | None] = None
    """The route; None if the call is sent as another call, or not over HTTP."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - fields may be lists and dicts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Appended(BaseModel):
    """The response to POST /rollouts/{rollout_id}/attempts/{attempt_id}/events."""

    versions: list[int]
    """The version of each event, in the order of the request."""


class RecordedScores(BaseModel):
    """The response to POST /scores."""

    numbers: list[int | None]
    """For each score the number of its event in the rollout's history; null if the score was recorded before."""


class AddedScanner(BaseModel):
    """The response to POST /scanners."""

    added: bool
    """False if the version of the scanner was added before."""


class RecordedScans(BaseModel):
    """The response to POST /scans."""

    numbers: list[int | None]
    """For each result the number of its event in the rollout's history; null if it was recorded before."""


class NextSpan(BaseModel):
    """The response to POST /spans/next."""

    sequence_id: int


class NextSpans(BaseModel):
    """The response to POST /spans/next/batch."""

    sequence_ids: list[int]


class StoredSpan(BaseModel):
    """A new span in the response to POST /rollouts/{rollout_id}/attempts/{attempt_id}/finish."""

    index: int
    """The index of the span in the request."""
    sequence_id: int
    span_id: str
    parent_id: str | None


class RefusedSpan(BaseModel):
    """A span that was not stored, in the response to POST /rollouts/{rollout_id}/attempts/{attempt_id}/finish."""

    index: int
    """The index of the span in the request."""
    error: dict[str, Any]


class FinishResponse(BaseModel):
    """The response to POST /rollouts/{rollout_id}/attempts/{attempt_id}/finish.

    Each error has the form of the response to a request that fails with this error.
    """

    spans: list[StoredSpan]
    """The new spans. A span that is missing here and in `refused_spans` was stored already."""
    refused_spans: list[RefusedSpan]
    attempt: Attempt | None
    attempt_error: dict[str, Any] | None
    claimed: AttemptedRollout | None
    claim_error: dict[str, Any] | None


class Released(BaseModel):
    """The response to POST /rollouts/{rollout_id}/attempts/{attempt_id}/release."""

    released: bool


@_value
class EnqueueRolloutCall(ChangingCall[Rollout]):
    """Create a rollout at the end of the queue."""

    method: ClassVar = "enqueue_rollout"

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: Mapping[str, Any] | None = None


@_value
class EnqueueManyRolloutsCall(ChangingCall[list[Rollout]]):
    """Create rollouts at the end of the queue, all or none."""

    method: ClassVar = "enqueue_many_rollouts"
    route: ClassVar = CallRoute(
        path="/queues/rollouts/enqueue", role="algorithm", tag="Queue", status=201, operation="enqueue_rollouts"
    )

    rollouts: Sequence[EnqueueRolloutRequest]


@_value
class DequeueRolloutCall(ChangingCall[AttemptedRollout | None]):
    """Claim the rollout at the head of the queue; wait up to `wait_seconds` if there is none."""

    method: ClassVar = "dequeue_rollout"

    worker_id: str | None = None
    wait_seconds: float = 0.0


@_value
class DequeueManyRolloutsCall(ChangingCall[list[AttemptedRollout]]):
    """Claim up to `limit` rollouts, longest-waiting first; wait up to `wait_seconds` if there is none."""

    method: ClassVar = "dequeue_many_rollouts"
    route: ClassVar = CallRoute(
        path="/queues/rollouts/dequeue",
        role="runner",
        tag="Queue",
        operation="dequeue_rollouts",
        is_body_optional=True,
    )

    limit: int = 1
    worker_id: str | None = None
    wait_seconds: float = 0.0


@_value
class ClaimRunsCall(ChangingCall[list[AttemptedRollout]]):
    """Claim up to `limit` waiting runs of a phase graph; wait up to `wait_seconds` if there is none."""

    method: ClassVar = "runs.claim"
    route: ClassVar = CallRoute(
        path="/queues/rollouts/claim-runs", role="runner", tag="Queue", operation="claim_runs", is_addition=True
    )

    resources_ids: Sequence[str]
    limit: int = 1
    worker_id: str | None = None
    wait_seconds: float = 0.0


@_value
class StartRolloutCall(ChangingCall[AttemptedRollout]):
    """Create a rollout together with its first attempt, without the queue."""

    method: ClassVar = "start_rollout"
    route: ClassVar = CallRoute(path="/rollouts", role="runner", tag="Rollouts", status=201)

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: Mapping[str, Any] | None = None
    worker_id: str | None = None


@_value
class UpdateRolloutCall(ChangingCall[Rollout]):
    """Replace the fields that are given.

    Absent fields do not change; null clears a field, but is refused for status and
    config.
    """

    method: ClassVar = "update_rollout"
    route: ClassVar = CallRoute(path="/rollouts/{rollout_id}", role="algorithm", tag="Rollouts")

    rollout_id: str
    input: TaskInput | Unset = UNSET
    mode: RolloutMode | Unset | None = UNSET
    resources_id: str | Unset | None = UNSET
    status: RolloutStatus | Unset = UNSET
    config: RolloutConfig | Unset = UNSET
    metadata: Mapping[str, Any] | Unset | None = UNSET


@_value
class StartAttemptCall(ChangingCall[AttemptedRollout]):
    """Open another attempt of a rollout."""

    method: ClassVar = "start_attempt"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/attempts", role="runner", tag="Attempts", status=201, is_body_optional=True
    )

    rollout_id: str
    worker_id: str | None = None


@_value
class UpdateAttemptCall(ChangingCall[Attempt]):
    """Replace the fields that are given; the attempt id may be `latest`.

    Absent fields do not change; null is refused.
    """

    method: ClassVar = "update_attempt"
    route: ClassVar = CallRoute(path="/rollouts/{rollout_id}/attempts/{attempt_id}", role="runner", tag="Attempts")

    rollout_id: str
    attempt_id: str
    status: AttemptStatus | Unset = UNSET
    worker_id: str | Unset = UNSET
    last_heartbeat_time: float | Unset = UNSET
    metadata: Mapping[str, Any] | Unset = UNSET
    error: AttemptError | Unset = UNSET


@_value
class FinishAttemptCall(ChangingCall[FinishedAttempt]):
    """Store the last spans of an attempt, set its status, return its rollout to the queue, and claim the next rollout.

    Not part of Agent-lightning 0.3.
    """

    method: ClassVar = "finish_attempt"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/attempts/{attempt_id}/finish",
        role="runner",
        tag="Attempts",
        response=FinishResponse,
        is_addition=True,
    )

    rollout_id: str
    attempt_id: str
    status: AttemptStatus
    spans: Sequence[Span] = ()
    number: bool = False
    metadata: Mapping[str, Any] | Unset = UNSET
    error: AttemptError | Unset = UNSET
    claim_as: str | None = None
    requeue: bool = False


@_value
class ReleaseClaimCall(ChangingCall[bool]):
    """Undo the claim of a rollout whose attempt has not begun.

    Not part of Agent-lightning 0.3.
    """

    method: ClassVar = "runs.release_claim"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/attempts/{attempt_id}/release",
        role="runner",
        tag="Attempts",
        response=Released,
        key="released",
        is_addition=True,
        is_body_optional=True,
    )

    rollout_id: str
    attempt_id: str


@_value
class NextSpanCall(ChangingCall[int]):
    """Return the next sequence number for a span of a rollout."""

    method: ClassVar = "get_next_span_sequence_id"
    route: ClassVar = CallRoute(
        path="/spans/next", role="runner", tag="Spans", operation="next_span", response=NextSpan, key="sequence_id"
    )

    rollout_id: str
    attempt_id: str


@_value
class NextSpansCall(ChangingCall[list[int]]):
    """Return a sequence number for each pair of a rollout and an attempt, in the given order.

    Not part of Agent-lightning 0.3.
    """

    method: ClassVar = "get_many_span_sequence_ids"
    route: ClassVar = CallRoute(
        path="/spans/next/batch",
        role="runner",
        tag="Spans",
        operation="next_spans",
        response=NextSpans,
        key="sequence_ids",
        is_addition=True,
    )

    rollout_attempt_ids: Sequence[tuple[str, str]]


@_value
class AddResourcesCall(ChangingCall[ResourcesUpdate]):
    """Publish resources under a new id."""

    method: ClassVar = "add_resources"
    route: ClassVar = CallRoute(path="/resources", role="algorithm", tag="Resources", status=201, body="resources")

    resources: Mapping[str, ResourceUnion]


@_value
class UpdateResourcesCall(ChangingCall[ResourcesUpdate]):
    """Publish the next version of an id, or its first."""

    method: ClassVar = "update_resources"
    route: ClassVar = CallRoute(path="/resources/{resources_id}", role="algorithm", tag="Resources", body="resources")

    resources_id: str
    resources: Mapping[str, ResourceUnion]


@_value
class UpdateWorkerCall(ChangingCall[Worker]):
    """Record a heartbeat of a worker, with statistics if they are given.

    Null is refused for `heartbeat_stats`.
    """

    method: ClassVar = "update_worker"
    route: ClassVar = CallRoute(
        path="/workers/{worker_id}", role="runner", tag="Workers", is_body_optional=True, response=ObservedWorker
    )

    worker_id: str
    heartbeat_stats: Mapping[str, Any] | Unset = UNSET


@_value
class AppendEventsCall(ChangingCall[list[int]]):
    """Append events of an attempt, all or nothing; return the version of each event."""

    method: ClassVar = "runs.append_events"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/attempts/{attempt_id}/events",
        role="runner",
        tag="Run events",
        status=201,
        operation="append_run_events",
        response=Appended,
        key="versions",
        has_own_statuses=True,
    )

    rollout_id: str
    attempt_id: str
    events: Sequence[RunEvent]
    key: str | None = None


@_value
class SaveCheckpointCall(ChangingCall[CheckpointRef | None]):
    """Save the state of a scope at the end of a phase; null if the phase graph has no checkpoint there."""

    method: ClassVar = "runs.save_checkpoint"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/checkpoints",
        role="runner",
        tag="Checkpoints and artifacts",
        status=201,
        has_own_statuses=True,
    )

    rollout_id: str
    attempt_id: str
    scope: str
    name: str
    state: Mapping[str, Any] | None = None
    after_phase: str | None = None
    external: Mapping[str, Any] | None = None
    key: str | None = None
    graph: PhaseGraph | None = None


@_value
class SaveArtifactCall(ChangingCall[ArtifactRef]):
    """Save an artifact of a run: any JSON value."""

    method: ClassVar = "runs.save_artifact"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/artifacts",
        role="runner",
        tag="Checkpoints and artifacts",
        status=201,
        has_own_statuses=True,
    )

    rollout_id: str
    attempt_id: str
    scope: str
    name: str
    content: Any
    phase: str | None = None
    media_type: str | None = None
    key: str | None = None


@_value
class RetractArtifactCall(ChangingCall[ArtifactRef]):
    """Retract an artifact; it stays in the log."""

    method: ClassVar = "runs.retract_artifact"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/artifacts/{artifact_id}/retract",
        role="runner",
        tag="Checkpoints and artifacts",
        is_body_optional=True,
        has_own_statuses=True,
    )

    rollout_id: str
    artifact_id: str
    reason: str | None = None
    key: str | None = None


@_value
class ForkCall(ChangingCall[ForkResult]):
    """Start an attempt that runs a phase of some scopes again; the caller executes the attempt."""

    method: ClassVar = "runs.fork"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/forks",
        role="algorithm",
        tag="Forks",
        status=201,
        operation="fork_attempt",
        has_own_statuses=True,
        is_located=True,
    )

    rollout_id: str
    node: str | None = None
    phase: str | None = None
    scopes: Sequence[str] = ()
    base: str = "head"
    on_missing: OnMissing = "error"
    cascade: bool = True
    graph: PhaseGraph | None = None
    state_patch: Mapping[str, Any] | None = None
    on_active: OnActive = "reject"
    expected_head: int | None = None
    request_id: str | None = None
    reason: str | None = None
    confirm_side_effects: bool = False
    allow_graph_change: bool = False
    worker_id: str | None = None


@_value
class ResumeCall(ChangingCall[ForkResult]):
    """Start an attempt that continues where an interrupted one stopped."""

    method: ClassVar = "runs.resume"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/resume",
        role="algorithm",
        tag="Forks",
        status=201,
        operation="resume_attempt",
        is_body_optional=True,
        has_own_statuses=True,
        is_located=True,
    )

    rollout_id: str
    from_attempt: str = "head"
    confirm_side_effects: bool = False
    request_id: str | None = None
    reason: str | None = None
    worker_id: str | None = None
    graph: PhaseGraph | None = None


@_value
class MoveHeadCall(ChangingCall[Rollout]):
    """Make another attempt the head of the run, to undo or redo a re-run."""

    method: ClassVar = "runs.move_head"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/head", role="algorithm", tag="Forks", has_own_statuses=True
    )

    rollout_id: str
    attempt_id: str
    reason: str | None = None
    request_id: str | None = None


@_value
class AnnotateCall(ChangingCall[AnnotateResult]):
    """Add labels to a rollout, remove others, and add a note, all in one event."""

    method: ClassVar = "annotations.annotate"
    route: ClassVar = CallRoute(
        path="/rollouts/{rollout_id}/annotations",
        role="algorithm",
        tag="Labels and notes",
        operation="annotate_rollout",
        has_own_statuses=True,
    )

    rollout_id: str
    note: str | None = None
    add_labels: Sequence[str] = ()
    remove_labels: Sequence[str] = ()
    span_id: str | None = None
    attempt_id: str | None = None


@_value
class LogMetricsCall(ChangingCall[None]):
    """Log numbers of a training step, such as the loss. In JSON, `NaN`, `Infinity` and `-Infinity` are texts."""

    method: ClassVar = "log_metrics"
    route: ClassVar = CallRoute(
        path="/metrics", role="algorithm", tag="Metrics", status=201, is_addition=True, has_own_statuses=True
    )

    step: int
    metrics: Mapping[str, float | NotFinite]


@_value
class RecordScoresCall(ChangingCall[list[int | None]]):
    """Record scores of attempts, all or none; return the number of each event, null for a repeated score."""

    method: ClassVar = "annotations.record_scores"
    route: ClassVar = CallRoute(
        path="/scores",
        role="algorithm",
        tag="Scores",
        status=201,
        operation="record_scores",
        response=RecordedScores,
        key="numbers",
        has_own_statuses=True,
    )

    scores: Sequence[NewScore]


@_value
class AddScannerCall(ChangingCall[bool]):
    """Add a version of a scanner; return whether it is new."""

    method: ClassVar = "scanners.add"
    route: ClassVar = CallRoute(
        path="/scanners",
        role="algorithm",
        tag="Scanners",
        status=201,
        operation="add_scanner",
        response=AddedScanner,
        key="added",
        has_own_statuses=True,
    )

    scanner: NewScanner


@_value
class RecordScansCall(ChangingCall[list[int | None]]):
    """Record results of a scanner, all or none; return the number of each event, null for a repeated result."""

    method: ClassVar = "scanners.record"
    route: ClassVar = CallRoute(
        path="/scans",
        role="algorithm",
        tag="Scanners",
        status=201,
        operation="record_scans",
        response=RecordedScans,
        key="numbers",
        has_own_statuses=True,
    )

    name: str
    version: str
    scans: Sequence[NewScan]
