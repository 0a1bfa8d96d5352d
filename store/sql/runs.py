"""The reads of a SQL store that are about runs: each takes one snapshot, finds where the run stands, applies a view."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from store.db.dialect import ReadSession, Row
from store.db.queries import pages, run_views
from store.db.queries import runs as run_queries
from store.db.queries.bodies import payload
from store.db.queries.run_views import END, Standing, View
from store.errors import Invalid, NotFound
from store.interface.runs import AsAt, StoreRuns
from store.models import (
    Artifact,
    ArtifactRef,
    AttemptDiff,
    AttemptNode,
    CheckpointRef,
    PhaseGraph,
    RunEventPage,
    RunGraph,
    SearchIn,
    Snapshot,
)
from store.planning import compare as comparing
from store.planning import graph as drawing
from store.planning.rows import RESULTS, Told
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import runs as run_mapping
from store.sql.mapping.runs import Family
from store.validation import arguments

T = TypeVar("T")
Seeing = Callable[[ReadSession, View, Standing], Awaitable[T]]


class SQLRunReads(StoreRuns):
    """What a SQL store tells of runs."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    # -- events ------------------------------------------------------------------------------------------------------

    async def query_events(
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

        async def read(session: ReadSession, seen: View, standing: Standing) -> RunEventPage:
            # One more than asked for tells whether there is more.
            most = -1 if limit < 0 else limit + 1
            rows = await run_views.events(
                self.core.dialect,
                session,
                rollout_id,
                seen,
                after=after,
                limit=most,
                scope=scope,
                node_id=node_id,
                kind=kind,
            )
            shown = rows if limit < 0 else rows[:limit]
            payloads, texts = await self._payload_of(session, shown) if bodies else ({}, {})
            return RunEventPage(
                items=[run_mapping.event(rollout_id, row, payloads.get(row[1]), texts) for row in shown],
                next_after=shown[-1][0] if shown else after,
                has_more=len(rows) > len(shown),
                head=seen.attempt if seen.form != "raw" and standing.head is not None else None,
            )

        return await self._seen(rollout_id, view, as_at, at, read)

    async def _payload_of(
        self, session: ReadSession, rows: Sequence[Row]
    ) -> tuple[dict[int, dict[str, Any]], dict[str, str]]:
        payloads = await run_queries.payloads(self.core.dialect, session, [row[1] for row in rows])
        hashes = [digest for row in rows for digest in (row[12], row[13]) if digest is not None]
        return payloads, await run_queries.texts(self.core.dialect, session, hashes)

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

        async def read(session: ReadSession, seen: View, standing: Standing) -> RunGraph:
            phases = graph or await self._graph_of(session, standing)
            rows = await self._told(session, rollout_id, seen)
            return drawing.graph_of(rollout_id, standing.head, rows, phases)

        return await self._seen(rollout_id, view, as_at, at, read)

    async def _told(self, session: ReadSession, rollout_id: str, seen: View) -> list[Told]:
        return list(map(run_mapping.told, await run_views.events(self.core.dialect, session, rollout_id, seen)))

    # -- checkpoints and artefacts -----------------------------------------------------------------------------------

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

        async def read(session: ReadSession, seen: View, standing: Standing) -> Snapshot | None:
            found = await self._newest_checkpoint(session, rollout_id, seen, scope=scope, name=name)
            if found is None and search == "group" and standing.group_id is not None:
                found = await self._in_group(session, rollout_id, standing.group_id, seen.until, scope, name)
            return found

        return await self._seen(rollout_id, view, as_at, at, read)

    async def get_checkpoint_by_id(self, rollout_id: str, checkpoint_id: str) -> Snapshot:
        arguments.text(checkpoint_id, "checkpoint_id")

        async def read(session: ReadSession, seen: View, _: Standing) -> Snapshot:
            found = await self._newest_checkpoint(session, rollout_id, seen, checkpoint_id=checkpoint_id)
            if found is None:
                raise NotFound("checkpoint", checkpoint_id)
            return found

        return await self._seen(rollout_id, "raw", None, None, read)

    async def _newest_checkpoint(
        self, session: ReadSession, rollout_id: str, seen: View, **only: str
    ) -> Snapshot | None:
        rows = await run_views.checkpoints(self.core.dialect, session, rollout_id, seen, newest=True, **only)
        if not rows:
            return None
        payloads = await run_queries.payloads(self.core.dialect, session, [rows[0][1]])
        return run_mapping.snapshot(rollout_id, rows[0], payloads.get(rows[0][1]))

    async def _in_group(
        self, session: ReadSession, rollout_id: str, group_id: str, until: int, scope: str, name: str
    ) -> Snapshot | None:
        """Return the newest checkpoint in the head of another run of the group, about the same date."""
        date = _date_of(await run_queries.input_of(self.core.dialect, session, rollout_id))
        best: Snapshot | None = None
        for other, codec, body in await run_queries.companions(self.core.dialect, session, group_id, scope, name):
            if other == rollout_id or _date_of((payload(codec, body) or {}).get("input")) != date:
                continue
            standing = await run_views.standing(self.core.dialect, session, other, until)
            if standing is None or standing.head is None:
                continue
            seen = View("seen", standing.head, until)
            found = await self._newest_checkpoint(session, other, seen, scope=scope, name=name)
            if found is not None and (best is None or found.position > best.position):
                best = found
        return best

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
        async def read(session: ReadSession, seen: View, _: Standing) -> list[CheckpointRef]:
            rows = await run_views.checkpoints(self.core.dialect, session, rollout_id, seen, scope=scope, name=name)
            return [run_mapping.checkpoint(rollout_id, row) for row in rows]

        return await self._seen(rollout_id, view, as_at, at, read)

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

        async def read(session: ReadSession, seen: View, standing: Standing) -> list[Artifact]:
            dialect = self.core.dialect
            cut = END if seen.until == END else await run_views.version_at(dialect, session, rollout_id, seen.until)
            rows = await run_views.artifacts(
                dialect, session, rollout_id, seen, scope=scope, name=name, limit=limit, cut_version=cut
            )
            payloads = await run_queries.payloads(dialect, session, [row[1] for row in rows])
            return [run_mapping.artifact(rollout_id, standing.group_id, row, payloads.get(row[1])) for row in rows]

        return await self._seen(rollout_id, view, as_at, at, read)

    async def scope_history(
        self, scope: str, *, name: str | None = None, limit: int = 100, as_at: AsAt | None = None
    ) -> list[ArtifactRef]:
        arguments.text(scope, "scope")
        if name is not None:
            arguments.text(name, "name")
        arguments.part_of_history(0, limit)

        async def then(session: ReadSession, until: int) -> list[ArtifactRef]:
            rows = await run_queries.made_for(self.core.dialect, session, scope, name, min(limit, END), until)
            return [run_mapping.made(row, until) for row in rows]

        return await self.core.answer(lambda session: then(session, END), then, as_at, sweeps=False)

    # -- attempts ----------------------------------------------------------------------------------------------------

    async def list_lineage(self, rollout_id: str) -> list[AttemptNode]:
        async def read(session: ReadSession, _: View, standing: Standing) -> list[AttemptNode]:
            return (await self._family(session, rollout_id, standing)).nodes()

        return await self._seen(rollout_id, "raw", None, None, read)

    async def _family(self, session: ReadSession, rollout_id: str, standing: Standing) -> Family:
        dialect = self.core.dialect
        rows = await run_queries.forks(dialect, session, rollout_id)
        payloads = await run_queries.payloads(dialect, session, [row[1] for row in rows])
        saved = await run_views.checkpoints(dialect, session, rollout_id, View("raw", 0)) if rows else ()
        checkpoints = {row[2]: run_mapping.checkpoint(rollout_id, row) for row in saved}
        return Family(
            head=standing.head,
            attempts=await run_queries.attempts(dialect, session, rollout_id),
            forks={row[0]: run_mapping.fork(row, payloads.get(row[1]), checkpoints) for row in rows},
            told=await run_queries.events_told(dialect, session, rollout_id),
        )

    async def compare_attempts(self, rollout_id: str, a: int, b: int) -> AttemptDiff:
        for name, attempt in (("a", a), ("b", b)):
            arguments.whole(attempt, name, "a sequence_id: 1, 2, 3 …", 1)

        async def read(session: ReadSession, _: View, standing: Standing) -> AttemptDiff:
            family = await self._family(session, rollout_id, standing)
            forks = {node.sequence_id: node.fork for node in family.nodes()}
            for attempt in (a, b):
                if attempt not in forks:
                    raise NotFound.attempt(str(attempt), rollout_id)
            views = [
                await run_views.events(self.core.dialect, session, rollout_id, View("seen", each)) for each in (a, b)
            ]
            # What both hold is the same, whatever it says, and its payload need not be read.
            common = {row[0] for row in views[0]} & {row[0] for row in views[1]}
            before, after = [await self._with_responses(session, rows, common) for rows in views]
            fork = forks[b]
            patch = None if fork is None else fork.state_patch
            return comparing.compare(a, b, before, after).model_copy(update={"state_patch": patch})

        return await self._seen(rollout_id, "raw", None, None, read)

    async def _with_responses(self, session: ReadSession, rows: Sequence[Row], common: set[int]) -> list[Told]:
        """Return events without payload; every result has the hash of its response, unless it is in common."""
        events = {row[1]: run_mapping.told(row) for row in rows}
        short = [
            position
            for position, event in events.items()
            if event.kind in RESULTS and event.response_sha256 is None and event.version not in common
        ]
        for position, body in (await run_queries.payloads(self.core.dialect, session, short)).items():
            events[position] = replace(events[position], response_sha256=_hash_of(body))
        return list(events.values())

    # -- phase graphs ------------------------------------------------------------------------------------------------

    async def _phase_graph(self, rollout_id: str, given: PhaseGraph | None = None) -> PhaseGraph | None:
        """Return the phase graph of a run: the one that is given, else the one among its resources, if there is one.

        Raises:
            NotFound: no such rollout.
            Invalid: what is given is none, or there are several among its resources.
        """
        if arguments.phase_graph(given) is not None:
            return given

        async def read(session: ReadSession, _: View, standing: Standing) -> PhaseGraph | None:
            return await self._graph_of(session, standing)

        return await self._seen(rollout_id, "raw", None, None, read)

    async def _graph_of(self, session: ReadSession, standing: Standing) -> PhaseGraph | None:
        if standing.resources_id is None:
            return None
        row = await pages.resources_by_id(self.core.dialect, session, standing.resources_id)
        published = {} if row is None else rollout_mapping.resources_of_page(row).resources
        graphs = [each for each in published.values() if isinstance(each, PhaseGraph)]
        if len(graphs) > 1:
            named = ", ".join(name for name, each in published.items() if isinstance(each, PhaseGraph))
            raise Invalid("graph", f"resources {standing.resources_id} hold several, {named}; give graph= one of them")
        return graphs[0] if graphs else None

    # -- how they read -----------------------------------------------------------------------------------------------

    async def _seen(self, rollout_id: str, view: str, as_at: AsAt | None, at: int | None, read: Seeing[T]) -> T:
        """Read a run as a view shows it, at a moment of the log, in one snapshot."""
        arguments.text(rollout_id, "rollout_id")
        form, attempt = run_views.parse(arguments.text(view, "view"))

        async def past(session: ReadSession, until: int) -> T:
            standing = await run_views.standing(self.core.dialect, session, rollout_id, until)
            if standing is None:
                raise NotFound.rollout(rollout_id)
            if attempt is not None and not await run_views.has_attempt(
                self.core.dialect, session, rollout_id, attempt, until
            ):
                raise NotFound.attempt(str(attempt), rollout_id)
            return await read(session, View(form, attempt or standing.head or 0, until), standing)

        return await self.core.answer(
            lambda session: past(session, END), past, as_at, (rollout_id, at), sweeps=False, snapshot=True
        )


def _date_of(given: Any) -> Any:
    return given.get("date") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON


def _hash_of(body: dict[str, Any]) -> str | None:
    response = body.get("response")
    return hashlib.sha256(response.encode()).hexdigest() if isinstance(response, str) else None
