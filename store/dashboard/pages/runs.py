"""The pages of runs: the list, the graph of a run with its attempts and nodes, and the comparison of two attempts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from store.dashboard.charts.run_graph import Drawing, draw, versions
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.db.queries.run_list import RunRow, recorded_at, run_rows
from store.domain.rollout import ACTIVE
from store.errors import NotFound
from store.models import AttemptDiff, AttemptNode, PhaseGraph, Rollout, RunEventRow
from store.models.runs import NodeDifference
from store.planning.imported_runs import imported_id, times_of
from store.planning.plan import of_fork

pages = Pages()

_TEXT: Final = 4000
"""The maximum number of characters that the page shows of a text."""
_EVENTS: Final = 100
_TOOLS: Final = 10
_DIFFERENCES: Final = 2000
_NOTHING: Final = AttemptDiff(a=0, b=0, nodes=[], counts={}, totals={})


@pages.get("/ui/runs")
async def runs(request: PageRequest) -> PageContent:
    """Show the rollouts that have run events, newest first."""
    limit = request.rows
    rows = await request.store.core.look(partial(run_rows, before=request.one("before") or None, limit=limit + 1))
    page = rows[:limit]
    next_before = page[-1].rollout_id if len(rows) > limit else None
    values = {"runs": await _with_times(request, page), "next_before": next_before}
    return PageContent("run_list.html", values, "Pipelines")


async def _with_times(request: PageRequest, rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows, newest first. The row of a run that was imported from files gets the times in these files."""
    rollouts = await request.store.query_rollouts(rollout_id_in=[row.rollout_id for row in rows])
    times = {rollout.rollout_id: times_of(rollout) for rollout in rollouts if imported_id(rollout.metadata or {})}
    timed = [_timed(row, *times[row.rollout_id]) if row.rollout_id in times else row for row in rows]
    return sorted(timed, key=lambda row: row.start_at, reverse=True)


def _timed(row: RunRow, start: float, end: float | None) -> RunRow:
    return replace(row, start_at=round(start * 1e6), end_at=None if end is None else round(end * 1e6))


@dataclass(frozen=True, slots=True)
class Branch:
    """An attempt in the tree of a run's attempts."""

    attempt: int
    attempt_id: str
    depth: int
    """The number of attempts that this attempt builds on, directly or indirectly."""
    kind: str
    base: int | None
    """The number of the attempt on which this attempt builds; None if it builds on no attempt."""
    status: str
    is_head: bool
    started: float
    events: int
    """The number of run events that the attempt recorded."""
    again: str
    """A description of the part that this attempt ran again."""
    reason: str | None
    degraded: bool
    """Whether more phases than requested ran again."""


@pages.get("/ui/runs/{rollout_id}")
async def run(request: PageRequest) -> PageContent:
    """Show the graph of one view of a run, the list of its attempts, and the events of the selected node.

    The parameters are `view`, `at` (the number of the last event to include), `scope` and `node`.
    """
    rollout_id, view, at = request.ids["rollout_id"], request.one("view", "head"), request.maybe_whole("at", least=1)
    rollout = await found_rollout(request, rollout_id)
    lineage = await request.store.runs.list_lineage(rollout_id)
    phases = await phase_graph(request, rollout)
    drawing = await drawing_of(request, view, phases, at=at)
    node = request.one("node") or None
    scope = request.one("scope") or None
    chosen = None if node is None else await _node_events(request, drawing, view, scope, node, at)
    values: dict[str, Any] = {
        "rollout": summary(rollout),
        "view": view,
        "at": at,
        "head": next((attempt.sequence_id for attempt in lineage if attempt.is_head), None),
        "attempts": branches(lineage),
        "scopes": drawing.scopes,
        "left_out": drawing.left_out,
        "tokens": drawing.tokens,
        "chosen": chosen,
        "phases": [] if phases is None else [phase.name for phase in phases.phases],
    }
    hidden = {
        "drawing": drawing,
        # The head at a past moment is not known.
        "viewed": _viewed(view, values["head"] if at is None else None),
        "active": [attempt.sequence_id for attempt in lineage if attempt.status in ACTIVE],
        "may_rerun": at is None and phases is not None and request.may("algorithm"),
        "copies": _copies(request, rollout_id, view),
        "node_twin": _events_path(request, rollout_id, view, scope, node),
    }
    return PageContent("run_graph.html", values, f"Run {rollout_id}", hidden=hidden)


async def found_rollout(request: PageRequest, rollout_id: str) -> Rollout:
    """Return the rollout of a run.

    Raises:
        NotFound: there is no such rollout.
    """
    rollout = await request.store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound.rollout(rollout_id)
    return rollout


async def phase_graph(request: PageRequest, rollout: Rollout) -> PhaseGraph | None:
    """Return the first phase graph among the resources of a run, or None if there is none."""
    if rollout.resources_id is None:
        return None
    published = await request.store.get_resources_by_id(rollout.resources_id)
    resources = {} if published is None else published.resources
    return next((resource for resource in resources.values() if isinstance(resource, PhaseGraph)), None)


async def drawing_of(request: PageRequest, view: str, phases: PhaseGraph | None, *, at: int | None = None) -> Drawing:
    """Return the drawing of one view of the run whose id is in the path of the request."""
    rollout_id = request.ids["rollout_id"]
    graph = await request.store.runs.get_graph(rollout_id, view=view, at=at, graph=phases)
    times = await request.store.core.look(partial(recorded_at, rollout_id=rollout_id, versions=versions(graph)))
    return draw(graph, phases, times)


def summary(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a rollout that the top of a page shows."""
    metadata = rollout.metadata or {}
    return {
        "rollout_id": rollout.rollout_id,
        "status": rollout.status,
        "start_time": rollout.start_time,
        "end_time": rollout.end_time,
        "group_id": metadata.get("rollbook.group"),
        "resources_id": rollout.resources_id,
    }


def branches(lineage: Sequence[AttemptNode]) -> list[Branch]:
    """Return the attempts with their depths in the tree of attempts. An attempt comes after its base."""
    below: dict[int | None, list[AttemptNode]] = {}
    for node in lineage:
        below.setdefault(node.base, []).append(node)
    rows: list[Branch] = []
    waiting = [(0, node) for node in reversed(below.get(None, []))]
    while waiting:
        depth, node = waiting.pop()
        rows.append(_branch(depth, node))
        waiting.extend((depth + 1, child) for child in reversed(below.get(node.sequence_id, [])))
    return rows


def _branch(depth: int, node: AttemptNode) -> Branch:
    fork = node.fork
    return Branch(
        attempt=node.sequence_id,
        attempt_id=node.attempt_id,
        depth=depth,
        kind=node.kind,
        base=node.base,
        status=node.status,
        is_head=node.is_head,
        started=node.start_time,
        events=node.events,
        again="" if fork is None else of_fork(fork),
        reason=None if fork is None else fork.reason,
        degraded=fork is not None and fork.degraded is not None,
    )


def _viewed(view: str, head: int | None) -> int | None:
    form, _, number = view.partition(":")
    if form == "head":
        return head
    return int(number) if number.isdecimal() else None


def _copies(request: PageRequest, rollout_id: str, view: str) -> list[tuple[str, str]]:
    path = f"{request.base}/v1/agl/rollouts/{quote(rollout_id, safe='')}/graph"
    return [
        ("Id", rollout_id),
        ("CLI", f"rollbook lineage {shlex.quote(rollout_id)}"),
        ("curl", f"curl -s '{{origin}}{path}?view={quote(view)}'"),
    ]


async def _node_events(
    request: PageRequest, drawing: Drawing, view: str, scope: str | None, node: str, at: int | None
) -> dict[str, Any]:
    """Return a node with its events and the events of its child nodes."""
    items = (item for column in drawing.scopes for item in column.nodes)
    drawn = next((item for item in items if (item.scope, item.node_id) == (scope, node)), None)
    by_version: dict[int, RunEventRow] = {}
    has_more = False
    names = [node, *([] if drawn is None else drawn.tools[:_TOOLS])]
    for name in names:
        page = await request.store.runs.query_events(
            request.ids["rollout_id"], view=view, scope=scope, node_id=name, limit=_EVENTS, at=at
        )
        has_more = has_more or page.has_more
        matching = [event for event in page.items if event.scope == scope and node in {name, event.parent_node_id}]
        by_version |= {event.version: event for event in matching}
    events = [_event(by_version[version]) for version in sorted(by_version)[:_EVENTS]]
    return {
        "scope": scope,
        "node": node,
        "drawn": drawn,
        "events": events,
        "has_more": has_more or len(by_version) > _EVENTS,
    }


def _event(row: RunEventRow) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for name in ("message", "prompt", "response", "error"):
        text: str | None = getattr(row, name)
        if text:
            texts[name] = {"text": text[:_TEXT], "length": len(text)}
    return {
        "version": row.version,
        "at": row.at,
        "attempt": row.attempt,
        "source": row.source,
        "kind": row.kind,
        "node_id": row.node_id,
        "status": row.status,
        "phase": row.phase,
        "agent": row.agent,
        "service": row.service,
        "metrics": row.metrics,
        "texts": texts,
        "span": (row.extra or {}).get("span_id") if row.source == "span" else None,
    }


def _events_path(request: PageRequest, rollout_id: str, view: str, scope: str | None, node: str | None) -> str:
    params = {"view": view, "scope": scope, "node_id": node}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in params.items() if value is not None)
    return f"{request.base}/v1/agl/rollouts/{quote(rollout_id, safe='')}/events?{query}"


@pages.get("/ui/runs/{rollout_id}/compare")
async def compare(request: PageRequest) -> PageContent:
    """Show the differences between the views of two attempts."""
    rollout_id = request.ids["rollout_id"]
    rollout = await found_rollout(request, rollout_id)
    lineage = await request.store.runs.list_lineage(rollout_id)
    a, b = _pair(request, lineage)
    shows_all = request.among("all", ("0", "1"), "0") == "1"
    comparison = _NOTHING if not lineage else await request.store.runs.compare_attempts(rollout_id, a, b)
    nodes = [node for node in comparison.nodes if shows_all or node.change != "kept" or node.failed]
    values = {
        "rollout": summary(rollout),
        "a": a,
        "b": b,
        "attempts": branches(lineage),
        "counts": comparison.counts,
        "totals": {name: value for name, value in comparison.totals.items() if value},
        "state_patch": comparison.state_patch,
        "nodes": nodes[:_DIFFERENCES],
        "left_out": max(0, len(nodes) - _DIFFERENCES),
        "all": shows_all,
    }
    hidden = {"copies": _compare_copies(request, rollout_id, a, b), "deltas": _deltas(nodes[:_DIFFERENCES])}
    return PageContent("run_compare.html", values, f"Attempts {a} and {b} of {rollout_id}", hidden=hidden)


def _pair(request: PageRequest, lineage: Sequence[AttemptNode]) -> tuple[int, int]:
    """Return the numbers of the two attempts to compare. By default, these are the base of the head, and the head."""
    if not lineage:
        return 0, 0
    head = next((node for node in lineage if node.is_head), lineage[-1])
    others = [node.sequence_id for node in lineage if node.sequence_id != head.sequence_id]
    default = head.base or (others[-1] if others else head.sequence_id)
    return request.whole("a", default, least=1), request.whole("b", head.sequence_id, least=1)


def _deltas(nodes: Sequence[NodeDifference]) -> list[str]:
    return [", ".join(f"{name} {value:+,.4g}" for name, value in node.deltas.items() if value) for node in nodes]


def _compare_copies(request: PageRequest, rollout_id: str, a: int, b: int) -> list[tuple[str, str]]:
    path = f"{request.base}/v1/agl/rollouts/{quote(rollout_id, safe='')}/compare"
    return [
        ("CLI", f"rollbook compare {shlex.quote(rollout_id)} {a} {b}"),
        ("curl", f"curl -s '{{origin}}{path}?a={a}&b={b}'"),
    ]
