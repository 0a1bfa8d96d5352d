"""A runner survives an outage of the store and loses no data of its agents."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from store import HTTPStore
from store.errors import Unavailable, Unsupported
from store.interface.store import Store
from store.training import (
    Runner,
    Tracer,
    emit_message,
    emit_reward,
    get_message_value,
    get_reward_value,
)
from store.training.tracer import ATTEMPT_SPAN
from tests.client.server_process import ServerProcess
from tests.training.doing import (
    Doing,
    Gate,
    ended,
    returning,
    running,
)
from tests.training.training_helpers import names_of, spans_of, until
from tests.training.unreliable import Unreliable


async def test_an_attempt_is_reported_when_the_store_is_back(memory: Store) -> None:
    store = Unreliable(memory)

    def agent(*_: Any) -> float:
        store.is_down = True
        emit_message("the store is gone")
        threading.Timer(1.0, setattr, (store, "is_down", False)).start()
        return 1.0

    async with running(store, Doing(agent)):
        (rollout,) = await ended(store, await store.enqueue_rollout(1))
    assert rollout.status == "succeeded"
    assert await names_of(store, rollout) == ["agentlightning.message", "agentlightning.annotation", ATTEMPT_SPAN]


async def test_an_attempt_whose_spans_were_not_stored_in_time_is_failed(memory: Store) -> None:
    class Deaf(Unreliable):
        async def add_many_spans(self, spans: Any) -> Any:
            self.is_down = False
            raise ConnectionError

    store = Deaf(memory)
    async with running(store, returning(1.0), tracer=Tracer(spool_seconds=0.2)):
        (rollout,) = await ended(store, await store.enqueue_rollout(1))
    assert (rollout.status, rollout.attempt.metadata) == ("failed", {"reason": "spool"})


async def test_a_queue_that_cannot_be_reached_is_asked_again(memory: Store) -> None:
    class Flaky(Unreliable):
        refusals = 3

        async def dequeue_many_rollouts(self, *args: Any, **kwargs: Any) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise Unavailable("not now")
            return await super().dequeue_many_rollouts(*args, **kwargs)

    store = Flaky(memory)
    async with running(store, returning(1.0)):
        (rollout,) = await ended(store, await store.enqueue_rollout(1))
    assert rollout.status == "succeeded"


async def test_a_store_that_refuses_to_hand_out_rollouts_ends_the_runner(memory: Store) -> None:
    runner: Runner[Any] = Runner(heartbeat_interval=0)
    with runner.run_context(agent=returning(1.0), store=memory):
        await memory.close()
        with pytest.raises(RuntimeError, match="closed store"):
            await runner.iter()


async def test_a_store_without_a_log_is_served_too(memory: Store) -> None:
    class Logless(Unreliable):
        def tail(self, *args: Any, **kwargs: Any) -> Any:
            raise Unsupported("tail", "Logless")

    store = Logless(memory)
    gate = Gate()
    async with running(store, gate.agent(), heartbeat_interval=0.1, interval_jitter=0.0):
        rollout = await store.enqueue_rollout(1)
        await gate.holds(1)
        # A heartbeat's answer tells it instead.
        await memory.update_attempt(rollout.rollout_id, "latest", status="timeout")
        await until(lambda: asyncio.sleep(0, gate.cancelled))


@pytest.mark.slow
async def test_a_server_that_is_killed_and_comes_back_has_every_span_in_order(durable_url: str) -> None:
    server = ServerProcess(durable_url)
    await asyncio.to_thread(server.start)
    gone, back = threading.Event(), threading.Event()

    def agent(*_: Any) -> float:
        emit_message("0")
        emit_reward(0.0)
        server.kill()
        for number in range(1, 50):
            emit_message(str(number))
        gone.set()
        back.wait(60)
        return 1.0

    async with HTTPStore(server.url) as store, running(store, Doing(agent)):
        rollout = await store.enqueue_rollout(1)
        assert await asyncio.to_thread(gone.wait, 30)
        await asyncio.to_thread(server.start)
        back.set()
        (result,) = await ended(store, rollout)
        stored = await spans_of(store, rollout)
    server.kill()
    assert result.status == "succeeded"
    assert [said for span in stored if (said := get_message_value(span))] == [str(number) for number in range(50)]
    assert [span.sequence_id for span in stored] == sorted({span.sequence_id for span in stored})
    assert get_reward_value(stored[-2]) == 1.0
