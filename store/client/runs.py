"""Client of the runs of a server: their events, checkpoints, artifacts and forks.

Each method sends one request, except `follow`, which connects again whenever its stream ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import orjson

from store.client import requests, run_requests
from store.client.core import HTTPCore
from store.client.transport import reading
from store.errors import Incompatible
from store.interface.runs import AsAt, StoreRuns
from store.models import (
    Artifact,
    ArtifactRef,
    AttemptDiff,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    OnMissing,
    PhaseGraph,
    RunEventPage,
    RunFrame,
    RunGraph,
    SearchIn,
    Snapshot,
)
from store.models.calls import ChangingCall
from store.models.queries import ArtifactQuery, CheckpointQuery, RunEventQuery
from store.validation import arguments
from store.wire import encoding, paths
from store.wire.errors import error_of

T = TypeVar("T")

_SHORTEST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_ENDS: Final = frozenset({"error", "gap"})


class HTTPRuns(StoreRuns):
    """Client of a server's runs."""

    def __init__(self, core: HTTPCore) -> None:
        super().__init__("HTTPStore")
        self.core = core

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return self.core.call(call)

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        arguments.part_of_history(query.after, query.limit)
        path = run_requests.path(paths.RUN_EVENTS, rollout_id)
        fields = run_requests.view(
            query.view, query.as_at, query.at, scope=query.scope, node_id=query.node_id, kind=query.kind
        )
        if not query.bodies:
            fields["bodies"] = "false"
        part = {"after": query.after, "limit": query.limit}
        return await self.core.rollbook_read("query_run_events", path, fields | part, encoding.decode_run_events)

    async def get_graph(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        graph: PhaseGraph | None = None,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunGraph:
        path = run_requests.path(paths.RUN_GRAPH, rollout_id)
        fields = run_requests.view(view, as_at, at)
        if graph is None:
            return await self.core.rollbook_read("get_run_graph", path, fields, encoding.decode_run_graph)
        return await self.core.rollbook_query("get_run_graph", path, encoding.decode_run_graph, **fields, graph=graph)

    async def follow(
        self,
        rollout_id: str,
        *,
        after: int = 0,
        until: int | None = None,
        view: str = "head",
        bodies: bool = True,
    ) -> AsyncIterator[RunFrame]:
        arguments.whole(after, "after", "a version of the run: 0, 1, 2 …", 0)
        if until is not None:
            arguments.whole(until, "until", "a version of the run: 1, 2, 3 …", 1)
        path = requests.path(paths.RUN_STREAM, rollout_id=requests.lookup_id(rollout_id, "rollout_id"))
        fields: dict[str, Any] = {"view": arguments.text(view, "view"), "bodies": "true" if bodies else "false"}
        pause = _SHORTEST_PAUSE
        while True:
            position = requests.given(after=after, until=until)
            call = reading("follow_run", path + requests.query_string({**fields, **position}), rollbook_only=True)
            stream = await self.core.transport.follow(call)
            if stream is None:
                base = self.core.transport.address.base
                raise Incompatible(f"{base} does not stream runs", "give the URL of a Rollbook server")
            try:
                while frames := await stream.take():
                    for frame in _run_frames(frames):
                        # These variables are set before the yield, because the caller may stop at the yield.
                        after, until, pause = frame.seq, frame.until, _SHORTEST_PAUSE
                        yield frame
                    if frames[-1]["kind"] in _ENDS:
                        break
            finally:
                stream.close()
            await self.core.transport.pause("follow_run", pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

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
        texts = {"scope": arguments.text(scope, "scope"), "name": arguments.text(name, "name")}
        path = run_requests.path(paths.LATEST_CHECKPOINT, rollout_id)
        fields = run_requests.view(view, as_at, at, **texts, search=search)
        return await self.core.rollbook_read("get_checkpoint", path, fields, encoding.decode_snapshot_or_none)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        path = run_requests.path(paths.CHECKPOINT, rollout_id, checkpoint_id=checkpoint_id)
        return await self.core.rollbook_read("get_checkpoint_by_id", path, {}, encoding.decode_snapshot)

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        path = run_requests.path(paths.CHECKPOINTS, rollout_id)
        fields = run_requests.view(query.view, query.as_at, query.at, scope=query.scope, name=query.name)
        return await self.core.rollbook_read("list_checkpoints", path, fields, encoding.decode_checkpoints)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        arguments.part_of_history(0, query.limit)
        path = run_requests.path(paths.ARTIFACTS, rollout_id)
        fields = run_requests.view(query.view, query.as_at, query.at, scope=query.scope, name=query.name) | {
            "limit": query.limit
        }
        return await self.core.rollbook_read("query_artifacts", path, fields, encoding.decode_artifacts)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        arguments.part_of_history(0, limit)
        fields = {"scope": run_requests.text(scope, "scope"), "limit": limit, **requests.moment(as_at)}
        if name is not None:
            fields["name"] = run_requests.text(name, "name")
        return await self.core.rollbook_read(
            "scope_history", paths.SCOPE_HISTORY, fields, encoding.decode_artifact_refs
        )

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
        fields = requests.part(node, phase, scopes, on_missing)
        path = run_requests.path(paths.PLAN_FORK, rollout_id)
        return await self.core.rollbook_query(
            "plan_fork", path, encoding.decode_fork_plan, **fields, base=base, cascade=cascade, graph=graph
        )

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        path = run_requests.path(paths.LINEAGE, rollout_id)
        return await self.core.rollbook_read("list_lineage", path, {}, encoding.decode_lineage)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        for name, attempt in (("a", a), ("b", b)):
            arguments.whole(attempt, name, "a sequence_id: 1, 2, 3 …", 1)
        path = run_requests.path(paths.COMPARE, rollout_id)
        return await self.core.rollbook_read("compare_attempts", path, {"a": a, "b": b}, encoding.decode_difference)


def _run_frames(frames: list[dict[str, Any]]) -> Iterator[RunFrame]:
    """Yield the frames of the run, which are the messages of the server's stream, without heartbeats.

    Raises:
        StoreError: the stream ended with an error that is not retryable.
    """
    for frame in frames:
        if frame["kind"] in _ENDS:
            if not frame.get("retryable"):
                raise error_of(400, orjson.dumps(frame), "follow_run")
        elif frame["kind"] != "heartbeat":
            yield RunFrame.model_validate(frame)
