"""Spans as rows whose payload is JSON text, for readers of many spans that need no models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel

from store.models.spans import Span

EMPTY_LIST: Final = b"[]"


class FlatSpan(NamedTuple):
    """A span as a row: the fields of `Span`, with objects and lists as JSON text."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status_code: str
    status_message: str | None
    start_time: float | None
    end_time: float | None
    attributes: bytes
    events: bytes
    links: bytes
    resource: bytes
    extra: bytes | None
    """An object with the other fields of the span: the contexts of the span and of its parent, the status if it has
    more fields, and fields that `Span` does not declare, such as `kind`; None if the span has no other fields."""


TakeSpans = Callable[[Sequence[FlatSpan]], object]
"""A function that receives spans in their order, in several batches. If the function raises an error, the read ends
with this error."""


def flat_span(span: Span) -> FlatSpan:
    """Return a span as a row."""
    extra: dict[str, Any] = {
        name: value for name, value in (("context", span.context), ("parent", span.parent)) if value is not None
    }
    if span.status.__pydantic_extra__:
        extra["status"] = span.status
    extra |= span.__pydantic_extra__ or {}
    return FlatSpan(
        span.rollout_id,
        span.attempt_id,
        span.sequence_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.status.status_code,
        span.status.description,
        span.start_time,
        span.end_time,
        orjson.dumps(span.attributes),
        _json(span.events) if span.events else EMPTY_LIST,
        _json(span.links) if span.links else EMPTY_LIST,
        _json(span.resource),
        _json(extra) if extra else None,
    )


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_fields)


def _fields(value: Any) -> Any:
    if not isinstance(value, BaseModel):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return {**value.__dict__, **(value.__pydantic_extra__ or {})}
