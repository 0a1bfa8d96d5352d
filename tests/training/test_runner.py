"""A runner processes the queue: at once, concurrently, and until it is stopped."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from store.interface.delegating import DelegatingStore
from store.interface.store import Store
from store.models import LLM, AttemptedRollout, LightningStoreCapabilities, PromptTemplate, RolloutConfig
from store.runtime.process import worker_name
from store.training import (
    LitAgent,
    Runner,
    emit_message,
    emit_reward,
    get_message_value,
    get_reward_value,
)
from store.training import rollout as decorated
from store.training.running import runner as runner_module
from store.training.tracer import ATTEMPT_SPAN
from tests.torture import rounds
from tests.training.doing import (
    Doing,
    Gate,
    ended,
    raising,
    returning,
    running,
    status_of,
)
from tests.training.stores import ON_EACH_STORE
from tests.training.training_helpers import RESOURCES, spans_of, until


@ON_EACH_STORE
async def test_rollouts_of_the_queue_are_run_and_reported(live: Store) -> None:
    def agent(task: Any, *_: Any) -> float:
        emit_message(str(task))
        return 0.5

    async with running(live, Doing(agent), worker_id=2):
        rollouts = await ended(live, *[await live.enqueue_rollout(number) for number in range(5)])
    for number, rollout in enumerate(rollouts):
        assert (rollout.status, rollout.attempt.status, rollout.attempt.worker_id) == (
            "succeeded",
            "succeeded",
            worker_name(2),
        )
        message, *rest = await spans_of(live, rollout)
        assert get_message_value(message) == str(number)
        assert [span.name for span in rest] == ["agentlightning.annotation", ATTEMPT_SPAN]


async def test_max_rollouts_counts_failures_too(memory: Store) -> None:
    await memory.add_resources(dict(RESOURCES))
    for number in range(5):
        await memory.enqueue_rollout(number)
    for concurrency in (1, 2):
        runner: Runner[Any] = Runner(max_rollouts=2, concurrency=concurrency)
        agent = raising(LookupError("no"))
        with runner.run_context(agent=agent, store=memory):
            await runner.iter()
        assert agent.started == 2
    statuses = sorted(rollout.status for rollout in await memory.query_rollouts())
    assert statuses == ["failed"] * 4 + ["queuing"]


async def test_attempts_run_side_by_side_up_to_the_concurrency(memory: Store) -> None:
    gate = Gate()
    async with running(memory, gate.agent(), concurrency=4):
        rollouts = [await memory.enqueue_rollout(number) for number in range(6)]
        await gate.holds(4)
        assert (await memory.query_rollouts(status_in=["queuing"])).total == 2
        gate.open.set()
        await ended(memory, *rollouts)
    assert sorted(gate.inside) == list(range(6))


async def test_attempts_side_by_side_do_not_mix_their_spans(live: Store) -> None:
    barrier = asyncio.Barrier(6)

    async def agent(task: Any, *_: Any) -> float:
        emit_message(str(task))
        await barrier.wait()
        emit_reward(float(task))
        await asyncio.to_thread(emit_message, str(task))
        return float(task)

    async with running(live, Doing(agent), concurrency=6):
        rollouts = await ended(live, *[await live.enqueue_rollout(number) for number in range(6)])
    for number, rollout in enumerate(rollouts):
        stored = await spans_of(live, rollout)
        assert {get_message_value(span) for span in stored} - {None} == {str(number)}
        assert len(stored) == 5
        assert {get_reward_value(span) for span in stored} - {None} == {float(number)}


async def test_two_runners_in_one_process_share_an_agent_and_nothing_else(memory: Store) -> None:
    await memory.add_resources(dict(RESOURCES))
    rollouts = [await memory.enqueue_rollout(number) for number in range(8)]

    def answer(task: Any, *_: Any) -> float:
        emit_message(f"{task} by {agent.runner.label}")
        return 1.0

    agent = Doing(answer)

    def work(worker_id: int) -> None:
        runner: Runner[Any] = Runner(max_rollouts=4)
        with runner.run_context(agent=agent, store=memory, worker_id=worker_id):
            asyncio.run(runner.iter())

    await asyncio.gather(*(asyncio.to_thread(work, worker_id) for worker_id in (1, 2)))
    workers: list[str] = []
    for number, rollout in enumerate(await ended(memory, *rollouts)):
        assert rollout.status == "succeeded"
        message = (await spans_of(memory, rollout))[0]
        assert get_message_value(message) == f"{number} by {rollout.attempt.worker_id}"
        workers.append(rollout.attempt.worker_id)
    assert sorted(workers) == [worker_name(1)] * 4 + [worker_name(2)] * 4


async def test_a_failed_attempt_is_tried_again_as_the_config_says(memory: Store) -> None:
    async with running(memory, raising(LookupError("no"))) as runner:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        (rollout,) = await ended(memory, await memory.enqueue_rollout(1, config=config))
    assert rollout.status == "failed"
    assert [attempt.status for attempt in await memory.query_attempts(rollout.rollout_id)] == ["failed"] * 3
    assert runner is not None


async def test_a_rollout_whose_resources_do_not_exist_fails_alone(memory: Store) -> None:
    await memory.add_resources(dict(RESOURCES))
    runner: Runner[Any] = Runner(max_rollouts=2)
    rollouts = [await memory.enqueue_rollout(1), await memory.enqueue_rollout(1, resources_id="rs-none")]
    with runner.run_context(agent=returning(1.0), store=memory):
        await runner.iter()
    assert [rollout.status for rollout in await ended(memory, *rollouts)] == ["succeeded", "failed"]


def without_resources() -> LitAgent[Any]:
    def agent(task: Any) -> float:
        return float(task)

    return decorated(agent)


def needing_a_prompt() -> LitAgent[Any]:
    def agent(task: Any, prompt_template: PromptTemplate) -> float:
        return float(task)

    return decorated(agent)


@asynccontextmanager
async def serving(store: Store, agent: LitAgent[Any]) -> AsyncGenerator[None]:
    """A runner of an agent on a store as it is."""
    event = asyncio.Event()
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=agent, store=store):
        working = asyncio.create_task(runner.iter(event=event))
        yield
        event.set()
        await working


async def test_an_agent_that_takes_only_the_task_needs_no_resources(live: Store) -> None:
    queued = await live.enqueue_rollout(1)
    async with serving(live, without_resources()):
        (done,) = await ended(live, queued)
    assert done.status == "succeeded"
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=without_resources(), store=live):
        assert (await runner.step(1)).status == "succeeded"


@pytest.mark.parametrize("agent, needs", [(needing_a_prompt(), "a PromptTemplate"), (returning(1.0), "resources")])
async def test_a_runner_waits_for_resources_and_says_so_once(
    live: Store, agent: LitAgent[Any], needs: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_UNREPORTED_SECONDS", 0.2)
    queued = [await live.enqueue_rollout(number) for number in range(2)]
    async with serving(live, agent):

        async def waiting() -> bool:
            return needs in caplog.text

        assert await until(waiting)
        await asyncio.sleep(0.3)
        assert [await status_of(live, rollout) for rollout in queued] == ["queuing", "queuing"]
        await live.add_resources(dict(RESOURCES))
        assert [rollout.status for rollout in await ended(live, *queued)] == ["succeeded", "succeeded"]
    said = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert said == [f"{worker_name(0)} waits, because its agent needs {needs} and the store has none"]


async def test_resources_of_another_kind_are_not_enough_but_any_id_is(memory: Store) -> None:
    model = {"model": LLM(endpoint="http://h/v1", model="m")}
    await memory.update_resources("other", dict(model))
    queued = await memory.enqueue_rollout(1)
    async with serving(memory, needing_a_prompt()):
        await asyncio.sleep(0.2)
        assert await status_of(memory, queued) == "queuing"
        await memory.update_rollout(queued.rollout_id, resources_id="prompts")
        await memory.update_resources("prompts", {"prompt": PromptTemplate(template="x", engine="f-string")})
        assert [rollout.status for rollout in await ended(memory, queued)] == ["succeeded"]
    # The rollout names its resources, which are no longer the latest.
    await memory.update_resources("other", dict(model))
    queued = await memory.enqueue_rollout(1, resources_id="prompts")
    async with serving(memory, needing_a_prompt()):
        assert [rollout.status for rollout in await ended(memory, queued)] == ["succeeded"]


async def test_a_runner_that_waits_for_resources_can_be_stopped(memory: Store) -> None:
    await memory.enqueue_rollout(1)
    async with serving(memory, needing_a_prompt()):
        await asyncio.sleep(0.1)


async def test_the_event_ends_it_between_attempts(memory: Store) -> None:
    gate = Gate()
    event = threading.Event()
    await memory.add_resources(dict(RESOURCES))
    first, second = [await memory.enqueue_rollout(number) for number in range(2)]
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=gate.agent(), store=memory):
        serving = asyncio.create_task(runner.iter(event=event))
        await gate.holds(1)
        event.set()
        gate.open.set()
        await serving
    assert [await status_of(memory, rollout) for rollout in (first, second)] == ["succeeded", "queuing"]


async def end_wait_for_rollouts(store: Store, event: Any) -> None:
    """Set the event of a runner that waits for rollouts, and return when the runner has ended."""
    await store.add_resources(dict(RESOURCES))
    # The tests end earlier.
    runner: Runner[Any] = Runner(poll_interval=600, heartbeat_interval=0)
    with runner.run_context(agent=returning(1.0), store=store):
        serving = asyncio.create_task(runner.iter(event=event))
        await ended(store, await store.enqueue_rollout(1))
        event.set()
        await serving


@pytest.mark.parametrize("kind", ["asyncio", "threading", "multiprocessing"])
async def test_an_event_of_any_kind_ends_the_wait_for_rollouts_at_once(memory: Store, kind: str) -> None:
    kinds: dict[str, Any] = {
        "asyncio": asyncio.Event,
        "threading": threading.Event,
        "multiprocessing": multiprocessing.get_context("spawn").Event,
    }
    await end_wait_for_rollouts(memory, kinds[kind]())


@ON_EACH_STORE
async def test_an_event_ends_the_wait_for_rollouts_of_any_store(live: Store) -> None:
    await end_wait_for_rollouts(live, threading.Event())


async def test_an_event_that_is_set_already_claims_nothing(memory: Store) -> None:
    event = threading.Event()
    event.set()
    rollout = await memory.enqueue_rollout(1)
    runner: Runner[Any] = Runner()
    with runner.run_context(agent=returning(1.0), store=memory):
        await runner.iter(event=event)
    assert await status_of(memory, rollout) == "queuing"


async def test_cancelled_runner_interrupts_its_running_attempts(live: Store) -> None:
    gate = Gate()
    await live.add_resources(dict(RESOURCES))
    rollouts = [await live.enqueue_rollout(number) for number in range(3)]
    runner: Runner[Any] = Runner(concurrency=2)
    with runner.run_context(agent=gate.agent(), store=live):
        serving = asyncio.create_task(runner.iter())
        await gate.holds(2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert sorted(gate.cancelled) == [0, 1]
    current: list[Any] = [await live.get_rollout_by_id(rollout.rollout_id) for rollout in rollouts]
    assert [rollout.status for rollout in current] == ["failed", "failed", "queuing"]
    assert [rollout.attempt.metadata for rollout in current[:2]] == [{"reason": "interrupted"}] * 2


@ON_EACH_STORE
async def test_no_claim_is_lost_when_the_runner_is_cancelled_while_it_waits(live: Store) -> None:
    await live.add_resources(dict(RESOURCES))
    runner: Runner[Any] = Runner(heartbeat_interval=0)
    rollouts: list[Any] = []
    with runner.run_context(agent=returning(1.0), store=live):
        for _ in range(10):
            serving = asyncio.create_task(runner.iter())
            await asyncio.sleep(0.01)
            rollouts.append(await live.enqueue_rollout(1))
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def settled() -> bool:
        statuses = {await status_of(live, rollout) for rollout in rollouts}
        return statuses <= {"queuing", "requeuing", "succeeded", "failed"}

    assert await until(settled)


class CancelsAfterClaim(DelegatingStore):
    """A store whose caller is cancelled some steps of the event loop after a claim."""

    def __init__(self, target: Store, steps: int) -> None:
        self._target = target
        self._steps = steps
        self.serving: asyncio.Task[None] | None = None

    @property
    def target(self) -> Store:
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._target.capabilities

    async def close(self) -> None:
        """Leave the other store open."""

    async def dequeue_many_rollouts(self, *args: Any, **kwargs: Any) -> list[AttemptedRollout]:
        claimed = await self._target.dequeue_many_rollouts(*args, **kwargs)
        self._cancel_after(self._steps)
        return claimed

    def _cancel_after(self, steps: int) -> None:
        if steps:
            asyncio.get_running_loop().call_soon(self._cancel_after, steps - 1)
        elif self.serving is not None:
            self.serving.cancel()


async def test_no_claim_is_lost_at_whichever_step_the_runner_is_cancelled(memory: Store) -> None:
    await memory.add_resources(dict(RESOURCES))
    for steps in range(1, 80):
        await memory.enqueue_rollout(steps)
        store = CancelsAfterClaim(memory, steps)
        runner: Runner[Any] = Runner(heartbeat_interval=0)
        with runner.run_context(agent=returning(1.0), store=store):
            store.serving = asyncio.create_task(runner.iter())
            await asyncio.gather(store.serving, return_exceptions=True)
    assert {rollout.status for rollout in await memory.query_rollouts()} <= {"queuing", "failed", "succeeded"}


async def test_an_agent_that_ends_the_process_ends_the_runner_and_is_reported(memory: Store) -> None:
    await memory.add_resources(dict(RESOURCES))
    rollout = await memory.enqueue_rollout(1)
    runner: Runner[Any] = Runner(concurrency=2)
    with runner.run_context(agent=raising(SystemExit(3)), store=memory), pytest.raises(SystemExit):
        await runner.iter()
    current: Any = await memory.get_rollout_by_id(rollout.rollout_id)
    assert (current.status, current.attempt.metadata) == ("failed", {"reason": "interrupted"})


@pytest.mark.slow
@pytest.mark.torture
async def test_how_soon_a_rollout_starts_after_it_was_enqueued(live: Store) -> None:
    """Print it."""
    count = rounds(30)
    starts: dict[Any, float] = {}

    def agent(task: Any, *_: Any) -> None:
        starts[task] = time.monotonic()

    enqueued: dict[Any, float] = {}
    async with running(live, Doing(agent)):
        for number in range(count):
            await asyncio.sleep(0.02)
            enqueued[number] = time.monotonic()
            await ended(live, await live.enqueue_rollout(number))
    delays = sorted(starts[number] - enqueued[number] for number in enqueued)
    print(
        f"\nfrom enqueue to the agent: median {statistics.median(delays) * 1e3:.1f} ms, most {delays[-1] * 1e3:.1f} ms"
    )
    assert len(delays) == count
