"""A runner reports the end of an attempt, stores its last spans and claims the next rollout in one call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import pytest

from store import open_store
from store.errors import Unavailable
from store.interface.delegating import DelegatingStore
from store.interface.store import Store
from store.models import AttemptedRollout, LightningStoreCapabilities
from store.models.calls import ChangingCall, FinishAttemptCall
from store.models.finished_attempts import FinishedAttempt
from store.sql.store import SQLStore
from store.training import LitAgent, Runner, emit_message
from store.training.running import outages
from store.training.tracer import ATTEMPT_SPAN
from tests.training.doing import Doing, Recording, ended, returning, running
from tests.training.training_helpers import RESOURCES, spans_of, until

T = TypeVar("T")


class Observed(DelegatingStore):
    """A store that calls a function after each end of an attempt, before the runner gets the result."""

    def __init__(self, target: Store, ended: Callable[[FinishedAttempt], Any]) -> None:
        self._target = target
        self._ended = ended

    @property
    def target(self) -> Store:
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._target.capabilities

    async def call(self, call: ChangingCall[T]) -> T:
        result = await super().call(call)
        if isinstance(call, FinishAttemptCall):
            self._ended(cast("FinishedAttempt", result))
            await asyncio.sleep(0.01)
        return result


async def filled(store: Store, count: int) -> list[str]:
    await store.add_resources(dict(RESOURCES))
    return [(await store.enqueue_rollout(number)).rollout_id for number in range(count)]


async def statuses(store: Store) -> list[str]:
    return [rollout.status for rollout in await store.query_rollouts()]


async def test_an_attempt_costs_one_commit() -> None:
    async with await open_store("memory://") as store:
        assert isinstance(store, SQLStore)
        await filled(store, 10)
        runner: Runner[Any] = Runner(max_rollouts=10, heartbeat_interval=0)
        commits = store.core.writer_statistics.commits

        def agent(task: Any, *_: Any) -> float:
            emit_message(str(task))
            return 1.0

        with runner.run_context(agent=Doing(agent), store=store):
            await runner.iter()
        # The first claim, an end of each attempt, and the first sweep.
        assert store.core.writer_statistics.commits - commits <= 12
        assert await statuses(store) == ["succeeded"] * 10
        assert (await store.statistics()).get("total_spans") == 30


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_claim_at_the_end_of_an_attempt_is_given_back_when_the_runner_stops(
    memory: Store, concurrency: int
) -> None:
    rollout_ids = await filled(memory, 4)
    stop = threading.Event()
    store = Observed(memory, lambda _: stop.set())
    runner: Runner[Any] = Runner(concurrency=concurrency)
    with runner.run_context(agent=returning(1.0), store=store):
        await runner.iter(event=stop)
    done = await statuses(memory)
    assert done == ["succeeded"] * concurrency + ["queuing"] * (4 - concurrency)
    types = [event.type async for event in memory.log.tail()]
    assert 1 <= types.count("claim.released") <= concurrency
    claimed = await memory.dequeue_rollout("another")
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout_ids[concurrency], 1)


async def test_a_claim_at_the_end_of_an_attempt_is_given_back_when_the_runner_is_cancelled(memory: Store) -> None:
    rollout_ids = await filled(memory, 2)
    tasks: list[asyncio.Task[None]] = []
    store = Observed(memory, lambda _: tasks[0].cancel())
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=returning(1.0), store=store):
        tasks.append(asyncio.create_task(runner.iter()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    assert await statuses(memory) == ["succeeded", "queuing"]
    assert "claim.released" in [event.type for event in await memory.log.history(rollout_ids[1])]


async def test_nothing_is_claimed_during_the_pause_after_a_failure_of_infrastructure(
    memory: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outages, "_FIRST_PAUSE_SECONDS", 60.0)
    finished: list[FinishedAttempt] = []
    store = Observed(memory, finished.append)
    can_end = asyncio.Event()

    async def agent(task: int, *_: Any) -> float:
        if task == 0:
            raise Unavailable("the server is gone")
        await can_end.wait()
        return 1.0

    async def is_pausing() -> bool:
        return "no rollouts are claimed for up to" in caplog.text

    await filled(memory, 4)
    async with running(store, Doing(agent), concurrency=2):
        await until(is_pausing)
        # The end of the other attempt could claim a rollout in the same call.
        can_end.set()
        await until(lambda: asyncio.sleep(0, len(finished) == 2))
        assert await statuses(memory) == ["failed", "succeeded", "queuing", "queuing"]
    assert await statuses(memory) == ["failed", "succeeded", "queuing", "queuing"]
    assert [attempt.claimed for attempt in finished] == [None, None]


async def test_hooks_get_all_spans_once_after_a_lost_answer_to_the_end_of_an_attempt(memory: Store) -> None:
    class Lossy(Observed):
        async def call(self, call: ChangingCall[T]) -> T:
            result = await super().call(call)
            if isinstance(call, FinishAttemptCall):
                raise Unavailable("the answer was lost")
            return result

    store, hook = Lossy(memory, lambda _: None), Recording()

    def agent(*_: Any) -> float:
        emit_message("first")
        emit_message("second")
        return 1.0

    rollout = await memory.enqueue_rollout(0)
    async with running(store, Doing(agent), hooks=[hook], max_rollouts=1):
        (result,) = await ended(memory, rollout)
        await until(lambda: asyncio.sleep(0, bool(hook.outcomes)))
    assert result.status == "succeeded"
    names = ["agentlightning.message"] * 2 + ["agentlightning.annotation", ATTEMPT_SPAN]
    stored = await spans_of(memory, rollout)
    assert [span.name for span in stored] == names
    assert hook.outcomes[0].spans == stored
    assert hook.spans == stored


async def test_no_more_rollouts_are_claimed_than_the_runner_may_run(memory: Store) -> None:
    await filled(memory, 7)
    claims: list[bool] = []
    store = Observed(memory, lambda finished: claims.append(isinstance(finished.claimed, AttemptedRollout)))
    runner: Runner[Any] = Runner(max_rollouts=5, concurrency=2)
    with runner.run_context(agent=returning(1.0), store=store):
        await runner.iter()
    assert sorted(await statuses(memory)) == ["queuing"] * 2 + ["succeeded"] * 5
    assert (len(claims), sum(claims)) == (5, 3)


async def test_a_runner_with_a_limit_continues_after_an_empty_queue(memory: Store) -> None:
    await filled(memory, 1)
    runner: Runner[Any] = Runner(max_rollouts=2)
    with runner.run_context(agent=returning(1.0), store=memory):
        running = asyncio.create_task(runner.iter())
        first = await memory.query_rollouts()
        await memory.wait_for_rollouts([first[0].rollout_id], timeout=30)
        await memory.enqueue_rollout(1)
        async with asyncio.timeout(30):
            await running
    assert await statuses(memory) == ["succeeded"] * 2


async def test_context_variables_of_an_attempt_do_not_reach_the_next_one(memory: Store) -> None:
    await filled(memory, 3)
    variable: ContextVar[int] = ContextVar("variable", default=0)
    values: list[int] = []

    class Counting(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            values.append(variable.get())
            variable.set(variable.get() + 1)
            return 1.0

    runner: Runner[Any] = Runner(max_rollouts=3, sync_in_thread=False)
    with runner.run_context(agent=Counting(), store=memory):
        await runner.iter()
    assert values == [0, 0, 0]
