"""Run folders as other programs write them, and the run of a store beside such a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.interface.store import Store
from store.models import RunEventRow
from store.planning.event_fields import KINDS, defaults_of

DAY = "2026-03-20"
RUN = "0b6a9c1e-3f0e-4f58-9c56-3a2a2f6a7c11"
OTHER = "7d0f2c44-57f2-4c5b-8d35-53c3e5a1b902"
FLOW = "5f2c9a01"

REAL_NAMES: dict[str, Any] = {
    "market/report/20260320T010203004Z_macro_scan_summary.json": {"summary": "calm — for now", "score": 0.5},
    "market/geopolitical_report.md": "# Geopolitics\n\nNothing — yet.\r\n",
    "RIG/report/20260320T010303004Z_complete_report.json": {"a": [1, 2.5, None, True]},
    "RIG/report/20260320T010303005Z_analysts_checkpoint.json": {"market_report": "up", "messages": []},
    "RIG/report/20260320T010403005Z_analysts_checkpoint.json": {"market_report": "down", "messages": ["m"]},
    "RIG/report/20260320T010403006Z_trader_checkpoint.json": {"trader_investment_plan": "buy"},
    "RIG/complete_report.md": "whole",
    "EURUSD=X/report/20260320T010403006Z_trader_checkpoint.json": {"trader_investment_plan": "sell"},
    "portfolio/report/20260320T010503000Z_main_portfolio_pm_decision.json": {"buy": ["RIG"]},
    "portfolio/report/20260320T010503000Z_other_main_portfolio_pm_decision.json": {"buy": []},
    "portfolio/report/20260320T010503001Z_RIG_holding_review.json": "hold",
    "run_log.jsonl": '{"kind": "llm", "ts": 1.0}\n{"kind": "summary"}\n',
}
ADR_NAMES: dict[str, Any] = {
    "market/report/scan_report.json": {"summary": "calm"},
    "RIG/report/analysts_checkpoint.json": {"news_report": "war"},
    "portfolio/report/20260320T010503000Z_pm_decision.json": {"buy": 1},
}


def event(kind: str, node: str | None, scope: str | None, **more: Any) -> dict[str, Any]:
    """Return an event as the pipeline writes it."""
    told: dict[str, Any] = {"type": kind, "message": f"{node} says — ✓"}
    if node is not None:
        told |= {"node_id": node, "parent_node_id": "start", "agent": node.upper()}
    if scope is not None:
        told["identifier"] = scope
    rest: dict[str, Any] = {"metrics": {}, "id": f"{node}_{kind}"}
    return told | rest | more


EVENTS: list[dict[str, Any]] = [
    {"type": "log", "agent": "SYSTEM", "message": "starting", "id": "log_1", "node_id": "__system__", "metrics": {}},
    event("thought", "macro_synthesis", "MARKET", metrics={"model": "m"}, prompt="p" * 2000),
    event("result", "macro_synthesis", "MARKET", metrics={"model": "m", "tokens_in": 5, "latency_ms": 1.5}),
    event("tool", "tool_news", "RIG", status="running", service="yf", prompt="", timestamp="23:59:58"),
    event("tool_result", "tool_news", "RIG", status="error", error="Error: no", timestamp="00:00:01"),
    event("result", "Trader", "RIG", response="r" * 1500, prompt="p" * 2000),
]


def lines(events: Sequence[Mapping[str, Any]], *, tight: bool = True, ascii_only: bool = False) -> bytes:
    """Return events as the lines of a file."""
    separators = (",", ":") if tight else None
    texts = [json.dumps(event, separators=separators, ensure_ascii=ascii_only) for event in events]
    return "".join(f"{text}\n" for text in texts).encode()


@dataclass
class Written:
    """A run folder, as it is to be written."""

    run_id: str = RUN
    flow_id: str = FLOW
    status: str = "completed"
    created_at: Any = 1774000000.25
    rerun_seq: int = 0
    layout: str = "flow"
    suffix: str = ""
    events: bytes | None = field(default_factory=lambda: lines(EVENTS))
    files: Mapping[str, Any] = field(default_factory=lambda: dict(REAL_NAMES))
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def folder(self, root: Path) -> Path:
        """Return where it lies."""
        day = root / "daily" / DAY
        return {"flow": day / self.flow_id, "legacy": day / "runs" / self.run_id, "flat": day}[self.layout]

    def meta(self) -> dict[str, Any]:
        """Return its run_meta.json."""
        return {
            "id": self.run_id,
            "flow_id": self.flow_id,
            "short_rid": self.run_id[:8],
            "type": "auto",
            "status": self.status,
            "created_at": self.created_at,
            "completed_at": 1774000100.5,
            "user_id": "anonymous",
            "date": DAY,
            "params": {"date": DAY, "tickers": ["RIG"]},
            "rerun_seq": self.rerun_seq,
        } | dict(self.more)

    def write(self, root: Path) -> Path:
        """Write it, as a program would that knows nothing of any store."""
        folder = self.folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"run_meta{self.suffix}.json").write_text(json.dumps(self.meta(), indent=2))
        if self.events is not None:
            (folder / f"run_events{self.suffix}.jsonl").write_bytes(self.events)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, str) and not name.endswith(".json"):
                path.write_bytes(content.encode())
            else:
                path.write_text(json.dumps(content, indent=2))
        return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def all_events(store: Store, rollout_id: str, view: str = "head") -> list[RunEventRow]:
    """Return a view whole."""
    return (await store.runs.query_events(rollout_id, view=view, limit=-1)).items


def content_of(row: RunEventRow) -> tuple[Any, ...]:
    """Return what an event says, without where and when it was recorded."""
    fields = ("kind", "node_id", "scope", "parent_node_id", "phase", "agent", "node_exec", "status", "service")
    texts = ("metrics", "message", "prompt", "response", "error", "rerun_seq")
    return tuple(getattr(row, name) for name in (*fields, *texts))


def with_defaults(row: RunEventRow) -> RunEventRow:
    """Return an event as it comes back from a folder, where events of the known kinds lack no field."""
    if row.kind not in KINDS:
        return row
    lacking = {name: value for name, value in defaults_of(row).items() if getattr(row, name) is None}
    # An empty text or object is in the line, and not in the store.
    return row.model_copy(update={name: value for name, value in lacking.items() if value})


async def left(store: Store, rollout_id: str, view: str = "head") -> list[tuple[Any, ...]]:
    """Return the checkpoints and artifacts of a view, by what they are and hold."""
    artifacts = [
        (artifact.scope, artifact.name, artifact.phase, artifact.media_type, artifact.content)
        for artifact in await store.runs.query_artifacts(rollout_id, view=view)
        if artifact.scope != "rollbook"
    ]
    checkpoints: list[tuple[Any, ...]] = []
    for reference in await store.runs.list_checkpoints(rollout_id, view=view):
        checkpoint = await store.runs.get_checkpoint(rollout_id, scope=reference.scope, name=reference.name, view=view)
        assert checkpoint is not None
        checkpoints.append(
            (reference.scope, reference.name, reference.after_phase, reference.external, checkpoint.state)
        )
    return [*artifacts, *checkpoints]
