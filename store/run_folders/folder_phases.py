"""Phase graphs of the runs in run folders.

The names of phases, nodes and checkpoints are part of the format of run folders (docs/run-folders.md).
"""

from __future__ import annotations

from typing import Final

from store.models import CascadeMask, Checkpoint, Overlay, Phase, PhaseGraph, ScopeKind, all_of, any_of

REPORTS: Final = ("market_report", "sentiment_report", "news_report", "fundamentals_report")
SUBJECT: Final = ("company_of_interest", "trade_date")
SCAN: Final = (
    "geopolitical_scanner",
    "market_movers_scanner",
    "sector_scanner",
    "smart_money_scanner",
    "industry_deep_dive",
    "macro_synthesis",
)
ANALYSTS: Final = ("Market Analyst", "Social Analyst", "News Analyst", "Fundamentals Analyst")
DEBATE: Final = ("Bull Researcher", "Bear Researcher", "Research Manager", "Trader")
RISK: Final = ("Aggressive Analyst", "Conservative Analyst", "Neutral Analyst", "Portfolio Manager")
PORTFOLIO: Final = (
    "load_portfolio",
    "compute_risk",
    "review_holdings",
    "prioritize_candidates",
    "macro_summary",
    "micro_summary",
    "make_pm_decision",
    "cash_sweep",
    "execute_trades",
)
MARKET: Final = "MARKET"
FUND: Final = "main_portfolio"


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
                    # The checkpoint needs only one of the reports. So the reports are usable if an analyst is missing.
                    Checkpoint(
                        name="analysts_checkpoint",
                        keys=[*SUBJECT, *REPORTS, "macro_regime_report", "messages"],
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


TA: Final = _graph("tradingagents", None)
"""The phase graph with which a re-run for a ticker hides all events of the portfolio phase."""
TA_COMPAT: Final = _graph("tradingagents-compat", CascadeMask(nodes=["review_holdings", "make_pm_decision"]))
"""The phase graph with which a re-run for a ticker hides only the events of two nodes of the portfolio phase.

Events whose parent node is one of these two nodes stay visible.
"""
