"""Rollouts and attempts over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from store.interface.store import Store
from tests.server.api import Api


async def test_a_started_rollout_comes_with_its_attempt(api: Api) -> None:
    body = {
        "input": {"a": [1, 2.5, None, "é"]},
        "mode": "train",
        "resources_id": "zz",
        "config": {"timeout_seconds": 5, "max_attempts": 3, "retry_condition": ["failed"]},
        "metadata": {"m": 1},
        "worker_id": "w1",
    }
    started = (await api.post("/rollouts", body)).ok(201)
    assert started["input"] == body["input"]
    assert started["config"] == {
        "timeout_seconds": 5.0,
        "unresponsive_seconds": None,
        "max_attempts": 3,
        "retry_condition": ["failed"],
    }
    assert started["attempt"] == {
        "rollout_id": started["rollout_id"],
        "attempt_id": started["attempt"]["attempt_id"],
        "sequence_id": 1,
        "start_time": started["start_time"],
        "end_time": None,
        "status": "preparing",
        "worker_id": "w1",
        "last_heartbeat_time": None,
        "metadata": None,
        "reward": None,
        "rewards": {},
    }


async def test_starting_needs_an_input_and_takes_null_for_one(api: Api) -> None:
    assert (await api.post("/rollouts", {"mode": "val"})).status == 422
    assert (await api.post("/rollouts", {"input": None})).ok(201)["input"] is None
    assert (await api.post("/rollouts", {"input": 1, "config": {"max_attempts": 0}})).status == 422


async def test_a_rollout_has_the_key_attempt_only_if_it_has_an_attempt(api: Api) -> None:
    waiting, claimed = await api.enqueue(1, 2)
    # Claimed first is the one that waits longest.
    await api.dequeue()
    assert "attempt" in (await api.get(f"/rollouts/{waiting['rollout_id']}")).ok()
    assert "attempt" not in (await api.get(f"/rollouts/{claimed['rollout_id']}")).ok()
    listed = (await api.get("/rollouts")).ok()["items"]
    assert ["attempt" in rollout for rollout in listed] == [True, False]


async def test_a_rollout_that_does_not_exist_is_null(api: Api) -> None:
    assert (await api.get("/rollouts/nobody")).ok() is None
    assert (await api.get("/rollouts/search")).ok() is None
    assert (await api.get("/rollouts/nobody/attempts/latest")).ok() is None


async def test_update_leaves_absent_fields_and_clears_null_fields(api: Api) -> None:
    (created,) = await api.enqueue(1, mode="train", resources_id="rs-1", metadata={"a": 1})
    path = f"/rollouts/{created['rollout_id']}"
    unchanged = (await api.post(path, {})).ok()
    assert unchanged == created
    cleared = (await api.post(path, {"mode": None, "metadata": None, "resources_id": None, "input": None})).ok()
    assert [cleared[name] for name in ("mode", "metadata", "resources_id", "input")] == [None] * 4
    changed = (await api.post(path, {"config": {"max_attempts": 2}, "status": "cancelled"})).ok()
    assert changed["config"]["max_attempts"] == 2
    assert changed["end_time"] is not None
    assert "attempt" not in changed


@pytest.mark.parametrize("field", ["status", "config"])
async def test_null_status_or_config_is_refused_before_the_rollout_is_read(api: Api, field: str) -> None:
    answer = await api.post("/rollouts/nobody", {field: None})
    assert answer.status == 400
    assert answer.detail == f"{field} is invalid; it cannot be a null value."


@pytest.mark.parametrize("field", ["status", "worker_id", "last_heartbeat_time", "metadata"])
async def test_null_is_refused_for_every_field_of_an_attempt(api: Api, field: str) -> None:
    rollout_id, attempt_id = await api.claimed()
    answer = await api.post(f"/rollouts/{rollout_id}/attempts/{attempt_id}", {field: None})
    assert answer.status == 400
    assert answer.detail == f"{field} is invalid; it cannot be a null value."


async def test_update_of_a_missing_rollout_or_attempt_is_not_found(api: Api) -> None:
    rollout = await api.post("/rollouts/nobody", {"mode": "val"})
    assert rollout.status == 400
    assert rollout.detail == "Item does not exist with primary key(s): rollout_id='nobody'"
    assert rollout.json["error_type"] == "NotFound"
    assert (await api.post("/rollouts/nobody/attempts", {})).detail == "Rollout nobody not found"
    assert (await api.post("/rollouts/nobody/attempts/x", {})).detail == "Rollout nobody not found"
    (created,) = await api.enqueue()
    path = f"/rollouts/{created['rollout_id']}/attempts/x"
    assert (await api.post(path, {})).detail == f"No attempts found for rollout {created['rollout_id']}"


async def test_an_attempt_is_updated_by_its_id_or_as_the_latest(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    path = f"/rollouts/{rollout_id}/attempts"
    by_id = (await api.post(f"{path}/{attempt_id}", {"worker_id": "", "metadata": {"a": 1}})).ok()
    assert (by_id["worker_id"], by_id["metadata"], by_id["status"]) == ("", {"a": 1}, "preparing")
    second = (await api.post(path)).ok(201)["attempt"]["attempt_id"]
    latest = (await api.post(f"{path}/latest", {"status": "succeeded", "last_heartbeat_time": 5})).ok()
    assert (latest["attempt_id"], latest["status"], latest["last_heartbeat_time"]) == (second, "succeeded", 5.0)
    assert (await api.get(f"/rollouts/{rollout_id}")).ok()["status"] == "succeeded"
    assert (await api.get(f"{path}/latest")).ok() == latest


async def test_an_update_needs_a_body(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    assert (await api.post(f"/rollouts/{rollout_id}")).status == 422
    assert (await api.post(f"/rollouts/{rollout_id}/attempts/{attempt_id}")).status == 422


async def test_an_attempt_may_be_opened_with_and_without_a_body(api: Api) -> None:
    (created,) = await api.enqueue()
    path = f"/rollouts/{created['rollout_id']}/attempts"
    numbers = [
        (await api.post(path)).ok(201)["attempt"]["sequence_id"],
        (await api.post(path, None)).ok(201)["attempt"]["sequence_id"],
        (await api.post(path, {"worker_id": "w1"})).ok(201)["attempt"]["sequence_id"],
    ]
    assert numbers == [1, 2, 3]
    listed = (await api.get(path)).ok()
    assert [attempt["sequence_id"] for attempt in listed["items"]] == [1, 2, 3]
    assert [attempt["worker_id"] for attempt in listed["items"]] == [None, None, "w1"]


async def test_attempts_of_an_unknown_rollout_are_an_empty_page(api: Api) -> None:
    empty: dict[str, Any] = {"items": [], "limit": -1, "offset": 0, "total": 0}
    assert (await api.get("/rollouts/nobody/attempts")).ok() == empty
    assert (await api.post("/rollouts/nobody/attempts/search", {})).ok() == empty


@pytest.fixture
async def five(api: Api, store: Store) -> list[str]:
    """Five rollouts, of which the second has succeeded and the third failed."""
    created = [rollout["rollout_id"] for rollout in await api.enqueue(*range(5))]
    await store.update_rollout(created[1], status="succeeded")
    await store.update_rollout(created[2], status="failed")
    return created


def _ids(page: Any) -> list[str]:
    return [rollout["rollout_id"] for rollout in page["items"]]


async def test_both_ways_to_ask_answer_alike(api: Api, five: list[str]) -> None:
    query = "limit=2&offset=1&sort_by=rollout_id&sort_order=desc&status_in=queuing&status_in=failed"
    asked = (await api.get(f"/rollouts?{query}")).ok()
    body = {
        "limit": 2,
        "offset": 1,
        "sort_by": "rollout_id",
        "sort_order": "desc",
        "status_in": ["queuing", "failed"],
    }
    assert (await api.post("/rollouts/search", body)).ok() == asked
    expected = sorted((rollout_id for rollout_id in five if rollout_id != five[1]), reverse=True)
    assert (_ids(asked), asked["limit"], asked["offset"], asked["total"]) == (expected[1:3], 2, 1, 4)


async def test_an_empty_list_matches_nothing_and_null_everything(api: Api, five: list[str]) -> None:
    assert (await api.post("/rollouts/search", {"status_in": []})).ok()["total"] == 0
    assert (await api.post("/rollouts/search", {"status_in": None, "rollout_id_in": None})).ok()["total"] == 5
    assert _ids((await api.post("/rollouts/search", {"rollout_id_in": [five[3], "nobody"]})).ok()) == [five[3]]


async def test_either_condition_suffices_with_or(api: Api, five: list[str]) -> None:
    query = f"filter_logic=or&status_in=failed&rollout_id_contains={five[0]}"
    assert _ids((await api.get(f"/rollouts?{query}")).ok()) == [five[0], five[2]]


async def test_of_a_repeated_parameter_the_last_counts_and_unknown_ones_do_not(api: Api, five: list[str]) -> None:
    page = (await api.get("/rollouts?limit=1&unknown_in=train&limit=3")).ok()
    assert (len(page["items"]), page["limit"], page["total"]) == (3, 3, 5)


async def test_lists_are_repeated_never_split(api: Api) -> None:
    assert (await api.get("/rollouts?status_in=failed,succeeded")).status == 422
    assert (await api.post("/rollouts/search", {"status_in": "failed"})).status == 422


async def test_a_search_needs_a_body(api: Api) -> None:
    assert (await api.post("/rollouts/search")).status == 422
    assert (await api.post("/rollouts/search", {})).ok()["items"] == []


@pytest.mark.parametrize("limit", [0, -2, -1000])
async def test_impossible_limits_are_refused(api: Api, limit: int) -> None:
    for answer in (await api.get(f"/rollouts?limit={limit}"), await api.post("/rollouts/search", {"limit": limit})):
        assert answer.status == 400
        assert answer.detail == "Limit must be greater than 0 or -1 for no limit"


async def test_a_negative_offset_is_refused(api: Api) -> None:
    answer = await api.get("/rollouts?offset=-1")
    assert answer.status == 400
    assert answer.detail == "Offset must be greater than or equal to 0"


@pytest.mark.parametrize(
    "path,fields",
    [
        (
            "/rollouts",
            "rollout_id, input, start_time, end_time, mode, resources_id, status, config, metadata",
        ),
        (
            "/rollouts/x/attempts",
            (
                "rollout_id, attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, "
                "metadata"
            ),
        ),
        (
            "/workers",
            (
                "worker_id, status, heartbeat_stats, last_heartbeat_time, last_dequeue_time, last_busy_time, "
                "last_idle_time, current_rollout_id, current_attempt_id"
            ),
        ),
        ("/resources", "resources_id, create_time, update_time, version, resources"),
        (
            "/spans",
            (
                "rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, status, attributes, events, "
                "links, start_time, end_time, context, parent, resource"
            ),
        ),
    ],
)
@pytest.mark.parametrize("sort_by", ["attempt", "", "nonsense"])
async def test_a_field_that_does_not_exist_is_answered_with_those_that_do(
    api: Api, path: str, fields: str, sort_by: str
) -> None:
    answer = await api.get(f"{path}?rollout_id=x&sort_by={sort_by}")
    assert answer.status == 400
    assert answer.detail == f"Invalid sort_by: {sort_by}, allowed fields are: {fields}"


async def test_a_field_without_an_order_is_refused_too(api: Api, five: list[str]) -> None:
    assert (await api.get("/rollouts?sort_by=config")).status == 400


async def test_words_that_do_not_exist_are_refused(api: Api) -> None:
    for query in ("sort_order=up", "filter_logic=xor", "status_in=done", "limit=many"):
        answer = await api.get(f"/rollouts?{query}")
        assert answer.status == 422
        assert answer.detail[0]["loc"][:2] == ["query", query.partition("=")[0]]


async def test_null_turns_the_default_order_of_attempts_off(api: Api) -> None:
    (created,) = await api.enqueue()
    path = f"/rollouts/{created['rollout_id']}/attempts"
    for _ in range(3):
        await api.post(path)
    body = {"sort_by": None, "sort_order": "desc"}
    unsorted = (await api.post(f"{path}/search", body)).ok()["items"]
    assert [attempt["sequence_id"] for attempt in unsorted] == [1, 2, 3]
    in_order = (await api.post(f"{path}/search", {"sort_order": "desc"})).ok()["items"]
    assert [attempt["sequence_id"] for attempt in in_order] == [3, 2, 1]


async def test_times_come_back_exactly(api: Api, store: Store) -> None:
    rollout_id, attempt_id = await api.claimed()
    time = 1_700_000_000.123456789
    path = f"/rollouts/{rollout_id}/attempts/{attempt_id}"
    assert (await api.post(path, {"last_heartbeat_time": time})).ok()["last_heartbeat_time"] == time
