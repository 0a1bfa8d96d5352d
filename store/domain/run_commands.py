"""Commands for runs: validated and encoded requests.

Each command has a method that requests rows. These rows must be loaded before the command is decided.
"""

from dataclasses import dataclass, field

from store.domain.body import Body
from store.domain.commands import Command, LoadRequest
from store.domain.events import Json
from store.domain.run_events import AgentFact, ArtifactSaved, AttemptForked, CheckpointSaved


@dataclass(slots=True)
class NewRunFact:
    """One event that has to be recorded about a run."""

    fact: AgentFact
    body: Body | None
    blobs: list[Body] = field(default_factory=list[Body])
    """The blobs to which the event refers by their hashes. The blobs are stored in addition to the body."""

    @property
    def size(self) -> int:
        """The size of the body and the blobs in bytes."""
        return (0 if self.body is None else len(self.body.stored)) + sum(len(blob.stored) for blob in self.blobs)


@dataclass(slots=True, kw_only=True)
class AppendToRun(Command):
    """Record events of an attempt about its run. If the command is refused, no event is recorded."""

    rollout_id: str
    attempt_id: str
    kind: str
    """The kind of the call: `events` for a list of events; otherwise the type of the only fact."""
    items: list[NewRunFact]
    key: str | None
    """The caller's key for this call. A key must not be used for calls of different kinds."""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.leavers += 1
        if self.key is not None:
            request.keyed.add(self.rollout_id)
            request.run_keys.add(self.key)
        for item in self.items:
            request.blobs.update(blob.sha256.hex() for blob in item.blobs)
            if item.body is not None and item.fact.type in IN_BLOBS:
                request.blobs.add(item.body.sha256.hex())


@dataclass(slots=True, kw_only=True)
class RetractArtifact(Command):
    """Retract an artifact, which is a saved result."""

    rollout_id: str
    artifact_id: str
    reason: str | None
    key: str | None

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.artifacts.add(self.artifact_id)
        request.artifacts_of.add(self.rollout_id)
        if self.key is not None:
            request.keyed.add(self.rollout_id)
            request.run_keys.add(self.key)


@dataclass(slots=True, kw_only=True)
class MoveHead(Command):
    """Make another attempt the head of the rollout."""

    rollout_id: str
    attempt_id: str
    request_id: str | None
    body: Body | None

    @property
    def size(self) -> int:
        return len(self.body.stored) if self.body else 0

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.attempts.add(self.attempt_id)
        request.bodies_of.add(self.rollout_id)
        if self.request_id is not None:
            request.keyed.add(self.rollout_id)
            request.run_keys.add(self.request_id)


@dataclass(slots=True)
class ForkPrecondition:
    """The state of a rollout on which the plan of a fork depends. If it has changed, the plan is out of date."""

    head: int | None
    """The sequence id of the head; None if there is no attempt."""
    run_version: int
    """The number, in the stream of the rollout, of the last event that can change a plan; 0 if there is none."""


@dataclass(slots=True, kw_only=True)
class Fork(Command):
    """Start an attempt that builds on an earlier attempt, as a plan describes."""

    rollout_id: str
    fact: AttemptForked
    """The content of the fork's event, which includes the id of the new attempt."""
    ground: ForkPrecondition
    """The state for which the plan was made. If the rollout has another state, the fork does not start."""
    supersede: bool
    """Whether to end attempts that are active. Otherwise, the fork is refused if an attempt is active."""
    worker_id: str | None
    owner: Json | None
    """The identity of the process that executes the attempt; see `store.runtime.process.owner`."""
    body: Body | None
    """The reason and the state patch of the fork."""
    metadata: Body
    """The metadata of the new attempt, which describes the fork to the process that executes the attempt."""

    @property
    def size(self) -> int:
        return len(self.metadata.stored) + (len(self.body.stored) if self.body else 0)

    def request_rows(self, request: LoadRequest) -> None:
        request.rollouts.add(self.rollout_id)
        request.forked.add(self.rollout_id)
        request.attempts.add(self.fact.attempt_id)
        request.bodies_of.add(self.rollout_id)
        request.metadata_of.add(self.rollout_id)
        request.worked.add(self.rollout_id)
        request.leavers += 1
        if self.worker_id is not None:
            request.workers.add(self.worker_id)
        if self.fact.request_id is not None:
            request.keyed.add(self.rollout_id)
            request.run_keys.add(self.fact.request_id)


IN_BLOBS = frozenset({CheckpointSaved.type, ArtifactSaved.type})
"""Types of events whose bodies are stored as blobs."""
