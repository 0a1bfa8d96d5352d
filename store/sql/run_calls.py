"""Execution of the calls that change runs: their events, checkpoints, artifacts, forks and claims."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import Any, Final, Protocol

from store.db.dialect import ReadSession
from store.db.queries import run_refs
from store.db.queries.run_views import Standing, View
from store.domain.decide_runs import AppendedEvents
from store.domain.idempotency import Repeat
from store.domain.run_commands import AppendToRun
from store.errors import GraphChanged, HeadMoved, SideEffectsUnconfirmed
from store.models import ArtifactRef, AttemptedRollout, CheckpointRef, ForkPlan, ForkResult, PhaseGraph
from store.models.calls import (
    AppendEventsCall,
    ChangingCall,
    ClaimRunsCall,
    ForkCall,
    MoveHeadCall,
    ReleaseClaimCall,
    ResumeCall,
    RetractArtifactCall,
    SaveArtifactCall,
    SaveCheckpointCall,
)
from store.planning import plan as planning
from store.planning import run_changes, saving
from store.planning.plan import PlanBasis
from store.sql import forks, replies, run_reads
from store.sql.calls import CommandCall, CoreUser
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.queries import SQLReads
from store.sql.queue import SQLQueue
from store.sql.run_reads import read_view
from store.validation import arguments
from store.validation.json_limits import MAX_CALL_ITEMS


class CallingRuns(CoreUser, Protocol):
    """The parts of a SQL store that execute the calls of runs."""

    queue: SQLQueue


async def save_checkpoint(runs: CallingRuns, call: SaveCheckpointCall) -> CheckpointRef | None:
    """Save a checkpoint; return None if the state does not meet the condition of the phase graph."""
    core = runs.core
    graph = await _phase_graph(core, call.rollout_id, call.graph)
    taken = saving.taken(graph, scope=call.scope, name=call.name, state=call.state, after_phase=call.after_phase)
    parent_id = await core.read(
        lambda session: run_refs.last_checkpoint(session, call.rollout_id, taken.scope, call.name)
    )
    appended = await _append(core, run_changes.checkpoint(call, taken, parent_id))
    if appended.kind != "checkpoint.saved":
        return None
    fields = await core.read(lambda session: run_refs.checkpoint(session, call.rollout_id, appended.first))
    return CheckpointRef(**fields)


async def _phase_graph(core: SQLCore, rollout_id: str, graph: PhaseGraph | None) -> PhaseGraph | None:
    """Return the phase graph of a call, or else the phase graph among the run's resources; None without either.

    Raises:
        NotFound: the rollout does not exist.
        Invalid: the argument is not a phase graph, or the resources contain several phase graphs.
    """
    if arguments.phase_graph(graph) is not None:
        return graph

    async def read(session: ReadSession, _: View, standing: Standing) -> PhaseGraph | None:
        return await run_reads.phase_graph_of(session, standing)

    return await read_view(core, rollout_id, "raw", None, None, read)


async def save_artifact(runs: CallingRuns, call: SaveArtifactCall) -> ArtifactRef:
    """Save an artifact."""
    appended = await _append(runs.core, run_changes.artifact(call))
    return await _artifact_ref(runs.core, call.rollout_id, appended.first)


async def retract_artifact(runs: CallingRuns, call: RetractArtifactCall) -> ArtifactRef:
    """Retract an artifact."""
    saved: int = await runs.core.call(run_changes.retract(call))
    return await _artifact_ref(runs.core, call.rollout_id, saved)


async def _append(core: SQLCore, command: AppendToRun) -> AppendedEvents:
    answer: AppendedEvents | Repeat = await core.call(command)
    return replies.appended(answer) if isinstance(answer, Repeat) else answer


async def _artifact_ref(core: SQLCore, rollout_id: str, version: int) -> ArtifactRef:
    fields = await core.read(lambda session: run_refs.artifact(session, rollout_id, version))
    return ArtifactRef(**fields)


async def fork(runs: CallingRuns, call: ForkCall) -> ForkResult:
    """Start a re-run."""
    arguments.choice(call.on_active, "on_active", "reject", "supersede")
    if call.expected_head is not None:
        arguments.whole(call.expected_head, "expected_head", "a sequence_id: 1, 2, 3 …", 1)
    planner = forks.rerun_planner(call.node, call.phase, call.scopes, call.on_missing, cascade=call.cascade)

    def agreed(graph: PhaseGraph, ground: PlanBasis) -> ForkPlan:
        if call.expected_head is not None and call.expected_head != ground.head:
            raise HeadMoved(call.rollout_id, call.expected_head, ground.head)
        plan = planner(graph, ground)
        if plan.graph_changed and not call.allow_graph_change:
            raise GraphChanged(plan.graph_changed)
        if plan.unsafe and not call.confirm_side_effects:
            raise SideEffectsUnconfirmed(plan.unsafe)
        return plan

    return await forks.start(runs.core, call, call.base, agreed, supersede=call.on_active == "supersede")


async def resume(runs: CallingRuns, call: ResumeCall) -> ForkResult:
    """Start an attempt that continues where another attempt has stopped."""

    def agreed(graph: PhaseGraph, ground: PlanBasis) -> ForkPlan:
        plan = planning.resume(graph, ground)
        if plan.unsafe and not call.confirm_side_effects:
            raise SideEffectsUnconfirmed(plan.unsafe)
        return plan

    return await forks.start(runs.core, call, call.from_attempt, agreed)


async def claim(runs: CallingRuns, call: ClaimRunsCall) -> list[AttemptedRollout]:
    """Claim waiting runs."""
    limit = min(call.limit, MAX_CALL_ITEMS)
    claims = await runs.queue.claim_runs(call.resources_ids, limit, call.worker_id, call.wait_seconds)
    if isinstance(claims, Repeat):
        return await replies.claims(SQLReads(runs.core), claims)
    return runs.queue.hand_out(claims) if claims else []


async def release_claim(runs: CallingRuns, call: ReleaseClaimCall) -> bool:
    """Undo a claim."""
    return await runs.queue.release(call.rollout_id, call.attempt_id)


APPEND_EVENTS: Final = CommandCall(run_changes.append, attrgetter("versions"), replies.versions, sweeps=False)

CALLS: Final[dict[type[ChangingCall[Any]], Callable[[Any, Any], Coroutine[Any, Any, Any]]]] = {
    AppendEventsCall: APPEND_EVENTS,
    SaveCheckpointCall: save_checkpoint,
    SaveArtifactCall: save_artifact,
    RetractArtifactCall: retract_artifact,
    ForkCall: fork,
    ResumeCall: resume,
    MoveHeadCall: CommandCall(run_changes.move_head, rollout_mapping.rollout_of_view, replies.rollout),
    ClaimRunsCall: claim,
    ReleaseClaimCall: release_claim,
}
"""The functions that execute the calls of runs, by the type of the call. Each takes the runs and the call."""
