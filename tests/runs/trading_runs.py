"""Runs of the trading pipeline in a store, and functions that drive one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from store.interface import rerun_requests
from store.interface.store import Store
from store.models import AttemptedRollout, ForkResult, PhaseGraph, RolloutConfig, RunEvent, RunEventPage
from tests.runs.trading import FUND, MARKET, TA, phase

STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "analysts": ("analysts_checkpoint", {"market_report": "up", "news_report": "", "messages": ["one"], "extra": 1}),
    "debate_and_trader": ("trader_checkpoint", {"trader_investment_plan": "buy", "messages": ["one", "two"]}),
}
TICKER_PHASES = ("analysts", "debate_and_trader", "risk")


async def begin(
    store: Store,
    *,
    graph: PhaseGraph = TA,
    group: str | None = None,
    config: RolloutConfig | None = None,
    **input_: Any,
) -> AttemptedRollout:
    """Publish the graph and start a run under it."""
    await store.add_resources({"phases": graph})
    metadata = {} if group is None else {"rollbook.group": group}
    return await store.start_rollout({"date": "2026-11-20"} | input_, metadata=metadata, config=config)


async def say(store: Store, run: AttemptedRollout, events: Iterable[RunEvent]) -> list[int]:
    """Append what the run's attempt says."""
    return await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, list(events))


async def do_phase(store: Store, run: AttemptedRollout, name: str, scope: str, *, tokens: int = 10) -> None:
    """Run a phase to its end, with the checkpoint that it leaves."""
    *before, end = phase(name, scope, tokens=tokens)
    await say(store, run, before)
    if name in STATES:
        checkpoint, state = STATES[name]
        await store.runs.save_checkpoint(
            run.rollout_id, run.attempt.attempt_id, scope=scope, name=checkpoint, state=state
        )
    await say(store, run, [end])


async def auto_run(
    store: Store, *, tickers: Sequence[str] = ("RIG", "TSDD"), graph: PhaseGraph = TA, **how: Any
) -> AttemptedRollout:
    """Run everything: the scan, each ticker, the portfolio."""
    run = await begin(store, graph=graph, **how)
    await do_phase(store, run, "scan", MARKET)
    for ticker in tickers:
        for name in TICKER_PHASES:
            await do_phase(store, run, name, ticker)
    await do_phase(store, run, "portfolio", FUND)
    return await ended(store, run)


async def ended(store: Store, run: AttemptedRollout, status: Any = "succeeded") -> AttemptedRollout:
    """Report the end of the run's attempt."""
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status=status)
    return run


async def rerun(store: Store, run: AttemptedRollout, **asked: Any) -> ForkResult:
    """Fork, side effects confirmed."""
    how: dict[str, Any] = {"confirm_side_effects": True} | asked
    return await store.runs.fork(run.rollout_id, **how)


async def complete_rerun(store: Store, run: AttemptedRollout, name: str, ticker: str, **asked: Any) -> AttemptedRollout:
    """Fork from a phase of a ticker and run all that follows."""
    again = (await rerun(store, run, phase=name, scopes=[ticker], **asked)).rollout
    for phase_name in TICKER_PHASES[TICKER_PHASES.index(name) :]:
        await do_phase(store, again, phase_name, ticker, tokens=20)
    await do_phase(store, again, "portfolio", FUND, tokens=20)
    return await ended(store, again)


async def seen(store: Store, run: AttemptedRollout, view: str = "head", **only: Any) -> RunEventPage:
    """Return all of a view."""
    return await store.runs.query_events(run.rollout_id, view=view, limit=-1, **only)


def nodes_of(page: RunEventPage, scope: str) -> set[str]:
    """Return the nodes of a scope that a view holds."""
    return {event.node_id for event in page.items if event.scope == scope and event.node_id is not None}


async def claimed(store: Store, run: AttemptedRollout, graph: PhaseGraph = TA) -> AttemptedRollout:
    """Do what a runner does with a requested re-run, up to its start."""
    request = await rerun_requests.open_request(store, run.rollout_id)
    assert request is not None
    started = await rerun_requests.take(store, run.rollout_id, request, graph, "runner-1")
    assert started is not None
    return started.rollout
