"""Work for an event-loop thread is completed or refused when the thread ends, at any time of its submission."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import open_store
from store.errors import Closed
from store.interface.store import Store
from store.models import LoggedEvent
from store.runtime.loop_thread import LoopThread
from tests.torture import rounds

SECONDS = 60
"""A caller that is not answered by then was forgotten."""
DELAYS = [0.018, 0.0, 0.006, 0.012, 0.002, 0.004, 0.008, 0.01, 0.014, 0.016]
"""Seconds before the store is closed, in each round."""


async def value() -> int:
    return 1


async def forever(started: threading.Event) -> None:
    started.set()
    await asyncio.Event().wait()


@contextmanager
def held(thread: LoopThread) -> Generator[None]:
    """Keep a loop from running anything for as long as the block lasts."""
    reached, go = threading.Event(), threading.Event()
    thread.call_soon(lambda: (reached.set(), go.wait(SECONDS)))
    assert reached.wait(SECONDS)
    try:
        yield
    finally:
        go.set()


def _ended(thread: LoopThread) -> None:
    """Return once a thread takes no more work."""
    while thread.call_soon(int):
        time.sleep(0.0005)


# The thread alone


async def test_work_that_runs_when_the_thread_ends_raises_closed() -> None:
    thread, started = LoopThread("a test"), threading.Event()
    call = asyncio.ensure_future(thread.run(forever(started)))
    await asyncio.to_thread(started.wait, SECONDS)
    thread.leave()
    with pytest.raises(Closed, match="forever"):
        await asyncio.wait_for(call, SECONDS)


async def test_work_that_is_handed_over_after_the_stop_raises_closed() -> None:
    thread = LoopThread("a test")
    with ThreadPoolExecutor() as pool, held(thread):
        leaving = pool.submit(thread.leave)
        # The stop stands in line behind what holds the loop; what is handed over from now on would stand behind it.
        await asyncio.to_thread(_ended, thread)
        with pytest.raises(Closed, match="value"):
            await asyncio.wait_for(thread.run(value()), SECONDS)
    leaving.result(SECONDS)


async def test_work_that_is_handed_over_before_the_stop_is_answered() -> None:
    for _ in range(10):
        thread = LoopThread("a test")
        with ThreadPoolExecutor() as pool, held(thread):
            calls = [asyncio.ensure_future(thread.run(value())) for _ in range(5)]
            await asyncio.sleep(0)
            leaving = pool.submit(thread.leave)
            await asyncio.to_thread(_ended, thread)
        leaving.result(SECONDS)
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SECONDS)
        assert all(answer == 1 or isinstance(answer, Closed) for answer in answers), answers


async def test_a_result_that_its_caller_no_longer_takes_is_handed_back_while_the_thread_ends() -> None:
    thread, lost = LoopThread("a test"), list[int]()
    with held(thread):
        call = asyncio.ensure_future(thread.run(value(), lost.append))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))
    thread.leave()
    assert call.cancelled()
    assert lost == [1]


def test_a_thread_that_ended_ends_again_and_takes_nothing() -> None:
    thread = LoopThread("a test")
    thread.shared().leave()
    assert thread.wait(value()) == 1
    thread.leave()
    thread.leave()
    with pytest.raises(Closed):
        thread.shared()
    with pytest.raises(Closed):
        thread.wait(value())


# The store: reads and streams that go on while it is closed


async def _read_until_closed(store: Store) -> None:
    while True:
        await store.query_rollouts()
        await store.statistics()


async def _follow(events: AsyncIterator[LoggedEvent]) -> None:
    async for _ in events:
        pass


def _read_without_await(store: Store) -> None:
    while True:
        store.sync.query_rollouts()


def _follow_without_await(store: Store) -> None:
    for _ in store.sync.log.tail(follow=True):
        pass


@pytest.mark.parametrize(
    "durable_url,is_busy",
    [
        pytest.param("sqlite", False, id="sqlite-idle"),
        pytest.param("sqlite", True, id="sqlite-writing"),
        pytest.param("postgres", False, id="postgres-idle", marks=pytest.mark.torture_only),
        pytest.param("postgres", True, id="postgres-writing"),
    ],
    indirect=["durable_url"],
)
@pytest.mark.slow
@pytest.mark.torture
async def test_whatever_waits_for_a_store_that_is_closed_raises_closed(store_url: str, *, is_busy: bool) -> None:
    for number, delay in enumerate(DELAYS[: rounds(len(DELAYS), few=3)]):
        store = await open_store(store_url)
        await store.enqueue_rollout(number)
        with ThreadPoolExecutor(4) as pool:
            here = [
                _read_until_closed(store),
                _follow(store.log.tail(follow=True)),
                _follow(store.log.tail(follow=True)),
            ]
            there = [_read_without_await, _follow_without_await]
            waiting = [asyncio.ensure_future(work) for work in here]
            waiting += [asyncio.wrap_future(pool.submit(work, store)) for work in there]
            # Another loop, as a server's is: it hands its reads over from its own thread.
            waiting.append(asyncio.wrap_future(pool.submit(asyncio.run, _read_until_closed(store))))
            if is_busy:
                await asyncio.gather(*(store.enqueue_rollout("more") for _ in range(20)))
            await asyncio.sleep(delay)
            await store.close()
            done, late = await asyncio.wait(waiting, timeout=SECONDS)
            assert not late, f"round {number}: {late}"
            errors = [work.exception() for work in done]
            assert [type(error) for error in errors] == [Closed] * len(waiting), errors
        store.sync.thread.get().leave()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list the threads")
def test_end_of_loop_thread_includes_its_end_in_the_system() -> None:
    # The C library calls `usleep(300000)` when it ends the thread, as it calls the destructors of OpenSSL.
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    assert libc.pthread_key_create(ctypes.byref(key), ctypes.cast(libc.usleep, ctypes.c_void_p)) == 0
    thread = LoopThread("slow to end")

    async def prepare() -> str:
        assert libc.pthread_setspecific(key, ctypes.c_void_p(300_000)) == 0
        return f"/proc/self/task/{threading.get_native_id()}"

    place = Path(thread.wait(prepare()))
    assert place.exists()
    thread.leave()
    assert not place.exists()
    assert libc.pthread_key_delete(key) == 0
