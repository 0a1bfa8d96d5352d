"""Equal concurrent queries are sent once, and no result is older than its query."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.interface.store import Store
from store.models import LLM, ResourcesUpdate
from store.training import Runner, rollout
from store.training.running.single_flight import SingleFlight
from tests.training.unreliable import Unreliable


class Asked:
    """A question whose answer is how often it was asked; a gate holds the answers back."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.gate = asyncio.Event()
        self._came = asyncio.Condition()

    async def was_asked(self, times: int) -> None:
        """Wait for the asking of that number to begin."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.keys) >= times)

    async def __call__(self, key: str) -> int:
        self.keys.append(key)
        number = len(self.keys)
        async with self._came:
            self._came.notify_all()
        await self.gate.wait()
        if key == "wrong":
            raise LookupError(key)
        return number


async def test_questions_put_at_once_are_asked_once_for_each_key() -> None:
    asked = Asked()
    asked.gate.set()
    together = SingleFlight(asked)
    answers = await asyncio.gather(*(together(key) for key in ("one", "two", "one", "two", "one")))
    assert (asked.keys, answers) == (["one", "two"], [1, 2, 1, 2, 1])


async def test_a_question_put_after_the_asking_began_is_asked_anew() -> None:
    asked = Asked()
    together = SingleFlight(asked)
    first = asyncio.create_task(together("one"))
    await asked.was_asked(1)
    second = asyncio.create_task(together("one"))
    await asked.was_asked(2)
    asked.gate.set()
    assert await asyncio.gather(first, second) == [1, 2]


async def test_cancelled_caller_does_not_cancel_the_shared_call() -> None:
    asked = Asked()
    together = SingleFlight(asked)
    leaving, staying = (asyncio.create_task(together("one")) for _ in range(2))
    await asked.was_asked(1)
    leaving.cancel()
    asked.gate.set()
    assert await staying == 1
    assert leaving.cancelled()


async def test_error_of_a_shared_call_is_raised_to_all_callers() -> None:
    asked = Asked()
    asked.gate.set()
    together = SingleFlight(asked)
    raised = await asyncio.gather(*(together("wrong") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in raised] == [LookupError] * 3
    assert asked.keys == ["wrong"]


class Counting(Unreliable):
    """Passes calls on, and counts those that read resources."""

    def __init__(self, target: Store) -> None:
        super().__init__(target)
        self.reads = 0

    async def get_latest_resources(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        """Count."""
        self.reads += 1
        return await super().get_latest_resources(*args, **kwargs)

    async def get_resources_by_id(self, *args: Any, **kwargs: Any) -> ResourcesUpdate | None:
        """Count."""
        self.reads += 1
        return await super().get_resources_by_id(*args, **kwargs)


async def test_attempts_that_are_claimed_together_read_their_resources_once(live: Store) -> None:
    counting = Counting(live)
    await live.add_resources({"llm": LLM(endpoint="http://127.0.0.1:1", model="m")})
    for number in range(6):
        await live.enqueue_rollout(number)
    runner = Runner[int](max_rollouts=6, concurrency=6, heartbeat_interval=0)
    with runner.run_context(agent=_counted, store=counting):
        await runner.iter()
    # The runner reads the resources once before it claims, and once to see that they are not those of a run. The
    # attempts read them once.
    assert counting.reads == 3
    assert {row.status for row in await live.query_rollouts()} == {"succeeded"}


@rollout
def _counted(task: int, llm: LLM) -> float:
    assert llm.model == "m"
    return float(task)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_concurrent_attempts_get_separate_copies_of_resources(memory: Store, in_thread: bool) -> None:
    seen: list[dict[str, Any]] = []

    @rollout
    def spoiling(task: int, llm: LLM) -> None:
        seen.append(dict(llm.sampling_parameters))
        llm.sampling_parameters["spoiled by"] = task

    await memory.add_resources({"llm": LLM(endpoint="http://127.0.0.1:1", model="m", sampling_parameters={"n": 1})})
    for number in range(6):
        await memory.enqueue_rollout(number)
    runner = Runner[int](max_rollouts=6, concurrency=6, heartbeat_interval=0, sync_in_thread=in_thread)
    with runner.run_context(agent=spoiling, store=memory):
        await runner.iter()
    assert seen == [{"n": 1}] * 6
