"""The attribute `runs` of a `FallbackStore`, which records the calls of executions while its store is unavailable."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

from store.interface.delegating import DelegatingRuns
from store.interface.store import Store
from store.models import (
    Artifact,
    ArtifactRef,
    AttemptedRollout,
    AttemptNode,
    CheckpointRef,
    PhaseGraph,
    RunEvent,
    RunEventPage,
    RunGraph,
    Snapshot,
)
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.pipelines.fallback.fallback_replay import Replay
from store.planning import run_changes, saving
from store.run_folders.recorded import Method, RecordedCall, pending_id

T = TypeVar("T")


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

    def knows(self, view: str, *, as_at: object = None, at: object = None) -> bool:
        """Return whether a view contains everything that this attempt has saved."""
        views = {"head", f"attempt:{self.sequence_id}", f"own:{self.sequence_id}"}
        return as_at is None and at is None and view in views

    def is_whole(self, view: str) -> bool:
        """Return whether a view contains only what this attempt has saved, and nothing from the attempts before it."""
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
        """Return the execution of an attempt; None if this process does not execute it."""
        ...

    def execution_of(self, rollout_id: str) -> Execution | None:
        """Return the execution of a run; None if this process does not execute it."""
        ...

    async def perform(
        self,
        attempt_id: str,
        method: Method,
        arguments: Callable[[], dict[str, Any]],
        call: Callable[[], Awaitable[T]],
    ) -> tuple[bool, T | None]:
        """Make a call, or record it if the store is unavailable; return whether the call was made, and its result."""
        ...

    async def read(
        self, rollout_id: str, read: Callable[[], Awaitable[T]], known: Callable[[Execution], T | Unknown] | None
    ) -> T:
        """Read data of a run, and return the result.

        During an outage, the result comes from the checkpoints and artifacts that the execution has saved. If they do
        not contain the result, the read waits for the store.
        """
        ...


class FallbackRuns(DelegatingRuns):
    """Implementation of `Store.runs` that makes or records each call through a `FallbackStore`."""

    def __init__(self, store: CallRecorder) -> None:
        super().__init__(store.target.runs)
        self._store = store

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        given, used = list(events), key or _new_key()
        if not given or self._store.execution(attempt_id) is None:
            return await self.target.append_events(rollout_id, attempt_id, given, key=key)

        def arguments() -> dict[str, Any]:
            run_changes.append(rollout_id, attempt_id, given, used)  # raises the errors that the store would raise
            return {"events": [each.model_dump(mode="json", exclude_none=True) for each in given], "key": used}

        made, versions = await self._store.perform(
            attempt_id,
            "append_events",
            arguments,
            lambda: self.target.append_events(rollout_id, attempt_id, given, key=used),
        )
        return versions or [] if made else [0] * len(given)

    async def save_checkpoint(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        state: Mapping[str, Any] | None = None,
        after_phase: str | None = None,
        external: Mapping[str, Any] | None = None,
        key: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> CheckpointRef | None:
        named: dict[str, Any] = {"scope": scope, "name": name, "after_phase": after_phase}
        execution = self._store.execution(attempt_id)
        if execution is None:
            return await self.target.save_checkpoint(
                rollout_id, attempt_id, **named, state=state, external=external, key=key, graph=graph
            )
        used = key or _new_key()
        used_graph = graph or execution.graph
        taken = saving.taken(used_graph, scope=scope, name=name, state=state, after_phase=after_phase)
        # The pipeline may change its state later, so a copy is kept.
        kept = deepcopy(taken.state)

        def arguments() -> dict[str, Any]:
            run_changes.checkpoint(
                rollout_id, attempt_id, name=name, taken=taken, parent_id=None, external=external, key=used
            )
            whole = None if state is None else dict(state)
            dumped = None if used_graph is None else used_graph.model_dump(mode="json")
            return named | {"state": whole, "external": external, "key": used, "graph": dumped}

        made, saved = await self._store.perform(
            attempt_id,
            "save_checkpoint",
            arguments,
            lambda: self.target.save_checkpoint(
                rollout_id, attempt_id, **named, state=state, external=external, key=used, graph=graph
            ),
        )
        if not made and taken.rejection is None:
            saved = CheckpointRef(
                checkpoint_id=pending_id(used),
                rollout_id=rollout_id,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=taken.scope,
                name=name,
                after_phase=taken.after_phase,
                graph=taken.graph,
                external=None if external is None else dict(external),
            )
        if saved is not None:
            execution.checkpoints[saved.scope, name] = Snapshot(**saved.model_dump(), state=kept)
        return saved

    async def save_artifact(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        scope: str,
        name: str,
        content: Any,
        phase: str | None = None,
        media_type: str | None = None,
        key: str | None = None,
    ) -> ArtifactRef:
        given: dict[str, Any] = {
            "scope": scope,
            "name": name,
            "content": content,
            "phase": phase,
            "media_type": media_type,
        }
        execution = self._store.execution(attempt_id)
        if execution is None:
            return await self.target.save_artifact(rollout_id, attempt_id, **given, key=key)
        used = key or _new_key()

        def arguments() -> dict[str, Any]:
            run_changes.artifact(rollout_id, attempt_id, **given, key=used)
            return given | {"key": used}

        made, saved = await self._store.perform(
            attempt_id,
            "save_artifact",
            arguments,
            lambda: self.target.save_artifact(rollout_id, attempt_id, **given, key=used),
        )
        if not made or saved is None:
            saved = ArtifactRef(
                artifact_id=pending_id(used),
                rollout_id=rollout_id,
                group_id=None,
                version=0,
                position=0,
                at=time.time(),
                attempt=execution.sequence_id,
                scope=scope,
                name=name,
                phase=phase,
                media_type=media_type,
            )
        execution.artifacts.append(Artifact(**saved.model_dump(), content=deepcopy(content)))
        return saved

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        execution = self._store.execution_of(rollout_id)
        own = [each for each in ([] if execution is None else execution.artifacts) if each.artifact_id == artifact_id]
        if execution is None or not own:
            return await self.target.retract_artifact(rollout_id, artifact_id, reason=reason, key=key)
        used, (artifact,) = key or _new_key(), own
        saved: dict[str, Any] | None = None
        if artifact_id.startswith(pending_id("")):
            fields = {"scope", "name", "content", "phase", "media_type"}
            saved = artifact.model_dump(include=fields) | {"key": artifact_id.removeprefix(pending_id(""))}
        given = {"artifact_id": artifact_id, "reason": reason, "key": used}
        recorded = RecordedCall(method="retract_artifact", at=time.time(), arguments=given | {"saved": saved})

        async def call() -> ArtifactRef:
            return cast("ArtifactRef", await Replay(self._store.target, execution.rollout).make(recorded))

        made, retracted = await self._store.perform(
            execution.rollout.attempt.attempt_id, "retract_artifact", lambda: recorded.arguments, call
        )
        execution.artifacts.remove(artifact)
        if made and retracted is not None:
            return retracted
        return ArtifactRef(**artifact.model_dump(exclude={"content", "retracted"}), retracted=True)

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        return await self._store.read(rollout_id, lambda: self.target.find_events(rollout_id, query), None)

    async def get_graph(self, rollout_id: str, **given: Any) -> RunGraph:
        return await self._store.read(rollout_id, lambda: self.target.get_graph(rollout_id, **given), None)

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        found = await self._store.read(rollout_id, lambda: self.target.list_lineage(rollout_id), None)
        for node in found:
            if (execution := self._store.execution(node.attempt_id)) is not None:
                execution.rerun_seq = node.rerun_seq
        return found

    async def get_checkpoint(self, rollout_id: str, *, scope: str, name: str, **given: Any) -> Snapshot | None:
        def known(execution: Execution) -> Snapshot | Unknown | None:
            view: str = given.get("view", "head")
            if not execution.knows(view, as_at=given.get("as_at"), at=given.get("at")):
                return UNKNOWN
            saved = execution.checkpoints.get((scope, name))
            is_all = execution.is_whole(view) and given.get("search", "rollout") == "rollout"
            return deepcopy(saved) if saved is not None or is_all else UNKNOWN

        return await self._store.read(
            rollout_id, lambda: self.target.get_checkpoint(rollout_id, scope=scope, name=name, **given), known
        )

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        def known(execution: Execution) -> Snapshot | Unknown:
            saved = [each for each in execution.checkpoints.values() if each.checkpoint_id == checkpoint_id]
            return deepcopy(saved[0]) if saved else UNKNOWN

        return await self._store.read(
            rollout_id, lambda: self.target.get_checkpoint_by_id(rollout_id, checkpoint_id), known
        )

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        return await self._store.read(rollout_id, lambda: self.target.find_checkpoints(rollout_id, query), None)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        def known(execution: Execution) -> list[Artifact] | Unknown:
            if not (execution.knows(query.view, as_at=query.as_at, at=query.at) and execution.is_whole(query.view)):
                return UNKNOWN
            found = [
                deepcopy(each)
                for each in execution.artifacts
                if query.scope in {None, each.scope} and query.name in {None, each.name}
            ]
            return found if query.limit < 0 else found[max(0, len(found) - query.limit) :]

        return await self._store.read(rollout_id, lambda: self.target.find_artifacts(rollout_id, query), known)


def _new_key() -> str:
    return f"fallback:{uuid4().hex}"
