"""The graph of a run as nodes in columns, also of a run with only spans; and the comparison of two attempts.

Acceptance scenarios 59 to 61.
"""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid, NotFound
from store.interface.store import Store
from store.models import AttemptedRollout, NodeDifference, RunEvent, Span
from tests.runs.conftest import ON_SQLITE
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, node
from tests.runs.trading_runs import auto_run, begin, complete_rerun, rerun, say, seen

pytestmark = ON_SQLITE


async def test_each_scope_is_a_column_of_its_kind_in_the_order_first_seen(store: Store) -> None:
    run = await auto_run(store)
    graph = await store.runs.get_graph(run.rollout_id)
    kinds = [(column.scope, column.kind) for column in graph.columns]
    assert kinds == [(MARKET, "market"), ("RIG", "ticker"), ("TSDD", "ticker"), (FUND, "portfolio")]
    rig = graph.columns[1]
    assert [graph_node.node_id for graph_node in rig.nodes] == [*ANALYSTS, *DEBATE, *RISK]
    assert (rig.done, rig.total) == (12, 12)
    assert [graph_node.phase for graph_node in rig.nodes[3:5]] == ["analysts", "debate_and_trader"]
    assert ("RIG", "Trader", "tool_x") in [(edge.scope, edge.parent_node_id, edge.node_id) for edge in graph.edges]


async def test_a_later_thought_changes_no_metrics_and_no_status(store: Store) -> None:
    run = await begin(store)
    await say(store, run, [*node("Trader", "RIG", tokens=40), *node("Trader", "RIG", tokens=60)])
    await say(store, run, [RunEvent(kind="thought", node_id="Trader", scope="RIG", metrics={"model": "stub"})])
    await say(store, run, [RunEvent(kind="log", node_id="__system__", message="noted")])
    ((trader,),) = [column.nodes for column in (await store.runs.get_graph(run.rollout_id)).columns]
    assert trader.metrics == {"model": "stub", "tokens_in": 60, "tokens_out": 30}
    assert (trader.status, trader.executions, trader.errors) == ("completed", 2, 0)


async def test_a_node_that_runs_again_is_running_again(store: Store) -> None:
    run = await auto_run(store)
    again = (await rerun(store, run, phase="risk", scopes=["RIG"])).rollout
    await say(store, again, [RunEvent(kind="thought", node_id=RISK[0], scope="RIG")])
    rig = next(column for column in (await store.runs.get_graph(run.rollout_id)).columns if column.scope == "RIG")
    assert (rig.nodes[-1].node_id, rig.nodes[-1].status, rig.nodes[-1].attempt) == (RISK[0], "running", 2)
    assert (rig.done, rig.total) == (8, 9)
    assert len((await store.runs.get_graph(run.rollout_id, view="attempt:1")).columns) == 4


async def test_a_node_is_failed_until_it_succeeds(store: Store) -> None:
    run = await begin(store)
    await say(store, run, [RunEvent(kind="result", node_id="Trader", scope="RIG", status="error", error="no model")])
    failed = (await store.runs.get_graph(run.rollout_id)).columns[0].nodes[0]
    assert (failed.status, failed.errors) == ("failed", 1)
    await say(store, run, node("Trader", "RIG"))
    assert (await store.runs.get_graph(run.rollout_id)).columns[0].nodes[0].status == "completed"


def span(run: AttemptedRollout, number: int, name: str, scope: str, **more: Any) -> Span:
    attributes: dict[str, Any] = {"agl.node_id": name, "agl.scope": scope, "gen_ai.usage.input_tokens": 7} | more
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=run.rollout_id,
        attempt_id=run.attempt.attempt_id,
        sequence_id=number,
        name="chat",
        start_time=1.0,
        end_time=2.5,
    )


async def test_spans_alone_make_a_run_that_can_be_run_again(store: Store) -> None:
    run = await begin(store)
    names = [*ANALYSTS, *DEBATE, *RISK]
    spans = [span(run, number, name, "RIG") for number, name in enumerate(names, start=1)]
    tool = span(run, 99, "tool_x", "RIG", **{"agl.parent_node_id": RISK[0]})
    plain = span(run, 100, "x", "RIG").model_copy(update={"attributes": {}})
    await store.add_many_spans([*spans, tool, plain])
    page = await seen(store, run)
    assert [event.node_id for event in page.items] == [*names, "tool_x"]
    assert page.items[0].metrics == {"latency_ms": 1500.0, "tokens_in": 7}
    assert page.items[0].source == "span"
    assert page.items[0].extra is not None
    assert page.items[0].extra["attributes"]["agl.scope"] == "RIG"
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="succeeded")
    await rerun(store, run, phase="risk", scopes=["RIG"], on_missing="full")
    assert (await seen(store, run)).items == []
    column = (await store.runs.get_graph(run.rollout_id, view="attempt:1")).columns[0]
    assert (column.scope, column.done, column.total) == ("RIG", 12, 12)


async def test_long_and_short_payload_comes_back_as_it_went(store: Store) -> None:
    run = await begin(store)
    long = "é" * 3000
    sent = {
        "kind": "result",
        "node_id": "Trader",
        "scope": "RIG",
        "message": "m",
        "prompt": long,
        "response": "short",
        "error": "e",
        "agent": "TRADER",
        "service": "svc",
        "node_exec": "x-1",
        "status": "success",
        "metrics": {"model": "s", "cost": 0.5},
        "custom": {"a": [1, None]},
    }
    event = RunEvent.model_validate(sent)
    await say(store, run, [event])
    (row,) = (await seen(store, run)).items
    assert {name: getattr(row, name) for name in sent if name != "custom"} == {
        name: value for name, value in sent.items() if name != "custom"
    }
    assert row.extra == {"custom": {"a": [1, None]}}
    assert (row.prompt_sha256 is None, row.response_sha256 is None) == (False, True)
    (bare,) = (await seen(store, run, bodies=False)).items
    assert (bare.prompt, bare.response, bare.extra, bare.metrics) == (None, None, None, row.metrics)


async def test_a_view_is_read_in_pages_and_by_scope_node_and_kind(store: Store) -> None:
    run = await auto_run(store)
    rows = (await seen(store, run)).items
    read: list[int] = []
    after = 0
    while True:
        page = await store.runs.query_events(run.rollout_id, after=after, limit=25)
        read += [event.version for event in page.items]
        after = page.next_after
        if not page.has_more:
            break
    assert read == [event.version for event in rows]
    only = await seen(store, run, scope="RIG", node_id="Trader", kind="result")
    assert [event.version for event in only.items] == [
        event.version for event in rows if (event.scope, event.node_id, event.kind) == ("RIG", "Trader", "result")
    ]
    assert (await store.runs.query_events(run.rollout_id, limit=0)).has_more
    with pytest.raises(Invalid, match="limit"):
        await store.runs.query_events(run.rollout_id, limit=-2)


# Comparing


async def test_two_attempts_side_by_side(store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "debate_and_trader", "RIG")
    diff = await store.runs.compare_attempts(run.rollout_id, 1, 2)
    changed = [graph_node for graph_node in diff.nodes if graph_node.change != "kept"]
    tools = [graph_node for graph_node in changed if graph_node.node_id == "tool_x"]
    assert {graph_node.change for graph_node in changed} == {"replaced"}
    assert [graph_node.node_id for graph_node in changed if graph_node not in tools] == [*DEBATE, *RISK, *PORTFOLIO]
    assert {tool.parent_node_id for tool in tools} == {DEBATE[-1], RISK[-1], PORTFOLIO[-1]}
    assert diff.counts["replaced"] == 8 + 9 + 3
    assert diff.totals == {"tokens_in": 17 * 10.0, "tokens_out": 17 * 5.0}
    one: NodeDifference = next(graph_node for graph_node in changed if graph_node.node_id == "Trader")
    assert (one.deltas, one.same_response, one.failed) == ({"tokens_in": 10, "tokens_out": 5}, False, False)
    unchanged = next(graph_node for graph_node in diff.nodes if graph_node.change == "kept")
    assert unchanged.before == unchanged.after


async def test_an_attempt_equals_itself(store: Store) -> None:
    run = await auto_run(store)
    diff = await store.runs.compare_attempts(run.rollout_id, 1, 1)
    assert set(diff.counts.items()) >= {("replaced", 0), ("added", 0), ("removed", 0)}
    assert set(diff.totals.values()) == {0}
    assert all(graph_node.same_response for graph_node in diff.nodes)
    with pytest.raises(NotFound, match="Attempt 2 not found"):
        await store.runs.compare_attempts(run.rollout_id, 1, 2)


async def test_extra_executions_are_added_and_missing_ones_removed(store: Store) -> None:
    run = await begin(store)
    await say(store, run, [*node("Bull Researcher", "RIG"), *node("Journalist", "RIG")])
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="succeeded")
    again = (await rerun(store, run, phase="analysts", scopes=["RIG"])).rollout
    failed = RunEvent(kind="result", node_id="Bull Researcher", scope="RIG", status="error", node_exec="2")
    await say(store, again, [*node("Bull Researcher", "RIG"), failed])
    by_node = {
        (graph_node.node_id, graph_node.ordinal): graph_node
        for graph_node in (await store.runs.compare_attempts(run.rollout_id, 1, 2)).nodes
    }
    assert {key: graph_node.change for key, graph_node in by_node.items()} == {
        ("Bull Researcher", 1): "replaced",
        ("Bull Researcher", 2): "added",
        ("Journalist", 1): "removed",
    }
    assert by_node["Bull Researcher", 1].same_response is True
    assert by_node["Bull Researcher", 2].failed
