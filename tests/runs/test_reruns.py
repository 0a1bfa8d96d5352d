"""A re-run hides from its view exactly the events that it replaces, and no event is lost.

Acceptance scenarios 25 to 28, 30 to 36, 45, 47.
"""

from __future__ import annotations

import pytest

from store.errors import AttemptActive, Invalid, NotFound
from store.interface.store import Store
from store.models import RolloutConfig, RunEvent
from store.testing import ManualClock
from tests.runs.conftest import ON_SQLITE
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN, node, phase
from tests.runs.trading_runs import auto_run, begin, complete_rerun, do_phase, ended, nodes_of, rerun, say, seen

pytestmark = ON_SQLITE

TICKER = {*ANALYSTS, *DEBATE, *RISK, "tool_x"}


async def test_a_rerun_of_risk_hides_risk_its_tools_and_the_portfolio(store: Store) -> None:
    run = await auto_run(store)
    await rerun(store, run, phase="risk", scopes=["RIG"])
    page = await seen(store, run)
    assert nodes_of(page, MARKET) == {*SCAN, "tool_x"}
    assert nodes_of(page, "TSDD") == TICKER
    assert nodes_of(page, "RIG") == {*ANALYSTS, *DEBATE, "tool_x"}
    assert nodes_of(page, FUND) == set()


async def test_new_events_follow_and_carry_the_number_of_the_rerun(store: Store) -> None:
    run = await auto_run(store)
    before = (await seen(store, run)).items
    again = await complete_rerun(store, run, "risk", "RIG")
    after = (await seen(store, again)).items
    new = [event for event in after if event.attempt == 2]
    assert after == [*(event for event in before if event in after), *new]
    assert {event.rerun_seq for event in new} == {1}
    assert [event.node_id for event in new if event.kind == "result"] == [*RISK, *PORTFOLIO]


@pytest.mark.parametrize(
    "name,remaining",
    [("debate_and_trader", {*ANALYSTS, "tool_x"}), ("analysts", set[str]())],
)
async def test_an_earlier_phase_takes_the_later_ones_along(store: Store, name: str, remaining: set[str]) -> None:
    run = await auto_run(store)
    again = await rerun(store, run, phase=name, scopes=["RIG"])
    assert nodes_of(await seen(store, run), "RIG") == remaining
    assert again.fork.phase == name


async def test_from_the_first_phase_on_unlisted_nodes_are_hidden_too(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    await say(store, run, [*node("Journalist", "RIG"), *node("Journalist", "TSDD")])
    await ended(store, run)
    await rerun(store, run, phase="debate_and_trader", scopes=["RIG"])
    assert "Journalist" in nodes_of(await seen(store, run), "RIG")
    await ended(store, (await rerun(store, run, phase="analysts", scopes=["RIG"], on_active="supersede")).rollout)
    page = await seen(store, run)
    assert nodes_of(page, "RIG") == set()
    assert nodes_of(page, "TSDD") == {"Journalist"}


async def test_a_tool_goes_with_the_node_it_ran_under(store: Store) -> None:
    run = await begin(store)
    for name in ("analysts", "debate_and_trader"):
        await do_phase(store, run, name, "RIG")
    await ended(store, run)

    async def above() -> set[str | None]:
        return {event.parent_node_id for event in (await seen(store, run)).items if event.node_id == "tool_x"}

    assert await above() == {ANALYSTS[-1], "Trader"}
    await ended(store, (await rerun(store, run, phase="risk", scopes=["RIG"])).rollout)
    assert await above() == {ANALYSTS[-1], "Trader"}
    await rerun(store, run, phase="debate_and_trader", scopes=["RIG"])
    assert await above() == {ANALYSTS[-1]}


async def test_a_scope_is_spelled_as_its_kind_says(store: Store) -> None:
    run = await auto_run(store)
    planned = await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["rig"])
    assert planned == await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"])
    assert (await rerun(store, run, phase="risk", scopes=["rig"])).fork.scopes == ["RIG"]


async def test_a_plan_changes_nothing(store: Store) -> None:
    run = await auto_run(store)
    before = await store.log.history(run.rollout_id)
    await store.runs.plan_fork(run.rollout_id, node="Trader", scopes=["RIG"])
    assert await store.log.history(run.rollout_id) == before


async def test_the_log_before_a_rerun_is_the_beginning_of_the_log_after_it(store: Store) -> None:
    run = await auto_run(store)
    before, view = await store.log.history(run.rollout_id), await seen(store, run, "attempt:1")
    again = await complete_rerun(store, run, "debate_and_trader", "RIG")
    assert (await store.log.history(run.rollout_id))[: len(before)] == before
    raw = await seen(store, again, "raw")
    assert {event.version for event in raw.items} >= {event.version for event in view.items}
    assert (await seen(store, again, "attempt:1")).items == view.items


async def test_each_rerun_has_its_number_and_each_view_stays(store: Store) -> None:
    run = await auto_run(store)
    views = [(await seen(store, run)).items]
    for name in ("risk", "debate_and_trader", "risk"):
        again = await complete_rerun(store, run, name, "RIG")
        views.append((await seen(store, again)).items)
    for attempt, view in enumerate(views, start=1):
        assert (await seen(store, run, f"attempt:{attempt}")).items == view
    lineage = await store.runs.list_lineage(run.rollout_id)
    assert [attempt.rerun_seq for attempt in lineage] == [0, 1, 2, 3]
    assert [attempt.base for attempt in lineage] == [None, 1, 2, 3]
    assert [attempt.kind for attempt in lineage] == ["first", "rerun", "rerun", "rerun"]
    assert [attempt.is_head for attempt in lineage] == [False, False, False, True]


async def test_a_retry_of_a_rerun_is_the_same_rerun(store: Store, clock: ManualClock) -> None:
    config = RolloutConfig(unresponsive_seconds=30, max_attempts=2, retry_condition=["unresponsive"])
    run = await auto_run(store, config=config)
    again = await rerun(store, run, phase="risk", scopes=["RIG"])
    await say(store, again.rollout, phase("risk", "RIG"))
    clock.advance(31)
    retry = await store.dequeue_rollout("worker")
    assert retry is not None
    second, third = (await store.runs.list_lineage(run.rollout_id))[1:]
    assert (third.sequence_id, third.kind, third.rerun_seq, third.base) == (3, "retry", 1, 1)
    assert third.fork == second.fork
    assert nodes_of(await seen(store, run), "RIG") == {*ANALYSTS, *DEBATE, "tool_x"}


async def test_late_words_of_the_base_are_kept_and_not_seen(store: Store) -> None:
    run = await auto_run(store)
    again = await rerun(store, run, phase="risk", scopes=["RIG"])
    (late,) = await say(store, run, [RunEvent(kind="log", node_id="Trader", scope="TSDD", message="late")])
    assert late not in [event.version for event in (await seen(store, run)).items]
    assert late in [event.version for event in (await seen(store, run, "raw")).items]
    rollout = await store.get_rollout_by_id(run.rollout_id)
    assert rollout is not None
    assert rollout.status == "preparing"
    assert (await store.get_latest_attempt(run.rollout_id) or run.attempt).attempt_id == again.attempt.attempt_id


async def test_a_moved_head_brings_the_old_view_back_and_the_next_rerun_builds_on_it(store: Store) -> None:
    run = await auto_run(store)
    old = (await seen(store, run)).items
    again = await complete_rerun(store, run, "risk", "RIG")
    new = (await seen(store, run)).items
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id, reason="the first was better")
    assert (await seen(store, run)).items == old
    assert (await seen(store, run, "attempt:2")).items == new
    third = await rerun(store, again, phase="debate_and_trader", scopes=["TSDD"])
    assert (third.fork.base, third.fork.kind) == (1, "rerun")
    assert nodes_of(await seen(store, run), "RIG") == TICKER


async def test_a_branch_from_an_earlier_attempt_does_not_know_the_masks_between(store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "risk", "RIG")
    branch = await rerun(store, run, phase="risk", scopes=["TSDD"], base="attempt:1")
    assert (branch.fork.kind, branch.fork.base) == ("branch", 1)
    page = await seen(store, run)
    assert nodes_of(page, "RIG") == TICKER
    assert {event.attempt for event in page.items} == {1}


async def test_a_state_patch_lies_in_the_fork_and_not_in_the_checkpoint(store: Store) -> None:
    run = await auto_run(store)
    again = await rerun(store, run, phase="risk", scopes=["RIG"], state_patch={"trader_investment_plan": "sell"})
    assert again.fork.state_patch == {"trader_investment_plan": "sell"}
    saved = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint")
    assert saved is not None
    assert saved.state is not None
    assert saved.state["trader_investment_plan"] == "buy"
    assert (await store.runs.compare_attempts(run.rollout_id, 1, 2)).state_patch == again.fork.state_patch


async def test_an_attempt_at_work_is_not_forked_over_unless_it_shall_end(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    with pytest.raises(AttemptActive, match="attempt 1 of rollout"):
        await rerun(store, run, phase="debate_and_trader", scopes=["RIG"])
    again = await rerun(store, run, phase="debate_and_trader", scopes=["RIG"], on_active="supersede")
    attempts = await store.query_attempts(run.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "preparing"]
    assert again.attempt.sequence_id == 2


async def test_missing_runs_attempts_and_views_are_named(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(NotFound, match="Rollout ro-none not found"):
        await store.runs.plan_fork("ro-none", phase="risk", scopes=["RIG"])
    for view in ("attempt:7", "own:7"):
        with pytest.raises(NotFound, match="Attempt 7 not found"):
            await seen(store, run, view)
    for view in ("tail", "attempt:", "attempt:0", "own:x", "head:1"):
        with pytest.raises(Invalid, match="is none of head, raw"):
            await seen(store, run, view)
    with pytest.raises(Invalid, match="neither head nor attempt"):
        await store.runs.plan_fork(run.rollout_id, phase="scan", base="raw")
    with pytest.raises(NotFound, match="not found"):
        await store.runs.move_head(run.rollout_id, "at-none")


async def test_a_run_without_a_graph_is_read_and_not_planned(store: Store) -> None:
    run = await store.start_rollout("no graph")
    await say(store, run, node("Trader", "RIG"))
    assert nodes_of(await seen(store, run), "RIG") == {"Trader"}
    await ended(store, run)
    with pytest.raises(Invalid, match="contain no phase graph"):
        await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"])
    queued = await store.enqueue_rollout("nothing said")
    assert (await seen(store, (await store.start_attempt(queued.rollout_id)))).items == []


async def test_run_without_a_start_has_an_empty_view(store: Store) -> None:
    queued = await store.enqueue_rollout("nothing said")
    page = await store.runs.query_events(queued.rollout_id)
    assert (page.items, page.head, page.next_after, page.has_more) == ([], None, 0, False)
    with pytest.raises(NotFound, match="No attempts found"):
        await store.runs.plan_fork(queued.rollout_id, phase="scan")
