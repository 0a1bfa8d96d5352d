"""Concurrent, repeated and unsafe forks: one succeeds, one attempt begins, and no unsafe effect occurs unconfirmed.

Acceptance scenarios 1, 4, 7, 8, 18, 48 to 51, 58.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from store import open_store
from store.errors import AttemptActive, Conflict, HeadMoved, Invalid, SideEffectsUnconfirmed
from store.interface.store import Store
from store.models import AttemptedRollout, ForkResult, RunEvent
from tests.runs.trading import FUND, MARKET, PORTFOLIO, node, phase
from tests.runs.trading_runs import auto_run, begin, complete_rerun, do_phase, ended, nodes_of, rerun, say, seen
from tests.torture import Rounds


async def test_the_same_request_begins_one_attempt(store: Store) -> None:
    run = await auto_run(store)
    asked = [rerun(store, run, phase="risk", scopes=["RIG"], request_id="click-1", reason="hm") for _ in range(5)]
    results = await asyncio.gather(*asked)
    assert all(result == results[0] for result in results)
    assert (await store.query_attempts(run.rollout_id)).total == 2
    await ended(store, results[0].rollout)
    again = await rerun(store, run, phase="risk", scopes=["RIG"], request_id="click-1")
    assert (again.attempt.attempt_id, again.fork) == (results[0].attempt.attempt_id, results[0].fork)
    assert (await store.query_attempts(run.rollout_id)).total == 2


@pytest.mark.slow
@pytest.mark.torture
async def test_a_request_that_meets_its_own_first_time_half_way_begins_one_attempt(
    durable_url: str, rounds: Rounds
) -> None:
    async with await open_store(durable_url) as one, await open_store(durable_url) as other:
        for _ in range(rounds(5, few=2)):
            run = await auto_run(one, tickers=["RIG"])

            async def ask(number: int, run: AttemptedRollout = run) -> ForkResult:
                store = (one, other)[number % 2]
                for _ in range(number):
                    await store.get_latest_attempt(run.rollout_id)
                return await rerun(store, run, phase="risk", scopes=["RIG"], request_id="click-1")

            results = await asyncio.gather(*map(ask, range(10)))
            assert {result.attempt.attempt_id for result in results} == {results[0].attempt.attempt_id}
            assert (await one.query_attempts(run.rollout_id)).total == 2


async def test_a_request_id_of_another_call_is_refused(store: Store) -> None:
    run = await auto_run(store)
    await store.runs.append_events(
        run.rollout_id, run.attempt.attempt_id, [RunEvent(kind="log", message="one")], key="click-1"
    )
    with pytest.raises(Conflict, match="was used for another call"):
        await rerun(store, run, phase="risk", scopes=["RIG"], request_id="click-1")


async def test_a_head_that_is_not_the_one_expected_is_refused(store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "risk", "RIG", expected_head=1)
    with pytest.raises(HeadMoved) as refused:
        await rerun(store, run, phase="risk", scopes=["RIG"], expected_head=1)
    assert (refused.value.expected, refused.value.found) == (1, 2)
    with pytest.raises(Invalid, match="expected_head"):
        await rerun(store, run, phase="risk", scopes=["RIG"], expected_head=0)


async def test_of_two_forks_at_once_one_begins(durable_url: str) -> None:
    async with await open_store(durable_url) as one, await open_store(durable_url) as other:
        run = await auto_run(one)
        asked = [rerun(store, run, phase="risk", scopes=["RIG"]) for store in (one, other, one, other)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == [*["AttemptActive"] * 3, "ForkResult"]
        types = [event.type for event in await one.log.history(run.rollout_id)]
        start = types.index("attempt.forked")
        assert types[start - 1 :] == ["attempt.started", "attempt.forked", "attempt.amended", "rollout.status_changed"]
        assert (await one.log.verify()).differences == []


async def test_a_plan_whose_ground_moves_is_made_again(store: Store) -> None:
    run = await auto_run(store)
    async with asyncio.TaskGroup() as tasks:
        forking = tasks.create_task(rerun(store, run, phase="risk", scopes=["RIG"]))
        for _ in range(20):
            tasks.create_task(say(store, run, [RunEvent(kind="log", scope="TSDD", node_id="Trader")]))
    forked = forking.result()
    # Whatever came before the fork is seen, whatever came after it is not.
    history = {event.number: event.type for event in await store.log.history(run.rollout_id)}
    (at,) = [number for number, type_ in history.items() if type_ == "attempt.forked"]
    versions = [event.version for event in (await seen(store, run, "own:1")).items]
    view = [event.version for event in (await seen(store, run, scope="TSDD")).items]
    assert {version for version in versions if version > at}.isdisjoint(view)
    assert forked.fork.base_version == max(version for version in versions if version < at)


async def test_a_side_effect_is_repeated_only_where_that_is_confirmed(store: Store) -> None:
    run = await auto_run(store)
    plan = await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG", "TSDD"])
    assert (plan.unsafe, plan.cascade) == (["portfolio"], ["portfolio"])
    with pytest.raises(SideEffectsUnconfirmed, match="running portfolio again repeats side effects"):
        await store.runs.fork(run.rollout_id, phase="risk", scopes=["RIG", "TSDD"])
    again = await rerun(store, run, phase="risk", scopes=["RIG", "TSDD"])
    assert again.fork.cascade == ["portfolio"]
    (forked,) = [event for event in await store.log.history(run.rollout_id) if event.type == "attempt.forked"]
    assert forked.data["confirmed"] is True
    for scope in ("RIG", "TSDD"):
        await do_phase(store, again.rollout, "risk", scope)
    await do_phase(store, again.rollout, "portfolio", FUND)
    decisions = [event for event in (await seen(store, run)).items if event.node_id == "make_pm_decision"]
    assert [event.kind for event in decisions] == ["thought", "result"]


async def test_without_the_cascade_nothing_has_to_be_confirmed(store: Store) -> None:
    run = await auto_run(store)
    await store.runs.fork(run.rollout_id, phase="risk", scopes=["RIG"], cascade=False)
    assert nodes_of(await seen(store, run), FUND) == {*PORTFOLIO, "tool_x"}


async def test_a_cascade_that_failed_runs_again_alone(store: Store) -> None:
    run = await auto_run(store)
    again = (await rerun(store, run, phase="risk", scopes=["RIG"])).rollout
    await do_phase(store, again, "risk", "RIG")
    await say(store, again, list(phase("portfolio", FUND))[:3])
    await ended(store, again, "failed")
    assert await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint") is not None
    third = await rerun(store, run, phase="portfolio", scopes=[FUND])
    assert (third.fork.phase, third.fork.cascade) == ("portfolio", [])
    page = await seen(store, run)
    assert nodes_of(page, FUND) == set()
    assert {event.attempt for event in page.items if event.phase == "risk" and event.scope == "RIG"} == {2}


async def test_a_refused_append_leaves_no_hole(store: Store) -> None:
    run = await begin(store)
    first = await say(store, run, node("Trader", "RIG"))
    with pytest.raises(Invalid):
        await say(store, run, [RunEvent(kind="log"), RunEvent(kind="phase.started", scope="RIG")])
    second = await say(store, run, node("Trader", "RIG"))
    numbers = [event.number for event in await store.log.history(run.rollout_id)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [event.version for event in (await seen(store, run)).items] == [*first, *second]


async def test_run_tables_equal_the_log(store: Store) -> None:
    run = await auto_run(store)
    again = await complete_rerun(store, run, "debate_and_trader", "RIG")
    await store.runs.move_head(run.rollout_id, run.attempt.attempt_id)
    artifact = await store.runs.save_artifact(
        again.rollout_id, again.attempt.attempt_id, scope="RIG", name="a", content=1
    )
    await store.runs.retract_artifact(again.rollout_id, artifact.artifact_id)
    report = await store.log.verify()
    assert report.differences == []
    assert report.rows["forks"] == 1
    assert (await store.log.rebuild()).written == {}


async def test_everything_is_there_after_a_restart(durable_url: str) -> None:
    async with await open_store(durable_url) as before:
        run = await auto_run(before)
        again = await complete_rerun(before, run, "risk", "RIG")
        views = [await seen(before, run, view) for view in ("head", "attempt:1", "raw")]
        lineage = await before.runs.list_lineage(run.rollout_id)
    async with await open_store(durable_url) as after:
        assert [await seen(after, run, view) for view in ("head", "attempt:1", "raw")] == views
        assert await after.runs.list_lineage(run.rollout_id) == lineage
        # A re-run right after a restart loses nothing of what was before.
        await rerun(after, again, phase="analysts", scopes=["TSDD"])
        assert (await seen(after, run, "attempt:2")).items == views[0].items
        assert len((await seen(after, run, "raw")).items) == len(views[2].items)


async def test_two_runs_of_one_flow_keep_their_own_events(durable_url: str) -> None:
    async with await open_store(durable_url) as before:
        runs = [await auto_run(before, tickers=[ticker], group="flow-1") for ticker in ("RIG", "TSDD")]
    async with await open_store(durable_url) as after:
        for run, ticker in zip(runs, ("RIG", "TSDD"), strict=True):
            scopes = {event.scope for event in (await seen(after, run)).items}
            assert scopes == {MARKET, ticker, FUND}


async def test_events_of_a_failed_run_can_be_read(store: Store) -> None:
    run = await begin(store)
    said = await say(store, run, list(phase("analysts", "RIG"))[:5])
    await ended(store, run, "failed")
    assert [event.version for event in (await seen(store, run)).items] == said
    with pytest.raises(Invalid, match="expected_head"):
        await rerun(store, run, phase="risk", scopes=["RIG"], expected_head="1")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"phase": "risk", "scopes": "RIG"}, "scopes"),
    ({"phase": "risk", "scopes": None}, "scopes"),
    ({"phase": "risk", "scopes": [1]}, "scopes"),
    ({"phase": ["risk"], "scopes": ["RIG"]}, "phase"),
    ({"node": 1, "scopes": ["RIG"]}, "node"),
    ({"phase": "risk", "scopes": ["RIG"], "on_missing": "guess"}, "on_missing"),
    ({"phase": "risk", "scopes": ["RIG"], "on_active": "queue"}, "on_active"),
    ({"phase": "risk", "scopes": ["RIG"], "base": 1}, "base"),
    ({"phase": "risk", "scopes": ["RIG"], "request_id": 7}, "request_id"),
]


async def test_arguments_of_another_kind_are_refused_by_name(store: Store, subtests: pytest.Subtests) -> None:
    run = await auto_run(store)
    for asked, field in REFUSED:
        with subtests.test(**asked):
            with pytest.raises(Invalid) as refused:
                await rerun(store, run, **asked)
            assert refused.value.field == field


async def test_argument_that_is_not_a_graph_is_refused(store: Store, subtests: pytest.Subtests) -> None:
    run = await auto_run(store)
    id_, attempt_id = run.rollout_id, run.attempt.attempt_id
    wrongs: list[tuple[Any, str]] = [({"name": "g"}, "dict, not a PhaseGraph; read one with "), ("TA", "str, not a")]
    for wrong, how in wrongs:
        asked: dict[str, Any] = {"graph": wrong}
        calls: dict[str, Awaitable[Any]] = {
            "plan_fork": store.runs.plan_fork(id_, phase="risk", scopes=["RIG"], **asked),
            "fork": store.runs.fork(id_, phase="risk", scopes=["RIG"], confirm_side_effects=True, **asked),
            "resume": store.runs.resume(id_, confirm_side_effects=True, **asked),
            "get_graph": store.runs.get_graph(id_, **asked),
            "save_checkpoint": store.runs.save_checkpoint(
                id_, attempt_id, scope="RIG", name="mine", state={"a": 1}, **asked
            ),
        }
        for name, call in calls.items():
            with subtests.test(call=name, wrong=wrong), pytest.raises(Invalid, match=f"graph: is {how}"):
                await call
    assert len(await store.query_attempts(id_)) == 1


async def test_active_attempt_is_reported_before_other_errors(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    with pytest.raises(AttemptActive):
        await rerun(store, run, phase="risk", scopes=["RIG"])
