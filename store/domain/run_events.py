"""Events of runs: nodes and phases, checkpoints, artefacts, forks, and the head."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class RunEvent:
    """A node of a run, or the run itself, recorded something that is not a span."""

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
    """Which execution of the node it belongs to."""
    status: str | None = None
    service: str | None = None
    metrics: dict[str, Any] | None = None
    """Numbers, and `model`."""
    prompt_sha256: str | None = None
    """In hex, of the blob that holds the prompt; None where the body does."""
    response_sha256: str | None = None
    key: str | None = None
    """The caller's, of the call that brought it."""
    ordinal: int | None = None
    """Its number in that call, from 0."""


@dataclass(slots=True)
class _Phase:
    attempt_id: str
    phase: str
    scope: str | None = None
    cascade: bool | None = None
    """True where it runs only because a phase of another scope was run again."""
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
    """A phase of a scope is done."""

    type: ClassVar = "phase.completed"
    shape: ClassVar = 1


@dataclass(slots=True)
class PhaseSkipped(_Phase):
    """A phase of a scope was not run."""

    type: ClassVar = "phase.skipped"
    shape: ClassVar = 1


@dataclass(slots=True)
class CheckpointSaved:
    """The state of a scope was kept, to start from again."""

    type: ClassVar = "checkpoint.saved"
    shape: ClassVar = 1
    attempt_id: str
    checkpoint_id: str
    scope: str
    name: str
    after_phase: str | None = None
    parent_id: str | None = None
    graph: str | None = None
    """The digest of the phase graph it was taken under."""
    external: dict[str, Any] | None = None
    """Where the state lies, when it is kept elsewhere."""
    key: str | None = None


@dataclass(slots=True)
class CheckpointRejected:
    """A state was not fit to be kept: its checkpoint's condition did not hold."""

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
    """A result of a scope was kept."""

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
    """An artefact does not count any more."""

    type: ClassVar = "artifact.retracted"
    shape: ClassVar = 1
    artifact_id: str
    reason: str | None = None
    key: str | None = None


@dataclass(slots=True)
class AttemptForked:
    """An attempt goes on from what an earlier one has done, but for what its masks hide."""

    type: ClassVar = "attempt.forked"
    shape: ClassVar = 1
    attempt_id: str
    kind: str
    """rerun, resume or branch."""
    base: int
    """The sequence id of the attempt it goes on from."""
    base_version: int
    """The last version of the stream that it sees of the base."""
    masks: list[dict[str, Any]]
    """scopes, nodes, phases and children of each; a list that is None, or not there, stands for any."""
    scopes: list[str] | None = None
    phase: str | None = None
    entry: str | None = None
    """The node that begins."""
    checkpoints: list[str] | None = None
    """The ids of those it starts from."""
    cascade: list[str] | None = None
    """The phases of other scopes that run again afterwards."""
    graph: str | None = None
    degraded: dict[str, Any] | None = None
    """Why more scopes run again than were requested, if so."""
    confirmed: bool | None = None
    """Whether the caller has confirmed that side effects happen again."""
    request_id: str | None = None


@dataclass(slots=True)
class HeadMoved:
    """Another attempt's view became the rollout's."""

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
