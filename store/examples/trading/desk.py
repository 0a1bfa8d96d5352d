"""Phases of the trading desk, each as a plain async function.

A scope passes data to its own later phases in its state, which checkpoints save. Data for other scopes is saved as
artifacts. Therefore a phase that runs again finds all data of phases that did not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from store.examples.trading import feeds, model
from store.models import Rollout
from store.planning.imported_runs import imported_id
from store.run_folders.folder_phases import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, REPORTS, RISK, SCAN, SUBJECT, TA
from store.semconv import GROUP_KEY
from store.training import NodeCall, Pipeline, Step

SCOPES: Final[Mapping[str, Sequence[str]]] = {"market": [MARKET], "ticker": feeds.TICKERS, "portfolio": [FUND]}
"""The scopes of the example's run, by kind."""
MOST_SHARES: Final = 50

_KINDS: Final = {"scan": ("market",), "pipeline": ("ticker",), "portfolio": ("portfolio",)}
"""The kinds of scopes of a run, by the type of the run; a run of any other type has all kinds."""
_TOOLS: Final = dict(zip(ANALYSTS, ("get_prices", "get_posts", "get_news", "get_filings"), strict=True))


def scopes_of(rollout: Rollout) -> dict[str, Sequence[str]]:
    """Return the scopes of a run, by kind.

    The type in the metadata selects the kinds. The input names the tickers and the portfolio; by default, these are the
    tickers and the portfolio of the example.
    """
    params = _params(rollout)
    kinds = _KINDS.get((rollout.metadata or {}).get("type", ""), tuple(SCOPES))
    named = {**SCOPES, "ticker": tickers_of(rollout), "portfolio": [params.get("portfolio_id") or FUND]}
    return {kind: scopes if kind in kinds else [] for kind, scopes in named.items()}


def tickers_of(rollout: Rollout) -> Sequence[str]:
    """Return the tickers of a run in upper case, as the log spells them."""
    params = _params(rollout)
    named: list[str] = params.get("tickers") or ([params["ticker"]] if params.get("ticker") else [*feeds.TICKERS])
    return [ticker.upper() for ticker in named]


class Desk:
    """The pipeline that executes the phases of the trading graph, with its settings.

    Args:
        pace: the duration of each answer of the model in seconds.
        on_node: called with the name and the scope of each node that starts.
    """

    def __init__(self, *, pace: float = 0.0, on_node: Callable[[str, str], None] | None = None) -> None:
        self.pipeline = Pipeline(TA, scopes=scopes_of)
        self._pace = pace
        self._on_node = on_node
        phases = (self._scan, self._analyse, self._debate, self._weigh, self._trade)
        for name, phase in zip(TA.by_name, phases, strict=True):
            self.pipeline.phase(name)(phase)

    async def _scan(self, step: Step) -> None:
        *scanners, synthesis = SCAN
        reports = [await self._ask(step, name, f"Report\n{feeds.read(MARKET, name)}") for name in scanners]
        summary = await self._ask(step, synthesis, _prompt("Sum up the market", *reports))
        sections = dict(zip(scanners, reports, strict=True))
        await _save(step, "scan_report", {"summary": summary, "sections": sections})
        date = _params(step.rollout).get("date", feeds.DATE)
        await _save(step, "complete_report", {"trade_date": date, "summary": summary, **sections})

    async def _analyse(self, step: Step) -> None:
        step.state["company_of_interest"] = step.scope
        step.state["trade_date"] = _params(step.rollout).get("date", feeds.DATE)
        step.state["macro_regime_report"] = await _market_summary(step)
        for (name, tool), report in zip(_TOOLS.items(), REPORTS, strict=True):
            task = f"Report on {step.scope}"
            async with self._node(step, name, prompt=task, model=model.NAME) as call:
                async with self._node(step, tool, under=name, prompt=step.scope, service="feeds") as lookup:
                    lookup.response = feeds.read(step.scope, tool)
                step.state[report] = await self._answer(call, _prompt(task, lookup.response))
        step.state["messages"] = [step.state[report] for report in REPORTS]

    async def _debate(self, step: Step) -> None:
        bull, bear, manager, trader = DEBATE
        scope, reports = step.scope, [step.state[report] for report in REPORTS]
        pro = await self._ask(step, bull, _prompt(f"Argue for {scope}", *reports))
        con = await self._ask(step, bear, _prompt(f"Argue against {scope}", *reports))
        step.state["investment_debate_state"] = {"bull": pro, "bear": con}
        plan = await self._ask(step, manager, _prompt(f"Judge {scope}", pro, con))
        step.state["investment_plan"] = plan
        async with self._node(step, trader, prompt=plan) as call:
            call.response = f"{plan.split()[0]} {min(MOST_SHARES, 10 * abs(model.score(pro + con)))} shares"
            step.state["trader_investment_plan"] = call.response
        step.state["messages"] = [*step.state.get("messages", []), pro, con, plan]

    async def _weigh(self, step: Step) -> None:
        *analysts, manager = RISK
        plan = step.state["trader_investment_plan"]
        debate = step.state["investment_debate_state"]
        views = [
            await self._ask(step, name, _prompt(f"{name}, judge: {plan}?", debate["bull"], debate["bear"]))
            for name in analysts
        ]
        async with self._node(step, manager, prompt=_prompt(plan, *views)) as call:
            decision = _decision_in_plan(plan)
            call.response = f"{decision['action']} {decision['shares']}"
        await _save(step, "final_trade_decision", decision)
        report = {name: step.state.get(name) for name in (*SUBJECT, *REPORTS, "investment_plan")} | {
            "decision": decision
        }
        await _save(step, "complete_report", report)
        await _save(step, "complete_report", _markdown(step.scope, report), media_type="text/markdown")

    async def _trade(self, step: Step) -> None:
        tickers = tickers_of(step.rollout)
        decisions = {ticker: await _decision_of(step, ticker) for ticker in tickers}
        orders = {ticker: decision for ticker, decision in decisions.items() if decision["shares"]}
        responses = {
            "load_portfolio": _listed(feeds.HOLDINGS),
            "compute_risk": f"{sum(decision['shares'] for decision in orders.values())} shares move",
            "review_holdings": _listed({ticker: decision["action"] for ticker, decision in decisions.items()}),
            "prioritize_candidates": ", ".join(sorted(orders, key=lambda ticker: -orders[ticker]["shares"])) or "none",
            "macro_summary": await _market_summary(step),
            "micro_summary": f"{len(orders)} of {len(decisions)} tickers are traded",
            "make_pm_decision": _listed(
                {ticker: f"{decision['action']} {decision['shares']}" for ticker, decision in orders.items()}
            ),
            "cash_sweep": "cash stays as it is",
            "execute_trades": f"{len(orders)} orders are placed",
        }
        for name in PORTFOLIO:
            async with self._node(step, name) as call:
                call.response = responses[name]
                await self._save_artifacts_of(step, name, decisions, orders)

    @staticmethod
    async def _save_artifacts_of(
        step: Step, node: str, decisions: Mapping[str, Any], orders: Mapping[str, Any]
    ) -> None:
        """Save the artifacts of a node of the portfolio phase."""
        match node:
            case "compute_risk":
                shares = {ticker: decision["shares"] for ticker, decision in orders.items()}
                await _save(step, "risk_metrics", {"shares": sum(shares.values()), "by_ticker": shares})
            case "review_holdings":
                for ticker, decision in decisions.items():
                    review = {"held": feeds.HOLDINGS.get(ticker, 0), "action": decision["action"]}
                    await _save(step, f"{ticker}_holding_review", review, scope="portfolio")
            case "make_pm_decision":
                await _save(step, "pm_decision", decisions)
            case "execute_trades":
                await _save(step, "execution_result", orders)
            case _:
                pass

    async def _ask(self, step: Step, name: str, prompt: str) -> str:
        async with self._node(step, name, prompt=prompt, model=model.NAME) as call:
            return await self._answer(call, prompt)

    async def _answer(self, call: NodeCall, prompt: str) -> str:
        await asyncio.sleep(self._pace)
        answer = await model.ask(prompt)
        call.response = answer.text
        call.metrics |= {"model": model.NAME, "tokens_in": answer.tokens_in, "tokens_out": answer.tokens_out}
        return answer.text

    @asynccontextmanager
    async def _node(self, step: Step, name: str, **fields: Any) -> AsyncGenerator[NodeCall]:
        async with step.node(name, **fields) as call:
            if self._on_node is not None:
                self._on_node(name, step.scope)
            yield call


pipeline: Final = Desk().pipeline
"""The desk's pipeline with default settings."""


def _params(rollout: Rollout) -> dict[str, Any]:
    params: Any = rollout.input
    return cast("dict[str, Any]", params) if isinstance(params, dict) else {}


async def _save(
    step: Step, name: str, content: Any, *, scope: str | None = None, media_type: str | None = None
) -> None:
    await step.store.runs.save_artifact(
        step.rollout.rollout_id,
        step.rollout.attempt.attempt_id,
        scope=scope or step.scope,
        name=name,
        content=content,
        phase=step.phase.name,
        media_type=media_type,
    )


async def _decision_of(step: Step, ticker: str) -> dict[str, Any]:
    """Return the decision about a ticker.

    Run folders of other programs contain no decisions. Then the decision in the trader's plan is returned; without a
    plan, the decision is to hold.

    Raises:
        LookupError: there is no decision, and the run was not imported.
    """
    plan = step.states.get(ticker, {}).get("trader_investment_plan")
    default = None if imported_id(step.rollout.metadata or {}) is None else _decision_in_plan(plan)
    return await _latest_content(step, ticker, "final_trade_decision", default)


def _decision_in_plan(plan: Any) -> dict[str, Any]:
    """Return the decision in a plan such as `BUY 10 shares`; any other plan means to hold."""
    action, shares, *_ = [*str(plan or "").split(), "", ""]
    is_order = action in {"BUY", "SELL"} and shares.isdecimal()
    return {"action": action if is_order else "HOLD", "shares": int(shares) if is_order else 0}


async def _market_summary(step: Step) -> str:
    """Return the summary of the market, or an empty text if the flow has no scan."""
    report = await _latest_content(step, MARKET, "scan_report", {"summary": ""})
    return report["summary"]


def _markdown(ticker: str, report: Mapping[str, Any]) -> str:
    sections = (f"## {name}\n\n{text}\n" for name, text in report.items() if text is not None)
    return "\n".join((f"# {ticker}\n", *sections))


async def _latest_content(step: Step, scope: str, name: str, default: Any = None) -> Any:
    """Return the content of the latest artifact with a scope and a name.

    The artifact is searched in the view of this attempt, then in the other runs of the flow; if there is no such
    artifact, the result is `default`.

    Raises:
        LookupError: there is no such artifact, and `default` is None.
    """
    runs, rollout = step.store.runs, step.rollout
    view = f"attempt:{rollout.attempt.sequence_id}"
    artifacts = await runs.query_artifacts(rollout.rollout_id, scope=scope, name=name, view=view, limit=1)
    if artifacts:
        return artifacts[-1].content
    flow = (rollout.metadata or {}).get(GROUP_KEY)
    history = await runs.scope_history(scope, name=name) if flow is not None else []
    others = [run for run in history if run.group_id == flow and run.rollout_id != rollout.rollout_id]
    for run in reversed(others):
        if artifacts := await runs.query_artifacts(run.rollout_id, scope=scope, name=name, limit=1):
            return artifacts[-1].content
    if default is None:
        raise LookupError(f"no run of this flow has a {name} of {scope}; run the phase that makes it first")
    return default


def _prompt(task: str, *material: str) -> str:
    return "\n".join((task, *material))


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "nothing"
