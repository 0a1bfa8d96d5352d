"""Graph of a view of a run: nodes in columns, one column for each scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from store.models.phases import PhaseGraph
from store.models.runs import GraphColumn, GraphEdge, GraphNode, NodeStatus, RunGraph
from store.planning.progress import phase_of
from store.planning.rows import ERROR, RESULTS, UNDRAWN, ViewEvent

_Node = tuple[str | None, str]


@dataclass(slots=True)
class _NodeEvents:
    """One node while its events are collected."""

    first: ViewEvent
    last: ViewEvent
    phase: str | None = None
    metrics: Mapping[str, Any] | None = None
    executions: int = 0
    """The number of results."""
    errors: int = 0
    """The number of events with the status `error`."""
    has_failed: bool = False
    """Whether the last result, or an event after it, has the status `error`."""
    parents: dict[str, None] = field(default_factory=dict[str, None])
    """The parents of the node: the nodes under which it ran, in the order of the events."""

    def add(self, row: ViewEvent) -> None:
        self.last = row
        self.phase = self.phase or row.phase
        if row.parent_node_id is not None:
            self.parents[row.parent_node_id] = None
        has_failed = row.status == ERROR
        if row.kind in RESULTS:
            self.executions += 1
            self.metrics = row.metrics or self.metrics
            self.has_failed = has_failed
        self.has_failed = self.has_failed or has_failed
        self.errors += has_failed

    @property
    def status(self) -> NodeStatus:
        if self.has_failed:
            return "failed"
        return "completed" if self.executions else "running"


def graph_of(rollout_id: str, head: int | None, rows: Iterable[ViewEvent], graph: PhaseGraph | None) -> RunGraph:
    """Return the nodes of a view, in columns. Columns and nodes are in the order of their first events.

    Args:
        rollout_id: the run.
        head: the sequence id of the head.
        rows: the events of the view.
        graph: the phase graph, which assigns nodes to phases; None if the run has no phase graph.
    """
    summaries: dict[_Node, _NodeEvents] = {}
    for row in rows:
        if row.node_id is None or row.kind in UNDRAWN:
            continue
        key = row.scope, row.node_id
        summaries.setdefault(key, _NodeEvents(first=row, last=row)).add(row)
    columns: dict[str | None, list[GraphNode]] = {}
    edges: list[GraphEdge] = []
    for (scope, node_id), summary in summaries.items():
        parents = [parent for parent in summary.parents if (scope, parent) in summaries and parent != node_id]
        edges.extend(GraphEdge(scope=scope, parent_node_id=parent, node_id=node_id) for parent in parents)
        if not parents:
            columns.setdefault(scope, []).append(_node(scope, node_id, summary, graph))
    return RunGraph(
        rollout_id=rollout_id,
        head=head,
        columns=[_column(scope, nodes, graph) for scope, nodes in columns.items()],
        edges=edges,
    )


def _node(scope: str | None, node_id: str, summary: _NodeEvents, graph: PhaseGraph | None) -> GraphNode:
    declared = None if graph is None else phase_of(graph, summary.first)
    return GraphNode(
        scope=scope,
        node_id=node_id,
        phase=summary.phase if declared is None else declared.name,
        status=summary.status,
        metrics=None if summary.metrics is None else dict(summary.metrics),
        executions=summary.executions,
        errors=summary.errors,
        first_version=summary.first.version,
        last_version=summary.last.version,
        attempt=summary.last.attempt,
    )


def _column(scope: str | None, nodes: Sequence[GraphNode], graph: PhaseGraph | None) -> GraphColumn:
    phases = {} if graph is None else graph.by_name
    kinds = [phases[node.phase].scope_kind for node in nodes if node.phase in phases]
    return GraphColumn(
        scope=scope,
        kind=kinds[0] if kinds else None,
        done=sum(node.status == "completed" for node in nodes),
        total=len(nodes),
        nodes=list(nodes),
    )
