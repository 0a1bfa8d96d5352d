"""A request that is repeated with its key gets the same response and is executed once."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.server.api import ON_BOTH_DATABASES, Answer, Api, a_span

ENQUEUE, DEQUEUE = "/queues/rollouts/enqueue", "/queues/rollouts/dequeue"


async def _twice(api: Api, path: str, body: Any) -> tuple[Answer, Answer]:
    headers = {"Idempotency-Key": uuid4().hex}
    return await api.post(path, body, headers=headers), await api.post(path, body, headers=headers)


@ON_BOTH_DATABASES
async def test_nothing_is_enqueued_twice(api: Api) -> None:
    first, second = await _twice(api, ENQUEUE, {"rollouts": [{"input": 1}, {"input": 2}]})
    assert first.ok(201) == second.ok(201)
    assert (await api.get("/rollouts")).ok()["total"] == 2


@ON_BOTH_DATABASES
async def test_nothing_is_claimed_twice(api: Api) -> None:
    await api.enqueue(1, 2)
    first, second = await _twice(api, DEQUEUE, {"limit": 1, "worker_id": "w"})
    assert first.ok() == second.ok()
    assert len(await api.dequeue(limit=5)) == 1


async def test_nothing_is_started_twice(api: Api) -> None:
    first, second = await _twice(api, "/rollouts", {"input": 1})
    assert first.ok(201) == second.ok(201)
    path = f"/rollouts/{first.json['rollout_id']}/attempts"
    first, second = await _twice(api, path, {"worker_id": "w"})
    assert first.ok(201)["attempt"] == second.ok(201)["attempt"]
    assert (await api.get(path)).ok()["total"] == 2


async def test_an_attempt_is_ended_once_with_its_spans_and_the_next_claim(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    await api.enqueue(1, 2)
    body = {"status": "succeeded", "spans": [a_span(rollout_id, attempt_id)], "number": True, "claim_as": "w"}
    first, second = await _twice(api, f"/rollouts/{rollout_id}/attempts/{attempt_id}/finish", body)
    assert first.ok() == second.ok()
    assert (len(first.json["spans"]), first.json["claimed"]["input"]) == (1, 1)
    assert len(await api.dequeue(limit=5)) == 1


async def test_a_span_that_was_new_is_new_again(api: Api) -> None:
    span = a_span(*await api.claimed())
    first, second = await _twice(api, "/spans", span)
    assert first.ok(201) == second.ok(201) == span
    first, second = await _twice(api, "/spans/batch", {"spans": [span, {**span, "span_id": "b"}]})
    assert first.ok(201) == second.ok(201) == {"recorded": [[1, 1]]}


async def test_derived_ids_are_derived_once(api: Api) -> None:
    span = a_span(*await api.claimed(), span_id="a", trace_id="1")
    await api.post("/spans", span)
    first, second = await _twice(api, "/spans/batch", {"spans": [{**span, "trace_id": "2"}], "number": True})
    assert first.ok(201) == second.ok(201)
    (ids,) = first.ok(201)["derived"]
    assert (ids["index"], len(ids["span_id"]), ids["parent_id"]) == (0, 16, None)


async def test_no_number_is_drawn_twice(api: Api) -> None:
    ids = {"rollout_id": "a", "attempt_id": "b"}
    first, second = await _twice(api, "/spans/next", ids)
    assert first.ok() == second.ok() == {"sequence_id": 1}
    first, second = await _twice(api, "/spans/next/batch", {"rollout_attempt_ids": [["a", "b"], ["a", "b"]]})
    assert first.ok() == second.ok() == {"sequence_ids": [2, 3]}


async def test_spans_are_numbered_once(api: Api) -> None:
    rollout_id, attempt_id = await api.claimed()
    body = {"spans": [a_span(rollout_id, attempt_id, sequence_id=0)], "number": True}
    first, second = await _twice(api, "/spans/batch", body)
    assert first.ok(201) == second.ok(201) == {"recorded": [[0, 1]]}
    assert (await api.post("/spans/next", {"rollout_id": rollout_id, "attempt_id": "x"})).ok() == {"sequence_id": 2}


async def test_no_version_is_published_twice(api: Api) -> None:
    first, second = await _twice(api, "/resources", {})
    assert first.ok(201) == second.ok(201)
    first, second = await _twice(api, "/resources/mine", {})
    assert first.ok() == second.ok()
    assert (await api.get("/resources/mine")).ok()["version"] == 1


@pytest.mark.parametrize("path,body", [(ENQUEUE, {"rollouts": [{"input": 2}]}), ("/rollouts", {"input": 1})])
async def test_another_request_under_the_same_key_is_refused(api: Api, path: str, body: Any) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    await api.post(ENQUEUE, {"rollouts": [{"input": 1}]}, headers=headers)
    answer = await api.post(path, body, headers=headers)
    assert (answer.status, answer.json["error_type"]) == (400, "Conflict")


async def test_without_a_key_every_request_counts(api: Api) -> None:
    for _ in range(2):
        await api.post(ENQUEUE, {"rollouts": [{"input": 1}]})
    assert (await api.get("/rollouts")).ok()["total"] == 2


async def test_a_key_does_not_reach_the_next_request_of_its_connection(api: Api) -> None:
    parts = urlsplit(api.url)
    body = b'{"rollouts":[{"input":1}]}'

    def request(*headers: str) -> bytes:
        lines = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers)
        return f"POST /v1/agl{ENQUEUE} HTTP/1.1\r\n".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    async with asyncio.timeout(60):
        # All at once: the server begins with one while it ends the other.
        writer.write(request(f"Idempotency-Key: {uuid4().hex}") + request() + request("Connection: close"))
        answers = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answers.count(b"HTTP/1.1 201") == 3
    assert (await api.get("/rollouts")).ok()["total"] == 3


async def test_a_claim_that_found_nothing_may_be_tried_again_under_its_key(api: Api) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    assert (await api.post(DEQUEUE, {"limit": 1}, headers=headers)).ok() == []
    await api.enqueue()
    assert len((await api.post(DEQUEUE, {"limit": 1}, headers=headers)).ok()) == 1
