"""Run folders as the trading system writes them, which have no events about phases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.run_folders.folder_samples import DAY, FLOW, RUN, lines
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, RISK

NODES = (*ANALYSTS, *DEBATE, *RISK)
STAMP, LATER = "20260320T101500000Z", "20260320T113000000Z"


def result(node: str, scope: str, rerun_seq: int = 0) -> dict[str, Any]:
    """Return the event at the end of a node. The system names the node as its own parent, and adds no phase."""
    return {
        "type": "result",
        "node_id": node,
        "parent_node_id": node,
        "identifier": scope,
        "agent": node.upper(),
        "timestamp": "10:15:00",
        "message": node,
        "response": f"{node} about {scope}",
        "metrics": {"model": "m", "tokens_in": 5},
    } | ({"rerun_seq": rerun_seq} if rerun_seq else {})


def tool(under: str, scope: str) -> dict[str, Any]:
    """Return the event at the end of a tool."""
    more = {"type": "tool_result", "parent_node_id": under, "status": "success", "service": "yf"}
    return result(f"tool_{under}", scope) | more


def of_ticker(scope: str, nodes: Sequence[str] = NODES, rerun_seq: int = 0) -> list[dict[str, Any]]:
    """Return the events of some nodes of a ticker."""
    return [event for node in nodes for event in (tool(node, scope), result(node, scope, rerun_seq))]


def of_portfolio(scope: str = FUND, rerun_seq: int = 0) -> list[dict[str, Any]]:
    """Return the events of the portfolio stage."""
    return [result(node, scope, rerun_seq) for node in ("review_holdings", "make_pm_decision")]


def checkpoints(scope: str, stamp: str = f"{STAMP}_", mark: str = "") -> dict[str, Any]:
    """Return the checkpoint files of a ticker."""
    reports = {"company_of_interest": scope, "market_report": f"up{mark}", "sentiment_report": "", "messages": ["m"]}
    plan = {"investment_debate_state": {"bull": "b"}, "trader_investment_plan": f"BUY 10 shares{mark}"}
    return {
        f"{scope}/report/{stamp}analysts_checkpoint.json": reports,
        f"{scope}/report/{stamp}trader_checkpoint.json": reports | plan,
    }


@dataclass
class Foreign:
    """A folder of the trading system."""

    events: list[dict[str, Any]]
    files: Mapping[str, Any] = field(default_factory=dict[str, Any])
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: str = "completed"
    rerun_seq: int = 0
    legacy: bool = False

    def write(self, root: Path) -> Path:
        """Write the folder, and return its path."""
        day = root / "daily" / DAY
        folder = day / "runs" / RUN if self.legacy else day / FLOW
        meta = {
            "id": RUN,
            "flow_id": FLOW,
            "type": "auto",
            "status": self.status,
            "created_at": 1774000000.25,
            "date": DAY,
            "params": {"date": DAY, **self.params},
            "rerun_seq": self.rerun_seq,
        }
        contents = {"run_meta.json": json.dumps(meta), "run_events.jsonl": lines(self.events).decode()}
        contents |= {
            path: content if isinstance(content, str) else json.dumps(content) for path, content in self.files.items()
        }
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder


SCANNED = [result("macro_synthesis", MARKET)]
COMPLETE = Foreign(
    [*SCANNED, *of_ticker("RIG"), *of_ticker("TSDD"), *of_portfolio()],
    {
        **checkpoints("RIG"),
        **checkpoints("TSDD"),
        "RIG/report/complete_report.md": "# RIG\n",
        f"market/report/{STAMP}_scan_report.json": {"summary": "calm"},
        f"portfolio/report/{STAMP}_pm_decision.json": {"RIG": "buy"},
    },
    {"tickers": ["RIG", "TSDD"], "portfolio_id": FUND},
)
UNNAMED = Foreign(
    # The scan has chosen the tickers, one analyst is absent, and an older version of the system named the files.
    [*SCANNED, *of_ticker("TSDD", NODES[1:]), *of_ticker("RIG", NODES[1:]), *of_portfolio("PORTFOLIO")],
    {
        **checkpoints("RIG", ""),
        **checkpoints("TSDD", ""),
        "RIG/complete_report.md": "# RIG\n",
        f"market/report/{STAMP}_macro_scan_summary.json": {"summary": "calm"},
        f"portfolio/report/{STAMP}_main_portfolio_execution_result.json": {},
    },
    legacy=True,
)
REPEATED = Foreign(
    [
        *SCANNED,
        *of_ticker("RIG", ANALYSTS),
        *of_ticker("TSDD"),
        *of_ticker("RIG", (*DEBATE, *RISK), 1),
        *of_portfolio(rerun_seq=2),
    ],
    {**checkpoints("RIG"), **checkpoints("TSDD"), **checkpoints("RIG", f"{LATER}_", " again")},
    {"tickers": ["RIG", "TSDD"]},
    rerun_seq=2,
)
HALF_WAY = Foreign(
    # A ticker stopped in the debate; its checkpoint of the analysts was saved at the end of their phase.
    [*SCANNED, *of_ticker("RIG"), *of_ticker("TSDD", (*ANALYSTS, "Bull Researcher"))],
    {**checkpoints("RIG"), f"TSDD/report/{STAMP}_analysts_checkpoint.json": {"market_report": "down"}},
    {"tickers": ["RIG", "TSDD"]},
    status="failed",
)
STOPPED_RERUN = Foreign(
    # A re-run of the analysts stopped after the first; the checkpoints are those of the first run.
    [*SCANNED, *of_ticker("TSDD"), *of_portfolio(), *of_ticker("RIG", ANALYSTS[:1], 1)],
    {**checkpoints("RIG"), **checkpoints("TSDD")},
    {"tickers": ["RIG", "TSDD"]},
    status="failed",
    rerun_seq=1,
)
ORPHAN = Foreign([*SCANNED], params={"tickers": ["RIG"]}, status="running")
FOLDERS = {
    "complete": COMPLETE,
    "unnamed": UNNAMED,
    "repeated": REPEATED,
    "half-way": HALF_WAY,
}
