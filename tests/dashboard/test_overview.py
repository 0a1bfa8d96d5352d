"""The overview page: the state of the store, and links to the other pages."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import pytest

from store.dashboard.pages import overview
from store.interface.store import Store
from store.models import AttemptError, RolloutConfig, TraceStatus
from store.testing import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, rewarded, succeeded
from tests.journal.database_helpers import run_sql
from tests.server.api import Api


async def test_empty_store_explains_the_first_steps(api: Api) -> None:
    values = (await api.get("//ui/overview.json")).ok()
    assert values["total"] == 0
    assert set(values["statuses"].values()) == {0}
    assert len(values["ended"]) == 60
    page = Read((await api.get("//ui/")).body)
    assert "enqueue_rollout" in page.text
    assert "rollbook runner" in page.text
    assert values["health"]["pace"]["state"] == "idle"


async def test_counts_by_status_lead_to_the_rollouts_in_it(api: Api, store: Store) -> None:
    await succeeded(store)
    await failed(store)
    await store.enqueue_rollout({"question": 1})
    values = (await api.get("//ui/overview.json")).ok()
    assert {name: count for name, count in values["statuses"].items() if count} == {
        "queuing": 1,
        "failed": 1,
        "succeeded": 1,
    }
    page = Read((await api.get("//ui/")).body)
    for status, count in values["statuses"].items():
        links = [link for link in page.links if link == f"/ui/rollouts?status={status}"]
        assert bool(links) == bool(count), "a status without rollouts has no link"
        for link in links:
            assert (await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] == count


@ON_BOTH
async def test_ended_rollouts_are_counted_by_minute(api: Api, store: Store, clock: ManualClock) -> None:
    await succeeded(store)
    clock.advance(3 * 60)
    await succeeded(store)
    await failed(store)
    cancelled = await store.enqueue_rollout({"question": 1})
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    clock.advance(60)
    values = (await api.get("//ui/overview.json")).ok()
    counted = [(minute["succeeded"], minute["failed"], minute["cancelled"]) for minute in values["ended"]]
    assert counted[-5:] == [(1, 0, 0), (0, 0, 0), (0, 0, 0), (1, 1, 1), (0, 0, 0)]
    assert values["throughput"] == {"per_minute": 4 / 5, "last_hour": 4, "succeeded_share": 0.5, "recent": 4}
    page = Read((await api.get("//ui/")).body)
    assert "1 succeeded, 1 failed, 1 cancelled" in page.text
    clock.advance(3600)
    assert (await api.get("//ui/overview.json")).ok()["throughput"]["last_hour"] == 0


async def test_one_that_is_tried_again_has_not_ended(api: Api, store: Store) -> None:
    begun = await failed(store)
    await store.update_rollout(begun.rollout_id, status="queuing")
    await store.dequeue_rollout()
    assert (await api.get("//ui/overview.json")).ok()["throughput"]["last_hour"] == 0


@ON_BOTH
async def test_the_stuck_are_named_with_their_reasons(api: Api, store: Store, clock: ManualClock) -> None:
    silent = await store.start_rollout({"question": 1}, worker_id="w-1")
    waiting = await store.enqueue_rollout({"question": 2})
    clock.advance(600.5)
    alive = await store.start_rollout({"question": 3}, worker_id="w-2")
    clock.advance(100)
    values = (await api.get("//ui/overview.json")).ok()
    reasons = {row["rollout_id"]: row["reason"] for row in values["stuck"]}
    assert reasons.keys() == {silent.rollout_id, waiting.rollout_id}
    assert reasons[silent.rollout_id].startswith("No sign of life for 11 min 40 s")
    assert reasons[waiting.rollout_id] == "Waits for 11 min 40 s; no worker has ever requested work."
    assert [row["rollout_id"] for row in values["running"]] == [silent.rollout_id, alive.rollout_id]
    assert values["queue"]["oldest"]["rollout_id"] == waiting.rollout_id


async def test_long_queue_shows_that_more_rollouts_may_be_stuck(
    api: Api, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_MOST_STUCK", 12)
    for count, in_all, is_whole in ((11, 11, True), (2, 12, False)):
        for number in range(count):
            await store.enqueue_rollout(number)
        clock.advance(700)
        values = (await api.get("//ui/overview.json")).ok()
        assert (values["stuck_in_all"], values["stuck_is_whole"], len(values["stuck"])) == (in_all, is_whole, 8)
    assert "12 or more rollouts" in Read((await api.get("//ui/")).body).text
    await store.dequeue_rollout(worker_id="w-1")
    assert (await api.get("//ui/overview.json")).ok()["stuck_is_whole"]


@ON_BOTH
async def test_only_a_dequeue_asks_for_work(api: Api, store: Store, clock: ManualClock) -> None:
    """A started rollout does not hide a dead queue."""
    await store.enqueue_rollout("first")
    await store.dequeue_rollout(worker_id="w-1")
    waiting = [(await store.enqueue_rollout(number)).rollout_id for number in range(12)]
    clock.advance(120.5)
    begun = await store.start_rollout("task", worker_id="w-2")
    await store.start_attempt(begun.rollout_id)
    values = (await api.get("//ui/overview.json")).ok()
    (cause,) = values["stuck_causes"]
    assert (cause["cause"], cause["count"], cause["rollout_ids"]) == ("unclaimed", 12, waiting)
    assert cause["sentence"] == "No worker has asked for work for 2 min."
    # A claim without a worker id leaves no trace but its attempt.
    await store.dequeue_rollout()
    assert (await api.get("//ui/overview.json")).ok()["stuck"] == []


async def test_each_cause_leads_to_its_rollouts(api: Api, store: Store, clock: ManualClock) -> None:
    limits = RolloutConfig(timeout_seconds=5_000, unresponsive_seconds=None)
    for worker in ("w-1", "w-2"):
        await store.start_rollout("task", worker_id=worker, metadata={"rollbook.step": 7})
    await store.start_rollout("task", worker_id="w-3", config=limits)
    for number in range(9):
        await store.enqueue_rollout(number, metadata={"rollbook.step": 8})
    clock.advance(400.5)
    values = (await api.get("//ui/overview.json")).ok()
    waiting, silent = values["stuck_causes"]
    assert (waiting["count"], waiting["steps"], waiting["statuses"]) == (9, [8], {"queuing": 9})
    assert (silent["count"], silent["steps"], silent["workers"]) == (3, [7], ["w-1", "w-2", "w-3"])
    assert silent["sentence"] == "Their workers have given no sign of life for 6 min 40 s."
    links = [link for link in Read((await api.get("//ui/")).body).links if "/ui/rollouts?id=" in link]
    totals = [(await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] for link in links]
    assert totals == [9, 3]


@ON_BOTH
async def test_rate_covers_the_last_300_seconds_exactly(api: Api, store: Store, clock: ManualClock) -> None:
    await succeeded(store)
    clock.advance(299.5)
    await succeeded(store)
    values = (await api.get("//ui/overview.json")).ok()
    assert (values["throughput"]["recent"], values["throughput"]["per_minute"]) == (2, 2 / 5)
    clock.advance(1)
    assert (await api.get("//ui/overview.json")).ok()["throughput"]["recent"] == 1
    (link,) = [link for link in Read((await api.get("//ui/")).body).links if "ended_min" in link]
    assert (await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] == 1


async def test_pace_has_stalled_if_open_work_does_not_end(api: Api, store: Store, clock: ManualClock) -> None:
    async def pace() -> Any:
        return (await api.get("//ui/overview.json")).ok()["health"]["pace"]

    await succeeded(store)
    clock.advance(7_200)
    assert (await pace())["state"] == "idle"
    await store.start_rollout("after a pause")
    clock.advance(200)
    assert (await pace())["state"] == "running"
    clock.advance(200)
    assert await pace() == {"state": "stalled", "recent": 0, "per_minute": 0.0, "seconds": pytest.approx(400, abs=1)}
    assert "Stalled for 6 min" in Read((await api.get("//ui/")).body).text


@ON_BOTH
async def test_health_shows_the_last_complete_step_with_its_denominators(
    api: Api, store: Store, clock: ManualClock
) -> None:
    for step, rewards in ((1, (0.5, 0.5)), (2, (1.0, 0.4, None))):
        for value in rewards:
            begun = await store.start_rollout("task", mode="train", metadata={"rollbook.step": step})
            status = "failed" if value is None else "succeeded"
            if value is not None:
                await store.add_span(rewarded(begun, value))
            await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status=status)
            clock.advance(60)
    await store.enqueue_rollout("task", mode="train", metadata={"rollbook.step": 3})
    await succeeded(store, mode="val", metadata={"rollbook.step": 2})
    values = (await api.get("//ui/overview.json?target=6")).ok()
    health, last = values["health"], values["health"]["last"]
    assert (health["mode"], last["step"], health["steps"], health["open_step"], health["open_rollouts"]) == (
        "train",
        2,
        2,
        3,
        1,
    )
    assert (last["rewarded"], last["ended"], last["failed"], last["counted"]) == (2, 3, 1, 3)
    counted = [1.0, 0.4, 0.0]
    assert last["mean"] == pytest.approx(mean(counted))
    assert last["half_width"] == pytest.approx(1.96 * stdev(counted) / 3**0.5)
    assert (health["mean_before"], health["failure_rate_before"]) == (0.5, 0.0)
    # Step 2 ended three minutes after step 1, and four steps remain.
    assert health["eta_seconds"] == pytest.approx(4 * 180)
    page = Read((await api.get("//ui/?target=6")).body)
    assert "2 of 3 rewarded" in page.text
    assert "0.467" in page.text
    left_out = (await api.get("//ui/overview.json?unrewarded=out")).ok()["health"]["last"]
    assert (left_out["mean"], left_out["counted"]) == (pytest.approx(0.7), 2)
    assert (await api.get("//ui/overview.json?unrewarded=nothing")).status == 422


async def test_chart_marks_versions_and_leads_to_each_step(api: Api, store: Store) -> None:
    for step in (1, 2, 3):
        if step != 2:
            await store.update_resources("r", {})
        begun = await store.start_rollout("task", resources_id="r", metadata={"rollbook.step": step})
        await store.add_span(rewarded(begun, step / 10))
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    values = (await api.get("//ui/overview.json")).ok()
    (change,) = values["changes"]
    assert (change["version"], change["against"], change["step"]) == (2, 1, 3)
    assert "/ui/effects/r?version=2" in Read((await api.get("//ui/")).body).links
    assert values["versions"] == [
        {"resources_id": "r", "version": 1, "step": 1},
        {"resources_id": "r", "version": 2, "step": 3},
    ]
    assert [(one["step"], one["mean"], one["length"]) for one in values["steps"]] == [
        (1, 0.1, None),
        (2, 0.2, None),
        (3, 0.3, None),
    ]
    links = Read((await api.get("//ui/")).body).links
    assert {"/ui/rollouts?step=1", "/ui/rollouts?step=3", "/ui/resources/r?version=2"} <= set(links)


@ON_BOTH
async def test_rewards_of_any_size_and_steps_far_apart_break_nothing(api: Api, store: Store) -> None:
    for step, value in ((-(10**9), 1.79e308), (0, -1.79e308), (10**9, 5e-324), (10**9, 1e200)):
        begun = await store.start_rollout("task", metadata={"rollbook.step": step})
        await store.add_span(rewarded(begun, value))
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    for path in ("", "failures", "workers"):
        assert (await api.get(f"//ui/{path}")).status == 200
    assert len((await api.get("//ui/overview.json")).ok()["steps"]) == 3


@ON_BOTH
async def test_failures_are_folded_with_their_spans_and_steps(api: Api, store: Store) -> None:
    for step, number in ((1, 11), (2, 22), (2, 33)):
        begun = await store.start_rollout("task", metadata={"rollbook.step": step})
        span = rewarded(begun, 0.0).model_copy(update={"name": "execute_tool bash"})
        await store.add_span(span)
        error = AttemptError(type="ToolError", message=f"exited with {number}", span_id=span.span_id)
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="failed", error=error)
    # The error of this attempt names no span.
    begun = await store.start_rollout("task")
    await store.add_span(
        rewarded(begun, 0.0).model_copy(update={"name": "chat", "status": TraceStatus(status_code="ERROR")})
    )
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="failed")
    row, other = (await api.get("//ui/overview.json")).ok()["failure_kinds"]
    assert (other["type"], other["spans"], other["steps"]) == (None, {"chat": 1}, {})
    assert (row["message"], row["count"], row["rollouts"]) == ("exited with #", 3, 3)
    assert (row["spans"], row["steps"]) == ({"execute_tool bash": 3}, {"1": 1, "2": 2})
    page = Read((await api.get("//ui/")).body)
    assert "execute_tool bash" in page.text
    links = [link for link in page.links if "/ui/rollouts?id=" in link]
    assert [(await api.get(f"/{link.replace('?', '.json?')}")).ok()["total"] for link in links] == [3, 1]


async def test_no_time_that_a_sign_of_life_names_breaks_the_page(api: Api, store: Store) -> None:
    for at in (1.79e308, -1.79e308):
        begun = await store.start_rollout("task")
        await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, last_heartbeat_time=at)
    for path in ("", "rollouts", f"rollouts/{begun.rollout_id}"):
        assert (await api.get(f"//ui/{path}")).status == 200


async def test_a_heartbeat_unsticks(api: Api, store: Store, clock: ManualClock) -> None:
    begun = await store.start_rollout({"question": 1}, config=RolloutConfig(unresponsive_seconds=1000))
    clock.advance(600)
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, last_heartbeat_time=clock() / 1e6)
    values = (await api.get("//ui/overview.json")).ok()
    assert values["stuck"] == []
    assert values["running"][0]["last_sign"] == clock() / 1e6


async def test_names_of_workers_and_errors_are_escaped(api: Api, store: Store) -> None:
    error = AttemptError(type=HOSTILE, message=HOSTILE, span_id=HOSTILE)
    await failed(store, error, worker=HOSTILE)
    await store.start_rollout({"question": 1}, worker_id=HOSTILE)
    page = Read((await api.get("//ui/")).body)
    assert "img" not in page.tags[page.tags.index("main") :]
    assert page.tags.count("script") == Read((await api.get("//ui/previews")).body).tags.count("script")
    assert HOSTILE in page.text


async def test_a_store_that_was_never_verified_says_so(api: Api) -> None:
    assert (await api.get("//ui/overview.json")).ok()["verified"] == {"whole": None, "sample": None}
    assert "Last full verification: never." in Read((await api.get("//ui/")).body).text


async def test_the_last_verification_is_shown_with_its_commit(api: Api, store: Store) -> None:
    await succeeded(store)
    await store.log.verify()
    values = (await api.get("//ui/overview.json")).ok()
    verification = values["verified"]["whole"]
    assert (verification["commit_id"], verification["differences"], verification["state"]) == (
        values["log"]["commit_id"],
        0,
        "succeeded",
    )
    page = Read((await api.get("//ui/")).body)
    assert f"Last full verification up to commit {verification['commit_id']:,}" in page.text
    assert "alert" not in page.marked("role")


async def test_differences_are_a_warning_that_leads_to_the_audit_page(api: Api, store: Store, store_url: str) -> None:
    begun = await succeeded(store)
    await run_sql(store_url, f"UPDATE rollouts SET status = 'failed' WHERE rollout_id = '{begun.rollout_id}'")
    await store.log.verify()
    assert (await api.get("//ui/overview.json")).ok()["verified"]["whole"]["differences"] == 1
    page = Read((await api.get("//ui/")).body)
    assert "found 1 difference between the database and its log" in page.text
    assert page.marked("role").count("alert") == 1
    assert page.links.count("/ui/audit") > Read((await api.get("//ui/failures")).body).links.count("/ui/audit")


async def test_a_failed_verification_is_a_warning_with_its_error(api: Api, store_url: str) -> None:
    await run_sql(
        store_url,
        "INSERT INTO operation_runs (operation, attempted_at, runs, failures, failed_at, error)"
        f" VALUES ('verify_sample', 5, 1, 1, 6, '{HOSTILE.replace(chr(39), '')}')",
    )
    sample = (await api.get("//ui/overview.json")).ok()["verified"]["sample"]
    assert (sample["state"], sample["at"], sample["error"]) == ("failed", None, HOSTILE)
    page = Read((await api.get("//ui/")).body)
    assert f"The last verification of a sample failed: {HOSTILE}" in page.text
