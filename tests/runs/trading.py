"""Events of a run of the trading example, without a model, and the names of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from store.models import PhaseGraph, RunEvent
from store.run_folders.folder_phases import (
    ANALYSTS,
    DEBATE,
    FUND,
    MARKET,
    PORTFOLIO,
    REPORTS,
    RISK,
    SCAN,
    TA,
    TA_COMPAT,
)

__all__ = [
    "ANALYSTS",
    "DEBATE",
    "FUND",
    "MARKET",
    "PORTFOLIO",
    "REPORTS",
    "RISK",
    "SCAN",
    "TA",
    "TA_COMPAT",
    "node",
    "phase",
    "texts",
]


def node(name: str, scope: str, *, tokens: int = 10, tool: str | None = None) -> Iterator[RunEvent]:
    """Return what a node says: a thought, a tool call if it has a tool, a result."""
    yield RunEvent(kind="thought", node_id=name, scope=scope, parent_node_id="start", message=f"{name} thinks")
    if tool is not None:
        for kind in ("tool", "tool_result"):
            yield RunEvent(kind=kind, node_id=tool, scope=scope, parent_node_id=name, status="success")
    metrics = {"model": "stub", "tokens_in": tokens, "tokens_out": tokens // 2}
    yield RunEvent(kind="result", node_id=name, scope=scope, metrics=metrics, response=f"{name} on {scope}: {tokens}")


def phase(name: str, scope: str, *, tokens: int = 10, graph: PhaseGraph = TA) -> Iterator[RunEvent]:
    """Return what a phase says, from its start to its end; one tool runs under its last node."""
    yield RunEvent(kind="phase.started", phase=name, scope=scope)
    nodes = graph.by_name[name].nodes
    for node_id in nodes:
        yield from node(node_id, scope, tokens=tokens, tool="tool_x" if node_id == nodes[-1] else None)
    yield RunEvent(kind="phase.completed", phase=name, scope=scope)


def texts(events: Iterable[RunEvent]) -> list[tuple[str, str | None, str | None]]:
    """Return what identifies events that were sent: kind, node, scope."""
    return [(event.kind, event.node_id, event.scope) for event in events]
