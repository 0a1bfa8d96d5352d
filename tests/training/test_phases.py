"""A pipeline of plain functions resumes after a crash and re-runs phases without additional code."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import pytest

from store.errors import CheckpointMissing, Invalid, NotFound
from store.interface.delegating import DelegatingStore
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.models import AttemptedRollout, LightningStoreCapabilities, RolloutConfig, RunEvent
from store.testing import ManualClock
from store.training import Pipeline, Step
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN, TA
from tests.runs.trading_runs import begin, nodes_of, seen

SCOPES = {"ticker": ["rig", "TSDD"], "portfolio": [FUND]}


class Crash(Exception):
    """What ends a run in the middle."""


class Trading:
    """The trading graph with a stub for a model: it counts what is run, and dies where it is told to."""

    def __init__(self, store: Store, *, dies_at: tuple[str, str] | None = None) -> None:
        self.store = store
        self.ran: list[tuple[str, str]] = []
        self.states: list[tuple[str, str, dict[str, Any]]] = []
        self.dies_at = dies_at
        self.pipeline = Pipeline(TA)
        for name in TA.by_name:
            self.pipeline.phase(name)(self.play)

    async def play(self, step: Step) -> None:
        self.ran.append((step.phase.name, step.scope))
        self.states.append((step.phase.name, step.scope, deepcopy(step.state)))
        for name in step.phase.nodes:
            if (step.scope, name) == self.dies_at:
                raise Crash
            async with step.node(name, prompt=f"{name}?") as call:
                call.response = f"{name} about {step.scope}"
                call.metrics["tokens_in"] = 3
        step.state.setdefault("messages", []).append(step.phase.name)
        if step.phase.name == "analysts":
            step.state["market_report"] = "up"
        if step.phase.name == "debate_and_trader":
            step.state["trader_investment_plan"] = step.state.get("hint", "buy")
        if step.phase.name == "portfolio":
            step.state["plans"] = [step.states[scope].get("trader_investment_plan") for scope in ("RIG", "TSDD")]

    async def run(self, run: AttemptedRollout, status: Any = "succeeded") -> dict[str, dict[str, Any]]:
        try:
            states = await self.pipeline.run(self.store, run, SCOPES)
        except BaseException:
            await self.store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="failed")
            raise
        await self.store.update_attempt(run.rollout_id, run.attempt.attempt_id, status=status)
        return states


def phases(ran: Sequence[tuple[str, str]], scope: str) -> list[str]:
    return [name for name, about in ran if about == scope]


async def test_a_run_that_a_program_executes_itself_has_a_limit_of_silence(store: Store) -> None:
    run = await begin(store)
    assert run.config.unresponsive_seconds is None
    await Trading(store).run(run)
    rollout = await store.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert rollout.config.unresponsive_seconds == 60


async def test_a_run_tells_of_its_phases_and_nodes_and_saves_its_checkpoints(store: Store) -> None:
    run = await begin(store)
    trading = Trading(store)
    states = await trading.run(run)
    assert states[FUND]["plans"] == ["buy", "buy"]
    page = await seen(store, run)
    assert nodes_of(page, "RIG") == {*ANALYSTS, *DEBATE, *RISK}
    assert (nodes_of(page, MARKET), nodes_of(page, FUND)) == ({*SCAN}, {*PORTFOLIO})
    (trader,) = [
        event for event in page.items if (event.node_id, event.scope, event.kind) == ("Trader", "RIG", "result")
    ]
    assert (trader.response, trader.status, trader.phase) == ("Trader about RIG", "success", "debate_and_trader")
    assert trader.metrics is not None
    assert trader.metrics["tokens_in"] == 3
    saved = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert saved is not None
    assert saved.state == {"market_report": "up", "messages": ["analysts"]}


async def test_resume_after_a_crash_runs_only_unfinished_phases(store: Store) -> None:
    run = await begin(store)
    crashed = Trading(store, dies_at=("RIG", RISK[1]))
    with pytest.raises(ExceptionGroup) as died:
        await crashed.run(run)
    assert died.group_contains(Crash)
    resumed = await store.runs.resume(run.rollout_id)
    trading = Trading(store)
    states = await trading.run(resumed.rollout)
    assert phases(trading.ran, "RIG") == ["risk"]
    assert phases(trading.ran, MARKET) == []
    assert phases(trading.ran, FUND) == ["portfolio"]
    # Risk starts from the trader's checkpoint, without its messages.
    assert ("risk", "RIG", {"market_report": "up", "trader_investment_plan": "buy"}) in trading.states
    assert states[FUND]["plans"] == ["buy", "buy"]
    page = await seen(store, run)
    done = [event.scope for event in page.items if event.kind == "phase.completed" and event.phase == "risk"]
    assert sorted(done, key=str) == ["RIG", "TSDD"]


class DiesBefore(DelegatingStore):
    """A store whose caller dies when it is about to tell the first thing of a scope."""

    def __init__(self, target: Store, scope: str) -> None:
        self._target = target
        self._scope = scope
        self._runs = copy(target.runs)
        self._runs.append_events = self._append_events

    @property
    def target(self) -> Store:
        return self._target

    @property
    def runs(self) -> StoreRuns:
        return self._runs

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._target.capabilities

    async def close(self) -> None:
        raise AssertionError("it is its owner's")

    async def _append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[RunEvent], *, key: str | None = None
    ) -> list[int]:
        if any(event.scope == self._scope for event in events):
            raise Crash
        return await self._target.runs.append_events(rollout_id, attempt_id, events, key=key)


async def test_after_a_crash_between_two_kinds_of_scopes_nothing_is_run_twice(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(ExceptionGroup) as died:
        await Trading(DiesBefore(store, FUND)).run(run)
    assert died.group_contains(Crash)
    resumed = await store.runs.resume(run.rollout_id)
    assert (resumed.fork.kind, resumed.fork.scopes, resumed.fork.masks) == ("resume", [], [])
    trading = Trading(store)
    states = await trading.run(resumed.rollout)
    assert trading.ran == [("portfolio", FUND)]
    assert states[FUND]["plans"] == ["buy", "buy"]
    with pytest.raises(Invalid, match="nothing of attempt 2 is unfinished"):
        await store.runs.resume(run.rollout_id)
    assert (await store.log.verify()).ok


async def test_rerun_of_one_scope_runs_its_dependent_phases_too(store: Store) -> None:
    run = await begin(store)
    await Trading(store).run(run)
    again = await store.runs.fork(
        run.rollout_id, node="Trader", scopes=["rig"], state_patch={"hint": "sell"}, confirm_side_effects=True
    )
    trading = Trading(store)
    states = await trading.run(again.rollout)
    assert trading.ran == [("debate_and_trader", "RIG"), ("risk", "RIG"), ("portfolio", FUND)]
    assert trading.states[0] == (
        "debate_and_trader",
        "RIG",
        {"market_report": "up", "messages": ["analysts"], "hint": "sell"},
    )
    assert states[FUND]["plans"] == ["sell", "buy"]
    diff = await store.runs.compare_attempts(run.rollout_id, 1, 2)
    assert (diff.counts["replaced"], diff.counts["added"]) == (len(DEBATE) + len(RISK) + len(PORTFOLIO), 0)
    cascaded = [
        event for event in (await seen(store, run)).items if event.phase == "portfolio" and event.node_id is None
    ]
    assert [event.kind for event in cascaded] == ["phase.started", "phase.completed"]


async def test_a_retry_of_a_rerun_does_the_same_again(store: Store, clock: ManualClock) -> None:
    config = RolloutConfig(unresponsive_seconds=30, max_attempts=2, retry_condition=["unresponsive"])
    run = await begin(store, config=config)
    await Trading(store).run(run)
    again = await store.runs.fork(
        run.rollout_id, phase="risk", scopes=["RIG"], state_patch={"hint": "sell"}, confirm_side_effects=True
    )
    with pytest.raises(ExceptionGroup):
        await Trading(store, dies_at=("RIG", RISK[1])).pipeline.run(store, again.rollout, SCOPES)
    clock.advance(31)
    retry = await store.dequeue_rollout("worker")
    assert retry is not None
    trading = Trading(store)
    await trading.run(retry)
    assert trading.ran == [("risk", "RIG"), ("portfolio", FUND)]
    assert trading.states[0][2]["hint"] == "sell"


async def test_state_patch_applies_to_a_resumed_rerun(store: Store) -> None:
    run = await begin(store)
    await Trading(store).run(run)
    again = await store.runs.fork(
        run.rollout_id, phase="risk", scopes=["RIG"], state_patch={"hint": "sell"}, confirm_side_effects=True
    )
    with pytest.raises(ExceptionGroup):
        await Trading(store, dies_at=("RIG", RISK[1])).run(again.rollout)
    resumed = await store.runs.resume(run.rollout_id)
    trading = Trading(store)
    await trading.run(resumed.rollout)
    assert trading.states[0][2]["hint"] == "sell"


async def test_a_node_that_raises_tells_why(store: Store) -> None:
    run = await begin(store)
    pipeline = Pipeline(TA)
    for name in TA.by_name:

        @pipeline.phase(name)
        async def fail(step: Step) -> None:
            async with step.node(step.phase.nodes[0]), step.node("tool_x", under=step.phase.nodes[0]):
                raise Crash("no quotes")

    with pytest.raises(ExceptionGroup):
        await pipeline.run(store, run, SCOPES)
    tool, node = (await seen(store, run, scope=MARKET)).items[-2:]
    assert (tool.kind, tool.status, tool.error, tool.parent_node_id) == (
        "tool_result",
        "error",
        "Crash: no quotes",
        SCAN[0],
    )
    assert (node.kind, node.status, node.node_id) == ("result", "error", SCAN[0])


async def test_missing_phases_scopes_and_runs_are_named(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(Invalid, match="'lunch' is not one of scan"):
        Pipeline(TA).phase("lunch")
    with pytest.raises(Invalid, match="no function runs scan, analysts"):
        await Pipeline(TA).run(store, run, SCOPES)
    with pytest.raises(Invalid, match="name the scopes of kind 'ticker'"):
        await Trading(store).pipeline.run(store, run, {})
    gone = run.model_copy(update={"rollout_id": "ro-none"})
    with pytest.raises(NotFound):
        await Trading(store).pipeline.run(store, gone, SCOPES)


async def test_a_scope_without_its_checkpoint_does_not_start_from_nothing(store: Store) -> None:
    run = await begin(store)
    trading = Trading(store)
    await trading.run(run)
    # As if a pipeline had said that a phase is done without leaving what the next one needs.
    again = await store.runs.fork(run.rollout_id, phase="analysts", scopes=["RIG"], confirm_side_effects=True)
    step = Step(store, again.rollout, TA.by_name["analysts"], "RIG", {}, {})
    await step.append(RunEvent(kind="phase.completed"))
    with pytest.raises(ExceptionGroup) as refused:
        await Trading(store).run(again.rollout)
    assert refused.group_contains(CheckpointMissing)
