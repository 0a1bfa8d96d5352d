"""Front ends from before Rollbook: their routes, texts and events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from store import open_store
from store.examples.trading.front_end import routes
from store.examples.trading.front_end.flow_ids import FlowIds
from store.examples.trading.front_end.run_stream import SOCKET
from store.interface.phase_graphs import graph_of
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, PhaseGraph, RunEvent
from store.run_folders import import_run_folder
from store.server.partitions import Partitions, with_partition
from store.testing import ManualClock
from store.testing.samples import make_prompt
from tests.runs.trading import FUND, MARKET, PORTFOLIO, TA, TA_COMPAT, node
from tests.runs.trading_runs import (
    TICKER_PHASES,
    auto_run,
    begin,
    claimed,
    complete_rerun,
    do_phase,
    ended,
    rerun,
    say,
    seen,
)
from tests.server.keyed import bearer, keyed_server
from tests.server.stream_clients import Client, Json, serving, unused_partition

DAY = "2026-11-20"
NO_RUNNER = (
    "No runner of this pipeline is live, so the run stays as it is until one takes the request;"
    " start one with `rollbook runner --pipeline MODULE:PIPELINE`."
)
DONE = {"type": "system", "message": "Run completed."}
REPLACED = {"review_holdings", "make_pm_decision"}
RESET = {"type": "system", "message": "Replay reset.", "reset": True}


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with serving(store) as ready:
        yield ready


async def post(client: Client, what: str, prefix: str = "", **body: Any) -> tuple[int, Any]:
    async with client.session.post(f"{client.url}{prefix}/api/run/{what}", json=body) as answer:
        return answer.status, await answer.json()


async def posted(client: Client, type_: str = "auto", **body: Any) -> Any:
    status, answer = await post(client, type_, **{"date": DAY, "portfolio_id": FUND} | body)
    assert (status, answer["status"]) == (200, "queued"), answer
    return answer


async def take(store: Store, tickers: tuple[str, ...] = ("RIG", "TSDD")) -> AttemptedRollout:
    """Do what a runner does with a posted run."""
    run = await store.dequeue_rollout()
    assert run is not None
    await do_phase(store, run, "scan", MARKET)
    for ticker in tickers:
        for name in TICKER_PHASES:
            await do_phase(store, run, name, ticker)
    await do_phase(store, run, "portfolio", FUND)
    return await ended(store, run)


async def view(client: Client, run_id: str, **asked: str) -> list[Json]:
    """Return all that a front end is shown of a run that has ended."""
    path = SOCKET.format(run_id=run_id)
    async with client.socket([("follow", "false"), *asked.items()], path=path) as stream:
        frames: list[Json] = []
        while (frame := await stream.frame()) is not None:
            frames.append(frame)
        return frames


async def visible_versions(store: Store, run: AttemptedRollout) -> list[int]:
    """Return the versions of what such a front end is shown of a run."""
    return [event.version for event in (await seen(store, run)).items if event.source == "event"]


async def publish(store: Store, graph: PhaseGraph = TA_COMPAT) -> None:
    await store.add_resources({"phases": graph})


async def test_a_posted_run_is_executed_by_any_runner_and_listed_after_a_restart(store: Store) -> None:
    await publish(store)
    async with serving(store) as client:
        answer = await posted(client, tickers=["RIG", "TSDD"])
        run = await take(store)
        assert answer == {"run_id": run.rollout_id, "flow_id": answer["flow_id"], "status": "queued"}
        assert run.input == {"date": DAY, "portfolio_id": FUND, "tickers": ["RIG", "TSDD"]}
        # So that it does not stay running if its runner dies.
        assert run.config.unresponsive_seconds == 60
    async with serving(store) as client:
        status, listed = await client.get("/api/run/")
        assert (status, len(listed)) == (200, 1)
        summary = listed[0]
        assert summary == {
            "id": run.rollout_id,
            "flow_id": answer["flow_id"],
            "short_rid": run.rollout_id[-8:],
            "type": "auto",
            "status": "completed",
            "created_at": summary["created_at"],
            "completed_at": summary["completed_at"],
            "user_id": "anonymous",
            "date": DAY,
            "params": run.input,
            "rerun_seq": 0,
            "error": None,
        }
        status, detail = await client.get(f"/api/run/{run.rollout_id}")
        events = detail.pop("events")
        assert (status, detail) == (200, summary)
        assert [event["seq"] for event in events] == await visible_versions(store, run)
        (with_events,) = (await client.get("/api/run/", [("include", "events")]))[1]
        assert with_events["events"] == events


async def test_events_are_those_that_front_ends_know(store: Store, client: Client) -> None:
    run = await begin(store)
    await say(store, run, node("Bull Researcher", "RIG", tool="tool_x"))
    await say(store, run, [RunEvent.model_validate({"kind": "log", "message": "hm", "id": "log_1"})])
    events = (await client.get(f"/api/run/{run.rollout_id}"))[1]["events"]
    thought, tool, tool_result, result, log = events
    assert {name: thought[name] for name in ("type", "node_id", "parent_node_id", "identifier", "agent")} == {
        "type": "thought",
        "node_id": "Bull Researcher",
        "parent_node_id": "start",
        "identifier": "RIG",
        "agent": "BULL RESEARCHER",
    }
    assert len(thought["timestamp"].split(":")) == 3
    assert (tool["type"], tool["node_id"], tool_result["status"]) == ("tool", "tool_x", "success")
    assert result["metrics"] == {"model": "stub", "tokens_in": 10, "tokens_out": 5}
    assert result["response"].startswith("Bull Researcher on RIG")
    assert (log["id"], log["message"]) == ("log_1", "hm")
    assert (log["node_id"], log["identifier"], log["agent"]) == ("__system__", "", "SYSTEM")
    assert {event["rerun_seq"] for event in events} == {0}
    assert len({event["id"] for event in events}) == 5


async def test_a_new_flow_has_the_time_as_its_id(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # The ids of this process may be ahead of the time after other tests.
    monkeypatch.setattr(routes, "flow_ids", FlowIds())
    before = int(time.time())
    ids = [(await posted(client))["flow_id"] for _ in range(3)]
    assert all(len(flow_id) == 8 for flow_id in ids)
    seconds = [int(flow_id, 16) for flow_id in ids]
    # An id that is taken is followed by the next second.
    assert before <= seconds[0] < seconds[1] < seconds[2] <= int(time.time()) + 2
    # A flow that exists keeps its id, also if another process has begun it.
    taken = f"{seconds[2] + 1:08x}"
    await posted(client, flow_id=taken)
    assert (await posted(client))["flow_id"] > taken


async def test_a_run_without_a_date_is_kept_too(store: Store, client: Client) -> None:
    status, answer = await post(client, "scan")
    assert status == 200
    (summary,) = (await client.get("/api/run/"))[1]
    assert (summary["id"], summary["type"], summary["status"], summary["date"]) == (
        answer["run_id"],
        "scan",
        "queued",
        None,
    )


async def test_runs_of_one_flow_are_each_there_with_their_own_events(store: Store, client: Client) -> None:
    await publish(store)
    first = await posted(client)
    one = await take(store, ("RIG",))
    second = await posted(client, "pipeline", flow_id=first["flow_id"], ticker="TSDD")
    other = await take(store, ("TSDD",))
    assert second["flow_id"] == first["flow_id"]
    listed = (await client.get("/api/run/"))[1]
    assert [(summary["id"], summary["type"]) for summary in listed] == [
        (other.rollout_id, "pipeline"),
        (one.rollout_id, "auto"),
    ]
    for run, ticker in ((one, "RIG"), (other, "TSDD")):
        events = (await client.get(f"/api/run/{run.rollout_id}"))[1]["events"]
        assert {event["identifier"] for event in events} == {MARKET, ticker, FUND}
    # The flow names both, and so none.
    status, refused = await client.get(f"/api/run/{first['flow_id']}")
    assert (status, refused["error_type"]) == (409, "Conflict")
    assert one.rollout_id in refused["detail"]
    assert other.rollout_id in refused["detail"]
    (last,) = await view(client, first["flow_id"])
    assert last["message"].startswith(f"Error: flow {first['flow_id']} has 2 runs")
    page = (await client.get("/api/run/", [("limit", "1"), ("offset", "1")]))[1]
    assert [summary["id"] for summary in page] == [one.rollout_id]


async def test_a_run_is_named_by_its_flow_and_by_where_it_was_imported_from(store: Store, client: Client) -> None:
    old, metadata = "0b9d2c3e-run", {"rollbook.group": "flow1", "rollbook.key": "run:0b9d2c3e-run"}
    run = await store.start_rollout({}, metadata=metadata)
    for name in (run.rollout_id, "flow1", old):
        assert (await client.get(f"/api/run/{name}"))[1]["id"] == run.rollout_id
    again = await store.start_rollout({"n": 2}, metadata={"rollbook.key": f"run:{old}#2"})
    await store.start_rollout({"n": 3}, metadata={"rollbook.key": f"run:{old}x"})
    assert (await client.get(f"/api/run/{old}"))[1]["id"] == again.rollout_id


@pytest.mark.parametrize(
    "type_, wrong",
    [
        ("auto", {"flow_id": "../../escaped"}),
        ("auto", {"flow_id": "a/b"}),
        ("auto", {"flow_id": ".hidden"}),
        ("auto", {"date": "../x"}),
        ("pipeline", {"ticker": "../RIG"}),
        ("pipeline", {"ticker": "RIG/x"}),
        ("pipeline", {"tickers": ["RIG", "a\0b"]}),
        ("portfolio", {"portfolio_id": ".."}),
        ("nonsense", {}),
    ],
)
async def test_path_like_parameters_of_a_run_are_refused(store: Store, client: Client, type_: str, wrong: Json) -> None:
    status, answer = await post(client, type_, **wrong)
    assert (status, answer["error_type"]) == (422, "Invalid")
    assert (await store.query_rollouts()).total == 0
    assert (await post(client, "pipeline", ticker="^GSPC"))[0] == 200
    assert (await post(client, "pipeline", ticker="EURUSD=X"))[0] == 200


async def test_a_posted_run_has_the_default_phase_graph_unless_a_program_has_published_one(store: Store) -> None:
    async with serving(store) as client:
        run = await store.get_rollout_by_id((await posted(client))["run_id"])
        assert run is not None
        default = await graph_of(store, run)
        assert default is not None
        assert default.digest == TA.digest
        await store.add_resources(make_prompt())
        other = await store.get_rollout_by_id((await posted(client))["run_id"])
        assert other is not None
        assert other.resources_id == run.resources_id
        await publish(store, TA_COMPAT)
        rollout = await store.get_rollout_by_id((await posted(client))["run_id"])
        assert rollout is not None
        graph = await graph_of(store, rollout)
        assert graph is not None
        assert graph.digest == TA_COMPAT.digest


async def test_an_unknown_run_is_not_found(client: Client) -> None:
    status, answer = await client.get("/api/run/nobody")
    assert (status, answer["error_type"]) == (404, "NotFound")
    assert await view(client, "nobody") == [{"type": "system", "message": "Error: Run nobody not found."}]
    assert (await post(client, "rerun-node", run_id="nobody", node_id="Trader", identifier="RIG"))[0] == 404


async def test_a_viewer_sees_the_same_live_and_after_a_restart(store: Store) -> None:
    await publish(store)
    live: list[Json] = []
    async with serving(store) as client:
        answer = await posted(client)
        async with client.socket(path=SOCKET.format(run_id=answer["run_id"])) as stream:
            # Nobody executes it because somebody looks.
            (waiting,) = (await client.get("/api/run/"))[1]
            assert waiting["status"] == "queued"
            await take(store, ("RIG",))
            while not live or live[-1] != DONE:
                frame = await stream.frame()
                assert frame is not None
                live.append(frame)
    assert RESET not in live
    async with serving(store) as client:
        assert await view(client, answer["run_id"]) == live
        half = live[len(live) // 2]["seq"]
        assert await view(client, answer["run_id"], after=str(half)) == live[len(live) // 2 + 1 :]
        # A viewer that has left changes nothing.
        assert (await client.get(f"/api/run/{answer['run_id']}"))[1]["status"] == "completed"


async def test_a_failed_run_says_why_once_and_never_that_it_completed(store: Store, client: Client) -> None:
    run = await begin(store, group="f")
    error = AttemptError(type="ValueError", message="no data")
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="failed", error=error)
    assert await view(client, run.rollout_id) == [{"type": "system", "message": "Error: Run failed: no data"}]
    (summary,) = (await client.get("/api/run/"))[1]
    assert (summary["status"], summary["error"]) == ("failed", "no data")


async def test_a_run_whose_runner_is_gone_says_so(store: Store, client: Client) -> None:
    run = await begin(store, group="f")
    await do_phase(store, run, "scan", MARKET)
    await ended(store, run, "unresponsive")
    *events, last = await view(client, run.rollout_id)
    text = "Run did not complete (server restarted)"
    assert [event["seq"] for event in events] == await visible_versions(store, run)
    assert last == {"type": "system", "message": f"Error: Run failed: {text}"}
    assert (await client.get(f"/api/run/{run.rollout_id}"))[1]["error"] == text


async def test_viewer_of_a_rerun_is_reset_and_shows_the_remaining_events(store: Store, client: Client) -> None:
    run = await auto_run(store, graph=TA_COMPAT, group="f")
    before = (await seen(store, run)).items
    async with client.socket(path=SOCKET.format(run_id=run.rollout_id)) as stream:
        while await stream.frame() != DONE:
            pass
        body = {"run_id": run.rollout_id, "node_id": "Aggressive Analyst", "identifier": "rig"}
        status, answer = await post(client, "rerun-node", **body, date=DAY, portfolio_id=FUND)
        assert (status, answer) == (
            200,
            {
                "run_id": run.rollout_id,
                "phase": "risk",
                "status": "queued",
                "rerun_seq": 1,
                "attempt": None,
                "degraded": None,
                "message": NO_RUNNER,
            },
        )
        # Without a runner, the head and the view stay.
        assert (await client.get("/api/run/f"))[1]["status"] == "completed"
        assert (await seen(store, run)).items == before
        again = await claimed(store, run)
        assert (await client.get("/api/run/f"))[1]["status"] == "running"
        assert await stream.frame() == RESET
        await do_phase(store, again, "risk", "RIG", tokens=20)
        await do_phase(store, again, "portfolio", FUND, tokens=20)
        await ended(store, again)
        frames: list[Json] = []
        while not frames or frames[-1] != DONE:
            frame = await stream.frame()
            assert frame is not None
            frames.append(frame)
    assert frames == await view(client, "f")
    assert frames[:-1] == (await client.get("/api/run/f"))[1]["events"]
    assert [event["seq"] for event in frames[:-1]] == await visible_versions(store, run)
    assert {event["rerun_seq"] for event in frames[:-1]} == {0, 1}
    # Nothing is gone, and that side effects would happen again was taken as confirmed.
    assert (await seen(store, run, "attempt:1")).items == before
    (forked,) = [event async for event in store.log.tail(types=["attempt.forked"])]
    assert forked.data["confirmed"] is True
    (shown_run,) = (await client.get("/api/run/"))[1]
    assert (shown_run["rerun_seq"], shown_run["error"]) == (1, None)


async def test_rerun_after_a_restart_preserves_the_other_events(store: Store) -> None:
    run = await auto_run(store, graph=TA_COMPAT, group="f")
    before = (await seen(store, run)).items
    async with serving(store) as client:
        assert (await post(client, "rerun-node", run_id="f", node_id="Trader", identifier="RIG"))[0] == 200
        await claimed(store, run)
        events = (await client.get("/api/run/f"))[1]["events"]
    hidden = {"Bull Researcher", "Bear Researcher", "Research Manager", "Trader"}
    assert {event["identifier"] for event in events} == {MARKET, "RIG", "TSDD", FUND}
    assert not any(event["identifier"] == "RIG" and event["node_id"] in hidden for event in events)
    assert (await seen(store, run, "attempt:1")).items == before


async def test_without_a_checkpoint_all_of_the_ticker_runs_again_and_the_answer_says_so(
    store: Store, client: Client
) -> None:
    run = await begin(store, graph=TA_COMPAT)
    await say(store, run, node("Market Analyst", "RIG"))
    await ended(store, run, "failed")
    asked = {"run_id": run.rollout_id, "node_id": "Aggressive Analyst", "identifier": "RIG"}
    status, answer = await post(client, "rerun-node", **asked)
    assert (status, answer["phase"], answer["degraded"]["reason"]) == (200, "risk", "checkpoint_missing")
    await claimed(store, run)
    assert (await client.get(f"/api/run/{run.rollout_id}"))[1]["events"] == []


async def test_a_rerun_that_cannot_be_is_refused(store: Store, client: Client) -> None:
    run = await auto_run(store, graph=TA_COMPAT)
    asked = {"run_id": run.rollout_id, "node_id": "Trader", "identifier": "RIG"}
    for wrong in ({"node_id": "Nobody"}, {"identifier": ""}, {"identifier": "XYZ"}, {"date": "2020-01-01"}):
        status, answer = await post(client, "rerun-node", **asked | wrong)
        assert (status, answer["error_type"]) == (422, "Invalid"), wrong
    assert (await post(client, "rerun-node", run_id=run.rollout_id))[0] == 422
    await rerun(store, run, phase="risk", scopes=["RIG"])
    status, answer = await post(client, "rerun-node", **asked)
    assert (status, answer["error_type"]) == (409, "AttemptActive")
    waiting = await posted(client)
    status, answer = await post(client, "rerun-node", **asked | {"run_id": waiting["run_id"]})
    assert (status, answer["error_type"]) == (409, "Conflict")


async def test_a_rerun_that_is_asked_for_again_is_answered_again_and_begun_once(store: Store, client: Client) -> None:
    run = await auto_run(store, graph=TA_COMPAT)
    asked = {"run_id": run.rollout_id, "node_id": "Trader", "identifier": "RIG"}
    url, key = f"{client.url}/api/run/rerun-node", {"Idempotency-Key": "asked-once"}

    async def once(**more: str) -> tuple[int, Any]:
        async with client.session.post(url, json=asked | more, headers=key) as answer:
            return answer.status, await answer.json()

    waiting = await once()
    assert (waiting[0], waiting[1]["attempt"], waiting[1]["rerun_seq"]) == (200, None, 1)
    assert await once() == waiting
    status, answer = await post(client, "rerun-node", **asked)
    assert (status, answer["error_type"]) == (409, "Conflict"), "another request is open"
    again = await claimed(store, run)
    first = await once()
    assert (first[0], first[1]["attempt"], first[1]["rerun_seq"]) == (200, 2, 1)
    # While the attempt is at work, and when others have come after it.
    assert await once() == first
    await ended(store, again)
    assert (await post(client, "rerun-node", **asked))[1]["rerun_seq"] == 2
    await claimed(store, run)
    assert await once() == first
    assert (await once(node_id="Market Analyst"))[0] == 409
    assert len(await store.query_attempts(run.rollout_id)) == 3


async def test_the_portfolio_stage_of_a_day_is_reset(store: Store, client: Client) -> None:
    ids: dict[str, AttemptedRollout] = {}
    for day in (DAY, "2026-11-21"):
        run = ids[day] = await store.start_rollout({"date": day})
        for scope, name in ((FUND, "pm_decision"), (FUND, "execution_result"), (FUND, "risk"), ("x", "pm_decision")):
            where = (run.rollout_id, run.attempt.attempt_id)
            await store.runs.save_artifact(*where, scope=scope, name=name, content={"day": day})
    body = {"date": DAY, "portfolio_id": FUND}
    for deleted in (["execution_result", "pm_decision"], []):
        async with client.session.delete(f"{client.url}/api/run/portfolio-stage", json=body) as answer:
            assert (answer.status, await answer.json()) == (200, body | {"deleted": deleted})
    left = {
        day: [artifact.name for artifact in await store.runs.query_artifacts(run.rollout_id)]
        for day, run in ids.items()
    }
    assert left == {
        DAY: ["risk", "pm_decision"],
        "2026-11-21": ["pm_decision", "execution_result", "risk", "pm_decision"],
    }


async def test_each_partition_has_its_own_runs(store: Store, store_url: str) -> None:
    name = unused_partition()
    other_url = with_partition(store_url, name)

    async def open_partition(url: str) -> Store:
        return await open_store(url, create=False)

    async with await open_store(other_url) as other:
        partitions = Partitions(store, store_url, open_partition)
        try:
            async with serving(partitions) as client:
                status, answer = await post(client, "mock", prefix=f"/p/{name}")
                assert status == 200
                assert (await other.query_rollouts()).total == 1
                assert (await client.get("/api/run/"))[1] == []
                assert (await client.get(f"/p/{name}/api/run/{answer['run_id']}"))[0] == 200
                path = f"/p/{name}{SOCKET.format(run_id='nobody')}"
                async with client.socket(path=path) as stream:
                    assert await stream.frame() == {"type": "system", "message": "Error: Run nobody not found."}
        finally:
            await partitions.close()


async def test_readers_look_and_algorithms_run(store_url: str, clock: ManualClock) -> None:
    async with await open_store(store_url, clock=clock) as store, keyed_server(store, store_url, clock) as keyed:
        reader, algorithm = await keyed.key("reader"), await keyed.key("algorithm")
        url, session = keyed.api.url, keyed.api.session
        stage = {"date": DAY, "portfolio_id": FUND}
        node_ = {"run_id": "x", "node_id": "y", "identifier": "z"}
        asked: list[tuple[str, str, Json | None, int]] = [
            ("GET", "/api/run/", None, 200),
            ("GET", "/api/run/x", None, 404),
            ("POST", "/api/run/mock", {}, 200),
            ("POST", "/api/run/rerun-node", node_, 404),
            ("DELETE", "/api/run/portfolio-stage", stage, 200),
        ]
        for method, path, body, expected in asked:
            for key, status in ((reader, expected if method == "GET" else 403), (algorithm, expected), ("", 401)):
                headers = bearer(key) if key else {}
                async with session.request(method, url + path, json=body, headers=headers) as answer:
                    assert answer.status == status, (method, path, await answer.text())
        socket = url + SOCKET.format(run_id="x")
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(socket)
        async with session.ws_connect(socket, headers=bearer(reader)) as stream:
            assert (await stream.receive_json())["message"] == "Error: Run x not found."


async def test_rerun_of_a_rerun_shows_the_remaining_events_of_all_attempts(store: Store, client: Client) -> None:
    run = await auto_run(store, graph=TA_COMPAT, group="f")
    await complete_rerun(store, run, "risk", "RIG")
    await complete_rerun(store, run, "debate_and_trader", "RIG")
    *events, last = await view(client, "f")
    assert last == DONE
    assert [event["seq"] for event in events] == await visible_versions(store, run)
    # A cascade of such a graph hides two nodes of the portfolio alone.
    assert {event["node_id"] for event in events if event["rerun_seq"] == 1} == {*PORTFOLIO, "tool_x"} - REPLACED


async def test_lone_surrogates_of_imported_lines_are_shown_as_question_marks(
    store: Store, client: Client, tmp_path: Path
) -> None:
    meta = {"id": "run1", "flow_id": "flow1", "type": "pipeline", "status": "completed", "date": "2026-11-20"}
    line = r'{"type":"log","message":"half \ud800 of it"}'
    (tmp_path / "run_meta.json").write_text(json.dumps(meta))
    (tmp_path / "run_events.jsonl").write_text(line + "\n")
    await import_run_folder(store, tmp_path)
    status, summary = await client.get("/api/run/run1")
    assert status == 200
    (log_event,) = [event for event in summary["events"] if event.get("type") == "log"]
    assert log_event["message"] == "half ? of it"
