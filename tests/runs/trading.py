"""A trading pipeline as the tests know it: its phase graphs, and what a run of it says, without a model behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from store.models import (
    CascadeMask,
    Checkpoint,
    Overlay,
    Phase,
    PhaseGraph,
    RunEvent,
    ScopeKind,
    all_of,
    any_of,
)

REPORTS = ("market_report", "sentiment_report", "news_report", "fundamentals_report")
ANALYSTS = ("Market Analyst", "Social Analyst", "News Analyst", "Fundamentals Analyst")
DEBATE = ("Bull Researcher", "Bear Researcher", "Research Manager", "Trader")
RISK = ("Aggressive Analyst", "Conservative Analyst", "Neutral Analyst", "Portfolio Manager")
SCAN = ("geopolitical_scanner", "macro_synthesis")
PORTFOLIO = ("load_portfolio", "review_holdings", "make_pm_decision", "execute_trades")
MARKET, FUND = "MARKET", "main_portfolio"


def _graph(name: str, mask: CascadeMask | None) -> PhaseGraph:
    return PhaseGraph(
        name=name,
        version="1",
        scope_kinds={
            "market": ScopeKind(fixed=MARKET),
            "ticker": ScopeKind(normalise="upper"),
            "portfolio": ScopeKind(),
        },
        phases=[
            Phase(name="scan", scope_kind="market", nodes=list(SCAN)),
            Phase(
                name="analysts",
                scope_kind="ticker",
                nodes=list(ANALYSTS),
                produces=[
                    Checkpoint(
                        name="analysts_checkpoint",
                        keys=[*REPORTS, "macro_regime_report", "messages"],
                        when=any_of(*REPORTS),
                    )
                ],
                cascade=["portfolio"],
            ),
            Phase(
                name="debate_and_trader",
                scope_kind="ticker",
                nodes=list(DEBATE),
                after=["analysts"],
                requires="analysts_checkpoint",
                entry="Bull Researcher",
                produces=[Checkpoint(name="trader_checkpoint", when=all_of("trader_investment_plan"))],
                cascade=["portfolio"],
            ),
            Phase(
                name="risk",
                scope_kind="ticker",
                nodes=list(RISK),
                after=["debate_and_trader"],
                requires="trader_checkpoint",
                entry="Aggressive Analyst",
                overlay=Overlay(exclude=["messages"]),
                cascade=["portfolio"],
            ),
            Phase(
                name="portfolio",
                scope_kind="portfolio",
                nodes=list(PORTFOLIO),
                side_effects="unsafe",
                cascade_mask=mask,
            ),
        ],
    )


TA = _graph("tradingagents", None)
"""A re-run hides the whole portfolio phase."""
TA_COMPAT = _graph("tradingagents-compat", CascadeMask(nodes=["review_holdings", "make_pm_decision"]))
"""A re-run hides two nodes of the portfolio phase, whatever their scope, and not what ran under them."""


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
    for each in nodes:
        yield from node(each, scope, tokens=tokens, tool="tool_x" if each == nodes[-1] else None)
    yield RunEvent(kind="phase.completed", phase=name, scope=scope)


def texts(events: Iterable[RunEvent]) -> list[tuple[str, str | None, str | None]]:
    """Return what identifies events that were sent: kind, node, scope."""
    return [(event.kind, event.node_id, event.scope) for event in events]
