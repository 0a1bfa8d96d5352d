"""One client object in several event loops, threads, forks and pickled copies."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.client import HTTPStore
from store.errors import Closed
from store.interface.store import Store
from store.models import Rollout

HUNG = 30.0
"""Seconds after which something that should have happened is taken to hang."""


async def enqueue(store: Store, task: object) -> Rollout:
    return await store.enqueue_rollout(task)


def enqueue_in_a_loop(store: Store, task: object) -> Rollout:
    return asyncio.run(enqueue(store, task))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_two_loops_in_turn_and_at_once_share_one_client(store: HTTPStore) -> None:
    await enqueue(store, "here")
    for task in ("first", "second"):
        await asyncio.to_thread(enqueue_in_a_loop, store, task)
    await asyncio.gather(*[asyncio.to_thread(enqueue_in_a_loop, store, number) for number in range(8)])
    assert (await store.query_rollouts()).total == 11


def test_a_loop_that_ends_leaves_no_open_connection(url: str) -> None:
    store = HTTPStore(url)
    before = open_files()
    for number in range(20):
        asyncio.run(enqueue(store, number))
    gc.collect()
    assert open_files() <= before + 2


def test_a_client_that_is_let_go_of_leaves_no_open_connection(url: str) -> None:
    async def use_many() -> None:
        for number in range(20):
            await enqueue(HTTPStore(url), number)
        gc.collect()
        # Its connections are closed by the loop, in its next rounds.
        for _ in range(20):
            await asyncio.sleep(0)
        assert open_files() < before + 20

    before = open_files()
    asyncio.run(use_many())


def test_many_threads_share_one_client(url: str, store: HTTPStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        rollouts = list(pool.map(enqueue_in_a_loop, [store] * 200, range(200)))
    assert len({one.rollout_id for one in rollouts}) == 200
    assert store.sync.query_rollouts().total == 200


async def test_a_pickled_copy_is_the_same_store_with_the_same_settings(url: str, store: HTTPStore) -> None:
    rollout = await enqueue(store, 1)
    original = HTTPStore(url, api_key="k-1", retry_seconds=1.5, connections=3)
    copy: HTTPStore = pickle.loads(pickle.dumps(original))
    async with copy:
        assert await copy.get_rollout_by_id(rollout.rollout_id) == rollout
    assert copy.__reduce__() == original.__reduce__()


@pytest.mark.slow
async def test_a_copy_works_in_a_process_that_shares_nothing(store: HTTPStore) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rollout = await asyncio.to_thread(pool.apply, enqueue_in_a_loop, (store, "elsewhere"))
    assert await store.get_rollout_by_id(rollout.rollout_id) == rollout


def in_fork(work: Callable[[], object]) -> bytes:
    """Return what a forked child makes of it."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def test_a_fork_makes_connections_of_its_own_and_leaves_its_parents_alone(url: str) -> None:
    store = HTTPStore(url)

    async def parent() -> None:
        first = await enqueue(store, "parent")
        told = await asyncio.to_thread(in_fork, lambda: asyncio.run(child()))
        assert told == b"True"
        # On the connection it had before.
        assert await store.get_rollout_by_id(first.rollout_id) == first
        assert (await store.query_rollouts()).total == 2
        await store.close()

    async def child() -> bool:
        await enqueue(store, "child")
        total = (await store.query_rollouts()).total
        await store.close()
        return total == 2

    asyncio.run(parent())


def test_forked_copy_of_a_blocking_client_opens_its_own_connection(url: str) -> None:
    store = HTTPStore(url)
    store.sync.enqueue_rollout(1)
    told = in_fork(lambda: asyncio.run(enqueue(store, 2)).input)
    assert told == b"2"
    assert store.sync.query_rollouts().total == 2
    store.sync.close()


async def test_closing_ends_the_waits_of_every_loop(store: HTTPStore, behind: Store) -> None:
    waiting = threading.Event()

    async def wait() -> None:
        call = asyncio.ensure_future(store.dequeue_rollout("w1", wait_seconds=1000))
        # The worker is known from the moment at which its call begins to wait.
        await anext(behind.log.tail(follow=True, types=["worker.seen", "worker.status_changed"]))
        waiting.set()
        await call

    elsewhere = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(wait())))
    assert await asyncio.to_thread(waiting.wait, HUNG)
    async with asyncio.timeout(HUNG):
        await store.close()
        with pytest.raises(Closed):
            await elsewhere


async def test_closing_lets_a_call_that_does_not_wait_finish(store: HTTPStore) -> None:
    calls = [asyncio.ensure_future(enqueue(store, number)) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert len({(await call).rollout_id for call in calls}) == 20


async def test_calls_that_wait_leave_room_for_those_that_do_not(url: str) -> None:
    async with HTTPStore(url, connections=1) as store:
        waits = [asyncio.ensure_future(store.dequeue_rollout(f"w{number}", wait_seconds=1000)) for number in range(40)]
        async with asyncio.timeout(HUNG):
            for number in range(40):
                await enqueue(store, number)
            claimed = await asyncio.gather(*waits)
        assert sorted(one.input for one in claimed if one) == list(range(40))
