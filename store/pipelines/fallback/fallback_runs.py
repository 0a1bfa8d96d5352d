"""The attribute `runs` of a `FallbackStore`, which records the calls of executions while its store is unavailable."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

from store.interface.calls import perform
from store.interface.delegating import DelegatingRuns
from store.interface.store import Store
from store.models import (
    Artifact,
    ArtifactRef,
    AttemptedRollout,
    AttemptNode,
    CheckpointRef,
    PhaseGraph,
    RunEventPage,
    RunGraph,
    Snapshot,
)
from store.models.calls import (
    AppendEventsCall,
    ChangingCall,
    RetractArtifactCall,
    SaveArtifactCall,
    SaveCheckpointCall,
)
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.pipelines.fallback.fallback_replay import Replay
from store.planning import run_changes, saving
from store.run_folders.recorded import RecordedCall, pending_id

T = TypeVar("T")
K = TypeVar("K", AppendEventsCall, SaveCheckpointCall, SaveArtifactCall, RetractArtifactCall)


@dataclass(eq=False, slots=True)
class Execution:
    """An attempt that this process executes, with the checkpoints and artifacts that it has saved."""

    rollout: AttemptedRollout
    graph: PhaseGraph | None
    rerun_seq: int = 0
    checkpoints: dict[tuple[str, str], Snapshot] = field(default_factory=dict[tuple[str, str], Snapshot])
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    is_warned: bool = False

    @property
    def sequence_id(self) -> int:
        """The number of the attempt."""
        return self.rollout.attempt.sequence_id

    def is_in(self, view: str, *, as_at: object = None, at: object = None) -> bool:
        """Return whether a view contains all checkpoints and artifacts that this attempt has saved."""
        views = {"head", f"attempt:{self.sequence_id}", f"own:{self.sequence_id}"}
        return as_at is None and at is None and view in views

    def is_all_of(self, view: str) -> bool:
        """Return whether a view contains only checkpoints and artifacts that this attempt has saved."""
        return self.sequence_id == 1 or view.startswith("own:")


class Unknown:
    """Result of a read that only the store can answer."""


UNKNOWN: Final = Unknown()


class CallRecorder(Protocol):
    """The part of a `FallbackStore` that `FallbackRuns` uses."""

    @property
    def target(self) -> Store:
        """The store that executes the calls."""
        ...

    def execution(self, attempt_id: str) -> Execution | None:
        """Return the execution of an attempt; None if this process does not execute the attempt."""
        ...

    def execution_of(self, rollout_id: str) -> Execution | None:
        """Return the execution of a run; None if this process does not execute the run."""
        ...

    async def make_or_record(
        self,
        attempt_id: str,
        make: Callable[[], Awaitable[T]],
        entry: Callable[[], RecordedCall],
    ) -> tuple[bool, T | None]:
        """Make a call, or record it if the store is unavailable; return whether the call was made, and its result."""
        ...

    async def read(
        self,
        rollout_id: str,
        read: Callable[[], Awaitable[T]],
        from_execution: Callable[[Execution], T | Unknown] | None,
    ) -> T:
        """Read data of a run, and return the result.

        During an outage, the result comes from the checkpoints and artifacts that the execution has saved. If these do
        not contain the result, the read waits for the store.
        """
        ...


class FallbackRuns(DelegatingRuns):
    """Implementation of `Store.runs` that makes or records each call through a `FallbackStore`."""

    def __init__(self, store: CallRecorder) -> None:
        super().__init__(store.target.runs)
        self._store = store

    async def call(self, call: ChangingCall[T]) -> T:
        coroutine = self._of_execution(call)
        return await (perform(self.target, call) if coroutine is None else coroutine)

    def _of_execution(self, call: Any) -> Awaitable[Any] | None:
        """Return the coroutine that makes or records a call of an execution; None for all other calls."""
        if isinstance(call, RetractArtifactCall):
            execution = self._store.execution_of(call.rollout_id)
            artifacts = [] if execution is None else execution.artifacts
            artifact = next((saved for saved in artifacts if saved.artifact_id == call.artifact_id), None)
            if execution is None or artifact is None:
                return None
            return self._retract_artifact(execution, _keyed(call), artifact)
        if not isinstance(call, AppendEventsCall | SaveCheckpointCall | SaveArtifactCall):
            return None
        execution = self._store.execution(call.attempt_id)
        if execution is None:
            return None
        if isinstance(call, AppendEventsCall):
            return self._append_events(_keyed(call))
        if isinstance(call, SaveCheckpointCall):
            return self._save_checkpoint(execution, _keyed(call))
        return self._save_artifact(execution, _keyed(call))

    async def _append_events(self, call: AppendEventsCall) -> list[int]:
        def record() -> RecordedCall:
            run_changes.append(call)  # raises the errors that the store would raise
            return RecordedCall.of(call, time.time())

        make = partial(perform, self.target, call)
        is_made, versions = await self._store.make_or_record(call.attempt_id, make, record)
        return versions or [] if is_made else [0] * len(call.events)

    async def _save_checkpoint(self, execution: Execution, call: SaveCheckpointCall) -> CheckpointRef | None:
        graph = call.graph or execution.graph
        content = saving.taken(graph, scope=call.scope, name=call.name, state=call.state, after_phase=call.after_phase)
        # The pipeline may change its state later, so a copy is kept.
        state = deepcopy(content.state)

        def record() -> RecordedCall:
            run_changes.checkpoint(call, content, parent_id=None)
            return RecordedCall.of(replace(call, graph=graph), time.time())

        make = partial(perform, self.target, call)
        is_made, saved = await self._store.make_or_record(call.attempt_id, make, record)
        if not is_made and content.rejection is None:
            saved = CheckpointRef(
                checkpoint_id=pending_id(call.key or ""),
                rollout_id=call.rollout_id,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=content.scope,
                name=call.name,
                after_phase=content.after_phase,
                graph=content.graph,
                external=None if call.external is None else dict(call.external),
            )
        if saved is not None:
            execution.checkpoints[saved.scope, call.name] = Snapshot(**saved.model_dump(), state=state)
        return saved

    async def _save_artifact(self, execution: Execution, call: SaveArtifactCall) -> ArtifactRef:
        def record() -> RecordedCall:
            run_changes.artifact(call)
            return RecordedCall.of(call, time.time())

        make = partial(perform, self.target, call)
        is_made, saved = await self._store.make_or_record(call.attempt_id, make, record)
        if not is_made or saved is None:
            saved = ArtifactRef(
                artifact_id=pending_id(call.key or ""),
                rollout_id=call.rollout_id,
                group_id=None,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=call.scope,
                name=call.name,
                phase=call.phase,
                media_type=call.media_type,
            )
        execution.artifacts.append(Artifact(**saved.model_dump(), content=deepcopy(call.content)))
        return saved

    async def _retract_artifact(
        self, execution: Execution, call: RetractArtifactCall, artifact: Artifact
    ) -> ArtifactRef:
        saved: dict[str, Any] | None = None
        if call.artifact_id.startswith(pending_id("")):
            fields = {"scope", "name", "content", "phase", "media_type"}
            saved = artifact.model_dump(include=fields) | {"key": call.artifact_id.removeprefix(pending_id(""))}
        recorded = RecordedCall.of(call, time.time(), saved=saved)

        async def make() -> ArtifactRef:
            return cast("ArtifactRef", await Replay(self._store.target, execution.rollout).make(recorded))

        attempt_id = execution.rollout.attempt.attempt_id
        is_made, retracted = await self._store.make_or_record(attempt_id, make, lambda: recorded)
        execution.artifacts.remove(artifact)
        if is_made and retracted is not None:
            return retracted
        return ArtifactRef(**artifact.model_dump(exclude={"content", "retracted"}), retracted=True)

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        return await self._store.read(rollout_id, lambda: self.target.find_events(rollout_id, query), None)

    async def get_graph(self, rollout_id: str, **options: Any) -> RunGraph:
        return await self._store.read(rollout_id, lambda: self.target.get_graph(rollout_id, **options), None)

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        nodes = await self._store.read(rollout_id, lambda: self.target.list_lineage(rollout_id), None)
        for node in nodes:
            if (execution := self._store.execution(node.attempt_id)) is not None:
                execution.rerun_seq = node.rerun_seq
        return nodes

    async def get_checkpoint(self, rollout_id: str, *, scope: str, name: str, **options: Any) -> Snapshot | None:
        def from_execution(execution: Execution) -> Snapshot | Unknown | None:
            view: str = options.get("view", "head")
            if not execution.is_in(view, as_at=options.get("as_at"), at=options.get("at")):
                return UNKNOWN
            saved = execution.checkpoints.get((scope, name))
            is_all = execution.is_all_of(view) and options.get("search", "rollout") == "rollout"
            return deepcopy(saved) if saved is not None or is_all else UNKNOWN

        return await self._store.read(
            rollout_id,
            lambda: self.target.get_checkpoint(rollout_id, scope=scope, name=name, **options),
            from_execution,
        )

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        def from_execution(execution: Execution) -> Snapshot | Unknown:
            saved = [
                checkpoint for checkpoint in execution.checkpoints.values() if checkpoint.checkpoint_id == checkpoint_id
            ]
            return deepcopy(saved[0]) if saved else UNKNOWN

        return await self._store.read(
            rollout_id, lambda: self.target.get_checkpoint_by_id(rollout_id, checkpoint_id), from_execution
        )

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        return await self._store.read(rollout_id, lambda: self.target.find_checkpoints(rollout_id, query), None)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        def from_execution(execution: Execution) -> list[Artifact] | Unknown:
            if not (execution.is_in(query.view, as_at=query.as_at, at=query.at) and execution.is_all_of(query.view)):
                return UNKNOWN
            artifacts = [
                deepcopy(artifact)
                for artifact in execution.artifacts
                if query.scope in {None, artifact.scope} and query.name in {None, artifact.name}
            ]
            return artifacts if query.limit < 0 else artifacts[max(0, len(artifacts) - query.limit) :]

        return await self._store.read(rollout_id, lambda: self.target.find_artifacts(rollout_id, query), from_execution)


def _keyed(call: K) -> K:
    return replace(call, key=call.key or f"fallback:{uuid4().hex}")
