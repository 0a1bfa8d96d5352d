"""Rollouts with traces for tests of the waterfall."""

from __future__ import annotations

from typing import Any, cast

from store.interface.store import Store
from store.models import AttemptedRollout, AttemptStatus, RolloutStatus, Span, TraceStatus

START = 1_700_000_000.0


def a_span(
    rollout: AttemptedRollout, number: int, name: str = "step", parent: int | None = None, **details: Any
) -> Span:
    """Return a span with an id made of its number, from `number` seconds after `START` on, for a second.

    Args:
        rollout: whose latest attempt it belongs to.
        number: its place among the spans of the rollout.
        name: of the span.
        parent: the number of its parent.
        given: its attributes, and other fields of a span; `status` by its code.
    """
    fields: dict[str, Any] = {
        "span_id": span_id(number),
        "parent_id": None if parent is None else span_id(parent),
        "start_time": START + number,
        "end_time": START + number + 1,
        "status": TraceStatus(status_code=details.pop("status", "OK")),
        "attributes": {},
        **details,
    }
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id=f"{1:032x}",
        name=name,
        **fields,
    ).model_copy(update={"start_time": fields["start_time"], "end_time": fields["end_time"]})


def span_id(number: int) -> str:
    """Return the id of the span of a number."""
    return f"{number:016x}"


def rewarded(value: float) -> dict[str, Any]:
    """Return the attributes of a reward."""
    return {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}


def answered(question: str, answer: str) -> dict[str, Any]:
    """Return the attributes of a call to a model."""
    return {
        "gen_ai.response.model": "small",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": question,
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": answer,
    }


async def member(
    store: Store,
    group: str,
    reward: float | None = None,
    answer: str = "42",
    *,
    step: int | None = None,
    status: RolloutStatus = "succeeded",
    **fields: Any,
) -> AttemptedRollout:
    """Return a rollout of a group with a status, a call to a model, and a reward if it has one."""
    metadata: dict[str, Any] = {"rollbook.group": group} | ({} if step is None else {"rollbook.step": step})
    rollout = await store.start_rollout({"question": "6 times 7"}, metadata=metadata, **fields)
    spans = [
        a_span(rollout, 1, "agent"),
        a_span(rollout, 2, "chat", 1, attributes=answered("How much is 6 times 7?", answer)),
    ]
    if reward is not None:
        spans.append(a_span(rollout, 3, "agentlightning.annotation", 1, attributes=rewarded(reward)))
    await store.add_many_spans(spans)
    if status == "cancelled":
        await store.update_rollout(rollout.rollout_id, status="cancelled")
    elif status in {"succeeded", "failed"}:
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        await store.update_attempt(*ids, status=cast("AttemptStatus", status))
    return rollout
