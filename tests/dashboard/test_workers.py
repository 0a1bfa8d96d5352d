"""Pages of workers: their states, their activity in the last hour, and their newest attempts."""

from __future__ import annotations

from itertools import combinations
from typing import Any
from urllib.parse import quote

import pytest

from store.dashboard.charts.worker_lanes import LANE_HEIGHT, LANE_WIDTH, lanes_of
from store.db.queries import worker_activity
from store.db.queries.worker_activity import CELL, HOUR, BusyPeriod, Outcome, Window
from store.interface.store import Store
from store.models import RolloutConfig
from store.runtime.clock import MICROSECONDS
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read, failed, rewarded, succeeded
from tests.server.api import Api


async def _listed(api: Api, query: str = "") -> dict[str, Any]:
    page = (await api.get(f"//ui/workers.json{query}")).ok()
    return {worker["worker"]["worker_id"]: worker for worker in page["workers"]}


async def test_an_empty_store_says_when_a_worker_appears(api: Api) -> None:
    assert (await api.get("//ui/workers.json")).ok()["workers"] == []
    assert "No worker is known yet" in Read((await api.get("//ui/workers")).body).text


async def test_done_and_failed_attempts_of_the_last_hour_are_counted(
    api: Api, store: Store, clock: ManualClock
) -> None:
    await failed(store, worker="w-1")
    clock.advance(3_700)
    await succeeded(store, worker_id="w-1")
    await succeeded(store, worker_id="w-1")
    await failed(store, worker="w-1")
    await succeeded(store, worker_id="w-2")
    workers = await _listed(api)
    assert workers["w-1"]["hour"] == {"succeeded": 2, "failed": 1}
    assert workers["w-1"]["failure_rate"] == 1 / 3
    assert workers["w-2"]["hour"] == {"succeeded": 1, "failed": 0}


async def test_attempts_beyond_the_largest_number_of_stretches_are_counted(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_activity, "MOST_STRETCHES", 1)
    await succeeded(store, worker_id="w-1")
    await failed(store, worker="w-1")
    assert (await _listed(api))["w-1"]["hour"] == {"succeeded": 1, "failed": 1}


async def test_released_claim_counts_for_no_worker(api: Api, store: Store) -> None:
    await store.enqueue_rollout({"question": 1})
    claimed = await store.dequeue_rollout(worker_id="w-1")
    assert claimed is not None
    assert isinstance(store, SQLStore)
    await store.queue.release_claims([claimed])
    page = (await api.get("//ui/workers/w-1.json")).ok()
    assert (page["hour"], page["lane"], page["attempts"]) == ({"succeeded": 0, "failed": 0}, [], [])


@ON_BOTH
async def test_a_lane_shows_when_a_worker_was_at_work(api: Api, store: Store, clock: ManualClock) -> None:
    begun = await store.start_rollout({"question": 1}, worker_id="w-1")
    clock.advance(600)
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="failed")
    clock.advance(600)
    running = await store.start_rollout({"question": 2}, worker_id="w-1")
    clock.advance(1_800)
    lost, busy = sorted((await _listed(api))["w-1"]["lane"], key=lambda bar: bar["x"])
    assert (lost["outcome"], lost["rollout_id"]) == ("failed", begun.rollout_id)
    assert abs(lost["width"] - LANE_WIDTH / 6) < 1
    assert (busy["outcome"], busy["rollout_id"]) == ("open", running.rollout_id)
    assert abs(busy["x"] + busy["width"] - LANE_WIDTH) < 1
    assert f"/ui/rollouts/{running.rollout_id}" in Read((await api.get("//ui/workers")).body).links


async def test_an_attempt_that_was_given_up_ended_when_it_was(api: Api, store: Store, clock: ManualClock) -> None:
    config = RolloutConfig(timeout_seconds=5_400)
    await store.start_rollout({"question": 1}, worker_id="w-1", config=config)
    clock.advance(5_401)
    await store.query_rollouts()
    clock.advance(1_800)
    worker = (await _listed(api))["w-1"]
    assert worker["hour"] == {"succeeded": 0, "failed": 1}
    (lost,) = worker["lane"]
    assert (lost["outcome"], lost["x"]) == ("failed", 0)
    assert abs(lost["width"] - LANE_WIDTH / 2) < 1


async def test_of_a_store_at_rest_the_last_hour_of_work_is_shown(api: Api, store: Store, clock: ManualClock) -> None:
    await succeeded(store, worker_id="w-1")
    clock.advance(86_400)
    page = (await api.get("//ui/workers.json")).ok()
    assert not page["window"]["is_now"]
    assert page["workers"][0]["hour"]["succeeded"] == 1
    assert "the last hour with activity" in Read((await api.get("//ui/workers")).body).text


@ON_BOTH
async def test_workers_are_sorted_filtered_and_paged(api: Api, store: Store) -> None:
    for name in ("w-1", "w-2", "x-3"):
        await store.update_worker(name)
    await store.start_rollout({"question": 1}, worker_id="x-3")
    assert list(await _listed(api, "?sort=worker_id&desc=1")) == ["x-3", "w-2", "w-1"]
    assert list(await _listed(api, "?q=w-&sort=worker_id&desc=0")) == ["w-1", "w-2"]
    assert list(await _listed(api, "?status=busy")) == ["x-3"]
    assert list(await _listed(api, "?limit=1&offset=1&sort=worker_id&desc=0")) == ["w-2"]
    assert (await api.get("//ui/workers.json?sort=colour")).status == 422


async def test_a_worker_without_heartbeats_is_lost(api: Api, store: Store, clock: ManualClock) -> None:
    await store.update_worker("w-1", {"heartbeat_interval": 10})
    await store.start_rollout({"question": 1}, worker_id="w-1")
    assert (await _listed(api))["w-1"]["worker"]["state"] == "busy"
    clock.advance(61)
    assert (await _listed(api))["w-1"]["worker"]["state"] == "lost"
    for page in ("//ui/workers", "//ui/workers/w-1"):
        assert "lost" in Read((await api.get(page)).body).marked("data-status")


async def test_one_that_is_busy_and_silent_is_marked(api: Api, store: Store, clock: ManualClock) -> None:
    await store.update_worker("w-1")
    await store.start_rollout({"question": 1}, worker_id="w-1")
    clock.advance(3_600)
    page = Read((await api.get("//ui/workers")).body)
    assert "stale" in page.marked("class")


async def test_a_worker_tells_its_newest_attempts_and_its_heartbeat(api: Api, store: Store) -> None:
    await store.update_worker("w-1", {"cpu": 0.5, "host": "box"})
    first = await failed(store, worker="w-1")
    second = await succeeded(store, worker_id="w-1")
    values = (await api.get("//ui/workers/w-1.json")).ok()
    assert [attempt["rollout_id"] for attempt in values["attempts"]] == [second.rollout_id, first.rollout_id]
    assert values["attempts_by_status"] == {"failed": 1, "succeeded": 1}
    page = Read((await api.get("//ui/workers/w-1")).body)
    assert "cpu 0.5 host box" in page.text
    assert f"/ui/rollouts/{first.rollout_id}" in page.links


async def test_a_worker_that_there_is_not_is_not_found(api: Api) -> None:
    assert (await api.get("//ui/workers/none.json")).status == 404


async def test_hostile_texts_stay_text(api: Api, store: Store) -> None:
    await store.update_worker(HOSTILE, {HOSTILE: HOSTILE})
    await succeeded(store, worker_id=HOSTILE)
    for path in ("//ui/workers", f"//ui/workers/{quote(HOSTILE, safe='')}"):
        page = Read((await api.get(path)).body)
        assert not {"img", "script"} & set(page.tags[page.tags.index("main") :])
        assert HOSTILE in " ".join([page.text, *page.marked("title")])


@ON_BOTH
async def test_workers_are_listed_by_their_last_sign_of_any_kind(api: Api, store: Store, clock: ManualClock) -> None:
    await store.update_worker("heartbeat")
    clock.advance(10)
    await store.enqueue_rollout("task")
    await store.dequeue_rollout(worker_id="claimed")
    clock.advance(10)
    await store.dequeue_rollout(worker_id="asked")
    clock.advance(10)
    begun = await store.start_rollout("task", worker_id="spans")
    clock.advance(10)
    await store.add_span(rewarded(begun, 0.5))
    workers = await _listed(api)
    assert list(workers) == ["spans", "asked", "claimed", "heartbeat"]
    now = clock() / MICROSECONDS
    assert [round(now - worker["last_sign"]) for worker in workers.values()] == [0, 20, 30, 40]
    assert list(await _listed(api, "?desc=0&limit=1")) == ["heartbeat"]


@ON_BOTH
async def test_worker_of_a_stuck_rollout_is_stuck_without_heartbeats(
    api: Api, store: Store, clock: ManualClock
) -> None:
    begun = await store.start_rollout("task", worker_id="w-1")
    clock.advance(780)
    await store.start_rollout("task", worker_id="w-2")
    workers = await _listed(api)
    assert (workers["w-1"]["stuck"]["rollout_id"], workers["w-2"]["stuck"]) == (begun.rollout_id, None)
    for page in ("//ui/workers", "//ui/workers/w-1"):
        read = Read((await api.get(page)).body)
        assert "stuck" in read.marked("data-status")
        assert any("No sign of life for 13 min" in title for title in read.marked("title"))


@ON_BOTH
async def test_attempts_show_their_rewards_and_not_those_of_their_retries(api: Api, store: Store) -> None:
    first = await store.start_rollout("task", worker_id="w-1", config=RolloutConfig(max_attempts=2))
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    second = await store.start_attempt(first.rollout_id, worker_id="w-1")
    await store.add_span(rewarded(second, 0.8))
    await store.update_attempt(second.rollout_id, second.attempt.attempt_id, status="succeeded")
    rows = (await api.get("//ui/workers/w-1.json")).ok()["attempts"]
    assert [(row["status"], row["reward"], row["last_reward"]) for row in rows] == [
        ("succeeded", 0.8, 0.8),
        ("failed", None, 0.8),
    ]


def test_indistinguishable_periods_share_a_bar_inside_the_lane() -> None:
    window = Window(0, HOUR, is_now=True)
    near = [BusyPeriod("w", "succeeded", at * CELL, at * CELL + CELL // 2, 3, "ro-1") for at in range(5)]
    far = [
        BusyPeriod("w", "succeeded", 100 * CELL, 101 * CELL, 1, "ro-2"),
        BusyPeriod("w", "failed", 200 * CELL, 200 * CELL, 1, "ro-3"),
        BusyPeriod("w", "open", HOUR - 400 * MICROSECONDS, HOUR + 10, 1, "ro-4"),
        BusyPeriod("v", "succeeded", -10 * MICROSECONDS, HOUR + 10, 1, "ro-5"),
    ]
    lanes = lanes_of([*near, *far], window)
    assert [(bar.outcome, bar.attempts, bar.rollout_id) for bar in lanes["w"]] == [
        ("succeeded", 15, None),
        ("succeeded", 1, "ro-2"),
        ("failed", 1, "ro-3"),
        ("open", 1, "ro-4"),
    ]
    assert [(bar.x, bar.width) for bar in lanes["v"]] == [(0, LANE_WIDTH)]
    for bar in (*lanes["w"], *lanes["v"]):
        assert bar.x >= 0
        assert bar.width > 0
        assert bar.x + bar.width <= LANE_WIDTH
        assert (bar.y, bar.height) == (0, LANE_HEIGHT)


def test_scattered_failures_cover_their_share_of_a_lane() -> None:
    window = Window(0, HOUR, is_now=True)
    outcomes: tuple[tuple[Outcome, int], ...] = (("succeeded", 8), ("failed", 1))
    periods = [
        BusyPeriod("w", outcome, at * CELL, (at + 1) * CELL, attempts, "ro-1")
        for at in range(60)
        for outcome, attempts in outcomes
    ]
    bars = lanes_of(periods, window)["w"]
    area = {
        outcome: sum(bar.width * bar.height for bar in bars if bar.outcome == outcome)
        for outcome in ("succeeded", "failed")
    }
    assert area["failed"] / sum(area.values()) == pytest.approx(1 / 9, rel=0.01)
    assert sum(area.values()) == pytest.approx(60 * LANE_HEIGHT, rel=0.01)
    for one, other in combinations(bars, 2):
        is_beside = one.x + one.width <= other.x or other.x + other.width <= one.x
        assert is_beside or one.y >= other.y + other.height - 0.02 or other.y >= one.y + one.height - 0.02
