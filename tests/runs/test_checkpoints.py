"""A checkpoint is found only where it is valid: it follows the lineage and the masks, as events do.

Acceptance scenarios 37 to 44, 46.
"""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import CheckpointMissing, GraphChanged, Invalid, NotFound
from store.interface.store import Store
from store.models import AttemptedRollout
from tests.runs.trading import ANALYSTS, DEBATE, FUND, REPORTS, TA, phase
from tests.runs.trading_runs import (
    TICKER_PHASES,
    auto_run,
    begin,
    complete_rerun,
    do_phase,
    ended,
    nodes_of,
    rerun,
    say,
    seen,
)


async def save(
    store: Store, run: AttemptedRollout, name: str, state: dict[str, Any] | None, scope: str = "RIG", **how: Any
) -> Any:
    attempt_id = run.attempt.attempt_id
    return await store.runs.save_checkpoint(run.rollout_id, attempt_id, scope=scope, name=name, state=state, **how)


async def state_of(store: Store, run: AttemptedRollout, name: str, scope: str = "RIG", **how: Any) -> Any:
    checkpoint = await store.runs.get_checkpoint(run.rollout_id, scope=scope, name=name, **how)
    return None if checkpoint is None else checkpoint.state


async def test_some_reports_are_enough_and_none_is_not(store: Store) -> None:
    run = await begin(store)
    saved = await save(store, run, "analysts_checkpoint", {"market_report": "up", "news_report": "war", "other": 1})
    assert saved is not None
    assert (saved.scope, saved.after_phase, saved.graph) == ("RIG", "analysts", TA.digest)
    assert await state_of(store, run, "analysts_checkpoint") == {"market_report": "up", "news_report": "war"}
    assert await save(store, run, "analysts_checkpoint", dict.fromkeys(REPORTS, ""), "TSDD") is None
    assert await state_of(store, run, "analysts_checkpoint", "TSDD") is None
    rejected = (await store.log.history(run.rollout_id))[-1]
    assert rejected.type == "checkpoint.rejected"
    assert rejected.data["reason"].startswith("nothing in any of market_report")


async def test_without_a_plan_there_is_no_trader_checkpoint_and_risk_runs_everything_or_nothing(store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "analysts", "RIG")
    await say(store, run, phase("debate_and_trader", "RIG"))
    assert await save(store, run, "trader_checkpoint", {"trader_investment_plan": ""}) is None
    await ended(store, run)
    with pytest.raises(CheckpointMissing):
        await store.runs.plan_fork(run.rollout_id, phase="risk", scopes=["RIG"])
    again = await rerun(store, run, phase="risk", scopes=["RIG"], on_missing="full")
    assert (again.fork.phase, again.fork.checkpoints) == ("analysts", [])
    assert again.fork.degraded is not None
    assert (again.fork.degraded.phase, again.fork.degraded.scopes) == ("risk", ["RIG"])
    forked = next(event for event in await store.log.history(run.rollout_id) if event.type == "attempt.forked")
    assert forked.data["degraded"]["checkpoint"] == "trader_checkpoint"


async def test_resume_after_a_crash_starts_at_the_unfinished_phase(store: Store) -> None:
    run = await begin(store)
    for scope in ("TSDD", "RIG"):
        for name in TICKER_PHASES[: 3 if scope == "TSDD" else 2]:
            await do_phase(store, run, name, scope)
    await say(store, run, list(phase("risk", "RIG"))[:-1])
    await ended(store, run, "failed")
    resumed = await store.runs.resume(run.rollout_id, reason="the machine went away")
    assert (resumed.fork.kind, resumed.fork.phase, resumed.fork.scopes) == ("resume", "risk", ["RIG"])
    assert [checkpoint.name for checkpoint in resumed.fork.checkpoints] == ["trader_checkpoint"]
    page = await seen(store, run)
    assert nodes_of(page, "RIG") == {*ANALYSTS, *DEBATE, "tool_x"}
    assert "Portfolio Manager" in nodes_of(page, "TSDD")
    node = (await store.runs.list_lineage(run.rollout_id))[1]
    assert (node.kind, node.rerun_seq, node.base) == ("resume", 0, 1)


async def test_a_checkpoint_holds_nothing_of_later_phases(store: Store) -> None:
    run = await auto_run(store)
    assert await state_of(store, run, "analysts_checkpoint") == {
        "market_report": "up",
        "news_report": "",
        "messages": ["one"],
    }


async def test_rerun_of_an_earlier_phase_invalidates_later_checkpoints(store: Store) -> None:
    run = await auto_run(store)
    again = await rerun(store, run, phase="analysts", scopes=["RIG"])
    await ended(store, again.rollout, "failed")
    assert await state_of(store, run, "trader_checkpoint") is None
    assert await state_of(store, run, "trader_checkpoint", view="attempt:1") is not None
    with pytest.raises(CheckpointMissing):
        await rerun(store, run, phase="risk", scopes=["RIG"])
    assert await state_of(store, run, "trader_checkpoint", scope="TSDD") is not None


async def test_the_nearest_of_the_attempts_it_builds_on_is_found(store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "risk", "RIG")
    await complete_rerun(store, run, "risk", "RIG")
    checkpoint = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert checkpoint is not None
    assert checkpoint.attempt == 1
    await complete_rerun(store, run, "analysts", "RIG")
    last = await complete_rerun(store, run, "risk", "RIG")
    checkpoint = await store.runs.get_checkpoint(last.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert checkpoint is not None
    assert checkpoint.attempt == 4
    every = await store.runs.list_checkpoints(run.rollout_id, scope="RIG", name="analysts_checkpoint")
    assert [reference.attempt for reference in every] == [1, 4]
    assert every[1].parent_id == every[0].checkpoint_id


async def test_every_checkpoint_is_found_by_its_id_whichever_views_hold_it(store: Store) -> None:
    run = await auto_run(store)
    again = await complete_rerun(store, run, "analysts", "RIG")
    every = await store.runs.list_checkpoints(run.rollout_id)
    assert len(every) == 6
    for reference in every:
        checkpoint = await store.runs.get_checkpoint_by_id(run.rollout_id, reference.checkpoint_id)
        assert (checkpoint.checkpoint_id, checkpoint.version, checkpoint.attempt) == (
            reference.checkpoint_id,
            reference.version,
            reference.attempt,
        )
        assert checkpoint == await store.runs.get_checkpoint(
            run.rollout_id, scope=reference.scope, name=reference.name, view="raw", at=reference.version
        )
    plan = await store.runs.plan_fork(again.rollout_id, phase="risk", scopes=["RIG"])
    started_from = await store.runs.get_checkpoint_by_id(run.rollout_id, plan.checkpoints[0].checkpoint_id)
    assert started_from.state is not None
    assert started_from.state["trader_investment_plan"] == "buy"


async def test_a_checkpoint_that_the_run_does_not_have_is_not_found(store: Store) -> None:
    run, other = await auto_run(store), await auto_run(store)
    (theirs, *_) = await store.runs.list_checkpoints(other.rollout_id)
    for id_ in (theirs.checkpoint_id, "cp-none"):
        with pytest.raises(NotFound, match=f"Checkpoint {id_} not found"):
            await store.runs.get_checkpoint_by_id(run.rollout_id, id_)
    with pytest.raises(NotFound, match="Rollout ro-none not found"):
        await store.runs.get_checkpoint_by_id("ro-none", theirs.checkpoint_id)
    with pytest.raises(Invalid, match="checkpoint_id"):
        await store.runs.get_checkpoint_by_id(run.rollout_id, 1)  # pyright: ignore[reportArgumentType] (another kind)


async def test_a_scope_is_no_pattern_and_no_ending(store: Store) -> None:
    run = await begin(store)
    for scope in ("main", "other_main", "m*n", "m_in"):
        await save(store, run, "decision", {"of": scope}, scope, after_phase="portfolio")
    for scope in ("main", "other_main", "m*n", "m_in"):
        assert await state_of(store, run, "decision", scope) == {"of": scope}
    assert await state_of(store, run, "decision", "m%n") is None


async def test_debate_starts_with_the_messages_and_risk_without(store: Store) -> None:
    run = await auto_run(store)
    for name, has_messages in (("debate_and_trader", True), ("risk", False)):
        plan = await store.runs.plan_fork(run.rollout_id, phase=name, scopes=["RIG"])
        (start,) = plan.checkpoints
        state = await state_of(store, run, start.name)
        assert ("messages" in TA.by_name[name].overlay.of(state)) is has_messages


async def test_a_checkpoint_of_another_graph_is_not_started_from_unless_that_is_allowed(store: Store) -> None:
    run = await auto_run(store)
    assert run.resources_id is not None
    newer = TA.model_copy(update={"version": "2"})
    await store.update_resources(run.resources_id, {"phases": newer})
    with pytest.raises(GraphChanged) as refused:
        await rerun(store, run, phase="risk", scopes=["RIG"])
    saved = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint")
    assert saved is not None
    assert refused.value.checkpoints == [saved.checkpoint_id]
    again = await rerun(store, run, phase="risk", scopes=["RIG"], allow_graph_change=True)
    assert (again.fork.graph, again.fork.checkpoints[0].graph) == (newer.digest, TA.digest)


async def test_a_state_may_lie_elsewhere(store: Store) -> None:
    run = await begin(store)
    pointer = {"kind": "langgraph", "thread_id": "t"}
    attempt_id = run.attempt.attempt_id
    await store.runs.save_checkpoint(
        run.rollout_id, attempt_id, scope="rig", name="trader_checkpoint", external=pointer
    )
    checkpoint = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint")
    assert checkpoint is not None
    assert (checkpoint.external, checkpoint.state) == (pointer, None)


async def test_checkpoint_after_an_unknown_phase_is_refused(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(Invalid, match="'lunch' is none of scan, analysts"):
        await save(store, run, "note", {"a": 1}, after_phase="lunch")


async def test_the_group_lends_a_checkpoint_of_the_same_date(store: Store) -> None:
    donor = await auto_run(store, group="flow-1")
    await auto_run(store, group="flow-1", date="2026-11-19")
    await auto_run(store, group="flow-2")
    run = await begin(store, group="flow-1")
    assert await state_of(store, run, "trader_checkpoint") is None
    checkpoint = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint", search="group")
    assert checkpoint is not None
    assert checkpoint.rollout_id == donor.rollout_id
    again = await rerun(store, donor, phase="debate_and_trader", scopes=["RIG"])
    assert again.attempt.sequence_id == 2
    assert await state_of(store, run, "trader_checkpoint", search="group") is None
    await do_phase(store, run, "debate_and_trader", "RIG")
    nearest = await store.runs.get_checkpoint(run.rollout_id, scope="RIG", name="trader_checkpoint", search="group")
    assert nearest is not None
    assert nearest.rollout_id == run.rollout_id


# Artifacts


async def test_artifacts_follow_the_view_and_a_retracted_one_is_gone(store: Store) -> None:
    run = await auto_run(store)
    attempt_id = run.attempt.attempt_id
    plan = await store.runs.save_artifact(
        run.rollout_id, attempt_id, scope="RIG", name="plan", content={"buy": 1}, phase="debate_and_trader"
    )
    report = await store.runs.save_artifact(
        run.rollout_id,
        attempt_id,
        scope=FUND,
        name="report",
        content="# Up",
        phase="portfolio",
        media_type="text/markdown",
    )
    artifacts = await store.runs.query_artifacts(run.rollout_id)
    assert [(artifact.name, artifact.content) for artifact in artifacts] == [("plan", {"buy": 1}), ("report", "# Up")]
    then = len(await store.log.history(run.rollout_id))
    assert (await store.runs.retract_artifact(run.rollout_id, report.artifact_id, reason="wrong")).retracted
    assert [artifact.artifact_id for artifact in await store.runs.query_artifacts(run.rollout_id)] == [plan.artifact_id]
    assert len(await store.runs.query_artifacts(run.rollout_id, at=then)) == 2
    await rerun(store, run, phase="debate_and_trader", scopes=["RIG"])
    assert await store.runs.query_artifacts(run.rollout_id) == []
    assert len(await store.runs.query_artifacts(run.rollout_id, view="attempt:1", limit=1)) == 1


async def test_the_history_of_a_scope_goes_through_all_runs_newest_first(store: Store) -> None:
    runs = [await begin(store, group=f"flow-{number}") for number in range(3)]
    for number, run in enumerate(runs):
        attempt_id = run.attempt.attempt_id
        await store.runs.save_artifact(run.rollout_id, attempt_id, scope="RIG", name="plan", content=number)
        await store.runs.save_artifact(run.rollout_id, attempt_id, scope="RIG2", name="plan", content=number)
    artifacts = await store.runs.scope_history("RIG", name="plan")
    assert [artifact.group_id for artifact in artifacts] == ["flow-2", "flow-1", "flow-0"]
    await store.runs.retract_artifact(artifacts[0].rollout_id, artifacts[0].artifact_id)
    assert [artifact.retracted for artifact in await store.runs.scope_history("RIG", limit=2)] == [True, False]
    past = await store.runs.scope_history("RIG", as_at=artifacts[0].position - 1)
    assert [(artifact.group_id, artifact.retracted) for artifact in past] == [("flow-1", False), ("flow-0", False)]


async def test_a_place_of_a_state_that_is_not_json_is_refused(store: Store, subtests: pytest.Subtests) -> None:
    run = await begin(store)
    values: list[Any] = [10**400, float("nan"), "a\0b", "\ud800", {1: 2}, object()]
    for value in values:
        # As text that every terminal can show.
        with subtests.test(value=ascii(value)[:40]), pytest.raises(Invalid, match="external"):
            await save(store, run, "trader_checkpoint", None, external={"at": value})
