"""An async agent that emits a reward does not block, and its reward is stored and numbered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from store.interface.store import Store
from store.models import AttemptedRollout
from store.semconv import ANNOTATION_SPAN
from store.training import Tracer, emit_annotation_async, emit_message, emit_reward_async, get_reward_value
from tests.training.training_helpers import started, until
from tests.training.unreliable import Unreliable

EMITTERS: dict[str, Callable[[], Awaitable[Any]]] = {
    "reward": lambda: emit_reward_async(0.5, attributes={"judge": "me"}),
    "annotation": lambda: emit_annotation_async({"judge": "me"}),
}


def ids(rollout: AttemptedRollout) -> dict[str, Any]:
    return {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}


@pytest.mark.parametrize("emitter", EMITTERS)
async def test_awaited_emit_is_stored_and_numbered_before_it_returns(live: Store, emitter: str) -> None:
    rollout = await started(live)
    tracer = Tracer()
    with tracer.lifespan(live):
        async with tracer.trace_context(**ids(rollout)):
            emit_message("before")
            emitted = await EMITTERS[emitter]()
            stored = await live.query_spans(rollout.rollout_id)
            # As a proxy in another process draws the number of a call that begins now.
            following = await live.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
    assert [(span.name, span.sequence_id) for span in stored] == [("agentlightning.message", 1), (ANNOTATION_SPAN, 2)]
    assert stored[1].attributes == emitted.attributes
    assert following == 3


async def test_the_event_loop_goes_on_until_it_is_stored(memory: Store) -> None:
    unreliable = Unreliable(memory)
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.hangs = True
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)):
            emitting = asyncio.create_task(emit_reward_async(1.0))
            await until(lambda: asyncio.sleep(0, unreliable.tried > 0))
            assert not emitting.done()
            unreliable.hangs = False
            await emitting
            assert [get_reward_value(span) for span in await memory.query_spans(rollout.rollout_id)] == [1.0]


async def test_emit_cancelled_during_storage_is_still_stored(memory: Store) -> None:
    unreliable = Unreliable(memory)
    rollout = await started(memory)
    tracer = Tracer()
    unreliable.hangs = True
    with tracer.lifespan(unreliable):
        async with tracer.trace_context(**ids(rollout)):
            emitting = asyncio.create_task(emit_reward_async(1.0))
            await until(lambda: asyncio.sleep(0, unreliable.tried > 0))
            emitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await emitting
            unreliable.hangs = False
    assert [get_reward_value(span) for span in await memory.query_spans(rollout.rollout_id)][:1] == [1.0]


async def test_rewards_of_tasks_that_run_at_once_are_all_stored_in_their_attempts(memory: Store) -> None:
    tracer = Tracer()

    async def attempt(worth: float) -> list[float | None]:
        rollout = await started(memory)
        async with tracer.trace_context(**ids(rollout)):
            await asyncio.gather(*(emit_reward_async(worth) for _ in range(5)))
            return [get_reward_value(span) for span in await memory.query_spans(rollout.rollout_id)]

    with tracer.lifespan(memory):
        stored = await asyncio.gather(*(asyncio.create_task(attempt(number / 10)) for number in range(8)))
    assert stored == [[number / 10] * 5 for number in range(8)]


async def test_in_a_trace_that_belongs_to_no_attempt_it_stays_here(memory: Store) -> None:
    tracer = Tracer()
    with tracer.lifespan(memory):
        async with tracer.trace_context("local"):
            await emit_reward_async({"a": 1.0, "b": 2.0}, primary_key="b")
    assert get_reward_value(tracer.get_last_trace()[0]) == 2.0


async def test_mistakes_are_those_of_the_others() -> None:
    with pytest.raises(RuntimeError, match="outside of an attempt"):
        await emit_reward_async(1.0)
    with pytest.raises(RuntimeError, match="outside of an attempt"):
        await emit_annotation_async({"a": 1})
    with pytest.raises(ValueError, match="finite"):
        await emit_reward_async(float("nan"))
    with pytest.raises(ValueError, match="not one of the dimensions"):
        await emit_reward_async({"a": 1.0})
    with pytest.raises(TypeError):
        await emit_reward_async("1")  # pyright: ignore[reportArgumentType] (the mistake)
