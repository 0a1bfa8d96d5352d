"""StoreServer: a store in its own process, and its client in any other process."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import pickle
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest

from store import open_store
from store.client import HTTPStore
from store.interface.delegating import DelegatingStore
from store.interface.store import Store
from store.models import AttemptedRollout, LightningStoreCapabilities, Rollout
from store.models.calls import ChangingCall
from store.server import LightningStoreServer, LightningStoreThreaded, StoreServer
from tests.server.test_statuses import Failing

HANG = 60


@pytest.fixture(params=["thread", "asyncio"])
async def server(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[StoreServer]:
    server = StoreServer(store, port=0, launch_mode=request.param)
    await server.start()
    yield server
    async with asyncio.timeout(HANG):
        await server.stop()


@pytest.mark.parametrize("kind", [DelegatingStore, HTTPStore])
def test_nothing_of_the_interface_is_left_out(kind: type[Store]) -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    # Which a store of any make has to have itself.
    methods -= {"close", "otlp_traces_endpoint"}
    # Which the interface turns into a query value for `find_…`.
    methods -= {name for name in methods if name.replace("query_", "find_") in methods - {name}}
    # Which the interface turns into a value for `call`.
    methods -= {kind.method for kind in cast("list[Any]", ChangingCall.__subclasses__())}
    assert {name for name in methods if getattr(kind, name) is getattr(Store, name)} == set()


async def _status(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


async def test_it_answers_once_it_has_started_and_no_longer_when_it_was_stopped(server: StoreServer) -> None:
    assert await _status(f"{server.endpoint}/v1/agl/health") == 200
    await server.start()
    await server.stop()
    await server.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await _status(f"{server.endpoint}/v1/agl/health")


async def test_it_can_be_started_again_on_its_port(server: StoreServer) -> None:
    await server.stop()
    endpoint = server.endpoint
    await server.start()
    assert server.endpoint == endpoint
    assert await _status(f"{endpoint}/v1/agl/health") == 200


async def test_stopping_leaves_the_store_open(server: StoreServer, store: Store) -> None:
    await server.stop()
    assert (await server.enqueue_rollout(1)).rollout_id == (await store.query_rollouts()).items[0].rollout_id


async def test_in_its_own_process_it_is_the_store(server: StoreServer, store: Store) -> None:
    assert server.target is store
    created = await server.enqueue_rollout({"a": 1})
    assert await store.get_rollout_by_id(created.rollout_id) == created
    assert server.capabilities.get("otlp_traces")
    assert server.otlp_traces_endpoint() == f"{server.endpoint}/v1/traces"


async def test_clients_see_the_writes_of_the_owner(server: StoreServer) -> None:
    created = await server.enqueue_rollout({"a": 1})
    async with HTTPStore(server.endpoint) as client:
        assert await client.get_rollout_by_id(created.rollout_id) == created


async def test_a_pickled_copy_talks_to_the_owner(server: StoreServer) -> None:
    copy: StoreServer = pickle.loads(pickle.dumps(server))
    try:
        assert isinstance(copy.target, HTTPStore)
        assert copy.endpoint == server.endpoint
        created = await copy.enqueue_rollout("from afar")
        assert await server.get_rollout_by_id(created.rollout_id) == created
        with pytest.raises(RuntimeError, match="belongs to process"):
            await copy.start()
    finally:
        await copy.close()
    assert await _status(f"{server.endpoint}/v1/agl/health") == 200


def _enqueue_in_fork(server: StoreServer, answers: Any) -> None:
    async def work() -> str:
        created = await server.enqueue_rollout("from a fork")
        await server.close()
        return created.rollout_id

    answers.put(asyncio.run(work()))


async def test_a_forked_copy_talks_to_the_owner() -> None:
    async with await open_store("memory://") as store:
        server = StoreServer(store, port=0)
        await server.start()
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_enqueue_in_fork, args=(server, answers))
        child.start()
        try:
            async with asyncio.timeout(HANG):
                rollout_id = await asyncio.to_thread(answers.get)
                await asyncio.to_thread(child.join)
            assert child.exitcode == 0
            assert (await store.get_rollout_by_id(rollout_id)) is not None
            assert await _status(f"{server.endpoint}/v1/agl/health") == 200
        finally:
            child.kill()
            await asyncio.to_thread(child.join)
            await server.stop()


async def test_taken_port_is_refused_and_its_owner_named(server: StoreServer, store: Store) -> None:
    port = int(server.endpoint.rpartition(":")[2])
    second = StoreServer(store, port=port)
    with pytest.raises(RuntimeError, match=r"did not start up within.*address already in use.*a Rollbook server"):
        await second.start()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        third = StoreServer(store, port=other.getsockname()[1])
        with pytest.raises(RuntimeError, match="a program that does not speak HTTP"):
            await third.start()


async def test_stopping_wakes_waiting_calls(server: StoreServer) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(HANG):
        url = f"{server.endpoint}/v1/agl/queues/rollouts/dequeue"
        waiting = asyncio.ensure_future(session.post(url, json={"wait_seconds": 600}))
        while True:
            async with session.get(f"{server.endpoint}/metrics") as answer:
                if "rollbook_parked_calls 1" in await answer.text():
                    break
        await server.stop()
        async with await waiting as answer:
            assert answer.status == 503
            assert (await answer.json())["error_type"] == "Unavailable"


async def test_running_for_ever_ends_with_the_stop(store: Store) -> None:
    server = StoreServer(store, port=0)
    async with asyncio.timeout(HANG):
        await server.start()
        running = asyncio.ensure_future(server.run_forever())
        await asyncio.sleep(0)
        await server.stop()
        await running


async def test_being_cancelled_stops_it(store: Store) -> None:
    server = StoreServer(store, port=0)
    async with asyncio.timeout(HANG):
        await server.start()
        running = asyncio.ensure_future(server.run_forever())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(aiohttp.ClientConnectionError):
        await _status(f"{server.endpoint}/v1/agl/health")


async def test_closing_ends_both(store: Store) -> None:
    server = StoreServer(store, port=0)
    async with server:
        assert await _status(f"{server.endpoint}/v1/agl/health") == 200
    with pytest.raises(RuntimeError):
        await store.enqueue_rollout(1)


async def test_a_store_for_one_task_alone_cannot_be_served(store: Store) -> None:
    class ForOneTask(Failing):
        @property
        def capabilities(self) -> LightningStoreCapabilities:
            return {"async_safe": False}

    with pytest.raises(ValueError, match="not async-safe"):
        StoreServer(ForOneTask(store))


async def test_several_processes_are_not_for_a_private_store() -> None:
    async with await open_store("memory://") as private:
        with pytest.raises(ValueError, match=r"^The store does not support zero-copy\."):
            StoreServer(private, launch_mode="mp")
        with pytest.raises(ValueError, match="rollbook serve"):
            StoreServer(private, n_workers=2)


async def test_before_it_has_a_port_it_has_no_endpoint(store: Store) -> None:
    with pytest.raises(RuntimeError, match="start it first"):
        _ = StoreServer(store, port=0).endpoint
    assert StoreServer(store, "localhost", 4747).endpoint == "http://localhost:4747"


async def test_the_names_of_agent_lightning_are_there(store: Store) -> None:
    assert LightningStoreServer is StoreServer
    assert LightningStoreThreaded(store) is store
    assert "any thread" in (LightningStoreThreaded.__doc__ or "")


class UnsafeStore(DelegatingStore):
    """A store that is not safe for threads."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.active = self.most = 0

    @property
    def target(self) -> Store:
        return self._inner

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": False}

    async def enqueue_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0.002)
        self.active -= 1
        return await self._inner.enqueue_rollout(*args, **kwargs)

    async def dequeue_many_rollouts(  # type: ignore[override]
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> list[AttemptedRollout]:
        return await self._inner.dequeue_many_rollouts(limit, worker_id)


async def test_calls_of_a_store_that_is_not_thread_safe_are_locked(store: Store) -> None:
    slow = UnsafeStore(store)
    locked = LightningStoreThreaded(slow)
    assert locked.capabilities.get("thread_safe")

    async def enqueue() -> None:
        await asyncio.gather(*(locked.enqueue_rollout(number) for number in range(5)))

    await asyncio.gather(enqueue(), *(asyncio.to_thread(asyncio.run, enqueue()) for _ in range(3)))
    assert (slow.most, slow.active) == (1, 0)
    claimed = await locked.dequeue_many_rollouts(30, "worker")
    assert len(claimed) == 20
    # A waiting call does not hold the lock, and a cancelled caller gives its turn away.
    waiting = asyncio.create_task(locked.dequeue_rollout("worker", wait_seconds=30))
    cancelled = [asyncio.create_task(locked.enqueue_rollout("left")) for _ in range(3)]
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    await locked.enqueue_rollout("last")
    assert await waiting is not None
