"""A store with the content of several days: `python -m tests.benchmarks.dashboard_store URL [ROLLOUTS [SPANS]]`."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, EnqueueRolloutRequest, PromptTemplate, Span, TraceStatus

ROLLOUTS: Final = 100_000
SPANS: Final = 50_000
"""Of the one rollout that has many."""
LARGE: Final = "large"
"""The group of that rollout."""

_CALL: Final = 5_000
_GROUP: Final = 8
_STEP: Final = 64
_AT_ONCE: Final = 500


async def generate(url: str, rollouts: int = ROLLOUTS, spans: int = SPANS) -> str:
    """Fill an empty store; return the id of the rollout with many spans.

    Four of five rollouts have ended, one in ten of them failed, some wait and some run.
    """
    dice = random.Random(7)
    async with await open_store(url) as store:
        for version in range(5):
            prompt = PromptTemplate(template=f"Answer in {version} words: {{question}}", engine="f-string")
            await store.update_resources("prompts", {"main": prompt})
        large = await store.start_rollout({"question": "long"}, metadata={"rollbook.group": LARGE}, worker_id="w-00")
        tree = _tree(large, spans)
        while call := list(islice(tree, _CALL)):
            await store.add_many_spans(call)
        await store.update_attempt(large.rollout_id, large.attempt.attempt_id, status="succeeded")
        for first in range(0, rollouts, _CALL):
            numbers = range(first, min(first + _CALL, rollouts))
            await store.enqueue_many_rollouts([_asked(number) for number in numbers])
            if first + _CALL < rollouts or first == 0:
                await _work(store, len(numbers), dice)
        return large.rollout_id


def _asked(number: int) -> EnqueueRolloutRequest:
    metadata = {"rollbook.group": f"task-{number // _GROUP:06}", "rollbook.step": number // _STEP}
    mode = "val" if number // _STEP % 10 == 9 else "train"
    return EnqueueRolloutRequest(input={"question": f"What is {number} + 1?"}, mode=mode, metadata=metadata)


async def _work(store: Store, count: int, dice: random.Random) -> None:
    for worker in range(0, count, _AT_ONCE):
        claimed = await store.dequeue_many_rollouts(min(_AT_ONCE, count), f"w-{worker // _AT_ONCE % 32:02}")
        await store.add_many_spans([span for rollout in claimed for span in _few(rollout, dice)])
        await asyncio.gather(*(_end(store, rollout, dice.random()) for rollout in claimed))


async def _end(store: Store, claimed: AttemptedRollout, luck: float) -> None:
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    if luck < 0.1:
        error = AttemptError(type=f"Error{int(luck * 100)}", message="the tool did not answer")
        await store.update_attempt(*ids, status="failed", error=error)
    elif luck < 0.999:
        await store.update_attempt(*ids, status="succeeded")


def _few(claimed: AttemptedRollout, dice: random.Random) -> Iterator[Span]:
    start = claimed.attempt.start_time
    ids: dict[str, Any] = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    call: dict[str, Any] = {
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": dice.randrange(50, 400),
        "gen_ai.usage.output_tokens": dice.randrange(5, 90),
    }
    yield Span.from_attributes(
        **ids, sequence_id=1, name="openai.chat.completion", attributes=call, start_time=start, end_time=start + 1
    )
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": dice.random()}
    yield Span.from_attributes(
        **ids, sequence_id=2, name="agentlightning.annotation", attributes=reward, start_time=start + 1
    )


def _tree(claimed: AttemptedRollout, spans: int) -> Iterator[Span]:
    """Yield spans of which each of the first is the parent of a hundred, three deep."""
    start = claimed.attempt.start_time
    for number in range(1, spans + 1):
        parent = None if number == 1 else (number - 2) // 100 + 1
        yield Span.from_attributes(
            rollout_id=claimed.rollout_id,
            attempt_id=claimed.attempt.attempt_id,
            sequence_id=number,
            trace_id=f"{1:032x}",
            span_id=f"{number:016x}",
            parent_id=None if parent is None else f"{parent:016x}",
            name=("agent", "step", "tool")[number % 3],
            attributes={"number": number, "text": "a part of the plan"},
            start_time=start + number * 0.01,
            end_time=start + number * 0.01 + 1,
            status=TraceStatus(status_code="ERROR" if number % 97 == 0 else "OK"),
        )


def main(arguments: Sequence[str]) -> None:
    """Fill the store of a URL."""
    url, *counts = arguments
    print(asyncio.run(generate(url, *map(int, counts))))


if __name__ == "__main__":
    main(sys.argv[1:])
