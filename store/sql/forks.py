"""Forks of runs.

The fork is planned from one snapshot of the database. The writer then starts the attempt under the write lock, if the
events on which the plan depends have not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters, pages, run_views
from store.db.queries import runs as run_queries
from store.db.queries.run_views import Standing, View
from store.domain.decide_runs import GroundMoved
from store.errors import AttemptActive, Conflict, Invalid, NotFound
from store.models import Attempt, AttemptedRollout, Fork, ForkPlan, ForkResult, OnMissing, PhaseGraph
from store.models.calls import ForkCall, ResumeCall
from store.planning import plan as planning
from store.planning import run_changes
from store.planning.imported_runs import imported_status
from store.planning.plan import PlanBasis
from store.planning.rows import EventGroup
from store.planning.scopes import named_scopes
from store.sql import run_reads
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import runs as run_mapping
from store.sql.run_reads import read_view
from store.validation import arguments

_PLANS_AT_MOST: Final = 20
"""The maximum number of plans that one call makes. A call makes a new plan if the run has changed meanwhile."""

Planner = Callable[[PhaseGraph, PlanBasis], ForkPlan]


def rerun_planner(
    node: str | None, phase: str | None, scopes: Sequence[str], on_missing: OnMissing, *, cascade: bool
) -> Planner:
    """Return a function that plans the re-run of a phase. The arguments are those of `StoreRuns.plan_fork`.

    Raises:
        Invalid: an argument has the wrong form.
    """
    arguments.choice(on_missing, "on_missing", "error", "full")
    names = arguments.texts(scopes, "scopes")
    for name, value in (("node", node), ("phase", phase)):
        if value is not None:
            arguments.text(value, name)

    def planner(graph: PhaseGraph, basis: PlanBasis) -> ForkPlan:
        return planning.rerun(
            graph, basis, node=node, phase=phase, scopes=names, on_missing=on_missing, cascade=cascade
        )

    return planner


async def plan_part(
    core: SQLCore,
    rollout_id: str,
    base: str,
    graph: PhaseGraph | None,
    planner: Planner,
    *,
    rejects_active: bool = False,
) -> ForkPlan:
    """Return the plan that `planner` makes for the current state of a run.

    Args:
        core: the core of the store.
        rollout_id: the id of the run.
        base: the view to build on: `head`, or an attempt such as `attempt:3`.
        graph: the phase graph; None for the phase graph among the rollout's resources.
        planner: the function that makes the plan.
        rejects_active: whether to raise an error while an attempt is active.

    Raises:
        AttemptActive: an attempt is active, and `rejects_active` is True.
        Invalid: there is no phase graph, or `base` is not a view.
        NotFound: the rollout or the attempt does not exist.
    """
    if run_views.parse(arguments.text(base, "base"))[0] != "seen":
        raise Invalid("base", f"{base!r} is neither head nor attempt:<n>")
    arguments.phase_graph(graph)

    async def read(session: ReadSession, run_view: View, standing: Standing) -> ForkPlan:
        if standing.head is None:
            raise NotFound.attempts(rollout_id)
        active = await run_queries.active(session, rollout_id) if rejects_active else None
        if active is not None:
            # The writer checks this again under the write lock. This check comes before the plan, because its error is
            # more useful than errors of the plan.
            raise AttemptActive(rollout_id, active)
        phases = graph or await run_reads.phase_graph_of(session, standing)
        if phases is None:
            raise Invalid("graph", "the run's resources contain no phase graph; publish one, or give graph=")
        return planner(phases, await _plan_basis(session, phases, rollout_id, run_view, standing))

    return await read_view(core, rollout_id, base, None, None, read)


async def start(
    core: SQLCore, call: ForkCall | ResumeCall, base: str, planner: Planner, *, supersede: bool = False
) -> ForkResult:
    """Start an attempt with a plan. If the run has changed since the plan was made, make a new plan.

    Args:
        core: the core of the store.
        call: the call. If a call with the same request id was executed before, this call starts nothing and returns
            the first result.
        base: see `plan_part`.
        planner: see `plan_part`.
        supersede: whether to end active attempts first.

    Raises:
        AttemptActive: an attempt is active, and `supersede` is False.
        Conflict: the run changed after each of many plans, or the request id was used for another call.
    """
    rollout_id, request_id = call.rollout_id, call.request_id
    for _ in range(_PLANS_AT_MOST):
        if request_id is not None and (earlier := await _earlier_result(core, rollout_id, request_id)) is not None:
            return earlier
        try:
            plan = await plan_part(core, rollout_id, base, call.graph, planner, rejects_active=not supersede)
        except Conflict:
            # The conflict may be caused by the attempt that an earlier call with this request id has started.
            if request_id is not None and (earlier := await _earlier_result(core, rollout_id, request_id)) is not None:
                return earlier
            raise
        outcome = await core.swept_call(run_changes.fork(plan, call))
        # Otherwise the run has changed since the plan was made, and a new plan is needed.
        if not isinstance(outcome, GroundMoved):
            attempt = rollout_mapping.attempted_of_view(outcome).attempt
            return await _result(core, rollout_id, attempt.sequence_id)
    raise Conflict(f"rollout {rollout_id} changes faster than it can be planned", "wait until no attempt is active")


async def _earlier_result(core: SQLCore, rollout_id: str, request_id: str) -> ForkResult | None:
    """Return the result of an earlier call with the same request id; None if no such call started an attempt."""
    arguments.text(request_id, "request_id")

    async def read(session: ReadSession, _: View, __: Standing) -> int | None:
        return await run_queries.forked(session, rollout_id, request_id)

    attempt = await read_view(core, rollout_id, "raw", None, None, read)
    return None if attempt is None else await _result(core, rollout_id, attempt)


async def _result(core: SQLCore, rollout_id: str, sequence_id: int) -> ForkResult:
    async def read(
        session: ReadSession, _: View, standing: Standing
    ) -> tuple[Fork | None, NamedRow | None, list[Attempt]]:
        family = await run_reads.family_of(session, rollout_id, standing)
        fork = next(node.fork for node in family.nodes() if node.sequence_id == sequence_id)
        query = filters.query(filters.ATTEMPTS)
        attempts = await pages.attempts(session, rollout_id, query, rollout_mapping.attempt_of_page)
        return fork, await pages.rollout(session, rollout_id), attempts.items

    fork, row, attempts = await read_view(core, rollout_id, "raw", None, None, read)
    assert fork is not None and row is not None  # noqa: PT018 - the attempt is a fork of this rollout
    attempt = next(attempt for attempt in attempts if attempt.sequence_id == sequence_id)
    rollout = rollout_mapping.rollout_of_page(row).model_dump(exclude={"attempt"})
    return ForkResult(attempt=attempt, rollout=AttemptedRollout(**rollout, attempt=attempt), fork=fork)


async def _plan_basis(
    session: ReadSession, graph: PhaseGraph, rollout_id: str, run_view: View, standing: Standing
) -> PlanBasis:
    saved = await run_views.checkpoints(session, rollout_id, run_view)
    family = await run_reads.family_of(session, rollout_id, standing)
    attempts = family.nodes()
    status = next((node.status for node in attempts if node.sequence_id == run_view.attempt), None)
    row = await pages.rollout(session, rollout_id)
    assert row is not None  # the view was read in the same snapshot
    rollout = rollout_mapping.rollout_of_page(row)
    return PlanBasis(
        rollout_id=rollout_id,
        head=standing.head,
        ground=standing.run_version or 0,
        base=run_view.attempt,
        rows=[
            EventGroup(row.kind, row.scope, row.node_id, row.parent_node_id, row.phase, row.total)
            for row in await run_views.outline(session, rollout_id, run_view)
        ],
        checkpoints=[run_mapping.checkpoint(rollout_id, row) for row in saved],
        scopes=await run_views.scopes(session, rollout_id) | named_scopes(graph, rollout.input, rollout.metadata),
        has_succeeded=status == "succeeded",
        imported=imported_status(rollout.metadata or {}, attempts, run_view.attempt),
    )
