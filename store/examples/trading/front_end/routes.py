"""Routes that post runs, list runs, and run a node of a run again.

A posted run is a rollout in the queue, which a runner of its pipeline claims. A re-run is only requested: the results
of the current attempt stay the results of the run until a runner of the pipeline starts a new attempt. If no such
runner is live, the response says so. A run is identified by the id of its rollout, by the id under which it was
imported, or by the id of a flow that has no other run.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Query

from store.errors import Conflict, Invalid, NotFound, Unavailable
from store.examples.trading.front_end import messages
from store.examples.trading.front_end.bodies import (
    PortfolioStage,
    PortfolioStageBody,
    PostedRun,
    PostRunBody,
    RerunBegun,
    RerunNodeBody,
    RunRecord,
    RunsQuery,
)
from store.examples.trading.front_end.flow_ids import flow_ids
from store.examples.trading.front_end.run_stream import runs_database
from store.examples.trading.front_end.settings import TradingSettings
from store.interface.phase_graphs import graph_of
from store.interface.rerun_requests import request_rerun
from store.models import AttemptedRollout, Fork, Rollout
from store.planning.run_state import CUT_OFF
from store.run_folders.listing import listed_runs, run_with_events
from store.run_folders.names import checked_id
from store.semconv import GROUP_KEY
from store.server.call import Call
from store.server.response_spool import Spool
from store.server.routes.calls import request_id
from store.server.routing import Created, Id, OwnStatusRoute, StoreRoute, needs
from store.sql.database import database_of
from store.sql.runs import SQLRuns
from store.wire.encoding import dumps

logger = logging.getLogger("store.server")

RUNS: Final = "/api/run/"
RUN: Final = "/api/run/{run}"
"""The path of a run. In a GET, `run` is an id of the run; in a POST, `run` is the type of the new run."""
RERUN_NODE: Final = "/api/run/rerun-node"
PORTFOLIO_STAGE: Final = "/api/run/portfolio-stage"


class DatabaseRoute(OwnStatusRoute):
    """A route that finds runs by flow or imported id. It refuses stores without such ids before it reads the body."""

    def respond(self, call: Call) -> Awaitable[bytes | Spool | Created]:
        """Validate the query, and return the endpoint's coroutine.

        Raises:
            Unsupported: the store cannot find runs by flow or imported id.
        """
        runs_database(call)
        return super().respond(call)


_posts = APIRouter(route_class=OwnStatusRoute, tags=["Web front ends"])
_runs = APIRouter(route_class=DatabaseRoute, tags=["Web front ends"])

_TYPES: Final = frozenset({"scan", "pipeline", "portfolio", "auto", "mock"})
_SCOPE: Final = re.compile(r"[A-Za-z0-9_^][A-Za-z0-9._^=:-]{0,63}")
_DECISIONS: Final = frozenset({"pm_decision", "execution_result"})
"""The names of the artifacts that the portfolio stage of a run saves."""
_OVERDUE: Final = frozenset({"timeout", "unresponsive"})


def _settings(call: Call) -> TradingSettings:
    return call.app.state.front_end.settings


@_runs.post(RERUN_NODE, response_model=RerunBegun)
@needs("algorithm")
async def rerun_node(call: Call, body: RerunNodeBody) -> bytes:
    """Run a node of a run again, with its phase and all phases that depend on it."""
    store = call.store
    rollout_id = await runs_database(call).runs.resolve(body.run_id)
    if not body.identifier.strip():
        raise Invalid("identifier", "is empty; send the scope of the node, for example its ticker")
    rollout = await store.get_rollout_by_id(rollout_id)
    if not isinstance(rollout, AttemptedRollout):
        raise Conflict(f"run {body.run_id} has not begun", "wait until a runner has taken it")
    if body.date is not None and body.date != messages.date_of(rollout):
        raise Invalid("date", f"{body.date!r} is not the date of the run; post a run for that date")
    portfolio = "" if body.portfolio_id is None else f", with {body.portfolio_id}"
    selection: dict[str, Any] = {"node": body.node_id, "scopes": [body.identifier], "on_missing": "full"}
    default_graph = _settings(call).graph
    rerun = await request_rerun(
        store,
        rollout_id,
        **selection,
        # These front ends have no way to ask for a confirmation of side effects, so each of their requests counts as
        # confirmed, and is logged as confirmed.
        confirm_side_effects=True,
        allow_graph_change=True,
        request_id=request_id(),
        reason=f"{RERUN_NODE}: {body.node_id} of {body.identifier}{portfolio}",
        default_graph=default_graph,
    )
    lineage = {node.sequence_id: node for node in await store.runs.list_lineage(rollout_id)}
    if rerun.attempt is None:
        graph = None if await graph_of(store, rollout) else default_graph
        plan: Fork = rerun.plan or await store.runs.plan_fork(rollout_id, **selection, graph=graph)
        rerun_seq = 1 + max(node.rerun_seq for node in lineage.values())
    else:
        # For a repeated request, this attempt may no longer be the latest attempt.
        node = lineage[rerun.attempt]
        assert node.fork is not None  # a request starts a fork
        plan, rerun_seq = node.fork, node.rerun_seq
    return dumps(
        {
            "run_id": body.run_id,
            "phase": plan.phase if plan.degraded is None else plan.degraded.phase,
            "status": "queued",
            "rerun_seq": rerun_seq,
            "attempt": rerun.attempt,
            "degraded": plan.degraded,
            "message": rerun.message,
        }
    )


@_posts.post(RUN, response_model=PostedRun)
@needs("algorithm")
async def post_run(call: Call, run: Id, body: PostRunBody) -> bytes:
    """Put a run into the queue; types are scan, pipeline, portfolio, auto and mock."""
    if run not in _TYPES:
        raise Invalid("type", f"{run!r} is none of {', '.join(sorted(_TYPES))}")
    flow_id = None if body.flow_id is None else checked_id(body.flow_id, "flow_id")
    if body.date is not None:
        checked_id(body.date, "date")
    for name, value in [("ticker", body.ticker), ("portfolio_id", body.portfolio_id)]:
        _check_scope(name, value)
    for ticker in body.tickers or ():
        _check_scope("tickers", ticker)
    flow_id = flow_id or await _new_flow_id(call)
    params = body.model_dump(exclude_unset=True, exclude={"flow_id"})
    metadata: dict[str, Any] = {GROUP_KEY: flow_id, "type": run}
    if isinstance(user := params.get("user_id"), str):
        metadata["user_id"] = user
    settings = _settings(call)
    resources_id = await settings.resources_id(call.store)
    rollout = await call.store.enqueue_rollout(
        params, resources_id=resources_id, config=settings.config, metadata=metadata
    )
    return dumps({"run_id": rollout.rollout_id, "flow_id": flow_id, "status": "queued"})


def _check_scope(name: str, value: str | None) -> None:
    if value is not None and (_SCOPE.fullmatch(value) is None or ".." in value):
        raise Invalid(
            name,
            f"{value!r} is not a scope; use 1 to 64 letters, digits and the characters . _ ^ = : - and begin with a "
            "letter, a digit, _ or ^; two dots in a row are not allowed",
        )


async def _new_flow_id(call: Call) -> str:
    """Return a new flow id. If the store can search for flows, no run of the store has this id."""
    database = database_of(call.store)
    while True:
        flow_id = flow_ids.next()
        if database is None:
            return flow_id
        try:
            await database.runs.resolve(flow_id)
        except NotFound:
            return flow_id
        except Conflict:  # several runs are in this flow
            pass


@_runs.get(RUNS, response_model=list[RunRecord])
@needs("reader")
async def list_runs(call: Call, query: Annotated[RunsQuery, Query()]) -> bytes:
    """Return the runs that belong to flows, newest first; without their events, unless `include=events`."""
    if query.include not in {None, "", "events"}:
        raise Invalid("include", f"{query.include!r} is unknown; the only value is 'events'")
    try:
        return dumps(await _list_runs(call, query))
    except Unavailable as error:
        root = _folders(call, error)
    records = (await asyncio.to_thread(listed_runs, root))[query.offset :][: query.limit]
    if query.include == "events":
        records = [await asyncio.to_thread(run_with_events, root, record["id"]) for record in records]
    return dumps(records)


async def _list_runs(call: Call, query: RunsQuery) -> list[dict[str, Any]]:
    runs = runs_database(call).runs
    rollout_ids = await runs.list_flow_runs(query.limit, query.offset)
    rollouts = {rollout.rollout_id: rollout for rollout in await call.store.query_rollouts(rollout_id_in=rollout_ids)}
    records = await _records(runs, [rollouts[rollout_id] for rollout_id in rollout_ids if rollout_id in rollouts])
    records.sort(key=lambda record: record["created_at"], reverse=True)
    if query.include == "events":
        for record in records:
            record["events"] = await _events(runs, record["id"])
    return records


@_runs.get(RUN, response_model=RunRecord)
@needs("reader")
async def get_run(call: Call, run: Id) -> bytes:
    """Return the current state of a run, with its events."""
    runs = runs_database(call).runs
    try:
        rollout_id = await runs.resolve(run)
        rollout = cast("Rollout", await call.store.get_rollout_by_id(rollout_id))
        (record,) = await _records(runs, [rollout])
        return dumps(record | {"events": await _events(runs, rollout_id)})
    except Unavailable as error:
        root = _folders(call, error)
    return dumps(await asyncio.to_thread(run_with_events, root, run))


def _folders(call: Call, error: Unavailable) -> Path:
    """Return the directory whose run folders are read while the database is unavailable.

    Raises:
        Unavailable: there is no such directory, or the request is for a partition other than the server's own.
    """
    root = _settings(call).fallback
    if root is None or not root.is_dir() or call.scope["rollbook.partition"] != call.app.state.partitions.root_name:
        raise error
    logger.warning("the database is unavailable; runs are read from %s: %s", root, error)
    return root


async def _records(runs: SQLRuns, rollouts: list[Rollout]) -> list[dict[str, Any]]:
    ends = await runs.get_ends([rollout.rollout_id for rollout in rollouts])
    records: list[dict[str, Any]] = []
    for rollout in rollouts:
        rerun_seq, error = ends.get(rollout.rollout_id, (0, None))
        was_cut_off = isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _OVERDUE
        records.append(messages.record(rollout, rerun_seq, CUT_OFF if was_cut_off else error))
    return records


async def _events(runs: SQLRuns, rollout_id: str) -> list[dict[str, Any]]:
    page = await runs.query_events(rollout_id, limit=-1)
    return [messages.event_message(rollout_id, row) for row in page.items if messages.is_supported(row)]


@_runs.delete(PORTFOLIO_STAGE, response_model=PortfolioStage)
@needs("algorithm")
async def reset_portfolio_stage(call: Call, body: PortfolioStageBody) -> bytes:
    """Retract the decisions that were made for a portfolio on one day.

    This starts nothing: the stage of the portfolio runs again when the next run reaches it.
    """
    store = call.store
    history = await store.runs.scope_history(body.portfolio_id, limit=-1)
    decisions = [artifact for artifact in history if artifact.name in _DECISIONS]
    rollouts = await store.query_rollouts(rollout_id_in=sorted({artifact.rollout_id for artifact in decisions}))
    of_day = {rollout.rollout_id for rollout in rollouts if messages.date_of(rollout) == body.date}
    deleted = [artifact for artifact in decisions if artifact.rollout_id in of_day and not artifact.retracted]
    for artifact in deleted:
        await store.runs.retract_artifact(artifact.rollout_id, artifact.artifact_id, reason=PORTFOLIO_STAGE)
    names = sorted(artifact.name for artifact in deleted)
    return dumps({"date": body.date, "portfolio_id": body.portfolio_id, "deleted": names})


ROUTES: Final = tuple(cast("StoreRoute", route) for route in (*_posts.routes, *_runs.routes))
"""The routes of the front end."""
