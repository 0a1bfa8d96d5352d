"""Sample values for tests: spans like those of a tracer, and resources, which are models and prompts for agents."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext as SdkSpanContext
from opentelemetry.trace import TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from store.models import LLM, Attempt, NamedResources, OtelResource, PromptTemplate, Span, TraceStatus

__all__ = ["make_llm", "make_prompt", "make_sdk_span", "make_span"]


def make_span(attempt: Attempt, sequence_id: int = 1, /, **fields: Any) -> Span:
    """Return a span of this attempt with a new id. `fields` replace or extend the fields of the span."""
    plain: dict[str, Any] = {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "sequence_id": sequence_id,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": uuid4().hex[:16],
        "parent_id": None,
        "name": "step",
        "status": TraceStatus(status_code="OK"),
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1_700_000_000.25,
        "end_time": 1_700_000_001.5,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**(plain | fields))


def make_sdk_span(name: str = "step", **attributes: str | bool | float) -> ReadableSpan:
    """Return a finished span in the form in which the OpenTelemetry SDK passes spans to exporters.

    The times of the span are in nanoseconds.
    """
    context = SdkSpanContext(
        trace_id=0x0AF7651916CD43DD8448EB211C80319C,
        span_id=uuid4().int & 0xFFFF_FFFF_FFFF_FFFF or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return ReadableSpan(
        name=name,
        context=context,
        resource=SdkResource.create({"service.name": "contract"}),
        attributes=attributes,
        status=Status(StatusCode.ERROR, "boom"),
        start_time=1_700_000_000_250_000_000,
        end_time=1_700_000_001_500_000_000,
    )


def make_llm(model: str = "small") -> NamedResources:
    """Return a resource set with one model endpoint."""
    return {"llm": LLM(endpoint="http://localhost:8000/v1", model=model)}


def make_prompt(template: str = "Answer {question}") -> NamedResources:
    """Return a resource set with one prompt template."""
    return {"prompt": PromptTemplate(template=template, engine="f-string")}
