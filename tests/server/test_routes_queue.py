"""Enqueueing, claiming and waiting over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.interface.store import Store
from store.server.partitions import Partitions
from tests.server.api import Api, speaking_to

ENQUEUE, DEQUEUE, WAIT = "/queues/rollouts/enqueue", "/queues/rollouts/dequeue", "/waits/rollouts"
HANG = 20


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
async def api(store: Store, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """A client of a server with the fast path, and of one without."""
    async with speaking_to(Partitions(store), has_fast_path=request.param) as api:
        yield api


async def test_enqueueing_answers_the_rollouts_in_the_order_of_the_request(api: Api) -> None:
    rollouts = [{"input": 1, "mode": "train", "metadata": {"k": [1, 2.5, None]}}, {"input": {"é": None}}]
    created = (await api.post(ENQUEUE, {"rollouts": rollouts})).ok(201)
    assert [rollout["input"] for rollout in created] == [1, {"é": None}]
    assert created[0]["metadata"] == {"k": [1, 2.5, None]}
    assert created[1].keys() == {
        *("rollout_id", "input", "start_time", "end_time", "mode", "resources_id", "status", "config", "metadata"),
        *("reward", "rewards"),
    }
    assert created[1]["metadata"] == {}
    assert created[1]["status"] == "queuing"


async def test_enqueueing_nothing_answers_an_empty_list(api: Api) -> None:
    assert (await api.post(ENQUEUE, {"rollouts": []})).ok(201) == []


async def test_enqueueing_needs_its_key(api: Api) -> None:
    answer = await api.post(ENQUEUE, {})
    assert answer.status == 422
    assert answer.detail[0]["loc"] == ["body", "rollouts"]
    assert answer.detail[0]["type"] == "missing"


async def test_a_bad_rollout_keeps_the_whole_batch_out(api: Api) -> None:
    bad = {"rollouts": [{"input": 1}, {"input": 2, "mode": "prod"}]}
    answer = await api.post(ENQUEUE, bad)
    assert answer.status == 422
    assert answer.detail[0]["loc"] == ["body", "rollouts", 1, "mode"]
    assert await api.dequeue() == []


async def test_claiming_without_a_body_takes_the_first(api: Api) -> None:
    first, _ = await api.enqueue(1, 2)
    headers = {"Content-Type": "application/octet-stream"}
    (claimed,) = (await api.post(DEQUEUE, headers=headers, data=b"")).ok()
    assert claimed["rollout_id"] == first["rollout_id"]
    assert claimed["status"] == "preparing"
    assert claimed["attempt"]["sequence_id"] == 1
    assert claimed["attempt"]["worker_id"] is None


async def test_claiming_with_null_for_a_body_takes_the_first(api: Api) -> None:
    await api.enqueue()
    assert len((await api.post(DEQUEUE, None)).ok()) == 1


async def test_an_empty_queue_answers_an_empty_list(api: Api) -> None:
    assert (await api.post(DEQUEUE)).ok() == []


async def test_a_batch_is_claimed_in_order_for_a_worker(api: Api) -> None:
    created = await api.enqueue(*range(5))
    claimed = await api.dequeue(limit=3, worker_id="w1")
    assert [rollout["rollout_id"] for rollout in claimed] == [rollout["rollout_id"] for rollout in created[:3]]
    worker = (await api.get("/workers/w1")).ok()
    assert worker["status"] == "busy"
    assert worker["current_rollout_id"] == claimed[-1]["rollout_id"]


async def test_a_limit_of_zero_or_less_touches_nothing(api: Api) -> None:
    await api.enqueue()
    assert await api.dequeue(limit=0, worker_id="w1") == []
    assert await api.dequeue(limit=-3, worker_id="w1") == []
    assert (await api.get("/workers/w1")).ok() is None
    assert len(await api.dequeue()) == 1


async def test_a_null_limit_is_refused(api: Api) -> None:
    assert (await api.post(DEQUEUE, {"limit": None})).status == 422


async def test_numbers_may_come_as_text(api: Api) -> None:
    await api.enqueue(1, 2)
    assert len((await api.post(DEQUEUE, {"limit": "2"})).ok()) == 2
    assert (await api.post(DEQUEUE, {"limit": 1.5})).status == 422


async def test_unknown_keys_are_ignored(api: Api) -> None:
    await api.enqueue(1, tags=["x"])
    (claimed,) = await api.dequeue(colour="blue")
    assert "tags" not in claimed


async def test_a_claim_waits_for_work(api: Api) -> None:
    async with asyncio.timeout(HANG):
        waiting = asyncio.ensure_future(api.dequeue(wait_seconds=60, worker_id="w1"))
        await _until_idle(api, "w1")
        (created,) = await api.enqueue()
        (claimed,) = await waiting
    assert claimed["rollout_id"] == created["rollout_id"]


async def test_a_claim_that_waited_in_vain_answers_an_empty_list(api: Api) -> None:
    async with asyncio.timeout(HANG):
        assert await api.dequeue(wait_seconds=0.05) == []


async def test_a_wait_that_is_no_length_of_time_is_refused(api: Api) -> None:
    answer = await api.post(DEQUEUE, {"wait_seconds": -1})
    assert answer.status == 400
    assert answer.json["error_type"] == "Invalid"
    assert answer.json["field"] == "wait_seconds"


async def test_waiting_answers_plain_rollouts_in_the_order_asked_for(api: Api, store: Store) -> None:
    first, second, third = [rollout["rollout_id"] for rollout in await api.enqueue(1, 2, 3)]
    for rollout_id in (second, first):
        await store.update_rollout(rollout_id, status="succeeded")
    body = {"rollout_ids": [second, "nobody", first, third, second], "timeout": 0}
    ended = (await api.post(WAIT, body)).ok()
    assert [rollout["rollout_id"] for rollout in ended] == [second, first, second]
    assert "attempt" not in ended[0]


async def test_an_unbounded_wait_ends_with_the_last_rollout(api: Api, store: Store) -> None:
    (created,) = await api.enqueue()
    async with asyncio.timeout(HANG):
        waiting = asyncio.ensure_future(api.post(WAIT, {"rollout_ids": [created["rollout_id"]]}))
        await api.until_parked()
        await store.update_rollout(created["rollout_id"], status="cancelled")
        (ended,) = (await waiting).ok()
    assert ended["status"] == "cancelled"


async def test_waiting_call_does_not_block_other_calls(api: Api) -> None:
    (created,) = await api.enqueue()
    body = {"rollout_ids": [created["rollout_id"]], "timeout": None}
    async with asyncio.timeout(HANG):
        waiting = asyncio.ensure_future(api.post(WAIT, body))
        await api.until_parked()
        assert len(await api.dequeue()) == 1
        await api.post(f"/rollouts/{created['rollout_id']}", {"status": "failed"})
        assert len((await waiting).ok()) == 1


async def test_wait_for_an_unknown_rollout_answers_at_once(api: Api) -> None:
    async with asyncio.timeout(HANG):
        assert (await api.post(WAIT, {"rollout_ids": ["nobody"]})).ok() == []
    assert (await api.post(WAIT, {})).status == 422


async def _until_idle(api: Api, worker_id: str) -> None:
    """Return once a worker has asked in vain, and so waits."""
    worker: Any = None
    while worker is None:
        worker = (await api.get(f"/workers/{worker_id}")).ok()
