"""Re-runs from the page of a run: preview, single start, and undo."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from store.interface import rerun_requests
from store.interface.store import Store
from store.models import AttemptedRollout
from store.run_folders import import_run_folder
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import HOSTILE, Read
from tests.run_folders.foreign import ORPHAN
from tests.runs.trading import ANALYSTS, DEBATE, FUND, MARKET, PORTFOLIO, RISK, SCAN, TA, phase
from tests.runs.trading_runs import auto_run, begin, claimed, complete_rerun, do_phase, ended, say, seen
from tests.server.api import Answer, Api

TRADER = "node=Trader&scope=RIG"


async def form_of(api: Api, run: AttemptedRollout, query: str = TRADER) -> dict[str, str]:
    """Return the hidden fields of the form that confirms a plan."""
    page = await api.get(f"//ui/runs/{run.rollout_id}/rerun?{query}")
    hidden = [mark for mark in Read(page.body).marks if mark.get("type") == "hidden"]
    return {str(mark["name"]): mark["value"] or "" for mark in hidden}


async def confirm(api: Api, run: AttemptedRollout, form: dict[str, str], **ticked: str) -> Answer:
    """Send the form."""
    fields = {"confirm_side_effects": "1"} | form | ticked
    return await api.send("POST", f"//ui/runs/{run.rollout_id}/rerun", data=fields, allow_redirects=False)


async def test_rerun_of_a_node_runs_its_phase_and_the_dependent_phases(api: Api, store: Store) -> None:
    assert isinstance(store, SQLStore)
    run = await auto_run(store)
    before = await store.core.position()
    page = (await api.get(f"//ui/runs/{run.rollout_id}/rerun.json?{TRADER}")).ok()
    again = {(node["scope"], node["node_id"]) for node in page["nodes"] if node["runs_again"]}
    reused = {(node["scope"], node["node_id"]) for node in page["nodes"] if not node["runs_again"]}
    assert again == {("RIG", name) for name in (*DEBATE, *RISK)} | {(FUND, name) for name in PORTFOLIO}
    ancestors = {(MARKET, name) for name in SCAN} | {("RIG", name) for name in ANALYSTS}
    assert reused == ancestors | {("TSDD", name) for name in (*ANALYSTS, *DEBATE, *RISK)}
    assert page["sums"]["again"]["tokens"] == 15 * len(again)
    plan = (await api.post(f"/rollouts/{run.rollout_id}/forks:plan", {"node": "Trader", "scopes": ["RIG"]})).ok()
    assert page["plan"] == plan
    assert await store.core.position() == before


async def test_confirmed_rerun_matches_its_plan(api: Api, store: Store) -> None:
    run = await auto_run(store)
    page = (await api.get(f"//ui/runs/{run.rollout_id}/rerun.json?{TRADER}")).ok()
    reused = {(node["scope"], node["node_id"]) for node in page["nodes"] if not node["runs_again"]}
    answer = await confirm(api, run, await form_of(api, run), reason=HOSTILE, state_patch='{"news": "a strike"}')
    assert answer.status == 303
    assert answer.headers["location"] == f"/ui/runs/{run.rollout_id}"
    # Without a runner the head stays.
    assert len(await store.runs.list_lineage(run.rollout_id)) == 1
    assert (await store.annotations.query(run.rollout_id)).labels == ["rerun requested"]
    await claimed(store, run)
    head = await seen(store, run)
    assert {(event.scope, event.node_id) for event in head.items if event.node_id not in {None, "tool_x"}} == reused
    (_, second) = await store.runs.list_lineage(run.rollout_id)
    assert second.fork is not None
    assert (second.fork.state_patch, second.fork.reason) == ({"news": "a strike"}, HOSTILE)
    events = [event for event in await store.log.history(run.rollout_id) if event.type == "rollout.annotated"]
    assert events[0].actor == "dashboard"
    assert HOSTILE in Read((await api.get(f"//ui/runs/{run.rollout_id}")).body).text


async def test_a_form_that_is_sent_twice_begins_one_attempt(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    form = await form_of(api, run)
    answers = await asyncio.gather(*(confirm(api, run, form) for _ in range(3)))
    assert {(answer.status, answer.headers["location"]) for answer in answers} == {(303, f"/ui/runs/{run.rollout_id}")}
    await claimed(store, run)
    assert await rerun_requests.open_request(store, run.rollout_id) is None
    assert len(await store.runs.list_lineage(run.rollout_id)) == 2


async def test_side_effects_are_not_repeated_unless_they_were_confirmed(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    form = await form_of(api, run)
    refused = await confirm(api, run, form, confirm_side_effects="")
    assert refused.status == 428
    read = Read(refused.body)
    assert "Tick the box that confirms the side effects" in read.text
    assert "confirm_side_effects" in read.marked("name")
    assert len(await store.runs.list_lineage(run.rollout_id)) == 1
    # The others left alone, there is nothing to confirm.
    alone = await form_of(api, run, f"{TRADER}&cascade=0")
    assert (await confirm(api, run, alone, confirm_side_effects="")).status == 303


async def test_a_plan_that_somebody_overtook_is_made_again(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    form = await form_of(api, run)
    await complete_rerun(store, run, "risk", "RIG")
    overtaken = await confirm(api, run, form)
    assert overtaken.status == 412
    assert "Another user changed the run" in Read(overtaken.body).text
    hidden = {str(mark["name"]): mark["value"] for mark in Read(overtaken.body).marks if mark.get("type") == "hidden"}
    assert (form["expected_head"], hidden["expected_head"]) == ("1", "2")
    assert len(await store.runs.list_lineage(run.rollout_id)) == 2


async def test_an_attempt_at_work_is_ended_only_where_that_was_ticked(api: Api, store: Store) -> None:
    run = await begin(store)
    for name, scope in (("scan", MARKET), ("analysts", "RIG")):
        await do_phase(store, run, name, scope)
    form = await form_of(api, run)
    refused = await confirm(api, run, form)
    assert refused.status == 409
    assert "supersede" in Read(refused.body).marked("name")
    assert (await confirm(api, run, form, supersede="1")).status == 303
    await claimed(store, run)
    first, second = await store.runs.list_lineage(run.rollout_id)
    assert (first.status, second.status) == ("failed", "preparing")


async def test_without_a_checkpoint_all_of_the_scope_is_offered(api: Api, store: Store) -> None:
    run = await begin(store)
    await say(store, run, phase("analysts", "RIG"))
    await ended(store, run)
    missing = await api.get(f"//ui/runs/{run.rollout_id}/rerun?{TRADER}")
    assert missing.status == 424
    (offered,) = [link for link in Read(missing.body).links if "on_missing=full" in link]
    page = (await api.get(f"/{offered.replace('/rerun?', '/rerun.json?')}")).ok()
    assert page["plan"]["degraded"]["checkpoint"] == "analysts_checkpoint"
    assert page["plan"]["phases"] == ["analysts", "debate_and_trader", "risk"]
    assert "so the whole scope runs again" in Read((await api.get(f"/{offered}")).body).text


async def test_a_state_that_is_no_object_is_refused(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    for patch in ("{", "[1]", '"text"'):
        refused = await confirm(api, run, await form_of(api, run), state_patch=patch)
        assert refused.status == 422, patch
        assert "state_patch" in Read(refused.body).text
    assert len(await store.runs.list_lineage(run.rollout_id)) == 1


async def test_rerun_page_without_a_node_offers_choices(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    page: Any = (await api.get(f"//ui/runs/{run.rollout_id}/rerun.json")).ok()
    assert page["choices"]["phases"] == ["scan", "analysts", "debate_and_trader", "risk", "portfolio"]
    assert page["choices"]["scopes"] == [MARKET, "RIG", FUND]
    unknown = await api.get(f"//ui/runs/{run.rollout_id}/rerun?node=Nobody&scope=RIG")
    assert unknown.status == 422


async def test_a_command_is_offered_that_plans_the_same(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    page = Read((await api.get(f"//ui/runs/{run.rollout_id}/rerun?node=Bull+Researcher&scope=RIG&cascade=0")).body)
    commands = page.marked("data-copy")
    assert f"rollbook rerun {run.rollout_id} --node 'Bull Researcher' --scope RIG --no-cascade --plan" in commands


async def test_moving_the_head_undoes_a_rerun_and_records_the_actor(api: Api, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    before = await seen(store, run)
    await complete_rerun(store, run, "risk", "RIG")
    page = (await api.get(f"//ui/runs/{run.rollout_id}")).body.decode()
    assert re.search(r"Make attempt 1 the head of this run\? Attempt 2 and its results are kept", page)
    fields = {"attempt": "1", "reason": "the old one was right"}
    answer = await api.send("POST", f"//ui/runs/{run.rollout_id}/head", data=fields, allow_redirects=False)
    assert (answer.status, answer.headers["location"]) == (303, f"/ui/runs/{run.rollout_id}")
    assert (await seen(store, run)).items == before.items
    (*_, moved) = await store.log.history(run.rollout_id)
    assert (moved.type, moved.actor, moved.data["to"]) == ("rollout.head_moved", "dashboard", 1)
    missing = await api.send("POST", f"//ui/runs/{run.rollout_id}/head", data={"attempt": "9"})
    assert missing.status == 404


async def test_ticker_of_an_imported_orphan_can_be_chosen(api: Api, store: Store, tmp_path: Path) -> None:
    (report,) = await import_run_folder(store, ORPHAN.write(tmp_path))
    page = (await api.get(f"//ui/runs/{report.rollout_id}/rerun.json")).json
    assert page["choices"]["scopes"] == [MARKET, "RIG", FUND]
    plan = (await api.get(f"//ui/runs/{report.rollout_id}/rerun.json?phase=analysts&scope=RIG")).ok()["plan"]
    assert (plan["phases"], plan["cascade"], plan["scopes"]) == ([*TA.by_name][1:4], ["portfolio"], ["RIG"])
