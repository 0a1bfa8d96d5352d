"""Stores to train on, attempts to trace, and reads of the stored spans."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from store.interface.store import Store
from store.models import LLM, AttemptedRollout, PromptTemplate, RolloutConfig, Span
from store.training import Tracer
from store.training.tracer import ATTEMPT_SPAN

RESOURCES = {
    "main_llm": LLM(endpoint="http://127.0.0.1:9/v1", model="m"),
    "prompt": PromptTemplate(template="Say {what}.", engine="f-string"),
}


async def started(store: Store, input_: Any = 1, **config: Any) -> AttemptedRollout:
    """Return a rollout with an attempt, past the queue."""
    return await store.start_rollout(input_, config=RolloutConfig(**config) if config else None)


async def spans_of(store: Store, rollout: Any) -> list[Span]:
    """Return what is stored of a rollout, in the order of its numbers."""
    return list(await store.query_spans(rollout.rollout_id))


async def spans_of_attempt(
    store: Store, work: Callable[[], Awaitable[Any]], tracer: Tracer | None = None
) -> list[Span]:
    """Return the spans of an attempt in which something is done; the last is its root."""
    rollout = await started(store)
    tracer = tracer or Tracer()
    with tracer.lifespan(store):
        async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id):
            await work()
    spans = await spans_of(store, rollout)
    assert spans[-1].name == ATTEMPT_SPAN
    return spans


async def names_of(store: Store, rollout: Any) -> list[str]:
    """Return the names of a rollout's spans, in the order of their numbers."""
    return [span.name for span in await spans_of(store, rollout)]


def collect(*gone: weakref.ref[Any], seconds: float = 60.0) -> None:
    """Collect garbage until these are gone. A collection that another thread has begun makes one here do nothing."""
    deadline = time.monotonic() + seconds
    while any(reference() is not None for reference in gone):
        assert time.monotonic() < deadline, [reference() for reference in gone]
        gc.collect()
        time.sleep(0.005)


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Return the value of a condition once it is true. A test that waits in vain is ended by its timeout."""
    while not (result := await condition()):  # noqa: ASYNC110 - a condition of another process
        await asyncio.sleep(0.005)
    return result
