"""Spans, resources and workers over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api import Api, a_span

LLM = {"resource_type": "llm", "endpoint": "http://localhost:8000/v1", "model": "small"}
COMPLETE_LLM: dict[str, Any] = {**LLM, "api_key": None, "sampling_parameters": {}}


async def test_a_span_comes_back_as_it_went_unknown_keys_included(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    context = {"trace_id": "a", "span_id": "b", "is_remote": False, "trace_state": {"k": "v"}, "flags": 1}
    span = a_span(
        rollout_id,
        attempt_id,
        attributes={"int": 1, "bool": True, "float": 1.0, "text": "x", "list": [1, 2], "none": []},
        status={"status_code": "ERROR", "description": "boom", "colour": "red"},
        events=[{"name": "e", "attributes": {"a": 1}, "timestamp": 1.5, "more": None}],
        links=[{"context": context, "attributes": None, "weight": 2}],
        context=context,
        parent=context,
        kind="INTERNAL",
    )
    assert (await api.post("/spans", span)).ok(201) == span
    (stored,) = (await api.get(f"/spans?rollout_id={rollout_id}")).ok()["items"]
    assert stored == span
    kinds: dict[str, Any] = {name: type(value) for name, value in stored["attributes"].items()}
    assert kinds == {"int": int, "bool": bool, "float": float, "text": str, "list": list, "none": list}


async def test_a_span_that_is_there_already_is_answered_with_null(api: Api) -> None:
    span = a_span(*await api.claimed())
    assert (await api.post("/spans", span)).ok(201) is not None
    again = await api.post("/spans", {**span, "sequence_id": 7})
    assert (again.status, again.body) == (201, b"null")


async def test_every_key_of_a_span_is_required(api: Api) -> None:
    span = a_span(*await api.claimed())
    for key in span:
        answer = await api.post("/spans", {name: value for name, value in span.items() if name != key})
        assert answer.status == 422
        assert answer.detail[0]["loc"] == ["body", key]


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, "a"], [[1]]])
async def test_attributes_that_no_span_holds_are_refused(api: Api, value: Any) -> None:
    span = a_span(*await api.claimed(), attributes={"a": value})
    assert (await api.post("/spans", span)).status == 422


async def test_span_of_an_unknown_rollout_or_attempt_is_refused(api: Api) -> None:
    rollout_id, _ = await api.claimed()
    assert (await api.post("/spans", a_span("nobody", "x"))).detail == "Rollout nobody not found"
    answer = await api.post("/spans", a_span(rollout_id, "x"))
    assert (answer.status, answer.detail) == (400, f"Attempt x not found for rollout {rollout_id}")


async def test_span_numbers_are_drawn_one_by_one_or_many_at_once(api: Api) -> None:
    ids = {"rollout_id": "a", "attempt_id": "latest"}
    assert (await api.post("/spans/next", ids)).ok() == {"sequence_id": 1}
    pairs = [["a", "1"], ["b", "1"], ["a", "2"], ["a", "1"]]
    many = await api.post("/spans/next/batch", {"rollout_attempt_ids": pairs})
    assert many.ok() == {"sequence_ids": [2, 1, 3, 4]}
    assert (await api.post("/spans/next", {"rollout_id": "a"})).status == 422
    assert (await api.post("/spans/next", {"rollout_id": 1, "attempt_id": "x"})).status == 422


async def test_another_span_under_a_stored_id_is_a_conflict_and_null_without_an_idempotency_key(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    rollout_id, attempt_id = await api.claimed()
    span = a_span(rollout_id, attempt_id, span_id="s1")
    other = {**span, "name": "other"}
    await api.post("/spans", span)
    assert (await api.post("/spans", other)).ok(201) is None
    assert "is stored with other content" in caplog.text
    answer = await api.post("/spans", other, headers={"Idempotency-Key": "k" * 32})
    assert (answer.status, answer.json["error_type"]) == (409, "SpanConflict")
    new = a_span(rollout_id, attempt_id, span_id="s2")
    answer = await api.post("/spans/batch", {"spans": [other, new]})
    assert (answer.status, answer.json["indexes"]) == (409, [0])
    assert [pair[0] for pair in answer.json["recorded"]] == [1]


async def test_a_batch_answers_which_spans_were_new(api: Api) -> None:
    ids = await api.claimed()
    await api.post("/spans", a_span(*ids, span_id="old"))
    batch = [a_span(*ids, span_id=span_id, sequence_id=9) for span_id in ("new", "old", "newer", "new")]
    answer = (await api.post("/spans/batch", {"spans": batch})).ok(201)
    assert answer == {"recorded": [[0, 9], [2, 9]]}
    assert (await api.post("/spans/batch", {"spans": []})).ok(201) == {"recorded": []}


async def test_a_batch_can_be_numbered_by_the_store(api: Api) -> None:
    ids = await api.claimed()
    await api.post("/spans/next", {"rollout_id": ids[0], "attempt_id": ids[1]})
    batch = [a_span(*ids, span_id=span_id, sequence_id=0) for span_id in ("a", "b")]
    answer = (await api.post("/spans/batch", {"spans": batch, "number": True})).ok(201)
    assert answer == {"recorded": [[0, 2], [1, 3]]}
    listed = (await api.get(f"/spans?rollout_id={ids[0]}")).ok()["items"]
    assert [span["sequence_id"] for span in listed] == [2, 3]


async def test_both_ways_to_ask_for_spans_answer_alike(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    for number, span_id in enumerate("abc", 1):
        await api.post("/spans", a_span(rollout_id, attempt_id, span_id, sequence_id=number, name=f"step {span_id}"))
    query = f"rollout_id={rollout_id}&attempt_id=latest&name_contains=step&limit=2&sort_order=desc"
    asked = (await api.get(f"/spans?{query}")).ok()
    body = {
        "rollout_id": rollout_id,
        "attempt_id": "latest",
        "name_contains": "step",
        "limit": 2,
        "sort_order": "desc",
    }
    assert (await api.post("/spans/search", body)).ok() == asked
    assert [span["span_id"] for span in asked["items"]] == ["c", "b"]
    assert asked["total"] == 3


async def test_spans_are_asked_for_by_rollout(api: Api) -> None:
    assert (await api.get("/spans")).status == 422
    assert (await api.post("/spans/search", {})).status == 422
    assert (await api.get("/spans?rollout_id=nobody&attempt_id=latest&limit=5")).ok() == {
        "items": [],
        "limit": 5,
        "offset": 0,
        "total": 0,
    }


async def test_an_empty_attempt_id_matches_nothing(api: Api) -> None:
    ids = await api.claimed()
    await api.post("/spans", a_span(*ids))
    assert (await api.get(f"/spans?rollout_id={ids[0]}&attempt_id=")).ok()["total"] == 0


async def test_or_without_conditions_matches_no_span(api: Api) -> None:
    ids = await api.claimed()
    await api.post("/spans", a_span(*ids))
    assert (await api.get(f"/spans?rollout_id={ids[0]}&filter_logic=or")).ok()["total"] == 0


async def test_resources_are_published_without_an_envelope(api: Api) -> None:
    added = (await api.post("/resources", {"llm": LLM})).ok(201)
    assert added["resources_id"].startswith("rs-")
    assert (added["version"], added["resources"]) == (1, {"llm": COMPLETE_LLM})
    assert (await api.get("/resources/latest")).ok() == added
    assert (await api.get(f"/resources/{added['resources_id']}")).ok() == added


async def test_an_update_of_an_unknown_id_creates_it_even_if_it_is_called_latest(api: Api) -> None:
    first = (await api.post("/resources/mine", {"llm": LLM})).ok()
    second = (await api.post("/resources/mine", {})).ok()
    assert (first["version"], second["version"], second["resources"]) == (1, 2, {})
    assert (await api.post("/resources/latest", {})).ok()["resources_id"] == "latest"


async def test_there_are_no_resources_at_first(api: Api) -> None:
    assert (await api.get("/resources/latest")).ok() is None
    assert (await api.get("/resources/nobody")).ok() is None
    assert (await api.get("/resources")).ok() == {"items": [], "limit": -1, "offset": 0, "total": 0}


async def test_a_resource_names_its_type(api: Api) -> None:
    missing = await api.post("/resources", {"llm": {"endpoint": "e", "model": "m"}})
    assert (missing.status, missing.detail[0]["type"]) == (422, "union_tag_not_found")
    unknown = await api.post("/resources", {"llm": {"resource_type": "oracle"}})
    assert (unknown.status, unknown.detail[0]["type"]) == (422, "union_tag_invalid")
    assert (await api.post("/resources")).status == 422


async def test_resources_are_found_by_id_and_by_a_part_of_it(api: Api) -> None:
    for name in ("alpha", "beta", "alphabet"):
        await api.post(f"/resources/{name}", {})
    page = (await api.get("/resources?resources_id_contains=alpha&sort_by=resources_id&sort_order=desc")).ok()
    assert [update["resources_id"] for update in page["items"]] == ["alphabet", "alpha"]
    page = (await api.get("/resources?resources_id=beta&limit=1")).ok()
    assert ([update["resources_id"] for update in page["items"]], page["total"]) == (["beta"], 1)


async def test_a_heartbeat_creates_a_worker_with_or_without_a_body(api: Api) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    bare = (await api.post("/workers/w1", headers=headers, data=b"")).ok()
    assert (bare["status"], bare["heartbeat_stats"]) == ("unknown", None)
    assert (await api.post("/workers/w1", {"heartbeat_stats": {"cpu": 1}})).ok()["heartbeat_stats"] == {"cpu": 1}
    assert (await api.post("/workers/w1", {})).ok()["heartbeat_stats"] == {"cpu": 1}
    assert (await api.post("/workers/w1", {"heartbeat_stats": {}})).ok()["heartbeat_stats"] == {}
    refused = await api.post("/workers/w1", {"heartbeat_stats": None})
    assert (refused.status, refused.detail) == (400, "heartbeat_stats is invalid; it cannot be a null value.")
    assert (await api.get("/workers/w1")).ok().keys() == bare.keys()


async def test_workers_are_found_both_ways(api: Api) -> None:
    for name in ("w1", "w2", "x1"):
        await api.post(f"/workers/{name}")
    asked = (await api.get("/workers?worker_id_contains=w&status_in=unknown&status_in=idle&limit=1")).ok()
    body = {"worker_id_contains": "w", "status_in": ["unknown", "idle"], "limit": 1}
    assert (await api.post("/workers/search", body)).ok() == asked
    assert (asked["items"][0]["worker_id"], asked["total"]) == ("w1", 2)


async def test_the_state_of_a_worker_is_that_of_now(api: Api) -> None:
    await api.post("/workers/w1", {"heartbeat_stats": {"heartbeat_interval": 10, "stopped": True}})
    await api.post("/workers/w2", {"heartbeat_stats": {"heartbeat_interval": 10}})
    listed = (await api.get("/workers")).ok()["items"]
    # The clock of the store is far behind that of the server.
    assert [(worker["status"], worker["state"]) for worker in listed] == [("unknown", "stopped"), ("unknown", "lost")]
    assert (await api.get("/workers/w1")).ok()["state"] == "stopped"


async def test_search_is_also_the_id_of_a_worker(api: Api) -> None:
    assert (await api.get("/workers/search")).ok() is None
    assert (await api.get("/workers/nobody")).ok() is None


async def test_ids_may_hold_anything_that_is_percent_encoded(api: Api) -> None:
    assert (await api.post("/workers/host%2Fgpu%200%3F%C3%A9")).ok()["worker_id"] == "host/gpu 0?é"
    assert (await api.get("/workers/host%2Fgpu%200%3F%C3%A9")).ok()["worker_id"] == "host/gpu 0?é"
    assert (await api.get("/workers/host/gpu")).status == 404
