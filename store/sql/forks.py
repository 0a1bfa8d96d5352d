"""Running a part of a run again: planned outside the writer from one snapshot, decided under its lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from store.db.dialect import ReadSession, Row
from store.db.queries import filters, pages, run_views
from store.db.queries import runs as run_queries
from store.db.queries.run_views import Standing, View
from store.errors import AttemptActive, Conflict, GraphChanged, HeadMoved, Invalid, NotFound, SideEffectsUnconfirmed
from store.models import Attempt, AttemptedRollout, Fork, ForkPlan, ForkResult, OnActive, OnMissing, PhaseGraph
from store.planning import plan as planning
from store.planning.plan import Ground
from store.planning.rows import Alike
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import runs as run_mapping
from store.sql.run_writes import SQLRunWrites
from store.validation import arguments

_PLANS_AT_MOST: Final = 20
"""How often the ground may move under a plan, before it is told that it does."""

Planner = Callable[[PhaseGraph, Ground], ForkPlan]


class SQLForks(SQLRunWrites):
    """The re-runs of a SQL store."""

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
        planner = _rerun(node, phase, scopes, on_missing, cascade=cascade)
        return await self._planned(rollout_id, base, graph, planner)

    async def fork(
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
        planner = _rerun(node, phase, scopes, on_missing, cascade=cascade)

        def agreed(given: PhaseGraph, ground: Ground) -> ForkPlan:
            if expected_head is not None and expected_head != ground.head:
                raise HeadMoved(rollout_id, expected_head, ground.head)
            plan = planner(given, ground)
            if plan.graph_changed and not allow_graph_change:
                raise GraphChanged(plan.graph_changed)
            if plan.unsafe and not confirm_side_effects:
                raise SideEffectsUnconfirmed(plan.unsafe)
            return plan

        return await self._forked_as(
            rollout_id,
            base,
            graph,
            agreed,
            supersede=on_active == "supersede",
            state_patch=state_patch,
            request_id=request_id,
            reason=reason,
            confirmed=confirm_side_effects,
            worker_id=worker_id,
        )

    async def resume(
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
        def agreed(given: PhaseGraph, ground: Ground) -> ForkPlan:
            plan = planning.resume(given, ground)
            if plan.unsafe and not confirm_side_effects:
                raise SideEffectsUnconfirmed(plan.unsafe)
            return plan

        return await self._forked_as(
            rollout_id,
            from_attempt,
            graph,
            agreed,
            supersede=False,
            state_patch=None,
            request_id=request_id,
            reason=reason,
            confirmed=confirm_side_effects,
            worker_id=worker_id,
        )

    # -- planning ----------------------------------------------------------------------------------------------------

    async def _planned(
        self, rollout_id: str, base: str, graph: PhaseGraph | None, planner: Planner, *, rejects_active: bool = False
    ) -> ForkPlan:
        if run_views.parse(arguments.text(base, "base"))[0] != "seen":
            raise Invalid("base", f"{base!r} is neither head nor attempt:<n>")
        arguments.phase_graph(graph)

        async def read(session: ReadSession, seen: View, standing: Standing) -> ForkPlan:
            if standing.head is None:
                raise NotFound.attempts(rollout_id)
            active = await run_queries.active(self.core.dialect, session, rollout_id) if rejects_active else None
            if active is not None:
                # Under the lock it is judged again; here, so that nobody is told of what is not the point.
                raise AttemptActive(rollout_id, active)
            phases = graph or await self._graph_of(session, standing)
            if phases is None:
                raise Invalid("graph", "the run's resources hold no phase graph; publish one, or give graph=")
            return planner(phases, await self._ground(session, rollout_id, seen, standing))

        return await self._seen(rollout_id, base, None, None, read)

    async def _ground(self, session: ReadSession, rollout_id: str, seen: View, standing: Standing) -> Ground:
        saved = await run_views.checkpoints(self.core.dialect, session, rollout_id, seen)
        family = await self._family(session, rollout_id, standing)
        status = next((node.status for node in family.nodes() if node.sequence_id == seen.attempt), None)
        return Ground(
            rollout_id=rollout_id,
            head=standing.head,
            ground=standing.run_version or 0,
            base=seen.attempt,
            rows=[Alike(*row) for row in await run_views.outline(self.core.dialect, session, rollout_id, seen)],
            checkpoints=[run_mapping.checkpoint(rollout_id, row) for row in saved],
            scopes=await run_views.scopes(self.core.dialect, session, rollout_id),
            has_succeeded=status == "succeeded",
        )

    # -- forking -----------------------------------------------------------------------------------------------------

    async def _forked_as(
        self,
        rollout_id: str,
        base: str,
        graph: PhaseGraph | None,
        planner: Planner,
        *,
        supersede: bool,
        request_id: str | None,
        **said: Any,
    ) -> ForkResult:
        for _ in range(_PLANS_AT_MOST):
            if request_id is not None and (known := await self._known_fork(rollout_id, request_id)) is not None:
                return known
            try:
                plan = await self._planned(rollout_id, base, graph, planner, rejects_active=not supersede)
            except Conflict:
                # What stands in the way is perhaps what this very request has begun, when it came before.
                if request_id is not None and (known := await self._known_fork(rollout_id, request_id)) is not None:
                    return known
                raise
            begun = await self._fork(plan, request_id=request_id, supersede=supersede, **said)
            if begun is not None:
                return await self._result(rollout_id, begun.attempt.sequence_id)
        raise Conflict(f"rollout {rollout_id} changes faster than it can be planned on", "wait until it is at rest")

    async def _known_fork(self, rollout_id: str, request_id: str) -> ForkResult | None:
        """Return what a request that was made before has begun."""
        arguments.text(request_id, "request_id")

        async def read(session: ReadSession, _: View, __: Standing) -> int | None:
            return await run_queries.forked(self.core.dialect, session, rollout_id, request_id)

        attempt = await self._seen(rollout_id, "raw", None, None, read)
        return None if attempt is None else await self._result(rollout_id, attempt)

    async def _result(self, rollout_id: str, sequence_id: int) -> ForkResult:
        async def read(
            session: ReadSession, _: View, standing: Standing
        ) -> tuple[Fork | None, Row | None, list[Attempt]]:
            family = await self._family(session, rollout_id, standing)
            fork = next(each.fork for each in family.nodes() if each.sequence_id == sequence_id)
            every = filters.query(filters.ATTEMPTS)
            attempts = await pages.attempts(
                self.core.dialect, session, rollout_id, every, rollout_mapping.attempt_of_page
            )
            return fork, await pages.rollout(self.core.dialect, session, rollout_id), attempts.items

        fork, row, attempts = await self._seen(rollout_id, "raw", None, None, read)
        assert fork is not None and row is not None  # noqa: PT018 - the attempt was forked, of this rollout
        attempt = next(each for each in attempts if each.sequence_id == sequence_id)
        rollout = rollout_mapping.rollout_of_page(row).model_dump(exclude={"attempt"})
        return ForkResult(attempt=attempt, rollout=AttemptedRollout(**rollout, attempt=attempt), fork=fork)


def _rerun(
    node: str | None, phase: str | None, scopes: Sequence[str], on_missing: OnMissing, *, cascade: bool
) -> Planner:
    arguments.choice(on_missing, "on_missing", "error", "full")
    given = arguments.texts(scopes, "scopes")
    for name, value in (("node", node), ("phase", phase)):
        if value is not None:
            arguments.text(value, name)

    def planner(graph: PhaseGraph, ground: Ground) -> ForkPlan:
        return planning.rerun(
            graph, ground, node=node, phase=phase, scopes=given, on_missing=on_missing, cascade=cascade
        )

    return planner
