"""A run's graph as a page draws it: what runs once above and below, each other scope a column in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from store.models.phases import PhaseGraph
from store.models.runs import GraphColumn, GraphNode, RunGraph
from store.runtime.clock import MICROSECONDS

Place = Literal["above", "column", "below"]

MOST_NODES: Final = 2000
"""How many nodes are drawn; whoever has more looks at a scope alone."""

_ABOVE: Final = "MARKET"
_BELOW: Final = "PORTFOLIO"
"""Where a run without a phase graph names its scopes so."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node of one scope."""

    node_id: str
    scope: str | None
    phase: str | None
    status: str
    executions: int
    errors: int
    attempt: int
    """Of its last event: an earlier one than the view's where it was not run again."""
    first_version: int
    last_version: int
    began_at: int | None
    """Microseconds since the epoch."""
    seconds: float | None
    """How long its last result took, as it says; else from its first event to its last."""
    tokens_in: float | None
    tokens_out: float | None
    model: str | None
    tools: list[str]
    """What ran under it."""


@dataclass(frozen=True, slots=True)
class DrawnScope:
    """One scope with its nodes, in the order they were first seen."""

    scope: str | None
    kind: str | None
    place: Place
    done: int
    """How many of its nodes are completed, never more than there are."""
    total: int
    nodes: list[DrawnNode] = field(default_factory=list[DrawnNode])


@dataclass(frozen=True, slots=True)
class Drawing:
    """The scopes of a run by where they are drawn."""

    scopes: list[DrawnScope]
    left_out: int
    """How many nodes are not drawn."""

    def at(self, place: Place) -> list[DrawnScope]:
        """Return the scopes of a place."""
        return [each for each in self.scopes if each.place == place]


def versions(graph: RunGraph) -> list[int]:
    """Return the versions between which the nodes ran, as far as they are drawn."""
    nodes = [node for column in graph.columns for node in column.nodes][:MOST_NODES]
    return sorted({version for node in nodes for version in (node.first_version, node.last_version)})


def draw(graph: RunGraph, phases: PhaseGraph | None, times: Mapping[int, int]) -> Drawing:
    """Return a graph as it is drawn; `times` has when events were recorded, by their versions."""
    tools: dict[tuple[str | None, str], list[str]] = {}
    for edge in graph.edges:
        tools.setdefault((edge.scope, edge.parent_node_id), []).append(edge.node_id)
    room, scopes = MOST_NODES, list[DrawnScope]()
    for column in graph.columns:
        drawn = [_node(node, times, tools.get((node.scope, node.node_id), ())) for node in column.nodes[:room]]
        room -= len(drawn)
        if drawn:
            place = _place(column, phases)
            scopes.append(DrawnScope(column.scope, column.kind, place, column.done, column.total, drawn))
    total = sum(len(column.nodes) for column in graph.columns)
    return Drawing(scopes, total - (MOST_NODES - room))


def _place(column: GraphColumn, phases: PhaseGraph | None) -> Place:
    """Return where a scope is drawn.

    What others lead to (a portfolio, a book) comes after all of them and so below, what there is only one of (the
    market) above; a scope without a name belongs to none.
    """
    if column.scope is None:
        return "above"
    if phases is None or column.kind is None:
        named = column.scope.upper()
        return "above" if named == _ABOVE else "below" if named == _BELOW else "column"
    led_to = {phases.by_name[name].scope_kind for phase in phases.phases for name in phase.cascade}
    if column.kind in led_to:
        return "below"
    return "column" if phases.scope_kinds[column.kind].fixed is None else "above"


def _node(node: GraphNode, times: Mapping[int, int], tools: Sequence[str]) -> DrawnNode:
    metrics = node.metrics or {}
    began, ended = times.get(node.first_version), times.get(node.last_version)
    latency = _number(metrics.get("latency_ms"))
    seconds = None if latency is None else latency / 1000
    if seconds is None and began is not None and ended is not None and ended > began and node.status != "running":
        seconds = (ended - began) / MICROSECONDS
    model = metrics.get("model")
    return DrawnNode(
        node_id=node.node_id,
        scope=node.scope,
        phase=node.phase,
        status=node.status,
        executions=node.executions,
        errors=node.errors,
        attempt=node.attempt,
        first_version=node.first_version,
        last_version=node.last_version,
        began_at=began,
        seconds=seconds,
        tokens_in=_number(metrics.get("tokens_in")),
        tokens_out=_number(metrics.get("tokens_out")),
        model=model if isinstance(model, str) else None,
        tools=list(tools),
    )


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
