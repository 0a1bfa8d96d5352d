"""The list of runs, the graph of a run, the events of a node, and the comparison of two attempts."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from store.interface.store import Store
from store.models import AttemptedRollout, RunEvent
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.runs.trading import DEBATE, FUND, MARKET, RISK
from tests.runs.trading_runs import auto_run, begin, complete_rerun, do_phase, ended, say
from tests.server.api import Api


async def seen(api: Api, run: AttemptedRollout, query: str = "") -> Any:
    """Return the values of the page of a run."""
    return (await api.get(f"//ui/runs/{run.rollout_id}.json{query}")).ok()


async def drawn(api: Api, run: AttemptedRollout, query: str = "") -> dict[Any, Any]:
    """Return the nodes of the page of a run, by scope and name."""
    scopes = (await seen(api, run, query))["scopes"]
    return {(scope["scope"], node["node_id"]): node for scope in scopes for node in scope["nodes"]}


@ON_BOTH
async def test_rollouts_that_say_nothing_as_runs_do_are_not_listed(api: Api, store: Store) -> None:
    assert "rollbook trading" in Read((await api.get("//ui/runs")).body).text
    runs = [await begin(store) for _ in range(3)]
    for run in runs:
        await do_phase(store, run, "scan", MARKET)
        await store.enqueue_rollout({"question": 1})
    newest, *rest = (await api.get("//ui/runs.json?limit=1")).ok()["runs"]
    assert not rest
    assert (newest["rollout_id"], newest["attempts"], newest["head"]) == (runs[2].rollout_id, 1, 1)
    listed = list[str]()
    query = ""
    while True:
        page = (await api.get(f"//ui/runs.json?limit=1{query}")).ok()
        listed += [row["rollout_id"] for row in page["runs"]]
        if page["next_before"] is None:
            break
        query = f"&before={page['next_before']}"
    assert listed == [run.rollout_id for run in reversed(runs)]


@ON_BOTH
async def test_a_phase_that_began_again_counts_as_begun_until_it_is_done_again(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    again = (await store.runs.fork(run.rollout_id, phase="risk", scopes=["RIG"], confirm_side_effects=True)).rollout
    (row,) = (await api.get("//ui/runs.json")).ok()["runs"]
    assert (row["phases_done"], row["phases_begun"]) == (5, 5)
    await say(store, again, [RunEvent(kind="phase.started", phase="risk", scope="RIG")])
    (row,) = (await api.get("//ui/runs.json")).ok()["runs"]
    assert (row["phases_done"], row["phases_begun"], row["head"]) == (4, 5, 2)


async def test_each_scope_is_a_column_and_single_scopes_are_bands(api: Api, store: Store) -> None:
    run = await auto_run(store)
    page = await seen(api, run)
    assert [(scope["scope"], scope["place"]) for scope in page["scopes"]] == [
        (MARKET, "above"),
        ("RIG", "column"),
        ("TSDD", "column"),
        (FUND, "below"),
    ]
    for scope in page["scopes"]:
        assert scope["done"] == scope["total"] == len(scope["nodes"])


async def test_page_draws_the_nodes_of_the_api_graph(api: Api, store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "risk", "RIG")
    for view in ("head", "attempt:1", "own:2", "raw"):
        graph: Any = (await api.get(f"/rollouts/{run.rollout_id}/graph?view={view}")).ok()
        nodes: list[Any] = [node for column in graph["columns"] for node in column["nodes"]]
        page = await drawn(api, run, f"?view={view}")
        assert list(page) == [(node["scope"], node["node_id"]) for node in nodes]
        for node in nodes:
            box: Any = page[node["scope"], node["node_id"]]
            metrics: Any = node["metrics"] or {}
            same = ("status", "phase", "executions", "errors", "attempt", "first_version", "last_version")
            assert {name: box[name] for name in same} == {name: node[name] for name in same}
            assert box["tokens_in"] == metrics.get("tokens_in")


async def test_a_node_keeps_its_last_result_and_goes_back_to_running_when_it_runs_again(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    again = (await store.runs.fork(run.rollout_id, phase="risk", scopes=["RIG"], confirm_side_effects=True)).rollout
    await say(store, again, [RunEvent(kind="thought", node_id=RISK[0], scope="RIG", metrics={"model": "stub"})])
    before, now = await drawn(api, run, "?view=attempt:1"), await drawn(api, run)
    assert (before["RIG", RISK[0]]["status"], before["RIG", RISK[0]]["tokens_in"]) == ("completed", 10)
    assert (now["RIG", RISK[0]]["status"], now["RIG", RISK[0]]["attempt"]) == ("running", 2)
    assert ("RIG", RISK[1]) not in now
    assert now["RIG", DEBATE[0]] == before["RIG", DEBATE[0]]
    await say(store, again, [RunEvent(kind="result", node_id=RISK[0], scope="RIG", metrics={"tokens_in": 7})])
    await say(store, again, [RunEvent(kind="thought", node_id=RISK[0], scope="RIG", metrics={"model": "stub"})])
    node = (await drawn(api, run))["RIG", RISK[0]]
    assert (node["status"], node["tokens_in"]) == ("completed", 7)


async def test_a_run_is_drawn_as_it_was_after_an_event(api: Api, store: Store) -> None:
    run = await begin(store)
    await do_phase(store, run, "scan", MARKET)
    first = await drawn(api, run)
    at = max(node["last_version"] for node in first.values())
    await do_phase(store, run, "analysts", "RIG")
    assert len(await drawn(api, run)) > len(first)
    assert await drawn(api, run, f"?at={at}") == first
    scope, node = next((scope, node) for scope, node in first if scope)
    for then, told, offered in ((f"&at={at}", True, False), ("", False, True)):
        address = f"//ui/runs/{run.rollout_id}?node={quote(node)}&scope={quote(scope)}{then}"
        text = Read((await api.get(address)).body).text
        assert ("the attempts above are current" in text, "Run again from here" in text) == (told, offered)


async def test_a_run_without_a_phase_graph_is_drawn_too(api: Api, store: Store) -> None:
    run = await store.start_rollout({"question": 1})
    await say(store, run, [RunEvent(kind="result", node_id="plan"), RunEvent(kind="result", node_id="x", scope="RIG")])
    page = await seen(api, run)
    assert [(scope["scope"], scope["place"]) for scope in page["scopes"]] == [(None, "above"), ("RIG", "column")]
    assert page["phases"] == []
    text = Read((await api.get(f"//ui/runs/{run.rollout_id}?node=x&scope=RIG")).body).text
    assert "Run again from here" not in text
    told = await api.get(f"//ui/runs/{run.rollout_id}/rerun?node=x&scope=RIG")
    assert told.status == 422
    assert "no phase graph" in Read(told.body).text


async def test_no_more_nodes_are_drawn_than_can_be_looked_at(api: Api, store: Store) -> None:
    run = await store.start_rollout({"question": 1})
    for start in range(0, 2100, 700):
        await say(store, run, [RunEvent(kind="result", node_id=f"n{start + n}", scope="s") for n in range(700)])
    page = await seen(api, run)
    assert sum(len(scope["nodes"]) for scope in page["scopes"]) == 2000
    assert page["left_out"] == 100
    assert page["scopes"][0]["total"] == 2100
    assert "100 more nodes are not drawn" in Read((await api.get(f"//ui/runs/{run.rollout_id}")).body).text


async def test_attempts_are_indented_below_their_base(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    await complete_rerun(store, run, "risk", "RIG")
    await complete_rerun(store, run, "debate_and_trader", "RIG", base="attempt:1")
    attempts = (await seen(api, run))["attempts"]
    told = [(attempt["attempt"], attempt["depth"], attempt["base"], attempt["is_head"]) for attempt in attempts]
    assert told == [(1, 0, None, False), (2, 1, 1, False), (3, 1, 1, True)]
    assert attempts[1]["again"] == "risk of RIG, then portfolio"


async def test_node_shows_its_events_and_those_of_its_children(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    node = RISK[-1]
    chosen = (await seen(api, run, f"?node={node.replace(' ', '+')}&scope=RIG"))["chosen"]
    assert [(event["kind"], event["node_id"]) for event in chosen["events"]] == [
        ("thought", node),
        ("tool", "tool_x"),
        ("tool_result", "tool_x"),
        ("result", node),
    ]
    assert chosen["events"][-1]["texts"]["response"]["text"] == f"{node} on RIG: 10"
    other = (await seen(api, run, f"?node={node.replace(' ', '+')}&scope=RIG&view=own:1"))["chosen"]
    assert other == chosen


async def test_a_long_text_is_cut_and_says_how_much_there_is(api: Api, store: Store) -> None:
    run = await store.start_rollout({"question": 1})
    await say(store, run, [RunEvent(kind="result", node_id="x", scope="s", response="a" * 10_000)])
    (event,) = (await seen(api, run, "?node=x&scope=s"))["chosen"]["events"]
    assert event["texts"]["response"] == {"text": "a" * 4000, "length": 10_000}
    assert "6,000 more characters" in Read((await api.get(f"//ui/runs/{run.rollout_id}?node=x&scope=s")).body).text


async def test_the_words_of_strangers_stay_words(api: Api, store: Store) -> None:
    run = await store.start_rollout({"question": 1}, metadata={"rollbook.group": HOSTILE})
    said = RunEvent(
        kind="result", node_id=HOSTILE, scope=HOSTILE, status=HOSTILE, phase=HOSTILE, prompt=HOSTILE, response=HOSTILE,
        message=HOSTILE, error=HOSTILE, metrics={"model": HOSTILE, HOSTILE: 1},
    )  # fmt: skip
    await say(store, run, [said, RunEvent(kind="tool", node_id=f"t{HOSTILE}", parent_node_id=HOSTILE, scope=HOSTILE)])
    page = Read((await api.get(f"//ui/runs/{run.rollout_id}")).body)
    (link,) = [link for link in page.links if "node=" in link and "scope=" in link]
    chosen = Read((await api.get("/" + link.partition("#")[0])).body)
    for read in (page, chosen, Read((await api.get("//ui/runs")).body)):
        assert "x" not in read.marked("src")
        assert not [mark for mark in read.marks if "onerror" in mark]
        assert read.tags.count("script") == len([mark for mark in read.marked("src") if mark.endswith(".js")])
    assert chosen.text.count(HOSTILE) >= 5


async def test_two_attempts_are_compared_as_the_api_does(api: Api, store: Store) -> None:
    run = await auto_run(store)
    await complete_rerun(store, run, "risk", "RIG")
    answer = (await api.get(f"/rollouts/{run.rollout_id}/compare?a=1&b=2")).ok()
    page = (await api.get(f"//ui/runs/{run.rollout_id}/compare.json")).ok()
    assert (page["a"], page["b"], page["counts"]) == (1, 2, answer["counts"])
    assert page["nodes"] == [node for node in answer["nodes"] if node["change"] != "kept"]
    everything = (await api.get(f"//ui/runs/{run.rollout_id}/compare.json?a=1&b=2&all=1")).ok()
    assert everything["nodes"] == answer["nodes"]
    assert "replaced" in Read((await api.get(f"//ui/runs/{run.rollout_id}/compare")).body).text


async def test_one_attempt_or_none_has_nothing_to_be_compared_with(api: Api, store: Store) -> None:
    (waiting,) = await api.enqueue()
    told = Read((await api.get(f"//ui/runs/{waiting['rollout_id']}/compare")).body).text
    assert "This run has not started yet" in told
    run = await ended(store, await begin(store))
    assert "Both sides are the same attempt" in Read((await api.get(f"//ui/runs/{run.rollout_id}/compare")).body).text


async def test_run_without_a_start_shows_a_notice_and_a_missing_one_is_not_found(api: Api) -> None:
    (waiting,) = await api.enqueue()
    text = Read((await api.get(f"//ui/runs/{waiting['rollout_id']}")).body).text
    assert "This run has not started yet" in text
    assert "This view has no nodes yet" in text
    missing = await api.get("//ui/runs/ro-none")
    assert missing.status == 404
