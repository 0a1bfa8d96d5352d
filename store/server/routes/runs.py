"""Routes of runs: their events, checkpoints and artifacts, their views, and forks."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Body, Query

from store.errors import NotFound
from store.models import (
    Artifact,
    ArtifactRef,
    Attempt,
    AttemptDiff,
    AttemptNode,
    CheckpointRef,
    ForkPlan,
    RunEventPage,
    RunGraph,
    Snapshot,
)
from store.models.queries import ArtifactQuery, CheckpointQuery, RolloutPastQuery, RunEventQuery
from store.server.call import Call
from store.server.response_spool import Spool
from store.server.routing import Id, OwnStatusRoute, needs
from store.wire import paths
from store.wire.encoding import dumps
from store.wire.run_bodies import (
    CompareQuery,
    LatestCheckpointQuery,
    PlanForkBody,
    RunGraphBody,
    RunGraphQuery,
    ScopeHistoryQuery,
)

_BATCH: Final = 200
"""The number of events that are encoded before other requests may run."""

events = APIRouter(route_class=OwnStatusRoute, tags=["Run events"])
outputs = APIRouter(route_class=OwnStatusRoute, tags=["Checkpoints and artifacts"])
forks = APIRouter(route_class=OwnStatusRoute, tags=["Forks"])


@events.get(paths.RUN_EVENTS, response_model=RunEventPage)
@needs("reader")
async def query_run_events(call: Call, rollout_id: Id, query: Annotated[RunEventQuery, Query()]) -> bytes | Spool:
    """Return the events of a view of the run after a version, in the order in which they were recorded."""
    page = await call.store.runs.find_events(rollout_id, query)
    if len(page.items) <= _BATCH:
        return dumps(page)
    spool = Spool()
    try:
        for start in range(0, len(page.items), _BATCH):
            items = dumps(page.items[start : start + _BATCH])
            spool.write((b"," if start else b'{"items":[') + items[1:-1])
            await asyncio.sleep(0)
        rest = dumps({name: value for name, value in vars(page).items() if name != "items"})
        spool.write(b"]," + rest[1:])
    except BaseException:
        spool.close()
        raise
    body = spool.whole()
    return spool if body is None else body


@events.get(paths.RUN_GRAPH, response_model=RunGraph)
@needs("reader")
async def get_run_graph(call: Call, rollout_id: Id, query: Annotated[RunGraphQuery, Query()]) -> bytes:
    """Return a view as nodes, ready to draw."""
    return dumps(await call.store.runs.get_graph(rollout_id, **vars(query)))


@events.post(paths.RUN_GRAPH, response_model=RunGraph)
@needs("reader")
async def draw_run_graph(
    call: Call, rollout_id: Id, body: Annotated[RunGraphBody, Body(default_factory=RunGraphBody)]
) -> bytes:
    """Return a view as nodes, arranged by the phase graph in the body."""
    return dumps(await call.store.runs.get_graph(rollout_id, **vars(body)))


@outputs.get(paths.CHECKPOINTS, response_model=list[CheckpointRef])
@needs("reader")
async def list_checkpoints(call: Call, rollout_id: Id, query: Annotated[CheckpointQuery, Query()]) -> bytes:
    """Return the checkpoints of a view, without their states."""
    return dumps(await call.store.runs.find_checkpoints(rollout_id, query))


@outputs.get(paths.LATEST_CHECKPOINT, response_model=Snapshot | None)
@needs("reader")
async def get_latest_checkpoint(call: Call, rollout_id: Id, query: Annotated[LatestCheckpointQuery, Query()]) -> bytes:
    """Return the latest checkpoint of a scope in a view, with its state, or null."""
    return dumps(await call.store.runs.get_checkpoint(rollout_id, **vars(query)))


@outputs.get(paths.CHECKPOINT, response_model=Snapshot)
@needs("reader")
async def get_checkpoint(call: Call, rollout_id: Id, checkpoint_id: Id) -> bytes:
    """Return a checkpoint by its id, with its state, whether or not it is in the current view."""
    return dumps(await call.store.runs.get_checkpoint_by_id(rollout_id, checkpoint_id))


@outputs.get(paths.ARTIFACTS, response_model=list[Artifact])
@needs("reader")
async def query_artifacts(call: Call, rollout_id: Id, query: Annotated[ArtifactQuery, Query()]) -> bytes:
    """Return the artifacts of a view that were not retracted."""
    return dumps(await call.store.runs.find_artifacts(rollout_id, query))


@outputs.get(paths.SCOPE_HISTORY, response_model=list[ArtifactRef])
@needs("reader")
async def scope_history(call: Call, query: Annotated[ScopeHistoryQuery, Query()]) -> bytes:
    """Return the artifacts of a scope in all runs, newest first, including retracted and replaced artifacts."""
    return dumps(await call.store.runs.scope_history(**vars(query)))


@forks.post(paths.PLAN_FORK, response_model=ForkPlan)
@needs("reader")
async def plan_fork(call: Call, rollout_id: Id, body: PlanForkBody) -> bytes:
    """Return the plan of a fork without starting it."""
    return dumps(await call.store.runs.plan_fork(rollout_id, **vars(body)))


@forks.get(paths.LINEAGE, response_model=list[AttemptNode])
@needs("reader")
async def list_lineage(call: Call, rollout_id: Id) -> bytes:
    """Return the attempts of a run, each with the attempt that it builds on."""
    return dumps(await call.store.runs.list_lineage(rollout_id))


@forks.get(paths.COMPARE, response_model=AttemptDiff)
@needs("reader")
async def compare_attempts(call: Call, rollout_id: Id, query: Annotated[CompareQuery, Query()]) -> bytes:
    """Return the differences between the views of two attempts, node by node."""
    return dumps(await call.store.runs.compare_attempts(rollout_id, query.a, query.b))


@forks.get(paths.ATTEMPT, response_model=Attempt)
@needs("reader")
async def get_attempt(call: Call, rollout_id: Id, attempt_id: Id, query: Annotated[RolloutPastQuery, Query()]) -> bytes:
    """Return an attempt by its id."""
    for attempt in await call.store.query_attempts(rollout_id, **vars(query)):
        if attempt.attempt_id == attempt_id:
            return dumps(attempt)
    raise NotFound.attempt(attempt_id, rollout_id)
