"""A plan contains the start, checkpoints, hidden events and following phases of a re-run, without a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from store.errors import CheckpointMissing, Invalid
from store.models import CheckpointRef, Degraded, ForkPlan, Phase, PhaseGraph, RunEvent, ScopeKind
from store.planning import plan as planning
from store.planning.plan import PlanBasis
from store.planning.rows import EventGroup
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN, TA, TA_COMPAT, node, phase


def groups(events: Iterable[RunEvent]) -> list[EventGroup]:
    return [EventGroup(event.kind, event.scope, event.node_id, event.parent_node_id, event.phase) for event in events]


def saved(scope: str, name: str, *, after: str, graph: str | None = TA.digest, version: int = 1) -> CheckpointRef:
    return CheckpointRef(
        checkpoint_id=f"cp-{scope}-{name}-{version}",
        rollout_id="ro-1",
        version=version,
        position=version,
        at=0,
        attempt=1,
        scope=scope,
        name=name,
        after_phase=after,
        graph=graph,
    )


def complete_run() -> PlanBasis:
    events = [
        *phase("scan", MARKET),
        *(
            event
            for scope in ("RIG", "TSDD")
            for name in ("analysts", "debate_and_trader", "risk")
            for event in phase(name, scope)
        ),
        *phase("portfolio", FUND),
    ]
    checkpoints = [
        saved(scope, name, after=after)
        for scope in ("RIG", "TSDD")
        for name, after in (("analysts_checkpoint", "analysts"), ("trader_checkpoint", "debate_and_trader"))
    ]
    return PlanBasis("ro-1", 1, 900, 1, groups(events), checkpoints, {MARKET, "RIG", "TSDD", FUND})


def rerun(ground: PlanBasis, graph: PhaseGraph = TA, **asked: Any) -> ForkPlan:
    how: dict[str, Any] = {"node": None, "phase": None, "scopes": ["RIG"], "on_missing": "error", "cascade": True}
    return planning.rerun(graph, ground, **(how | asked))


NODES = [
    *((name, "analysts", None, ANALYSTS[0]) for name in ANALYSTS),
    *((name, "debate_and_trader", "analysts_checkpoint", "Bull Researcher") for name in DEBATE),
    *((name, "risk", "trader_checkpoint", "Aggressive Analyst") for name in RISK),
]


@pytest.mark.parametrize("name,expected,checkpoint,entry", NODES)
def test_each_node_starts_its_phase_at_its_entry(name: str, expected: str, checkpoint: str | None, entry: str) -> None:
    plan = rerun(complete_run(), node=name)
    assert (plan.phase, plan.entry) == (expected, entry)
    assert [reference.name for reference in plan.checkpoints] == ([] if checkpoint is None else [checkpoint])
    assert (plan.base, plan.base_version, plan.kind, plan.cascade) == (1, 900, "rerun", ["portfolio"])


def test_plan_counts_retained_and_hidden_events() -> None:
    ground = complete_run()
    plan = rerun(ground, phase="risk")
    hidden = [*phase("risk", "RIG"), *phase("portfolio", FUND)]
    assert (plan.hidden, plan.kept) == (len(hidden), len(ground.rows) - len(hidden))
    assert plan.nodes == len(RISK) + len(PORTFOLIO)
    assert plan.phases == ["risk"]
    assert plan.unsafe == ["portfolio"]


def test_a_scope_is_spelled_as_the_log_spells_it_and_counts_once() -> None:
    assert rerun(complete_run(), phase="risk", scopes=["rig", "RIG"]).scopes == ["RIG"]


@pytest.mark.parametrize(
    "asked,field",
    [
        ({"node": "unheard of"}, "node"),
        ({"phase": "unheard of"}, "phase"),
        ({}, "phase"),
        ({"node": "Trader", "phase": "risk"}, "phase"),
        ({"phase": "risk", "scopes": []}, "scopes"),
        ({"phase": "risk", "scopes": [""]}, "scopes"),
        ({"phase": "risk", "scopes": ["RGI"]}, "scopes"),
        ({"phase": "risk", "scopes": ["R*"]}, "scopes"),
        ({"phase": "scan", "scopes": ["RIG"]}, "scopes"),
    ],
    ids=str,
)
def test_names_unknown_to_the_graph_or_the_run_are_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        rerun(complete_run(), **asked)
    assert refused.value.field == field


def test_the_only_scope_of_its_kind_need_not_be_named() -> None:
    plan = rerun(complete_run(), node=SCAN[0], scopes=[])
    assert (plan.scopes, plan.masks[0].scopes) == ([MARKET], [MARKET])


def test_a_node_of_two_phases_is_ambiguous() -> None:
    graph = PhaseGraph(
        name="g",
        version="1",
        scope_kinds={"a": ScopeKind(), "b": ScopeKind()},
        phases=[Phase(name="one", scope_kind="a", nodes=["n"]), Phase(name="two", scope_kind="b", nodes=["n"])],
    )
    with pytest.raises(Invalid, match="'n' is in one and in two"):
        rerun(complete_run(), graph, node="n")


def test_a_missing_checkpoint_is_refused_or_all_of_the_scope_runs_and_says_so() -> None:
    ground = replace(complete_run(), checkpoints=[saved("TSDD", "trader_checkpoint", after="debate_and_trader")])
    with pytest.raises(CheckpointMissing) as refused:
        rerun(ground, phase="risk", scopes=["RIG", "TSDD"])
    assert (refused.value.checkpoint, refused.value.scopes, refused.value.phase) == (
        "trader_checkpoint",
        ["RIG"],
        "risk",
    )
    plan = rerun(ground, phase="risk", scopes=["RIG", "TSDD"], on_missing="full")
    assert plan.degraded == Degraded(
        reason="checkpoint_missing", phase="risk", checkpoint="trader_checkpoint", scopes=["RIG"]
    )
    assert (plan.phase, plan.checkpoints, plan.masks[0].nodes) == ("analysts", [], None)


def test_the_newest_checkpoint_of_a_scope_is_taken() -> None:
    ground = complete_run()
    newer = saved("RIG", "trader_checkpoint", after="debate_and_trader", version=7)
    other = saved("OTHER_RIG", "trader_checkpoint", after="debate_and_trader", version=8)
    plan = rerun(replace(ground, checkpoints=[*ground.checkpoints, newer, other]), phase="risk")
    assert plan.checkpoints == [newer]


def test_a_checkpoint_of_another_graph_is_named() -> None:
    changed = TA.model_copy(update={"version": "2"})
    assert rerun(complete_run(), phase="risk").graph_changed == []
    assert rerun(complete_run(), changed, phase="risk").graph_changed == ["cp-RIG-trader_checkpoint-1"]


def test_on_another_base_than_the_head_it_is_a_branch() -> None:
    assert rerun(replace(complete_run(), head=2), phase="risk").kind == "branch"


# Nodes that no phase lists


def hidden_nodes(plan: ForkPlan) -> set[str]:
    return {name for mask in plan.masks if mask.scopes == ["RIG"] for name in mask.nodes or ()}


@pytest.mark.parametrize("unlisted,hidden", [("first", False), ("last", True)])
def test_an_unlisted_node_goes_with_the_first_phase_or_the_last(unlisted: str, hidden: bool) -> None:
    graph = TA.model_copy(update={"unlisted": unlisted})
    ground = complete_run()
    ground = replace(ground, rows=[*ground.rows, *groups(node("Journalist", "RIG"))])
    assert ("Journalist" in hidden_nodes(rerun(ground, graph, phase="risk"))) is hidden
    assert "tool_x" not in hidden_nodes(rerun(ground, graph, phase="risk"))


def test_an_unlisted_node_goes_with_the_phase_that_it_names() -> None:
    ground = complete_run()
    named = [replace(row, phase="risk") for row in groups(node("Journalist", "RIG"))]
    both = [replace(row, phase="analysts") for row in groups(node("Editor", "RIG"))] + [
        replace(row, phase="risk") for row in groups(node("Editor", "RIG"))
    ]
    ground = replace(ground, rows=[*ground.rows, *named, *both])
    assert hidden_nodes(rerun(ground, phase="risk")) == {*RISK, "Journalist"}


# Going on after a crash


def crashed(*done: str, checkpoints: tuple[str, ...], begun: str | None = None, graph: PhaseGraph = TA) -> PlanBasis:
    events = [event for name in done for event in phase(name, "RIG", graph=graph)]
    if begun is not None:
        events += list(phase(begun, "RIG", graph=graph))[:-1]
    events += [
        event for name in ("analysts", "debate_and_trader", "risk") for event in phase(name, "TSDD", graph=graph)
    ]
    refs = [saved("RIG", name, after="x") for name in checkpoints]
    return PlanBasis("ro-1", 1, 500, 1, groups(events), refs, {"RIG", "TSDD"})


def test_a_scope_goes_on_at_its_first_phase_that_did_not_complete() -> None:
    ground = crashed(
        "analysts", "debate_and_trader", checkpoints=("analysts_checkpoint", "trader_checkpoint"), begun="risk"
    )
    plan = planning.resume(TA, ground)
    assert (plan.kind, plan.phase, plan.scopes) == ("resume", "risk", ["RIG"])
    assert [reference.name for reference in plan.checkpoints] == ["trader_checkpoint"]
    assert plan.unsafe == []  # the portfolio had not begun


def test_a_scope_goes_back_to_where_it_has_something_to_start_from() -> None:
    ground = crashed("analysts", "debate_and_trader", checkpoints=("analysts_checkpoint",), begun="risk")
    assert planning.resume(TA, ground).phase == "debate_and_trader"
    ground = crashed("analysts", "debate_and_trader", checkpoints=(), begun="risk")
    assert planning.resume(TA, ground).phase == "analysts"


def test_scopes_may_go_on_at_different_phases() -> None:
    ground = crashed("analysts", checkpoints=("analysts_checkpoint",), begun="debate_and_trader")
    ground = replace(ground, rows=[*ground.rows, *groups(list(phase("analysts", "ACME"))[:-1])])
    plan = planning.resume(TA, ground)
    assert (plan.phase, plan.entry, plan.scopes) == (None, None, ["RIG", "ACME"])
    assert [mask.scopes for mask in plan.masks] == [["RIG"], None, ["ACME"]]


def test_going_on_repeats_no_side_effect_unless_it_is_confirmed() -> None:
    ground = crashed(
        "analysts", "debate_and_trader", checkpoints=("analysts_checkpoint", "trader_checkpoint"), begun="risk"
    )
    ground = replace(ground, rows=[*ground.rows, *groups(list(phase("portfolio", FUND))[:2])])
    assert planning.resume(TA, ground).unsafe == ["portfolio"]


def test_a_finished_run_is_not_resumed() -> None:
    with pytest.raises(Invalid, match="nothing of attempt 1 is unfinished"):
        planning.resume(TA_COMPAT, replace(complete_run(), has_succeeded=True))


def test_a_run_that_died_between_its_scopes_goes_on_and_repeats_nothing() -> None:
    plan = planning.resume(TA_COMPAT, complete_run())
    assert (plan.phase, plan.entry, plan.scopes, plan.masks, plan.hidden) == (None, None, [], [], 0)
