"""Commands for runs: validated and encoded requests, each with a method that requests the rows it needs."""

from dataclasses import dataclass, field

from store.domain.commands import Command, LoadRequest
from store.domain.events import Body, Json
from store.domain.run_events import ArtifactSaved, AttemptForked, CheckpointRejected, CheckpointSaved, Phase, RunEvent

Told = RunEvent | Phase | CheckpointSaved | CheckpointRejected | ArtifactSaved
"""The events that an attempt records about its run."""


@dataclass(slots=True)
class NewRunFact:
    """One event of a run to record."""

    fact: Told
    body: Body | None
    blobs: list[Body] = field(default_factory=list[Body])
    """The blobs that the event refers to by their hashes, in addition to the body."""

    @property
    def size(self) -> int:
        """The size of the payload in bytes."""
        return (0 if self.body is None else len(self.body.stored)) + sum(len(blob.stored) for blob in self.blobs)


@dataclass(slots=True, kw_only=True)
class AppendToRun(Command):
    """Record events of an attempt about its run, all or none."""

    rollout_id: str
    attempt_id: str
    kind: str
    """The kind of call that the key belongs to: `events`, or the type of the only fact."""
    items: list[NewRunFact]
    key: str | None

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
    """Retract an artifact."""

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
    """Make the view of another attempt the view of the rollout."""

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
    """The state that a plan to fork depends on."""

    head: int | None
    run_version: int
    """The version of the last event that matters to a plan; 0 if there is none."""


@dataclass(slots=True, kw_only=True)
class Fork(Command):
    """Start the attempt of a plan, which continues another attempt."""

    rollout_id: str
    fact: AttemptForked
    """The fork, with the id of the new attempt."""
    ground: ForkPrecondition
    supersede: bool
    """Whether to end active attempts instead of refusing the fork."""
    worker_id: str | None
    owner: Json | None
    body: Body | None
    metadata: Body
    """The metadata of the attempt, which describe the fork to the runner."""

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
"""Types of events whose body is in `blobs`."""
