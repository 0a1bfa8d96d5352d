"""The overview page: the state of the store, and links to the other pages."""

from __future__ import annotations

from store.interface.store import Store
from store.models import AttemptError, RolloutConfig
from store.testing import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, succeeded
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
    assert "Nothing ended in the last hour." in page.text


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
        (link,) = [link for link in page.links if link == f"/ui/rollouts?status={status}"]
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
    assert values["throughput"] == {"per_minute": 4 / 5, "last_hour": 4, "succeeded_share": 0.5}
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
    clock.advance(600)
    alive = await store.start_rollout({"question": 3}, worker_id="w-2")
    clock.advance(100)
    values = (await api.get("//ui/overview.json")).ok()
    reasons = {row["rollout_id"]: row["reason"] for row in values["stuck"]}
    assert reasons.keys() == {silent.rollout_id, waiting.rollout_id}
    assert reasons[silent.rollout_id].startswith("No sign of life for 11 min 40 s")
    assert "no worker has requested work for 1 min 40 s" in reasons[waiting.rollout_id]
    assert [row["rollout_id"] for row in values["running"]] == [silent.rollout_id, alive.rollout_id]
    assert values["queue"]["oldest"]["rollout_id"] == waiting.rollout_id


async def test_long_queue_shows_that_more_rollouts_may_be_stuck(api: Api, store: Store, clock: ManualClock) -> None:
    for count, is_whole in ((8, True), (1, False)):
        for number in range(count):
            await store.enqueue_rollout(number)
        clock.advance(700)
        values = (await api.get("//ui/overview.json")).ok()
        assert (values["stuck_in_all"], values["stuck_is_whole"]) == (8, is_whole)
    assert "Stuck 8 or more" in Read((await api.get("//ui/")).body).text
    await store.start_rollout("asks for work", worker_id="w-1")
    assert (await api.get("//ui/overview.json")).ok()["stuck_is_whole"]


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
    assert "Never verified" in Read((await api.get("//ui/")).body).text


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
    assert f"Verified up to commit {verification['commit_id']:,}" in page.text
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
