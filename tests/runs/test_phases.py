"""A phase graph defines the phase of each node and the effects of a re-run, and refuses contradictions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from store.models import (
    CascadeMask,
    Checkpoint,
    Mask,
    Overlay,
    Phase,
    PhaseGraph,
    ScopeKind,
    all_of,
    any_of,
)
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, REPORTS, RISK, TA, TA_COMPAT


def graph(*phases: Phase, **fields: Any) -> PhaseGraph:
    kinds = {"ticker": ScopeKind(normalise="upper"), "fund": ScopeKind()}
    return PhaseGraph(name="g", version="1", scope_kinds=kinds, phases=list(phases), **fields)


# Masks


@pytest.mark.parametrize(
    "phase,nodes",
    [("debate_and_trader", [*DEBATE, *RISK]), ("risk", [*RISK])],
)
def test_a_rerun_hides_its_phase_and_the_later_ones_with_their_children(phase: str, nodes: list[str]) -> None:
    of_scope, _ = TA.masks(TA.by_name[phase], ["RIG"])
    assert (of_scope.scopes, of_scope.nodes, of_scope.children) == (["RIG"], nodes, True)


def test_a_rerun_from_the_first_phase_hides_all_of_the_scope() -> None:
    of_scope, _ = TA.masks(TA.by_name["analysts"], ["RIG", "TSDD"])
    assert of_scope == Mask(scopes=["RIG", "TSDD"])


def test_a_cascade_hides_the_whole_portfolio_phase_in_any_scope() -> None:
    _, cascade = TA.masks(TA.by_name["risk"], ["RIG"])
    assert cascade == Mask(nodes=list(PORTFOLIO), phases=["portfolio"], children=True)


def test_a_cascade_mask_hides_its_nodes_alone() -> None:
    _, cascade = TA_COMPAT.masks(TA_COMPAT.by_name["risk"], ["RIG"])
    assert cascade == Mask(nodes=["review_holdings", "make_pm_decision"])


def test_without_a_cascade_other_scopes_are_left_alone() -> None:
    assert len(TA.masks(TA.by_name["risk"], ["RIG"], cascade=False)) == 1


def test_two_scopes_are_followed_by_one_cascade() -> None:
    masks = TA.masks(TA.by_name["risk"], ["RIG", "TSDD"])
    assert [mask.scopes for mask in masks] == [["RIG", "TSDD"], None]


def test_phase_mask_hides_only_events_without_a_node() -> None:
    mask = Mask(scopes=["RIG"], nodes=["Trader"], phases=["risk"], children=True)
    assert mask.hides("RIG", None, None, "risk")
    assert mask.hides("RIG", "tool", "Trader")
    assert not mask.hides("RIG", "other", None, "risk")
    assert not mask.hides("RIG", None, None, "analysts")
    assert not mask.hides("TSDD", "Trader")


# Where things belong


def test_every_node_has_its_phase() -> None:
    for name, nodes in (("analysts", ANALYSTS), ("debate_and_trader", DEBATE), ("risk", RISK)):
        assert {TA.phases_of(node)[0].name for node in nodes} == {name}
    assert TA.phases_of("unheard of") == []


def test_phases_come_in_the_order_in_which_they_run() -> None:
    assert [phase.name for phase in TA.of_kind("ticker")] == ["analysts", "debate_and_trader", "risk"]
    assert [phase.name for phase in TA.later(TA.by_name["debate_and_trader"])] == ["debate_and_trader", "risk"]
    assert [phase.name for phase in TA.cascade_of(TA.of_kind("ticker"))] == ["portfolio"]


def test_a_cascade_goes_on_through_the_phases_it_reaches() -> None:
    phase_graph = graph(
        Phase(name="a", scope_kind="ticker", nodes=["a"], cascade=["b"]),
        Phase(name="b", scope_kind="fund", nodes=["b"]),
        Phase(name="c", scope_kind="fund", nodes=["c"], after=["b"]),
    )
    assert [phase.name for phase in phase_graph.cascade_of([phase_graph.by_name["a"]])] == ["b", "c"]


def test_scopes_are_spelled_as_their_kind_says() -> None:
    assert TA.scope_kinds["ticker"].spelled("rig") == "RIG"
    assert TA.scope_kinds["portfolio"].spelled(FUND) == FUND
    assert TA.scope_kinds["market"].fixed == MARKET


# Checkpoints


@pytest.mark.parametrize(
    "state,lack",
    [
        ({"market_report": "up"}, None),
        ({"market_report": "", "news_report": "war"}, None),
        (dict.fromkeys(REPORTS, ""), f"nothing in any of {', '.join(REPORTS)}"),
        ({}, f"nothing in any of {', '.join(REPORTS)}"),
    ],
)
def test_one_report_is_enough_for_the_analysts_checkpoint(state: dict[str, str], lack: str | None) -> None:
    assert any_of(*REPORTS).failing(state) == lack


def test_nought_and_false_say_something_and_emptiness_does_not() -> None:
    assert all_of("a", "b").failing({"a": 0, "b": False}) is None
    assert all_of("a", "b", "c").failing({"a": [], "b": {}, "c": None}) == "nothing in a, b, c"


def test_a_checkpoint_keeps_the_keys_it_declares() -> None:
    producer = TA.producer("analysts_checkpoint")
    assert producer is not None
    assert producer[1].of({"market_report": "up", "risk_debate": "later"}) == {"market_report": "up"}
    assert Checkpoint(name="all").of({"a": 1}) == {"a": 1}


def test_overlay_omits_excluded_keys() -> None:
    assert TA.by_name["risk"].overlay.of({"messages": [1], "plan": 2}) == {"plan": 2}
    assert TA.by_name["debate_and_trader"].overlay.of({"messages": [1]}) == {"messages": [1]}
    assert Overlay(include=["a", "c"]).of({"a": 1, "b": 2}) == {"a": 1}


# Digests


def test_equal_graphs_have_one_digest_and_different_ones_have_others() -> None:
    assert PhaseGraph.model_validate_json(TA.model_dump_json()).digest == TA.digest
    assert TA.model_copy(update={"version": "2"}).digest != TA.digest != TA_COMPAT.digest


# Contradictions

A = Phase(name="a", scope_kind="ticker", nodes=["n"], produces=[Checkpoint(name="c")])


@pytest.mark.parametrize(
    "phases,text",
    [
        ([A, A], "phase 'a' is declared twice"),
        ([A.model_copy(update={"scope_kind": "none"})], "scope_kinds has no 'none'"),
        ([A.model_copy(update={"nodes": []})], "lists no nodes"),
        ([A.model_copy(update={"nodes": ["n", "n"]})], "lists node 'n' twice"),
        ([A.model_copy(update={"entry": "x"})], "does not list its entry 'x'"),
        ([A.model_copy(update={"after": ["x"]})], "refers to 'x', which is not a phase"),
        ([A.model_copy(update={"after": ["a"]})], "form a cycle by 'after'"),
        ([A, Phase(name="b", scope_kind="ticker", nodes=["n"])], "node 'n' is in 'a' and in 'b'"),
        ([A, Phase(name="b", scope_kind="fund", nodes=["m"], after=["a"])], "of another kind of scope; use cascade"),
        ([A, Phase(name="b", scope_kind="ticker", nodes=["m"], cascade=["a"])], "of the same kind of scope; use after"),
        ([A, Phase(name="b", scope_kind="ticker", nodes=["m"], requires="c")], "no earlier phase of its scope"),
        (
            [A.model_copy(update={"cascade": ["b"]}), Phase(name="b", scope_kind="fund", nodes=["n"])],
            "phases 'b' and 'a' both have a node 'n'",
        ),
        (
            [A, Phase(name="b", scope_kind="ticker", nodes=["m"], produces=[Checkpoint(name="c")])],
            "checkpoint 'c' is produced twice",
        ),
    ],
    ids=str,
)
def test_a_graph_that_contradicts_itself_is_refused(phases: list[Phase], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        graph(*phases)


def test_condition_on_a_key_outside_of_the_checkpoint_is_refused() -> None:
    with pytest.raises(ValidationError, match="depends on b, which is not among its keys"):
        Checkpoint(name="c", keys=["a"], when=any_of("a", "b"))


def test_a_graph_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        graph()


def test_a_cascade_mask_of_a_fixed_scope_names_it() -> None:
    phase_graph = PhaseGraph(
        name="g",
        version="1",
        scope_kinds={"ticker": ScopeKind(), "book": ScopeKind(fixed="BOOK")},
        phases=[
            Phase(name="a", scope_kind="ticker", nodes=["n"], cascade=["b"]),
            Phase(name="b", scope_kind="book", nodes=["n"], cascade_mask=CascadeMask(nodes=["n"], children=True)),
        ],
    )
    assert phase_graph.masks(phase_graph.by_name["a"], ["x"])[1] == Mask(scopes=["BOOK"], nodes=["n"], children=True)
