"""The actions on a run: preview and start a re-run of a part, and move the head."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args
from uuid import uuid4

import orjson

from store.dashboard.charts.run_graph import DrawnNode
from store.dashboard.page import Done, PageContent, Pages
from store.dashboard.pages.runs import branches, drawing_of, found_rollout, phase_graph, summary
from store.dashboard.request import PageRequest
from store.domain.rollout import ACTIVE
from store.errors import (
    AttemptActive,
    CheckpointMissing,
    Conflict,
    GraphChanged,
    HeadMoved,
    Invalid,
    NotFound,
    SideEffectsUnconfirmed,
)
from store.interface.rerun_requests import request_rerun
from store.models import Rollout
from store.models.runs import ForkPlan, OnMissing
from store.planning.scopes import named_scopes

pages = Pages()

_CURES: Final[dict[type[Conflict], str]] = {
    AttemptActive: "Wait until the attempt ends, or tick the box that ends it.",
    CheckpointMissing: "Start from an earlier phase, or run the whole scope again.",
    GraphChanged: "Start from an earlier phase, or tick the box that confirms that the saved state is still valid.",
    HeadMoved: "Another user changed the run meanwhile. Check the updated plan below.",
    SideEffectsUnconfirmed: 'Tick the box that confirms the side effects, or choose "Keep the other scopes".',
}
"""Advice for users of the page. The advice in the messages of the store is for users of the Python API."""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node of the base attempt, and whether it runs again."""

    scope: str | None
    node_id: str
    phase: str | None
    status: str
    runs_again: bool
    tokens_in: float | None
    tokens_out: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _RerunPart:
    """The part to re-run: the arguments of `runs.plan_fork`."""

    node: str | None
    phase: str | None
    scopes: list[str]
    base: str
    on_missing: OnMissing
    cascade: bool

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _rerun_part(request: PageRequest) -> _RerunPart:
    missing: OnMissing = "full" if request.among("on_missing", get_args(OnMissing), "error") == "full" else "error"
    return _RerunPart(
        node=request.one("node") or None,
        phase=request.one("phase") or None,
        scopes=request.several("scope"),
        base=request.one("base", "head"),
        on_missing=missing,
        cascade=request.among("cascade", ("0", "1"), "1") == "1",
    )


@pages.get("/ui/runs/{rollout_id}/rerun")
async def preview(request: PageRequest) -> PageContent:
    """Show the nodes that a re-run would reuse, and the nodes that would run again. This does not start the re-run."""
    return await _preview(request)


@pages.post("/ui/runs/{rollout_id}/rerun")
async def rerun(request: PageRequest) -> PageContent | Done:
    """Request the previewed re-run. Sending the form twice requests only one re-run."""
    rollout_id, part = request.ids["rollout_id"], _rerun_part(request)
    try:
        result = await request_rerun(
            request.store,
            rollout_id,
            **part.arguments(),
            state_patch=_patch(request.one("state_patch")),
            supersede=bool(request.one("supersede")),
            expected_head=request.maybe_whole("expected_head", least=1),
            request_id=request.one("request_id") or None,
            reason=request.one("reason").strip() or None,
            confirm_side_effects=bool(request.one("confirm_side_effects")),
            allow_graph_change=bool(request.one("allow_graph_change")),
        )
    except (Conflict, Invalid) as error:
        return await _preview(request, refused=error)
    if result.attempt is None:
        return Done(request.url("runs", rollout_id), f"The re-run is requested. {result.message}")
    message = f"A runner of the pipeline has started attempt {result.attempt}."
    return Done(request.url("runs", rollout_id, view=f"attempt:{result.attempt}"), message)


@pages.post("/ui/runs/{rollout_id}/head")
async def move_head(request: PageRequest) -> Done:
    """Make another attempt the head of the run."""
    rollout_id, number = request.ids["rollout_id"], request.whole("attempt", 0, least=1)
    lineage = await request.store.runs.list_lineage(rollout_id)
    chosen = next((node for node in lineage if node.sequence_id == number), None)
    if chosen is None:
        raise NotFound.attempt(str(number), rollout_id)
    before = next((node.sequence_id for node in lineage if node.is_head), None)
    reason = request.one("reason").strip() or None
    request_id = request.one("request_id") or None
    await request.store.runs.move_head(rollout_id, chosen.attempt_id, reason=reason, request_id=request_id)
    message = f"The head is attempt {number}." + ("" if before in {None, number} else f" Attempt {before} is kept.")
    return Done(request.url("runs", rollout_id), message)


def _patch(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        patch: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid("state_patch", 'is not JSON; write an object: {"news": "a strike"}') from None
    if not isinstance(patch, dict):
        raise Invalid("state_patch", 'is not a JSON object; write {"news": "a strike"}')
    return cast("dict[str, Any]", patch) or None


async def _preview(request: PageRequest, refused: Conflict | Invalid | None = None) -> PageContent:
    rollout_id, part = request.ids["rollout_id"], _rerun_part(request)
    rollout = await found_rollout(request, rollout_id)
    plan, missing = None, None
    if part.node or part.phase:
        try:
            plan = await request.store.runs.plan_fork(rollout_id, **part.arguments())
        except (Conflict, Invalid) as error:
            missing = error if isinstance(error, CheckpointMissing) else None
            refused = refused or error
    lineage = await request.store.runs.list_lineage(rollout_id)
    nodes = [] if plan is None else await _planned(request, plan)
    values = {
        "rollout": summary(rollout),
        "asked_for": part.arguments(),
        "plan": plan,
        "nodes": nodes,
        "sums": _sums(nodes),
        "attempts": branches(lineage),
        "active": [node.sequence_id for node in lineage if node.status in ACTIVE],
        "refused": None if refused is None else _refusal(refused),
        "may_run_all": missing is not None,
        "choices": None if plan is not None else await _choices(request, rollout),
    }
    hidden = {
        # Each preview has its own request id. If the form of a preview is sent twice, only one attempt is started.
        "request_id": uuid4().hex,
        "form": {name: request.one(name) for name in ("state_patch", "reason")},
        "command": _command(rollout_id, part),
    }
    status = 200 if refused is None else refused.status
    return PageContent("run_rerun.html", values, f"Run {rollout_id} again", status, hidden=hidden)


async def _choices(request: PageRequest, rollout: Rollout) -> dict[str, Any] | None:
    """Return the phases and scopes that the user can choose; None if the run has no phase graph."""
    phases = await phase_graph(request, rollout)
    if phases is None:
        return None
    drawing = await drawing_of(request, "head", phases)
    drawn = [row.scope for row in drawing.scopes if row.scope is not None]
    scopes = sorted(named_scopes(phases, rollout.input, rollout.metadata))
    return {"phases": [phase.name for phase in phases.phases], "scopes": list(dict.fromkeys((*drawn, *scopes)))}


async def _planned(request: PageRequest, plan: ForkPlan) -> list[PlannedNode]:
    phases = await phase_graph(request, await found_rollout(request, plan.rollout_id))
    drawing = await drawing_of(request, f"attempt:{plan.base}", phases)
    return [_becomes(node, plan) for scope in drawing.scopes for node in scope.nodes]


def _becomes(node: DrawnNode, plan: ForkPlan) -> PlannedNode:
    return PlannedNode(
        scope=node.scope,
        node_id=node.node_id,
        phase=node.phase,
        status=node.status,
        runs_again=any(mask.hides(node.scope, node.node_id, None, node.phase) for mask in plan.masks),
        tokens_in=node.tokens_in,
        tokens_out=node.tokens_out,
        seconds=node.seconds,
    )


def _sums(nodes: Sequence[PlannedNode]) -> Mapping[str, dict[str, float]]:
    """Return the numbers of nodes, tokens and seconds, for the part that is reused and the part that runs again."""
    sums: dict[str, dict[str, float]] = {}
    for name, is_again in (("reused", False), ("again", True)):
        group = [node for node in nodes if node.runs_again == is_again]
        tokens = sum((node.tokens_in or 0) + (node.tokens_out or 0) for node in group)
        sums[name] = {"nodes": len(group), "tokens": tokens, "seconds": sum(node.seconds or 0 for node in group)}
    return sums


def _refusal(error: Conflict | Invalid) -> dict[str, str]:
    cure = _CURES.get(type(error)) if isinstance(error, Conflict) else None
    text = error.reason if isinstance(error, Conflict) else str(error)
    return {"error_type": type(error).__name__, "text": text, "cure": cure or getattr(error, "cure", "")}


def _command(rollout_id: str, part: _RerunPart) -> str:
    parts = [f"rollbook rerun {shlex.quote(rollout_id)}"]
    for flag, value in (("--node", part.node), ("--phase", part.phase)):
        parts += [f"{flag} {shlex.quote(value)}"] if value else []
    parts += [f"--scope {shlex.quote(scope)}" for scope in part.scopes]
    parts += [f"--base {shlex.quote(part.base.removeprefix('attempt:'))}"] if part.base != "head" else []
    parts += ["--on-missing full"] if part.on_missing == "full" else []
    parts += [] if part.cascade else ["--no-cascade"]
    return " ".join(parts)
