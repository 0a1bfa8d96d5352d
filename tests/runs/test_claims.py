"""Runs are claimed by their resources; other rollouts keep their places in the queue."""

from __future__ import annotations

import asyncio

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import Rollout
from store.run_folders.folder_phases import TA
from store.testing.samples import make_prompt


async def resources(store: Store) -> tuple[str, str]:
    """Publish a phase graph and a prompt, and return the ids of the resources."""
    graph = (await store.add_resources({"phases": TA})).resources_id
    return graph, (await store.add_resources(make_prompt())).resources_id


async def test_a_claim_of_runs_leaves_other_rollouts_in_the_queue(store: Store) -> None:
    graph, prompt = await resources(store)
    await store.enqueue_rollout("task", resources_id=prompt)
    train = await store.enqueue_rollout("train", mode="train", resources_id=graph)
    runs = [await store.enqueue_rollout(number, resources_id=graph) for number in range(3)]
    first = await store.runs.claim([graph], limit=2, worker_id="w")
    assert [rollout.rollout_id for rollout in first] == [run.rollout_id for run in runs[:2]]
    assert {(rollout.status, rollout.attempt.status, rollout.attempt.worker_id) for rollout in first} == {
        ("preparing", "preparing", "w")
    }
    assert [rollout.input for rollout in await store.runs.claim([graph, prompt], limit=1)] == ["task"]
    assert [rollout.input for rollout in await store.runs.claim([graph], limit=9)] == [2]
    assert await store.runs.claim([graph], worker_id="w") == []
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert worker.status == "busy"
    assert [rollout.rollout_id for rollout in await store.dequeue_many_rollouts(9)] == [train.rollout_id]
    assert (await store.log.verify()).ok
    assert await store.runs.claim([]) == []
    with pytest.raises(Invalid):
        await store.runs.claim([graph], wait_seconds=-1)


async def test_a_waiting_claim_of_runs_gets_the_next_run_and_no_task(store: Store) -> None:
    graph, prompt = await resources(store)
    tasks = [await store.enqueue_rollout(number, resources_id=prompt) for number in range(3)]
    claims = [asyncio.create_task(store.runs.claim([graph], worker_id=f"w{n}", wait_seconds=30)) for n in range(2)]
    waiting = asyncio.create_task(store.dequeue_many_rollouts(4, "trainer", wait_seconds=30))
    assert [rollout.rollout_id for rollout in await waiting] == [task.rollout_id for task in tasks]
    await asyncio.sleep(0.1)
    assert not any(claim.done() for claim in claims)
    runs: list[Rollout] = []
    for number in range(2):
        runs.append(await store.enqueue_rollout(number, resources_id=graph))
        await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED if number == 0 else asyncio.ALL_COMPLETED)
    claimed = [claim.result()[0].rollout_id for claim in claims]
    assert sorted(claimed) == sorted(run.rollout_id for run in runs)


async def test_two_workers_never_claim_the_same_run(store: Store) -> None:
    graph, _ = await resources(store)
    runs = [await store.enqueue_rollout(number, resources_id=graph) for number in range(12)]

    async def claim_all(worker_id: str) -> list[str]:
        claimed: list[str] = []
        while some := await store.runs.claim([graph], limit=2, worker_id=worker_id):
            claimed += [rollout.rollout_id for rollout in some]
        return claimed

    claimed = await asyncio.gather(*(claim_all(f"w{number}") for number in range(3)))
    assert sorted(rollout_id for of_worker in claimed for rollout_id in of_worker) == sorted(
        run.rollout_id for run in runs
    )
