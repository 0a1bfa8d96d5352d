"""A store with the rollouts of an agent that calls a tool, for exports."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from store import open_store
from store.models import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    Event,
    NewScore,
    OtelResource,
    RolloutConfig,
    Span,
    TraceStatus,
)
from store.semconv import REWARD

ROLLOUTS = 8
START = 1_790_000_000.0
QUESTION = "What is {0}+{0}?"


def call(attempt: Any, number: int, messages: list[dict[str, str]], answer: dict[str, str], **fields: Any) -> Span:
    """Return the span of a chat with a model."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": f"{attempt.attempt_id}-{number}",
        "gen_ai.usage.prompt_tokens": 10 * number,
        "gen_ai.usage.completion_tokens": 5,
        "prompt_token_ids": list(range(3 * number)),
        "response_token_ids": [7, 8, 9],
        "gen_ai.completion.0.finish_reason": "stop",
    }
    for place, message in enumerate(messages):
        attributes |= {f"gen_ai.prompt.{place}.{name}": value for name, value in message.items()}
    attributes |= {f"gen_ai.completion.0.{name}": value for name, value in answer.items()}
    return span(attempt, number, attributes, **{"name": "openai.chat.completion", **fields})


def span(attempt: Any, number: int, attributes: dict[str, Any], **fields: Any) -> Span:
    """Return a span that takes half a second."""
    values: dict[str, Any] = {
        "attributes": attributes,
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "sequence_id": number,
        "span_id": f"{attempt.attempt_id[-8:]}{number:08x}",
        "trace_id": "0" * 31 + "1",
        "start_time": START + number,
        "end_time": START + number + 0.5,
    }
    return Span.from_attributes(**{**values, **fields})


def conversation(attempt: Any, number: int) -> list[Span]:
    """Return the spans of an attempt: a call that uses a tool, the tool, a call that answers, and a reward."""
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION.format(number)}]
    use = {
        "role": "assistant",
        "content": "",
        "tool_calls.0.id": "c1",
        "tool_calls.0.name": "add",
        "tool_calls.0.arguments": f'{{"a":{number},"b":{number}}}',
    }
    result = {"role": "tool", "content": str(2 * number), "tool_call_id": "c1"}
    answer = {"role": "assistant", "content": f"It is {2 * number}."}
    tool = span(attempt, 2, {"gen_ai.tool.name": "add", "note": 'é \\ " },"x"'}, name="add")
    rich = tool.model_copy(
        update={
            "events": [Event(name="retried", attributes={"exception.message": "secret"}, timestamp=START)],
            "resource": OtelResource(attributes={"service.name": "agent"}, schema_url=""),
            "status": TraceStatus.model_validate({"status_code": "ERROR", "description": "long " * 100, "code": 2}),
        }
    )
    return [
        call(attempt, 1, prompt, use),
        rich,
        call(attempt, 3, [*prompt, use, result], answer),
        span(
            attempt,
            4,
            {
                f"{REWARD}.0.name": "correct",
                f"{REWARD}.0.value": float(number % 2),
                f"{REWARD}.1.name": "brevity",
                f"{REWARD}.1.value": 0.5,
            },
            name="agentlightning.annotation",
        ),
    ]


def _request(number: int) -> EnqueueRolloutRequest:
    return EnqueueRolloutRequest(
        input={"question": QUESTION.format(number)},
        mode="val" if number % 4 == 3 else "train",
        metadata={"rollbook.group": f"task {number // 2}", "rollbook.step": number // 4},
        config=RolloutConfig(max_attempts=2, retry_condition=["failed"]),
    )


async def fill(url: str) -> None:
    """Fill a store with finished rollouts of several groups, with scores, and one that waits.

    The first rollout has a retry and labels.
    """
    async with await open_store(url) as store:
        await store.enqueue_many_rollouts([_request(number) for number in range(ROLLOUTS - 1)])
        for number, rollout in enumerate(await store.dequeue_many_rollouts(limit=ROLLOUTS, worker_id="w")):
            await _work(store, rollout, number)
        (again,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
        assert again.attempt.sequence_id == 2
        await store.add_many_spans(conversation(again.attempt, 0))
        await store.update_attempt(again.rollout_id, again.attempt.attempt_id, status="succeeded")
        await _score(store)
        await store.annotations.annotate(again.rollout_id, add_labels=["reviewed", "good, mostly"])
        await store.enqueue_many_rollouts([_request(ROLLOUTS - 1)])


async def _work(store: Any, rollout: AttemptedRollout, number: int) -> None:
    spans = conversation(rollout.attempt, number)
    # The first attempt of the first rollout fails after its first call.
    await store.add_many_spans(spans[:1] if number == 0 else spans)
    status = "failed" if number == 0 else "succeeded"
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)


async def _score(store: Any) -> None:
    """Record scores of two versions of a reward for the latest attempts; each has another value."""
    scores = [
        NewScore(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            name="exact",
            version=version,
            value=value + number,
            dimensions={"length": 3},
        )
        for version, value in (("v1", 10), ("v2", 20))
        for number, rollout in enumerate(await store.query_rollouts())
    ]
    await store.annotations.record_scores(scores)


if __name__ == "__main__":
    asyncio.run(fill(sys.argv[1]))
