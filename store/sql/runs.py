"""Runs of a SQL store: their events, checkpoints, artifacts, forks and names, and readers that follow them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import orjson

from store.db.dialect import ReadSession
from store.db.queries import pages, run_ids, run_views
from store.db.queries import runs as run_queries
from store.db.queries.run_views import END, Standing, View
from store.errors import Conflict, NotFound
from store.interface.runs import AsAt, StoreRuns
from store.journal.state_view import StateView
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
from store.planning import compare as comparing
from store.planning import graph as drawing
from store.planning.follow import Following, Source
from store.sql import forks, run_reads
from store.sql.core import SQLCore
from store.sql.follow import RunSource
from store.sql.mapping import runs as run_mapping
from store.sql.queue import SQLQueue
from store.sql.run_calls import CALLS
from store.sql.run_reads import read_view
from store.validation import arguments

T = TypeVar("T")


class SQLRuns(StoreRuns):
    """The runs in a SQL database."""

    def __init__(self, core: SQLCore, queue: SQLQueue) -> None:
        super().__init__("SQLStore")
        self.core = core
        self.queue = queue

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return CALLS[type(call)](self, call)

    async def find_events(self, rollout_id: str, query: RunEventQuery) -> RunEventPage:
        arguments.part_of_history(query.after, query.limit)

        async def read(session: ReadSession, run_view: View, standing: Standing) -> RunEventPage:
            # The query reads one row more than the limit, to find out whether the view has more events.
            row_limit = -1 if query.limit < 0 else query.limit + 1
            rows = await run_views.events(
                session,
                rollout_id,
                run_view,
                after=query.after,
                limit=row_limit,
                scope=query.scope,
                node_id=query.node_id,
                kind=query.kind,
            )
            page_rows = rows if query.limit < 0 else rows[: query.limit]
            payloads, texts = await run_reads.payloads_of(session, page_rows) if query.bodies else ({}, {})
            return RunEventPage(
                items=[run_mapping.event(rollout_id, row, payloads.get(row.position), texts) for row in page_rows],
                next_after=page_rows[-1].version if page_rows else query.after,
                has_more=len(rows) > len(page_rows),
                head=run_view.attempt if run_view.form != "raw" and standing.head is not None else None,
            )

        return await read_view(self.core, rollout_id, query.view, query.as_at, query.at, read)

    async def get_graph(
        self,
        rollout_id: str,
        *,
        view: str = "head",
        graph: PhaseGraph | None = None,
        as_at: AsAt | None = None,
        at: int | None = None,
    ) -> RunGraph:
        arguments.phase_graph(graph)

        async def read(session: ReadSession, run_view: View, standing: Standing) -> RunGraph:
            phases = graph or await run_reads.phase_graph_of(session, standing)
            rows = await run_reads.events_of_view(session, rollout_id, run_view)
            return drawing.graph_of(rollout_id, standing.head, rows, phases)

        return await read_view(self.core, rollout_id, view, as_at, at, read)

    async def follow(
        self,
        rollout_id: str,
        *,
        after: int = 0,
        until: int | None = None,
        view: str = "head",
        bodies: bool = True,
    ) -> AsyncIterator[RunFrame]:
        following = self.following(self.source(rollout_id, bodies=bodies), rollout_id, view, after, until)
        async with aclosing(following.frames(view)) as frames:
            async for frame in frames:
                yield frame

    def source(self, rollout_id: str, *, bodies: bool) -> RunSource:
        """Return the source of the events for a reader of this run."""
        return RunSource(self.core, rollout_id, bodies=bodies)

    def following(
        self,
        source: Source,
        rollout_id: str,
        view: str,
        after: int,
        until: int | None = None,
        *,
        masks: bool = True,
        goes_on: bool = True,
    ) -> Following:
        """Return a reader that follows a run. `follow` and `Following` describe the arguments."""
        arguments.text(rollout_id, "rollout_id")
        arguments.whole(after, "after", "a version of the run: 0, 1, 2 …", 0)
        if until is not None:
            arguments.whole(until, "until", "a version of the run: 1, 2, 3 …", 1)
        form, attempt = run_views.parse(arguments.text(view, "view"))
        return Following(source, rollout_id, form, attempt, after, until, masks=masks, goes_on=goes_on)

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
        arguments.text(scope, "scope")
        arguments.text(name, "name")

        async def read(session: ReadSession, run_view: View, standing: Standing) -> Snapshot | None:
            checkpoint = await run_reads.newest_checkpoint(session, rollout_id, run_view, scope=scope, name=name)
            if checkpoint is None and search == "group" and standing.group_id is not None:
                checkpoint = await run_reads.checkpoint_in_group(
                    session, rollout_id, standing.group_id, run_view.until, scope, name
                )
            return checkpoint

        return await read_view(self.core, rollout_id, view, as_at, at, read)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        arguments.text(checkpoint_id, "checkpoint_id")

        async def read(session: ReadSession, run_view: View, _: Standing) -> Snapshot:
            checkpoint = await run_reads.newest_checkpoint(session, rollout_id, run_view, checkpoint_id=checkpoint_id)
            if checkpoint is None:
                raise NotFound("checkpoint", checkpoint_id)
            return checkpoint

        return await read_view(self.core, rollout_id, "raw", None, None, read)

    async def find_checkpoints(self, rollout_id: str, query: CheckpointQuery) -> list[CheckpointRef]:
        async def read(session: ReadSession, run_view: View, _: Standing) -> list[CheckpointRef]:
            rows = await run_views.checkpoints(session, rollout_id, run_view, scope=query.scope, name=query.name)
            return [run_mapping.checkpoint(rollout_id, row) for row in rows]

        return await read_view(self.core, rollout_id, query.view, query.as_at, query.at, read)

    async def find_artifacts(self, rollout_id: str, query: ArtifactQuery) -> list[Artifact]:
        arguments.part_of_history(0, query.limit)

        async def read(session: ReadSession, run_view: View, standing: Standing) -> list[Artifact]:
            cut = END if run_view.until == END else await run_views.version_at(session, rollout_id, run_view.until)
            rows = await run_views.artifacts(
                session,
                rollout_id,
                run_view,
                scope=query.scope,
                name=query.name,
                limit=query.limit,
                cut_version=cut,
            )
            payloads = await run_queries.payloads(session, [row.position for row in rows])
            return [
                run_mapping.artifact(rollout_id, standing.group_id, row, payloads.get(row.position)) for row in rows
            ]

        return await read_view(self.core, rollout_id, query.view, query.as_at, query.at, read)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        arguments.text(scope, "scope")
        if name is not None:
            arguments.text(name, "name")
        arguments.part_of_history(0, limit)

        async def read(view: StateView) -> list[ArtifactRef]:
            rows = await run_queries.made_for(view.session, scope, name, min(limit, END), view.position)
            return [run_mapping.artifact_ref(row, view.position) for row in rows]

        return await self.core.view(read, as_at, sweeps=False)

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
        planner = forks.rerun_planner(node, phase, scopes, on_missing, cascade=cascade)
        return await forks.plan_part(self.core, rollout_id, base, graph, planner)

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        async def read(session: ReadSession, _: View, standing: Standing) -> list[AttemptNode]:
            return (await run_reads.family_of(session, rollout_id, standing)).nodes()

        return await read_view(self.core, rollout_id, "raw", None, None, read)

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        for name, attempt in (("a", a), ("b", b)):
            arguments.whole(attempt, name, "a sequence_id: 1, 2, 3 …", 1)

        async def read(session: ReadSession, _: View, standing: Standing) -> AttemptDiff:
            family = await run_reads.family_of(session, rollout_id, standing)
            forks_by_attempt = {node.sequence_id: node.fork for node in family.nodes()}
            for attempt in (a, b):
                if attempt not in forks_by_attempt:
                    raise NotFound.attempt(str(attempt), rollout_id)
            views = [await run_views.events(session, rollout_id, View("seen", number)) for number in (a, b)]
            # An event that both views contain is the same in both, so its payload is not compared and not read.
            common = {row.version for row in views[0]} & {row.version for row in views[1]}
            before, after = [await run_reads.with_responses(session, rows, common) for rows in views]
            fork = forks_by_attempt[b]
            patch = None if fork is None else fork.state_patch
            return comparing.compare(a, b, before, after).model_copy(update={"state_patch": patch})

        return await read_view(self.core, rollout_id, "raw", None, None, read)

    async def resolve(self, name: str) -> str:
        """Return the id of the rollout with a name.

        The name is a rollout id, the id that a run had before its import, or the id of a flow with only one run.

        Raises:
            NotFound: no run and no flow has this name.
            Conflict: the name is the id of a flow with several runs.
        """

        async def read(session: ReadSession) -> str:
            if await pages.rollout(session, name) is not None:
                return name
            if imported := await run_ids.imported(session, name):
                return imported[0]
            rollout_ids = await run_ids.of_flow(session, name)
            if not rollout_ids:
                raise NotFound("run", name)
            if len(rollout_ids) > 1:
                raise Conflict(f"flow {name} has {len(rollout_ids)} runs", f"give one of {', '.join(rollout_ids[:20])}")
            return rollout_ids[0]

        arguments.text(name, "run_id")
        return await self.core.read(read, snapshot=True)

    async def list_flow_runs(self, limit: int, offset: int) -> list[str]:
        """Return the ids of the rollouts that belong to flows, the newest first."""
        return await self.core.read(lambda session: run_ids.of_flows(session, limit, offset))

    async def get_ends(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, str | None]]:
        """Return the number of re-runs and the last error message of some runs, by rollout id."""
        rows = await self.core.read(lambda session: run_ids.ends(session, rollout_ids))
        return {row.rollout_id: (row.rerun_seq, _error_message(row.error)) for row in rows}


def _error_message(error: str | None) -> str | None:
    if error is None:
        return None
    fields: dict[str, str] = orjson.loads(error)
    return fields.get("message") or fields.get("type")
