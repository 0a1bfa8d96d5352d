"""Calls that wait, over HTTP: divided into short requests, and cancelled by closing the connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event

import pytest

from store.client import HTTPStore
from store.client import core as http_core
from store.errors import Closed
from store.interface.store import Store
from tests.client.lossy_proxy import LossyProxy
from tests.client.scripted_server import ScriptedServer, answer

CLAIM = answer("200 OK", b"[]")

HUNG = 30.0
"""Seconds after which something that should have happened is taken to hang."""


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a server to wait for a tenth of a second at a time."""
    monkeypatch.setattr(http_core, "SLICE_SECONDS", 0.1)


@contextmanager
def watched(url: str, path: bytes, times: int) -> Generator[tuple[str, Event]]:
    """Give a URL that leads to the same server, and an event that is set once a path was answered so many times."""
    reached = Event()

    def loses(_: bytes) -> bool:
        if sum(path in head for head in proxy.heads) >= times:
            reached.set()
        return False

    with LossyProxy(url, loses) as proxy:
        yield proxy.url, reached


async def is_waiting(behind: Store, worker_id: str) -> None:
    """Return when the store has heard of a worker, which is when its call begins to wait."""
    async with asyncio.timeout(HUNG):
        async for event in behind.log.tail(follow=True, types=["worker.seen"]):
            if event.stream == f"worker/{worker_id}":
                return


@pytest.mark.usefixtures("short_slices")
async def test_a_long_wait_for_work_is_asked_for_in_slices_and_ends_with_work(url: str, behind: Store) -> None:
    with watched(url, b"/dequeue", 4) as (through, reached):
        async with HTTPStore(through) as store, asyncio.timeout(HUNG):
            waiting = asyncio.ensure_future(store.dequeue_rollout("w1", wait_seconds=1000))
            assert await asyncio.to_thread(reached.wait, HUNG)
            rollout = await behind.enqueue_rollout(1)
            claimed = await waiting
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)


@pytest.mark.usefixtures("short_slices")
async def test_a_long_wait_for_ends_is_asked_for_in_slices_and_ends_with_the_last(url: str, behind: Store) -> None:
    one, other = [await behind.start_rollout(number) for number in range(2)]
    rollout_ids = [other.rollout_id, "ro-none", one.rollout_id]
    with watched(url, b"/waits/", 4) as (through, reached):
        async with HTTPStore(through) as store, asyncio.timeout(HUNG):
            waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids))
            await behind.update_rollout(one.rollout_id, status="failed")
            assert await asyncio.to_thread(reached.wait, HUNG)
            assert not waiting.done()
            await behind.update_rollout(other.rollout_id, status="succeeded")
            assert [rollout.rollout_id for rollout in await waiting] == [other.rollout_id, one.rollout_id]


@pytest.mark.usefixtures("short_slices")
async def test_a_wait_that_ends_in_the_middle_of_a_slice_keeps_to_its_time(store: HTTPStore, behind: Store) -> None:
    rollout = await behind.start_rollout(1)
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await store.dequeue_rollout(wait_seconds=0.25) is None
    assert loop.time() - before >= 0.25
    before = loop.time()
    assert await store.wait_for_rollouts([rollout.rollout_id], timeout=0.25) == []
    assert loop.time() - before >= 0.25


async def test_a_wait_that_is_given_up_takes_nothing_and_ends_at_the_server(store: HTTPStore, behind: Store) -> None:
    for number in range(5):
        worker_id = f"w{number}"
        waiting = asyncio.ensure_future(store.dequeue_rollout(worker_id, wait_seconds=1000))
        await is_waiting(behind, worker_id)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    rollout = await behind.enqueue_rollout(1)
    async with asyncio.timeout(HUNG):
        claimed = await store.dequeue_rollout("last", wait_seconds=1000)
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)


async def test_a_server_that_vanishes_during_a_wait_is_looked_for_again(url: str, behind: Store) -> None:
    """The proxy drops the connection of the wait while the server goes on; the next try is another wait."""
    rollout = await behind.start_rollout(1)
    with LossyProxy.losing_first(url, "/waits/rollouts", times=2) as proxy:
        async with HTTPStore(proxy.url) as store, asyncio.timeout(HUNG):
            waiting = asyncio.ensure_future(store.wait_for_rollouts([rollout.rollout_id]))
            await behind.update_rollout(rollout.rollout_id, status="cancelled")
            assert [cancelled.status for cancelled in await waiting] == ["cancelled"]
        assert proxy.lost == 2


async def test_a_claim_that_is_given_up_resets_its_connection_even_if_its_answer_has_come() -> None:
    def serve(listener: socket.socket) -> BaseException | bytes:
        connection, _ = listener.accept()
        with connection:
            while not connection.recv(65536).endswith(b"}"):
                pass
            asked.set()
            assert is_to_answer.wait(HUNG)
            connection.sendall(CLAIM)
            answered.set()
            try:
                return connection.recv(1)
            except ConnectionError as reset:
                return reset

    asked, is_to_answer, answered = Event(), Event(), Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve, listener)
        async with HTTPStore(f"http://127.0.0.1:{listener.getsockname()[1]}") as store:
            waiting = asyncio.ensure_future(store.dequeue_rollout("w1", wait_seconds=1000))
            assert await asyncio.to_thread(asked.wait, HUNG)
            is_to_answer.set()
            # In the loop's own thread, so that the answer is there and nobody has read it.
            assert answered.wait(HUNG)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert isinstance(await asyncio.to_thread(serving.result, HUNG), ConnectionResetError)


async def test_closing_ends_a_claim_that_waits() -> None:
    with ScriptedServer([None]) as server:
        store = HTTPStore(server.url)
        waiting = asyncio.ensure_future(store.dequeue_rollout("w1", wait_seconds=1000))
        assert await asyncio.to_thread(server.came.wait, HUNG)
        await store.close()
        with pytest.raises(Closed):
            await waiting
