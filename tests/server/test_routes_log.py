"""The log, its proof, the past, and facts about the store, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata

import pytest

from store.interface.store import Store
from store.testing import ManualClock
from tests.databases import connect
from tests.server.api import Api


async def test_health_answers_like_agent_lightning(api: Api) -> None:
    answer = await api.get("/health")
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')


async def test_statistics_count_rollouts_and_attempts(api: Api) -> None:
    await api.claimed()
    counted = (await api.get("/statistics")).ok()
    assert (counted["name"], counted["total_rollouts"], counted["total_attempts"]) == ("SQLStore", 1, 1)
    assert (await api.get("/statistics")).ok()["uptime"] > counted["uptime"]


async def test_a_server_takes_traces_whatever_its_store_says(api: Api) -> None:
    assert (await api.get("/capabilities")).ok() == {
        "thread_safe": True,
        "async_safe": True,
        "zero_copy": True,
        "otlp_traces": True,
    }


async def test_a_store_says_which_it_is(api: Api) -> None:
    about = (await api.get("/store")).ok()
    assert about["version"] == metadata.version("rollbook")
    assert (about["partition"], about["kind"], len(about["store_id"])) == ("default", "SQLStore", 16)


async def test_the_history_of_a_rollout_is_numbered_from_one(api: Api) -> None:
    rollout_id, _ = await api.claimed()
    facts = (await api.get(f"/rollouts/{rollout_id}/history")).ok()
    assert [(fact["number"], fact["type"]) for fact in facts] == [
        (1, "rollout.enqueued"),
        (2, "attempt.started"),
        (3, "rollout.status_changed"),
    ]
    cut = (await api.get(f"/rollouts/{rollout_id}/history?as_at={facts[0]['position']}")).ok()
    assert cut == facts[:1]
    refused = await api.get("/rollouts/nobody/history")
    assert (refused.status, refused.json["error_type"]) == (400, "NotFound")


async def test_a_history_is_read_page_by_page(api: Api) -> None:
    rollout_id, _ = await api.claimed()
    path = f"/rollouts/{rollout_id}/history"
    history = (await api.get(path)).ok()
    assert (await api.get(f"{path}?limit=2")).ok() == history[:2]
    assert (await api.get(f"{path}?limit=2&after=2")).ok() == history[2:]
    assert (await api.get(f"{path}?after=3")).ok() == (await api.get(f"{path}?after={10**30}")).ok() == []
    assert (await api.get(f"{path}?after=1&as_at={history[2]['position']}")).ok() == history[1:3]
    assert (await api.get("/rollouts/nobody/history?after=1")).json["error_type"] == "NotFound"
    for impossible in ("limit=0", "limit=10001", "after=-1", "after=x"):
        assert (await api.get(f"{path}?{impossible}")).status == 422


async def test_the_log_is_read_page_by_page(api: Api) -> None:
    await api.enqueue(*range(5))
    log = (await api.get("/log")).ok()
    assert len(log["events"]) == 5
    first = (await api.get("/log?limit=2")).ok()
    rest = (await api.get(f"/log?after={first['cursor']}")).ok()
    assert first["events"] + rest["events"] == log["events"]
    assert rest["cursor"] == log["cursor"] == log["events"][-1]["cursor"]
    assert (await api.get(f"/log?after={log['cursor']}")).ok() == {"events": [], "cursor": log["cursor"]}


async def test_the_log_is_filtered_by_type_and_rollout(api: Api) -> None:
    rollout_id, _ = await api.claimed()
    await api.claimed()
    started = (await api.get("/log?type=attempt.started&type=attempt.released")).ok()["events"]
    assert {event["type"] for event in started} == {"attempt.started"}
    assert len(started) == 2
    (start,) = (await api.get(f"/log?type=attempt.started&rollout={rollout_id}")).ok()["events"]
    assert start["stream"] == f"rollout/{rollout_id}"


async def test_a_cursor_that_is_none_is_refused(api: Api) -> None:
    answer = await api.get("/log?after=nonsense")
    assert (answer.status, answer.json["error_type"]) == (400, "Invalid")
    assert (await api.get("/log?limit=0")).status == 422


async def test_a_store_is_proved_rebuilt_and_sealed(api: Api) -> None:
    await api.claimed()
    seal = (await api.post("/seal")).ok()
    await api.claimed()
    assert (await api.post("/rebuild")).ok()["written"] == {}
    plain, sealed = (await api.post("/verify")).ok(), (await api.post("/verify", {"seal": seal})).ok()
    assert (plain["ok"], plain["seal_checked"]) == (True, False)
    assert (sealed["ok"], sealed["seal_checked"], sealed["events"]) == (True, True, 6)
    forged = (await api.post("/verify", {"seal": {**seal, "chain_head": "0" * 64}})).ok()
    assert forged["ok"] is False


async def test_verify_reports_missing_rows_and_rebuild_restores_them(api: Api, store_url: str) -> None:
    rollout_id, _ = await api.claimed()
    await api.post("/workers/w1")
    database = await connect(store_url)
    await database.execute("DELETE FROM workers")
    await database.execute("DELETE FROM attempts")
    await database.close()
    report = (await api.post("/verify")).ok()
    assert (report["ok"], [difference["check"] for difference in report["differences"]]) == (
        False,
        ["attempts", "workers"],
    )
    assert [(difference["found"], difference["expected"]["status"]) for difference in report["differences"]] == [
        (None, "preparing"),
        (None, "unknown"),
    ]
    assert rollout_id in report["differences"][0]["key"]
    assert (await api.post("/rebuild")).ok()["written"] == {"attempts": 1, "workers": 1}
    assert (await api.post("/verify")).ok()["ok"] is True


async def test_a_worker_without_a_name_is_proved_like_any_other(api: Api) -> None:
    await api.dequeue(worker_id="")
    await api.dequeue(worker_id="w")
    proof = (await api.post("/verify")).ok()
    assert (proof["differences"], proof["rows"]["workers"]) == ([], 2)
    assert (await api.post("/rebuild")).ok()["written"] == {}


@pytest.mark.parametrize("way", ["get", "search"])
async def test_pages_are_read_as_they_were_at_a_position(api: Api, way: str) -> None:
    await api.enqueue(1)
    position = (await api.get("/log")).ok()["events"][-1]["position"]
    await api.enqueue(2)
    if way == "get":
        page = (await api.get(f"/rollouts?as_at={position}")).ok()
    else:
        page = (await api.post("/rollouts/search", {"as_at": position})).ok()
    assert [rollout["input"] for rollout in page["items"]] == [1]


async def test_the_past_may_be_named_by_its_time(api: Api, clock: ManualClock) -> None:
    await api.enqueue(1)
    clock.advance(10)
    noon = datetime.fromtimestamp(clock.seconds, UTC).isoformat().replace("+00:00", "Z")
    clock.advance(10)
    await api.enqueue(2)
    assert (await api.get(f"/statistics?as_at={noon}")).ok()["total_rollouts"] in {1, 2}


async def test_one_rollout_is_read_at_a_number_of_its_own(api: Api, store: Store) -> None:
    rollout_id, _ = await api.claimed()
    await store.update_rollout(rollout_id, status="cancelled")
    statuses = [(await api.get(f"/rollouts/{rollout_id}?at={number}")).ok()["status"] for number in (1, 3, 4)]
    assert statuses == ["queuing", "preparing", "cancelled"]
    assert (await api.get(f"/rollouts/{rollout_id}/attempts/latest?at=1")).ok() is None
    assert (await api.get(f"/rollouts/{rollout_id}/attempts?at=1")).ok()["total"] == 0
    assert (await api.post("/spans/search", {"rollout_id": rollout_id, "at": 1})).ok()["total"] == 0


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-20T02:00:00", "-5", "1.5", "99:99"])
async def test_a_moment_that_is_none_is_refused_by_its_name(api: Api, moment: str) -> None:
    for path in ("/rollouts", "/resources", "/workers/w", "/spans?rollout_id=x"):
        answer = await api.get(f"{path}{'&' if '?' in path else '?'}as_at={moment}")
        assert answer.status == 400, answer
        assert answer.json["field"] == "as_at"


async def test_a_moment_in_a_body_is_no_fraction(api: Api) -> None:
    answer = await api.post("/rollouts/search", {"as_at": 1.5})
    assert (answer.status, answer.json["field"]) == (400, "as_at")
    assert (await api.post("/rollouts/search", {"as_at": None})).ok()["items"] == []


async def test_a_number_the_rollout_does_not_have_is_refused(api: Api) -> None:
    rollout_id, _ = await api.claimed()
    answer = await api.get(f"/rollouts/{rollout_id}?at=99")
    assert (answer.status, answer.json["field"]) == (400, "at")
