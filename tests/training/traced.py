"""Short forms of spans as tracers and proxies record them: `call("c1", 2, 3, response_id="R1")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.models import Span
from store.models.spans import TraceStatus
from store.semconv import ANNOTATION_SPAN, REWARD

CALL = "openai.chat.completion"


def span(
    span_id: str,
    start: float | None,
    end: float | None = None,
    *,
    parent: str | None = None,
    name: str = "step",
    number: int = 0,
    attributes: Mapping[str, Any] | None = None,
    attempt: str = "at-1",
    status: str = "OK",
) -> Span:
    """A span of one rollout; without an end it takes no time."""
    return Span.from_attributes(
        rollout_id="ro-1",
        attempt_id=attempt,
        sequence_id=number,
        trace_id="1" * 32,
        span_id=span_id,
        parent_id=parent,
        name=name,
        start_time=start,
        end_time=start if end is None else end,
        attributes=dict(attributes or {}),
        status=TraceStatus.model_validate({"status_code": status}),
    )


def call(
    span_id: str,
    start: float | None,
    end: float | None = None,
    *,
    response_id: str | None = None,
    tokens: tuple[list[int], list[int]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    name: str = CALL,
    **where: Any,
) -> Span:
    """A call to a model; `tokens` are those of prompt and response."""
    said: dict[str, Any] = dict(attributes or {})
    if response_id is not None:
        said["gen_ai.response.id"] = response_id
    if tokens is not None:
        said["prompt_token_ids"], said["response_token_ids"] = tokens
    return span(span_id, start, end, name=name, attributes=said, **where)


def reward(span_id: str, start: float | None, value: float, **where: Any) -> Span:
    """A reward that names no call."""
    said = {f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": value, **where.pop("attributes", {})}
    return span(span_id, start, name=ANNOTATION_SPAN, attributes=said, **where)


def agent(span_id: str, start: float, end: float, agent_name: str, **where: Any) -> Span:
    """The work of an agent."""
    return span(span_id, start, end, name="agent.node", attributes={"agent.name": agent_name}, **where)


def two_agents() -> list[Span]:
    """The example of the contract: a call that floats above its agent, one that is recorded twice, two rewards."""
    return [
        span("root", 0, 20, name="session"),
        agent("A", 1, 9, "planner", parent="root"),
        call("c1", 2, 3, response_id="R1", tokens=([1], [2]), parent="root"),
        reward("w1", 3.5, 0.1, parent="A"),
        agent("B", 10, 19, "writer", parent="root"),
        call("c2", 11, 12, response_id="R2", parent="B"),
        call("c2x", 11.1, 11.9, response_id="R2", parent="B"),
        call("c3", 13, 14, response_id="R3", parent="B"),
        reward("fin", 21, 1.0),
    ]
