"""A process that runs a graph is killed, and another process resumes the graph. Acceptance scenario 62."""

from __future__ import annotations

import asyncio
import multiprocessing

import pytest

from store import open_store
from store.integrations.langgraph import RollbookSaver
from store.sql.store import SQLStore
from tests.faults import processes
from tests.threads import work
from tests.threads.langgraph_samples import ON_BOTH, abc, config, saying, side_by_side

pytestmark = pytest.mark.slow


@ON_BOTH
async def test_killed_after_b_only_c_runs_again(store_url: str) -> None:
    async with await open_store(store_url) as store:
        run = await store.start_rollout({"date": "2026-11-20"})
    thread_id, (told, tells) = f"{run.rollout_id}:RIG", multiprocessing.Pipe(duplex=False)
    with processes.running(work.run_until_c, (store_url, thread_id, run.attempt.attempt_id, tells)) as (process,):
        assert await asyncio.to_thread(told.poll, 60)
        processes.kill(process)
    ran: list[str] = []
    async with await open_store(store_url) as store:
        assert isinstance(store, SQLStore)
        assert (await store.query_attempts(run.rollout_id)).items[0].status == "running"
        again = await store.start_attempt(run.rollout_id)
        runnable = config(thread_id, attempt_id=again.attempt.attempt_id)
        assert (await abc(RollbookSaver(store), ran).ainvoke(None, runnable))["said"] == ["hello", "A", "B", "C"]
        assert ran == ["C"]
        assert [attempt.status for attempt in (await store.query_attempts(run.rollout_id)).items] == ["running"] * 2
        assert (await store.log.verify()).differences == []


async def test_task_that_wrote_before_the_kill_does_not_run_again(store_url: str) -> None:
    async with await open_store(store_url):
        told, tells = multiprocessing.Pipe(duplex=False)
    with processes.running(work.run_side_by_side, (store_url, tells)) as (process,):
        assert await asyncio.to_thread(told.poll, 60)
        processes.kill(process)
    ran: list[str] = []
    async with await open_store(store_url) as store:
        graph = side_by_side(RollbookSaver(store), saying("A", ran), saying("B", ran))
        assert (await graph.ainvoke(None, config("t")))["said"] == ["A", "B", "C"]
        assert ran == ["B"]
        assert (await store.log.verify()).differences == []
