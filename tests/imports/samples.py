"""Foreign rollouts for the tests of imports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from store.errors import Invalid
from store.imports import ForeignAttempt, ForeignRollout, Skipped
from store.imports.rollouts import reward_span, span_id_of, trace_id_of
from store.models import AttemptError, Span

START = 1_790_000_000.0


def spans_of(key: str, attempt: int, reward: float, *, count: int = 2) -> list[Span]:
    """Return the spans of an attempt; the last one is a reward with two dimensions."""
    trace_id = trace_id_of(key, attempt)
    steps = [
        Span.from_attributes(
            name="step",
            attributes={"number": number},
            trace_id=trace_id,
            span_id=span_id_of(key, attempt, number),
            start_time=START + number,
            end_time=START + number + 0.5,
        )
        for number in range(count - 1)
    ]
    rewards = {"total": reward, "style": 0.5}
    return [*steps, reward_span(rewards, trace_id=trace_id, span_id=span_id_of(key, attempt, "reward"), time=START + 9)]


def foreign(key: str, *, reward: float = 1.0, count: int = 2, **fields: Any) -> ForeignRollout:
    """Return a rollout with one attempt that succeeded."""
    values: dict[str, Any] = {
        "place": f"line {key}",
        "input": {"question": key},
        "attempts": [ForeignAttempt("succeeded", spans_of(key, 1, reward, count=count), {"host": "a"})],
        "mode": "train",
        "metadata": {"model": "qwen"},
        "group": f"group {key[:1]}",
        "step": 3,
        "start_time": START,
        "end_time": START + 10,
    }
    return ForeignRollout(key, **{**values, **fields})


def retried(key: str) -> ForeignRollout:
    """Return a rollout whose first attempt failed."""
    error = AttemptError(type="TimeoutError", message="no answer")
    attempts = [
        ForeignAttempt("timeout", spans_of(key, 1, 0.0), error=error),
        ForeignAttempt("succeeded", spans_of(key, 2, 0.75)),
    ]
    return foreign(key, attempts=attempts)


def cancelled(key: str) -> ForeignRollout:
    """Return a rollout that was cancelled."""
    error = AttemptError(type="Cancelled", message="by the user")
    attempts = [ForeignAttempt("failed", spans_of(key, 1, 0.0)[:1], error=error)]
    return foreign(key, attempts=attempts, is_cancelled=True)


def extended(key: str) -> ForeignRollout:
    """Return a rollout whose source has added a span."""
    credit = Span.from_attributes(name="credit", attributes={}, trace_id="c" * 32, span_id=span_id_of(key, "credit"))
    return foreign(key, late_spans=[credit])


def torn(*records: ForeignRollout | Skipped) -> Iterator[ForeignRollout | Skipped]:
    """Yield records, and then raise an error as a reader does."""
    yield from records
    raise Invalid("file", "is damaged; repair it")


def trace_line(trace_id: str) -> bytes:
    """Return a line with an episode whose trace has one call and a reward."""
    nodes = [
        {"message": {"role": "user", "content": f"Question {trace_id}"}, "timestamp": START},
        {"parent": 0, "message": {"role": "assistant", "content": "x" * 500}, "sampled": True, "timestamp": START + 1},
    ]
    trace = {"id": trace_id, "nodes": nodes, "rewards": {"score": {"score": 1.0, "weight": 1.0}}, "ok": True}
    return json.dumps({"id": f"e{trace_id}", "traces": [trace]}).encode() + b"\n"
