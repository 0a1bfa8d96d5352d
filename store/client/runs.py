"""Runs of a store over HTTP: one request for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.client import requests, run_requests
from store.client.reads import HTTPReads
from store.interface.store import AsAt
from store.models import (
    Artifact,
    ArtifactRef,
    AttemptDiff,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    ForkResult,
    OnActive,
    OnMissing,
    PhaseGraph,
    Rollout,
    RunEvent,
    RunEventPage,
    RunGraph,
    SearchIn,
    Snapshot,
)
from store.validation import arguments
from store.wire import encoding, paths


class HTTPRuns(HTTPReads):
    """What a store over HTTP does for runs."""

    # -- what a run says ---------------------------------------------------------------------------------------------

    async def append_run_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        given = arguments.several(events, "events")
        if not given:
            return []
        path = run_requests.path(paths.ATTEMPT_EVENTS, rollout_id, attempt_id=attempt_id)
        body = run_requests.events(given, key)
        return (await self.core.do("append_run_events", path, body, encoding.decode_appended)).versions

    async def query_run_events(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        after: int = 0,
        limit: int = 500,
        scope: str | None = None,
        node_id: str | None = None,
        kind: str | None = None,
        bodies: bool = True,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunEventPage:
        arguments.part_of_history(after, limit)
        path = run_requests.path(paths.RUN_EVENTS, rollout_id)
        asked = run_requests.view(view, as_at, at, scope=scope, node_id=node_id, kind=kind)
        if not bodies:
            asked["bodies"] = "false"
        part = {"after": after, "limit": limit}
        return await self.core.see("query_run_events", path, asked | part, encoding.decode_run_events)

    async def get_run_graph(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        graph: PhaseGraph | None = None,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunGraph:
        path = run_requests.path(paths.RUN_GRAPH, rollout_id)
        asked = run_requests.view(view, as_at, at)
        if graph is None:
            return await self.core.see("get_run_graph", path, asked, encoding.decode_run_graph)
        return await self.core.consider("get_run_graph", path, encoding.decode_run_graph, **asked, graph=graph)

    # -- what it leaves ----------------------------------------------------------------------------------------------

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
        path = run_requests.path(paths.CHECKPOINTS, rollout_id)
        body = run_requests.body(
            attempt_id=attempt_id,
            scope=scope,
            name=name,
            state=state,
            after_phase=after_phase,
            external=external,
            key=key,
            graph=graph,
        )
        return await self.core.do("save_checkpoint", path, body, encoding.decode_checkpoint_or_none)

    async def get_checkpoint(
        self,
        rollout_id: str,
        *,
        scope: str,
        name: str,
        view: str = "head",
        search: SearchIn = "rollout",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> Snapshot | None:
        arguments.choice(search, "search", "rollout", "group")
        sought = {"scope": arguments.text(scope, "scope"), "name": arguments.text(name, "name")}
        path = run_requests.path(paths.LATEST_CHECKPOINT, rollout_id)
        asked = run_requests.view(view, as_at, at, **sought, search=search)
        return await self.core.see("get_checkpoint", path, asked, encoding.decode_snapshot_or_none)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        path = run_requests.path(paths.CHECKPOINT, rollout_id, checkpoint_id=checkpoint_id)
        return await self.core.see("get_checkpoint_by_id", path, {}, encoding.decode_snapshot)

    async def list_checkpoints(
        self,
        rollout_id: str,
        *,
        scope: str | None = None,
        name: str | None = None,
        view: str = "raw",
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> list[CheckpointRef]:
        path = run_requests.path(paths.CHECKPOINTS, rollout_id)
        asked = run_requests.view(view, as_at, at, scope=scope, name=name)
        return await self.core.see("list_checkpoints", path, asked, encoding.decode_checkpoints)

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
        path = run_requests.path(paths.ARTIFACTS, rollout_id)
        more = requests.given(phase=phase, media_type=media_type, key=key)
        body = requests.body(attempt_id=attempt_id, scope=scope, name=name, content=content, **more)
        return await self.core.do("save_artifact", path, body, encoding.decode_artifact_ref)

    async def retract_artifact(
        self, rollout_id: str, artifact_id: str, *, reason: str | None = None, key: str | None = None
    ) -> ArtifactRef:
        path = run_requests.path(paths.RETRACT_ARTIFACT, rollout_id, artifact_id=artifact_id)
        body = run_requests.body(reason=reason, key=key)
        return await self.core.do("retract_artifact", path, body, encoding.decode_artifact_ref)

    async def query_artifacts(
        self,
        rollout_id: str,
        *,
        scope: str | None = None,
        name: str | None = None,
        view: str = "head",
        limit: int = -1,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> list[Artifact]:
        arguments.part_of_history(0, limit)
        path = run_requests.path(paths.ARTIFACTS, rollout_id)
        asked = run_requests.view(view, as_at, at, scope=scope, name=name) | {"limit": limit}
        return await self.core.see("query_artifacts", path, asked, encoding.decode_artifacts)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        arguments.part_of_history(0, limit)
        asked = {"scope": run_requests.text(scope, "scope"), "limit": limit, **requests.past(as_at)}
        if name is not None:
            asked["name"] = run_requests.text(name, "name")
        return await self.core.see("scope_history", paths.SCOPE_HISTORY, asked, encoding.decode_artifact_refs)

    # -- running a part again ----------------------------------------------------------------------------------------

    async def plan_fork(
        self,
        rollout_id: str,
        *,
        node: str | None = None,
        phase: str | None = None,
        scopes: Sequence[str] = (),
        base: str = "head",
        on_missing: OnMissing = "error",
        cascade: bool = True,
        graph: PhaseGraph | None = None,
    ) -> ForkPlan:
        asked = run_requests.part(node, phase, scopes, on_missing)
        path = run_requests.path(paths.PLAN_FORK, rollout_id)
        return await self.core.consider(
            "plan_fork", path, encoding.decode_fork_plan, **asked, base=base, cascade=cascade, graph=graph
        )

    async def fork_attempt(
        self,
        rollout_id: str,
        *,
        node: str | None = None,
        phase: str | None = None,
        scopes: Sequence[str] = (),
        base: str = "head",
        on_missing: OnMissing = "error",
        cascade: bool = True,
        state_patch: Mapping[str, Any] | None = None,
        on_active: OnActive = "reject",
        expected_head: int | None = None,
        request_id: str | None = None,
        reason: str | None = None,
        confirm_side_effects: bool = False,
        allow_graph_change: bool = False,
        worker_id: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> ForkResult:
        arguments.choice(on_active, "on_active", "reject", "supersede")
        if expected_head is not None:
            arguments.whole(expected_head, "expected_head", "a sequence_id: 1, 2, 3 …", 1)
        body = run_requests.body(
            **run_requests.part(node, phase, scopes, on_missing),
            base=base,
            cascade=cascade,
            state_patch=state_patch,
            on_active=on_active,
            expected_head=expected_head,
            request_id=request_id,
            reason=reason,
            confirm_side_effects=confirm_side_effects,
            allow_graph_change=allow_graph_change,
            worker_id=worker_id,
            graph=graph,
        )
        path = run_requests.path(paths.FORKS, rollout_id)
        return await self.core.do("fork_attempt", path, body, encoding.decode_fork_result)

    async def resume_attempt(
        self,
        rollout_id: str,
        *,
        from_attempt: str = "head",
        confirm_side_effects: bool = False,
        request_id: str | None = None,
        reason: str | None = None,
        worker_id: str | None = None,
        graph: PhaseGraph | None = None,
    ) -> ForkResult:
        body = run_requests.body(
            from_attempt=from_attempt,
            confirm_side_effects=confirm_side_effects,
            request_id=request_id,
            reason=reason,
            worker_id=worker_id,
            graph=graph,
        )
        path = run_requests.path(paths.RESUME, rollout_id)
        return await self.core.do("resume_attempt", path, body, encoding.decode_fork_result)

    async def move_head(
        self, rollout_id: str, attempt_id: str, *, reason: str | None = None, request_id: str | None = None
    ) -> Rollout:
        path = run_requests.path(paths.HEAD, rollout_id)
        body = run_requests.body(attempt_id=attempt_id, reason=reason, request_id=request_id)
        return await self.core.do("move_head", path, body, encoding.decode_rollout)

    # -- looking back ------------------------------------------------------------------------------------------------

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        path = run_requests.path(paths.LINEAGE, rollout_id)
        return await self.core.see("list_lineage", path, {}, encoding.decode_lineage)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        for name, attempt in (("a", a), ("b", b)):
            arguments.whole(attempt, name, "a sequence_id: 1, 2, 3 …", 1)
        path = run_requests.path(paths.COMPARE, rollout_id)
        return await self.core.see("compare_attempts", path, {"a": a, "b": b}, encoding.decode_difference)
