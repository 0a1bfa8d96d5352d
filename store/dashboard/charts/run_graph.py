"""The layout of the graph of a run.

A scope is drawn as a column of nodes. A scope that all other scopes share is drawn above the columns. A scope that
depends on other scopes is drawn below the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from store.models.phases import PhaseGraph
from store.models.runs import GraphColumn, GraphNode, RunGraph
from store.runtime.clock import MICROSECONDS

Place = Literal["above", "column", "below"]

MOST_NODES: Final = 2000
"""The maximum number of nodes that are drawn."""

_ABOVE: Final = "MARKET"
_BELOW: Final = "PORTFOLIO"
"""In a run without a phase graph, scopes with these two names are placed above and below the columns."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node of a scope as it is drawn."""

    node_id: str
    scope: str | None
    phase: str | None
    status: str
    executions: int
    """The number of the node's results."""
    errors: int
    attempt: int
    """The number of the attempt that recorded the node's last event.

    If the shown attempt did not repeat the node, this is the number of an earlier attempt.
    """
    first_version: int
    """The version of the first event of the node."""
    last_version: int
    """The version of the last event of the node."""
    began_at: int | None
    """The time of the first event, in microseconds since the epoch."""
    seconds: float | None
    """The duration that the last result of the node reports, or else the time from the first event to the last."""
    tokens_in: float | None
    tokens_out: float | None
    model: str | None
    tools: list[str]
    """The ids of the nodes whose parent is this node, for example of tool calls."""


@dataclass(frozen=True, slots=True)
class DrawnScope:
    """One scope and its nodes. The nodes are in the order of their first events."""

    scope: str | None
    kind: str | None
    """The kind of the scope, such as `ticker`, if the phase graph declares it."""
    place: Place
    done: int
    """The number of completed nodes."""
    total: int
    """The number of nodes, including those that are not drawn."""
    nodes: list[DrawnNode] = field(default_factory=list[DrawnNode])


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """The sums of the tokens that the drawn nodes report; None if no node reports them."""

    tokens_in: float | None
    tokens_out: float | None
    nodes: int
    """The number of nodes that report tokens."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The scopes of a run, each with its place in the drawing."""

    scopes: list[DrawnScope]
    left_out: int
    """The number of nodes that are not drawn."""

    @property
    def tokens(self) -> DrawnTokens:
        """The sums of the tokens of all drawn nodes."""
        nodes = [node for scope in self.scopes for node in scope.nodes]
        counts_in = [node.tokens_in for node in nodes if node.tokens_in is not None]
        counts_out = [node.tokens_out for node in nodes if node.tokens_out is not None]
        reporting = sum(node.tokens_in is not None or node.tokens_out is not None for node in nodes)
        return DrawnTokens(sum(counts_in) if counts_in else None, sum(counts_out) if counts_out else None, reporting)

    @property
    def longest(self) -> float:
        """The duration of the slowest node in seconds; 0 without durations."""
        return max((node.seconds or 0.0 for scope in self.scopes for node in scope.nodes), default=0.0)

    def at(self, place: Place) -> list[DrawnScope]:
        """Return the scopes at a place of the drawing."""
        return [scope for scope in self.scopes if scope.place == place]


def versions(graph: RunGraph) -> list[int]:
    """Return the versions of the first and the last event of every node that is drawn."""
    nodes = [node for column in graph.columns for node in column.nodes][:MOST_NODES]
    return sorted({version for node in nodes for version in (node.first_version, node.last_version)})


def draw(graph: RunGraph, phases: PhaseGraph | None, times: Mapping[int, int]) -> Drawing:
    """Return the layout of a graph.

    Args:
        graph: the scopes and nodes of the run.
        phases: the phases of the run, which decide the places of scopes; None if the run has no phase graph.
        times: the times at which events were recorded, in microseconds since the epoch, by version.
    """
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
    """Return the place of a scope in the drawing.

    A scope that depends on other scopes (a portfolio, a book) is drawn below them. A shared scope (the market) and a
    scope without a name are drawn above the other scopes.
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
