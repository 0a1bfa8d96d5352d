"""A phase of a LangGraph graph runs again from a pointer to a checkpoint. Acceptance scenario 62."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from store.errors import SideEffectsUnconfirmed
from store.integrations.langgraph import RollbookSaver, pointer_to_phase_end, start_from
from store.models import AttemptedRollout, RunEventRow
from store.sql.store import SQLStore
from tests.runs.reference import ReferenceEvent, filtered
from tests.runs.trading import FUND, MARKET, TA_COMPAT, node
from tests.runs.trading_runs import begin, do_phase, ended, rerun, seen
from tests.threads.langgraph_samples import State, config, line

TICKER = ("analysts", "debate_and_trader", "risk")
CHECKPOINTS = {"analysts": "analysts_checkpoint", "debate_and_trader": "trader_checkpoint"}


class Desk:
    """The phases of a ticker as one graph, whose nodes tell the run what they do."""

    def __init__(self, store: SQLStore) -> None:
        self.store = store
        self.ran: list[str] = []
        nodes = [name for phase in TICKER for name in TA_COMPAT.by_name[phase].nodes]
        self.graph = line(RollbookSaver(store), [(name, self._node(name)) for name in nodes])

    def _node(self, name: str) -> Any:
        # LangGraph gives a node its config under this name only.
        async def run(_: State, config: RunnableConfig) -> dict[str, Any]:
            asked: dict[str, Any] = config.get("configurable", {})
            rollout_id, _, ticker = asked["thread_id"].partition(":")
            events = list(node(name, ticker, tool="tool_x" if name in {"Trader", "Portfolio Manager"} else None))
            await self.store.runs.append_events(rollout_id, asked["attempt_id"], events)
            self.ran.append(name)
            return {"said": [name]}

        return run

    async def go(self, run: AttemptedRollout, ticker: str, runnable: RunnableConfig, start: Any) -> None:
        """Run the graph from where a config stands, and keep pointers to what it was at the ends of its phases."""
        await self.graph.ainvoke(start, runnable)
        thread = config(f"{run.rollout_id}:{ticker}")
        for phase, following in pairwise(TICKER):
            pointer = await pointer_to_phase_end(self.graph, thread, TA_COMPAT.by_name[following].nodes[:1])
            await self.store.runs.save_checkpoint(
                run.rollout_id, run.attempt.attempt_id, scope=ticker, name=CHECKPOINTS[phase], external=pointer
            )


def reference_event(row: RunEventRow) -> ReferenceEvent:
    return ReferenceEvent(row.version, row.attempt, row.scope, row.node_id, row.parent_node_id, row.phase)


async def complete_run(store: SQLStore, desk: Desk) -> AttemptedRollout:
    run = await begin(store, graph=TA_COMPAT)
    await do_phase(store, run, "scan", MARKET)
    for ticker in ("RIG", "TSDD"):
        runnable = config(f"{run.rollout_id}:{ticker}", attempt_id=run.attempt.attempt_id)
        await desk.go(run, ticker, runnable, {"said": []})
    await do_phase(store, run, "portfolio", FUND)
    return await ended(store, run)


@pytest.mark.parametrize("phase", ["debate_and_trader", "risk"])
async def test_rerun_starts_from_the_checkpoint_and_the_head_follows_the_masks(sql: SQLStore, phase: str) -> None:
    desk = Desk(sql)
    run = await complete_run(sql, desk)
    before = [reference_event(row) for row in (await seen(sql, run)).items]
    desk.ran.clear()
    with pytest.raises(SideEffectsUnconfirmed):
        await sql.runs.fork(run.rollout_id, phase=phase, scopes=["RIG"])
    again = await rerun(sql, run, phase=phase, scopes=["RIG"])
    (checkpoint,) = again.fork.checkpoints
    assert checkpoint.external is not None
    runnable = await start_from(desk.graph, checkpoint.external, attempt_id=again.rollout.attempt.attempt_id)
    await desk.graph.ainvoke(None, runnable)
    await ended(sql, again.rollout)

    expected = [name for phase_name in TICKER[TICKER.index(phase) :] for name in TA_COMPAT.by_name[phase_name].nodes]
    assert desk.ran == expected
    after = [reference_event(row) for row in (await seen(sql, run)).items]
    old = [said for said in after if said.attempt == 1]
    assert old == filtered(before, phase, "RIG")
    new = [said for said in after if said.attempt == 2]
    assert after == [*old, *new]
    assert list(dict.fromkeys(said.node_id for said in new if said.node_id != "tool_x")) == expected
    assert [reference_event(row) for row in (await seen(sql, run, "attempt:1")).items] == before
    assert (await sql.log.verify()).differences == []


async def test_a_state_patch_is_in_the_branch_and_not_in_the_checkpoint(sql: SQLStore) -> None:
    desk = Desk(sql)
    run = await complete_run(sql, desk)
    patch = {"said": ["a strike at sea"]}
    again = await rerun(sql, run, phase="risk", scopes=["RIG"], state_patch=patch)
    (checkpoint,) = again.fork.checkpoints
    attempt_id = again.rollout.attempt.attempt_id
    runnable = await start_from(desk.graph, checkpoint.external, attempt_id=attempt_id, state_patch=patch)
    done = await desk.graph.ainvoke(None, runnable)
    assert done["said"][7:] == ["Trader", "a strike at sea", *TA_COMPAT.by_name["risk"].nodes]
    before = await desk.graph.aget_state(await start_from(desk.graph, checkpoint.external))
    assert before.values["said"][-1] == "Trader"
    assert {row.attempt for row in (await seen(sql, run, scope="RIG")).items} == {1, 2}
