"""Runs: what they say and leave behind, their views, and running a part of them again."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

from store.errors import NotFound
from store.models import (
    Artifact,
    ArtifactRef,
    Attempt,
    AttemptDiff,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    ForkResult,
    Rollout,
    RunEventPage,
    RunGraph,
    Snapshot,
)
from store.models.queries import RolloutPastQuery
from store.runtime import context
from store.server.call import Call
from store.server.response_spool import Spool
from store.server.routing import Created, Operations
from store.wire import paths
from store.wire.encoding import Appended, dumps
from store.wire.run_bodies import (
    AppendEventsBody,
    ArtifactsQuery,
    CheckpointsQuery,
    CompareQuery,
    ForkBody,
    LatestCheckpointQuery,
    MoveHeadBody,
    PlanForkBody,
    ResumeBody,
    RetractArtifactBody,
    RunEventsQuery,
    RunGraphBody,
    RunGraphQuery,
    SaveArtifactBody,
    SaveCheckpointBody,
    ScopeHistoryQuery,
)

_APPEND: Final[Any] = AppendEventsBody.__pydantic_validator__
_AT_ONCE: Final = 200
"""How many events are encoded before others have their turn."""

events = Operations("Run events", own_statuses=True)
leavings = Operations("Checkpoints and artefacts", own_statuses=True)
forks = Operations("Forks", own_statuses=True)


# -- what a run says -------------------------------------------------------------------------------------------------


@events.post(
    paths.ATTEMPT_EVENTS,
    body=AppendEventsBody,
    answer=Appended,
    status=201,
)
async def append_run_events(call: Call) -> bytes:
    """Append what an attempt says, all or nothing; answers the version of each event."""
    body = await call.body(AppendEventsBody)
    ids = call.ids
    versions = await call.store.runs.append_events(ids["rollout_id"], ids["attempt_id"], body.events, key=body.key)
    return dumps({"versions": versions})


@events.get(paths.RUN_EVENTS, query=RunEventsQuery, answer=RunEventPage)
async def query_run_events(call: Call) -> bytes | Spool:
    """Return what a view of the run holds, in the order it was recorded, after a version."""
    return await _page(await call.store.runs.query_events(call.ids["rollout_id"], **vars(call.query(RunEventsQuery))))


async def _page(page: RunEventPage) -> bytes | Spool:
    if len(page.items) <= _AT_ONCE:
        return dumps(page)
    spool = Spool()
    try:
        for start in range(0, len(page.items), _AT_ONCE):
            items = dumps(page.items[start : start + _AT_ONCE])
            spool.write((b"," if start else b'{"items":[') + items[1:-1])
            await asyncio.sleep(0)
        rest = dumps({name: value for name, value in vars(page).items() if name != "items"})
        spool.write(b"]," + rest[1:])
    except BaseException:
        spool.close()
        raise
    whole = spool.whole()
    return spool if whole is None else whole


@events.get(paths.RUN_GRAPH, query=RunGraphQuery, answer=RunGraph)
async def get_run_graph(call: Call) -> bytes:
    """Return a view as nodes, ready to draw."""
    return dumps(await call.store.runs.get_graph(call.ids["rollout_id"], **vars(call.query(RunGraphQuery))))


@events.post(paths.RUN_GRAPH, body=RunGraphBody, body_required=False, answer=RunGraph)
async def draw_run_graph(call: Call) -> bytes:
    """Return a view as nodes, drawn by the phase graph that is sent."""
    return dumps(
        await call.store.runs.get_graph(call.ids["rollout_id"], **vars(await call.body_or_default(RunGraphBody)))
    )


# -- checkpoints -----------------------------------------------------------------------------------------------------


@leavings.post(paths.CHECKPOINTS, body=SaveCheckpointBody, answer=CheckpointRef | None, status=201)
async def save_checkpoint(call: Call) -> bytes:
    """Keep the state of a scope at the end of a phase; null if the phase graph says it is not worth it."""
    body = await call.body(SaveCheckpointBody)
    return dumps(await call.store.runs.save_checkpoint(call.ids["rollout_id"], **vars(body)))


@leavings.get(paths.CHECKPOINTS, query=CheckpointsQuery, answer=list[CheckpointRef])
async def list_checkpoints(call: Call) -> bytes:
    """Return the checkpoints of a view, without their states."""
    return dumps(await call.store.runs.list_checkpoints(call.ids["rollout_id"], **vars(call.query(CheckpointsQuery))))


@leavings.get(paths.LATEST_CHECKPOINT, query=LatestCheckpointQuery, answer=Snapshot | None)
async def get_latest_checkpoint(call: Call) -> bytes:
    """Return the latest checkpoint of a scope that a view holds, with its state, or null."""
    return dumps(
        await call.store.runs.get_checkpoint(call.ids["rollout_id"], **vars(call.query(LatestCheckpointQuery)))
    )


@leavings.get(paths.CHECKPOINT, answer=Snapshot)
async def get_checkpoint(call: Call) -> bytes:
    """Return a checkpoint by its id, with its state, whichever views hold it."""
    return dumps(await call.store.runs.get_checkpoint_by_id(**call.ids))


# -- artefacts -------------------------------------------------------------------------------------------------------


@leavings.post(paths.ARTIFACTS, body=SaveArtifactBody, answer=ArtifactRef, status=201)
async def save_artifact(call: Call) -> bytes:
    """Keep something that a run made: any JSON value."""
    body = await call.body(SaveArtifactBody)
    return dumps(await call.store.runs.save_artifact(call.ids["rollout_id"], **vars(body)))


@leavings.post(paths.RETRACT_ARTIFACT, body=RetractArtifactBody, body_required=False, answer=ArtifactRef)
async def retract_artifact(call: Call) -> bytes:
    """Take an artefact back; it stays in the log."""
    body = await call.body_or_default(RetractArtifactBody)
    ids = call.ids
    return dumps(await call.store.runs.retract_artifact(ids["rollout_id"], ids["artifact_id"], **vars(body)))


@leavings.get(paths.ARTIFACTS, query=ArtifactsQuery, answer=list[Artifact])
async def query_artifacts(call: Call) -> bytes:
    """Return the artefacts of a view that were not retracted."""
    return dumps(await call.store.runs.query_artifacts(call.ids["rollout_id"], **vars(call.query(ArtifactsQuery))))


@leavings.get(paths.SCOPE_HISTORY, query=ScopeHistoryQuery, answer=list[ArtifactRef])
async def scope_history(call: Call) -> bytes:
    """Return what all runs made for a scope, newest first, retracted and replaced ones too."""
    return dumps(await call.store.runs.scope_history(**vars(call.query(ScopeHistoryQuery))))


# -- running a part again --------------------------------------------------------------------------------------------


@forks.post(paths.PLAN_FORK, body=PlanForkBody, answer=ForkPlan)
async def plan_fork(call: Call) -> bytes:
    """Return what a re-run would do, and do nothing."""
    body = await call.body(PlanForkBody)
    return dumps(await call.store.runs.plan_fork(call.ids["rollout_id"], **vars(body)))


@forks.post(paths.FORKS, body=ForkBody, answer=ForkResult, status=201, locates=True)
async def fork_attempt(call: Call) -> Created:
    """Start an attempt that runs a phase of some scopes again; whoever asks runs it."""
    body = await call.body(ForkBody)
    asked: dict[str, Any] = {**vars(body), "request_id": request_id(body.request_id)}
    return _begun(call, await call.store.runs.fork(call.ids["rollout_id"], **asked))


@forks.post(paths.RESUME, body=ResumeBody, body_required=False, answer=ForkResult, status=201, locates=True)
async def resume_attempt(call: Call) -> Created:
    """Start an attempt that goes on where one that died has stopped."""
    body = await call.body_or_default(ResumeBody)
    asked: dict[str, Any] = {**vars(body), "request_id": request_id(body.request_id)}
    return _begun(call, await call.store.runs.resume(call.ids["rollout_id"], **asked))


def request_id(given: str | None = None) -> str | None:
    """Return what a fork is known by for ever: what the caller says, else what its idempotency key comes to.

    A fork is planned before it is decided, and its plan would meet the attempt that it has begun itself.
    """
    asked = context.idempotency_key.get()
    if given is not None or asked is None:
        return given
    digest = hashlib.sha256(f"{asked.scope}\n{asked.key}\n".encode() + asked.request_hash)
    return f"http-{digest.hexdigest()[:32]}"


def _begun(call: Call, result: ForkResult) -> Created:
    attempt = result.attempt
    path = paths.path(paths.ATTEMPT, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id)
    return Created(dumps(result), call.scope.get("root_path", "") + path)


@forks.post(paths.HEAD, body=MoveHeadBody, answer=Rollout)
async def move_head(call: Call) -> bytes:
    """Make another attempt's view the run's: undo a re-run, or redo it."""
    body = await call.body(MoveHeadBody)
    return dumps(await call.store.runs.move_head(call.ids["rollout_id"], **vars(body)))


# -- looking back ----------------------------------------------------------------------------------------------------


@forks.get(paths.LINEAGE, answer=list[AttemptNode])
async def list_lineage(call: Call) -> bytes:
    """Return the attempts of a run, each with what it builds on."""
    return dumps(await call.store.runs.list_lineage(call.ids["rollout_id"]))


@forks.get(paths.COMPARE, query=CompareQuery, answer=AttemptDiff)
async def compare_attempts(call: Call) -> bytes:
    """Return what changed from one attempt's view to another's, node by node."""
    query = call.query(CompareQuery)
    return dumps(await call.store.runs.compare_attempts(call.ids["rollout_id"], query.a, query.b))


@forks.get(paths.ATTEMPT, query=RolloutPastQuery, answer=Attempt)
async def get_attempt(call: Call) -> bytes:
    """Return an attempt by its id."""
    rollout_id, attempt_id = call.ids["rollout_id"], call.ids["attempt_id"]
    for attempt in await call.store.query_attempts(rollout_id, **vars(call.query(RolloutPastQuery))):
        if attempt.attempt_id == attempt_id:
            return dumps(attempt)
    raise NotFound.attempt(attempt_id, rollout_id)
