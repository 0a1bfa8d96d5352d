"""Routes for web front ends that are older than Rollbook: they post runs, list runs, and run a node of a run again.

A posted run is a rollout in the queue, which a runner of its pipeline claims. A re-run is only requested: the results
of the run stay those of its current attempt until a runner of the pipeline starts a new attempt. If no such runner is
live, the response says so. A run is identified by the id of its rollout, by the id under which it was imported, or by
the id of a flow that has no other run.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Query

from store.errors import Conflict, Invalid, Unavailable
from store.interface.phase_graphs import graph_of
from store.interface.rerun_requests import request_rerun
from store.models import AttemptedRollout, Fork, Rollout
from store.planning.run_state import CUT_OFF
from store.run_folders.listing import listed_runs, run_with_events
from store.run_folders.names import checked_id
from store.semconv import GROUP_KEY
from store.server.call import Call
from store.server.flow_ids import flow_ids
from store.server.response_spool import Spool
from store.server.routes.runs import request_id
from store.server.routing import Created, Id, OwnStatusRoute, needs
from store.server.run_defaults import RunDefaults
from store.server.streaming import viewer_events
from store.server.streaming.viewer_feed import viewed_store
from store.sql.store import SQLStore
from store.wire.encoding import dumps
from store.wire.viewer_bodies import (
    PortfolioStage,
    PortfolioStageBody,
    PostedRun,
    PostRunBody,
    RerunBegun,
    RerunNodeBody,
    RunRecord,
    RunsQuery,
)

logger = logging.getLogger("store.server")

RUNS: Final = "/api/run/"
RUN: Final = "/api/run/{run}"
"""The path of a run. In a GET, `run` is an id of the run; in a POST, `run` is the type of the new run."""
RERUN_NODE: Final = "/api/run/rerun-node"
PORTFOLIO_STAGE: Final = "/api/run/portfolio-stage"


class ViewedRoute(OwnStatusRoute):
    """A route that finds runs by flow or imported id. It refuses stores without such ids before it reads the body."""

    def respond(self, call: Call) -> Awaitable[bytes | Spool | Created]:
        """Validate the query, and return the endpoint's coroutine.

        Raises:
            Unsupported: the store cannot find runs by flow or imported id.
        """
        viewed_store(call)
        return super().respond(call)


posted = APIRouter(route_class=OwnStatusRoute, tags=["Web front ends"])
runs = APIRouter(route_class=ViewedRoute, tags=["Web front ends"])

_TYPES: Final = frozenset({"scan", "pipeline", "portfolio", "auto", "mock"})
_SCOPE: Final = re.compile(r"[A-Za-z0-9_^][A-Za-z0-9._^=:-]{0,63}")
_DECIDED: Final = frozenset({"pm_decision", "execution_result"})
"""The names of the artifacts that the portfolio stage of a run saves."""
_OVERDUE: Final = frozenset({"timeout", "unresponsive"})


@runs.post(RERUN_NODE, response_model=RerunBegun)
@needs("algorithm")
async def rerun_node(call: Call, body: RerunNodeBody) -> bytes:
    """Run a node of a run again, with its phase and all phases that depend on it."""
    store = viewed_store(call)
    rollout_id = await store.runs.resolve(body.run_id)
    if not body.identifier.strip():
        raise Invalid("identifier", "is empty; send the scope of the node, for example its ticker")
    rollout = await store.get_rollout_by_id(rollout_id)
    if not isinstance(rollout, AttemptedRollout):
        raise Conflict(f"run {body.run_id} has not begun", "wait until a runner has taken it")
    if body.date is not None and body.date != viewer_events.date_of(rollout):
        raise Invalid("date", f"{body.date!r} is not the date of the run; post a run for that date")
    portfolio = "" if body.portfolio_id is None else f", with {body.portfolio_id}"
    part: dict[str, Any] = {"node": body.node_id, "scopes": [body.identifier], "on_missing": "full"}
    graph = _defaults(call).graph
    begun = await request_rerun(
        store,
        rollout_id,
        **part,
        # These front ends have no way to ask for a confirmation of side effects, so each of their requests counts as
        # confirmed, and is logged as confirmed.
        confirm_side_effects=True,
        allow_graph_change=True,
        request_id=request_id(),
        reason=f"{RERUN_NODE}: {body.node_id} of {body.identifier}{portfolio}",
        default_graph=graph,
    )
    lineage = {each.sequence_id: each for each in await store.runs.list_lineage(rollout_id)}
    if begun.attempt is None:
        own = await graph_of(store, rollout)
        plan: Fork = begun.plan or await store.runs.plan_fork(rollout_id, **part, graph=None if own else graph)
        rerun_seq = 1 + max(each.rerun_seq for each in lineage.values())
    else:
        # For a repeated request, this attempt may not be the latest any more.
        node = lineage[begun.attempt]
        assert node.fork is not None  # a request starts a fork
        plan, rerun_seq = node.fork, node.rerun_seq
    return dumps(
        {
            "run_id": body.run_id,
            "phase": plan.phase if plan.degraded is None else plan.degraded.phase,
            "status": "queued",
            "rerun_seq": rerun_seq,
            "attempt": begun.attempt,
            "degraded": plan.degraded,
            "message": begun.message,
        }
    )


def _defaults(call: Call) -> RunDefaults:
    return call.app.state.run_defaults


@posted.post(RUN, response_model=PostedRun)
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
    flow_id = flow_id or await flow_ids.unused(call.store)
    params = body.model_dump(exclude_unset=True, exclude={"flow_id"})
    metadata: dict[str, Any] = {GROUP_KEY: flow_id, "type": run}
    if isinstance(user := params.get("user_id"), str):
        metadata["user_id"] = user
    defaults = _defaults(call)
    resources_id = await defaults.resources_id(call.store)
    rollout = await call.store.enqueue_rollout(
        params, resources_id=resources_id, config=defaults.config, metadata=metadata
    )
    return dumps({"run_id": rollout.rollout_id, "flow_id": flow_id, "status": "queued"})


def _check_scope(name: str, value: str | None) -> None:
    if value is not None and (_SCOPE.fullmatch(value) is None or ".." in value):
        raise Invalid(
            name,
            f"{value!r} is not a scope; use 1 to 64 letters, digits and the characters . _ ^ = : - and begin with a "
            "letter, a digit, _ or ^; two dots in a row are not allowed",
        )


@runs.get(RUNS, response_model=list[RunRecord])
@needs("reader")
async def list_runs(call: Call, query: Annotated[RunsQuery, Query()]) -> bytes:
    """Return the runs that belong to flows, newest first; without their events, unless `include=events`."""
    if query.include not in {None, "", "events"}:
        raise Invalid("include", f"{query.include!r} is unknown; the only value is 'events'")
    try:
        return dumps(await _listed(viewed_store(call), query))
    except Unavailable as error:
        root = _folders(call, error)
    shown = (await asyncio.to_thread(listed_runs, root))[query.offset :][: query.limit]
    if query.include == "events":
        shown = [await asyncio.to_thread(run_with_events, root, each["id"]) for each in shown]
    return dumps(shown)


async def _listed(store: SQLStore, query: RunsQuery) -> list[dict[str, Any]]:
    listed = await store.runs.list_flow_runs(query.limit, query.offset)
    found = {each.rollout_id: each for each in await store.query_rollouts(rollout_id_in=listed)}
    records = await _records(store, [found[rollout_id] for rollout_id in listed if rollout_id in found])
    records.sort(key=lambda each: each["created_at"], reverse=True)
    if query.include == "events":
        for each in records:
            each["events"] = await _events(store, each["id"])
    return records


@runs.get(RUN, response_model=RunRecord)
@needs("reader")
async def get_run(call: Call, run: Id) -> bytes:
    """Return the current state of a run, with its events."""
    store = viewed_store(call)
    try:
        rollout_id = await store.runs.resolve(run)
        rollout = cast("Rollout", await store.get_rollout_by_id(rollout_id))
        (shown,) = await _records(store, [rollout])
        return dumps(shown | {"events": await _events(store, rollout_id)})
    except Unavailable as error:
        root = _folders(call, error)
    return dumps(await asyncio.to_thread(run_with_events, root, run))


def _folders(call: Call, error: Unavailable) -> Path:
    """Return the directory whose run folders are read while the database is unavailable.

    Raises:
        Unavailable: there is no such directory, or the request is for a partition other than the server's own.
    """
    root: Path | None = call.app.state.fallback
    if root is None or not root.is_dir() or call.scope["rollbook.partition"] != call.app.state.partitions.root_name:
        raise error
    logger.warning("the database is unavailable; runs are read from %s: %s", root, error)
    return root


async def _records(store: SQLStore, rollouts: list[Rollout]) -> list[dict[str, Any]]:
    ends = await store.runs.get_ends([rollout.rollout_id for rollout in rollouts])
    return [_record(rollout, *ends.get(rollout.rollout_id, (0, None))) for rollout in rollouts]


def _record(rollout: Rollout, rerun_seq: int, error: str | None) -> dict[str, Any]:
    was_cut_off = isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _OVERDUE
    return viewer_events.record(rollout, rerun_seq, CUT_OFF if was_cut_off else error)


async def _events(store: SQLStore, rollout_id: str) -> list[dict[str, Any]]:
    page = await store.runs.query_events(rollout_id, limit=-1)
    return [viewer_events.event_shown(rollout_id, row) for row in page.items if viewer_events.is_shown(row)]


@runs.delete(PORTFOLIO_STAGE, response_model=PortfolioStage)
@needs("algorithm")
async def reset_portfolio_stage(call: Call, body: PortfolioStageBody) -> bytes:
    """Retract the decisions that were made for a portfolio on one day.

    This starts nothing: the stage of the portfolio runs again when the next run reaches it.
    """
    store = viewed_store(call)
    made = [each for each in await store.runs.scope_history(body.portfolio_id, limit=-1) if each.name in _DECIDED]
    rollouts = await store.query_rollouts(rollout_id_in=sorted({each.rollout_id for each in made}))
    of_day = {each.rollout_id for each in rollouts if viewer_events.date_of(each) == body.date}
    deleted = [each for each in made if each.rollout_id in of_day and not each.retracted]
    for each in deleted:
        await store.runs.retract_artifact(each.rollout_id, each.artifact_id, reason=PORTFOLIO_STAGE)
    names = sorted(each.name for each in deleted)
    return dumps({"date": body.date, "portfolio_id": body.portfolio_id, "deleted": names})
