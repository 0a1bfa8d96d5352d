"""Events of runs: nodes and phases, checkpoints, artifacts, forks, and the head.

A node is a step of a phase, such as one agent. A scope is the subject for which a phase runs, such as a ticker. A fork
is an attempt that runs a part of the run again. The view of an attempt contains its events and those of the attempts on
which it builds, except the events that masks hide.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class RunEvent:
    """An event of a node or of the run itself, which is not a span."""

    type: ClassVar = "run.event"
    shape: ClassVar = 1
    attempt_id: str
    kind: str
    node_id: str | None = None
    scope: str | None = None
    parent_node_id: str | None = None
    agent: str | None = None
    phase: str | None = None
    node_exec: str | None = None
    """The execution of the node to which the event belongs."""
    status: str | None = None
    service: str | None = None
    metrics: dict[str, Any] | None = None
    """Numbers, and `model`."""
    prompt_sha256: str | None = None
    """The hash of the prompt's blob in hex; None if the body contains the prompt."""
    response_sha256: str | None = None
    key: str | None = None
    """The caller's key of the call that recorded the event."""
    ordinal: int | None = None
    """The index of the event in that call, from 0."""


@dataclass(slots=True)
class _Phase:
    attempt_id: str
    phase: str
    scope: str | None = None
    cascade: bool | None = None
    """Whether the phase runs only because a phase of another scope was run again."""
    reason: str | None = None
    key: str | None = None
    ordinal: int | None = None


@dataclass(slots=True)
class PhaseStarted(_Phase):
    """A phase of a scope began."""

    type: ClassVar = "phase.started"
    shape: ClassVar = 1


@dataclass(slots=True)
class PhaseCompleted(_Phase):
    """A phase of a scope was completed."""

    type: ClassVar = "phase.completed"
    shape: ClassVar = 1


@dataclass(slots=True)
class PhaseSkipped(_Phase):
    """A phase of a scope was skipped."""

    type: ClassVar = "phase.skipped"
    shape: ClassVar = 1


@dataclass(slots=True)
class CheckpointSaved:
    """The state of a scope was saved, so that an attempt can start from it."""

    type: ClassVar = "checkpoint.saved"
    shape: ClassVar = 1
    attempt_id: str
    checkpoint_id: str
    scope: str
    name: str
    after_phase: str | None = None
    parent_id: str | None = None
    graph: str | None = None
    """The digest of the phase graph at that time."""
    external: dict[str, Any] | None = None
    """The location of the state if it is stored elsewhere."""
    key: str | None = None


@dataclass(slots=True)
class CheckpointRejected:
    """A checkpoint was rejected, because its condition was not met."""

    type: ClassVar = "checkpoint.rejected"
    shape: ClassVar = 1
    attempt_id: str
    scope: str
    name: str
    reason: str
    after_phase: str | None = None
    key: str | None = None


@dataclass(slots=True)
class ArtifactSaved:
    """A result of a scope was saved."""

    type: ClassVar = "artifact.saved"
    shape: ClassVar = 1
    attempt_id: str
    artifact_id: str
    scope: str
    name: str
    phase: str | None = None
    media_type: str | None = None
    key: str | None = None


@dataclass(slots=True)
class ArtifactRetracted:
    """An artifact was retracted."""

    type: ClassVar = "artifact.retracted"
    shape: ClassVar = 1
    artifact_id: str
    reason: str | None = None
    key: str | None = None


@dataclass(slots=True)
class AttemptForked:
    """An attempt continues the work of an earlier one. The events that its masks hide are not part of its view."""

    type: ClassVar = "attempt.forked"
    shape: ClassVar = 1
    attempt_id: str
    kind: str
    """rerun, resume or branch."""
    base: int
    """The sequence id of the attempt that it continues."""
    base_version: int
    """The version of the stream up to which the base's events belong to the attempt's view."""
    masks: list[dict[str, Any]]
    """The scopes, nodes, phases and children of each mask. A list that is None or missing matches everything."""
    scopes: list[str] | None = None
    phase: str | None = None
    entry: str | None = None
    """The first node that runs."""
    checkpoints: list[str] | None = None
    """The ids of the checkpoints from which the attempt starts."""
    cascade: list[str] | None = None
    """The phases of other scopes that run again afterwards."""
    graph: str | None = None
    degraded: dict[str, Any] | None = None
    """The reason why more scopes run again than were requested; None if none do."""
    confirmed: bool | None = None
    """Whether the caller has confirmed that side effects may happen again."""
    request_id: str | None = None


@dataclass(slots=True)
class HeadMoved:
    """The view of another attempt became the view of the rollout."""

    type: ClassVar = "rollout.head_moved"
    shape: ClassVar = 1
    from_: int
    to: int
    request_id: str | None = None


Phase = PhaseStarted | PhaseCompleted | PhaseSkipped
RunFact = (
    RunEvent
    | Phase
    | CheckpointSaved
    | CheckpointRejected
    | ArtifactSaved
    | ArtifactRetracted
    | AttemptForked
    | HeadMoved
)
RUN_FACTS: tuple[type[RunFact], ...] = (
    RunEvent,
    PhaseStarted,
    PhaseCompleted,
    PhaseSkipped,
    CheckpointSaved,
    CheckpointRejected,
    ArtifactSaved,
    ArtifactRetracted,
    AttemptForked,
    HeadMoved,
)
