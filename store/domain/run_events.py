"""Contents of the events of runs: nodes and phases, checkpoints, artifacts, forks, and the head. Decision 24."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(slots=True)
class RunEvent:
    """An event of a node or of the run itself. A span is recorded as another type of event."""

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
    """The caller's name for one execution of the node, if the node is executed several times."""
    status: str | None = None
    service: str | None = None
    metrics: dict[str, Any] | None = None
    """Measured numbers by name. Only the value of `model` is a text, the name of the model."""
    prompt_sha256: str | None = None
    """The hash, in hex, of the blob with the prompt; None if the body contains the prompt or there is no prompt."""
    response_sha256: str | None = None
    key: str | None = None
    """The caller's key of the call that recorded the event."""
    ordinal: int | None = None
    """The index of the event among the events of the call with this key, from 0."""


@dataclass(slots=True)
class _Phase:
    attempt_id: str
    phase: str
    scope: str | None = None
    cascade: bool | None = None
    """Whether the phase is executed only because a phase of another scope was executed again."""
    reason: str | None = None
    key: str | None = None
    ordinal: int | None = None


@dataclass(slots=True)
class PhaseStarted(_Phase):
    """The execution of a phase for a scope began."""

    type: ClassVar = "phase.started"
    shape: ClassVar = 1


@dataclass(slots=True)
class PhaseCompleted(_Phase):
    """The execution of a phase for a scope was completed."""

    type: ClassVar = "phase.completed"
    shape: ClassVar = 1


@dataclass(slots=True)
class PhaseSkipped(_Phase):
    """A phase was not executed for a scope."""

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
    """The digest of the phase graph that was used when the checkpoint was saved."""
    external: dict[str, Any] | None = None
    """The location of the state if the state is stored outside of this store."""
    key: str | None = None


@dataclass(slots=True)
class CheckpointRejected:
    """A checkpoint was not saved, because the state did not meet the condition that is declared for the checkpoint."""

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
    """An artifact was retracted: queries of a run no longer return the artifact, but the log keeps it."""

    type: ClassVar = "artifact.retracted"
    shape: ClassVar = 1
    artifact_id: str
    reason: str | None = None
    key: str | None = None


@dataclass(slots=True)
class AttemptForked:
    """A fork started an attempt that builds on an earlier attempt."""

    type: ClassVar = "attempt.forked"
    shape: ClassVar = 1
    attempt_id: str
    kind: str
    """`rerun`, `resume` or `branch`."""
    base: int
    """The sequence id of the base."""
    base_version: int
    """The version up to which events of the base belong to the view of the new attempt."""
    masks: list[dict[str, Any]]
    """The fields of each mask, by name: `scopes`, `nodes`, `phases` and `children`.

    A mask without `scopes` applies to all scopes. A mask without `nodes` and `phases` hides all events of its scopes.
    """
    scopes: list[str] | None = None
    """The scopes for which phases are executed again."""
    phase: str | None = None
    """The phase at which the execution begins. None if scopes begin at different phases."""
    entry: str | None = None
    """The node at which the execution begins."""
    checkpoints: list[str] | None = None
    """The ids of the checkpoints from which the attempt starts."""
    cascade: list[str] | None = None
    """The phases of other scopes that are executed again afterwards, because they depend on the repeated phases."""
    graph: str | None = None
    """The digest of the phase graph for which the fork was planned."""
    degraded: dict[str, Any] | None = None
    """The reason why more phases are executed again than the caller requested; None if no further phases are."""
    confirmed: bool | None = None
    """Whether the caller has confirmed that side effects may occur again."""
    request_id: str | None = None


@dataclass(slots=True)
class HeadMoved:
    """Another attempt became the head of the rollout."""

    type: ClassVar = "rollout.head_moved"
    shape: ClassVar = 1
    from_: int
    """The sequence id of the head before."""
    to: int
    """The sequence id of the new head."""
    request_id: str | None = None


Phase = PhaseStarted | PhaseCompleted | PhaseSkipped
AgentFact = RunEvent | Phase | CheckpointSaved | CheckpointRejected | ArtifactSaved
"""The types of facts that an agent records about its run."""
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
