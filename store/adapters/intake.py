"""Input of the adapters: spans are checked, grouped by attempt, and sorted."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ValidationError

from store.errors import Invalid
from store.models import Span
from store.semconv import ATTEMPT_ID, ROLLOUT_ID, SPAN_SEQUENCE_ID

__all__ = ["AttemptSpans", "SpanPlace", "Timed", "Unusable", "as_span", "sort_in"]


class SpanPlace(NamedTuple):
    """The sort key of a span among the spans of its attempt."""

    start: float
    sequence_id: int
    span_id: str


@dataclass(frozen=True, slots=True)
class Timed:
    """A span with its effective times, in seconds.

    If a span has no start, its start is the latest start among the spans with an equal or smaller sequence id. If a
    span has no end, or an end before its start, it ends at its start.
    """

    span: Span
    start: float
    end: float

    @property
    def place(self) -> SpanPlace:
        """The sort key of spans: start, then sequence id, then span id."""
        return SpanPlace(self.start, self.span.sequence_id, self.span.span_id)


class Unusable(NamedTuple):
    """An item of the input that is left out, with the reason."""

    span_id: str
    reason: str
    detail: str


class AttemptSpans(NamedTuple):
    """The spans of one attempt, in the order of `Timed.place`. No two of the spans have the same id."""

    spans: list[Timed]


def sort_in(source: Iterable[Any]) -> tuple[list[AttemptSpans], list[Unusable]]:
    """Group spans by attempt.

    Args:
        source: spans of the store, of Agent-lightning or of the OpenTelemetry SDK, or JSON objects, in any order.

    Returns:
        The attempts, sorted by their first span; and the items that are left out, because they are not spans or because
        another span of the same attempt has the same id.

    Raises:
        Invalid: the source is not iterable, or is a text, bytes or a mapping.
    """
    items: Any = source
    if not isinstance(items, Iterable) or isinstance(items, (str, bytes, Mapping)):
        raise Invalid(
            "source",
            f"{type(cast('object', items)).__name__} is not a sequence of spans; "
            "pass a list, such as the result of query_spans",
        )
    refused: list[Unusable] = []
    groups: dict[tuple[str, str], dict[str, list[Span]]] = {}
    for item in cast("Iterable[Any]", items):
        span = as_span(item)
        if span is None:
            refused.append(Unusable("", "not_a_span", type(item).__name__))
            continue
        groups.setdefault((span.rollout_id, span.attempt_id), {}).setdefault(span.span_id, []).append(span)
    attempts = [
        (_with_times([_choose(duplicates, refused) for duplicates in by_id.values()]), ids)
        for ids, by_id in sorted(groups.items())
    ]
    attempts.sort(key=lambda attempt: (attempt[0][0].place, attempt[1]))
    return [AttemptSpans(spans) for spans, _ in attempts], sorted(refused)


def _choose(spans: list[Span], refused: list[Unusable]) -> Span:
    """Return one of several spans with the same id. The choice does not depend on the order of the spans."""
    if len(spans) == 1:
        return spans[0]
    spans.sort(key=lambda span: (span.sequence_id, _finite(span.start_time) or math.inf, repr(span)))
    refused += [Unusable(span.span_id, "duplicate_span", f"sequence id {span.sequence_id}") for span in spans[1:]]
    return spans[0]


def _with_times(spans: list[Span]) -> list[Timed]:
    starts = sorted((span.sequence_id, start) for span in spans if (start := _finite(span.start_time)) is not None)
    sequence_ids = [number for number, _ in starts]
    latest = list(accumulate((start for _, start in starts), max))
    earliest = min((start for _, start in starts), default=0.0)

    def with_times(span: Span) -> Timed:
        start, end = _finite(span.start_time), _finite(span.end_time)
        if start is None:
            before = bisect_right(sequence_ids, span.sequence_id)
            start = latest[before - 1] if before else earliest
        return Timed(span, start, start if end is None else max(start, end))

    return sorted((with_times(span) for span in spans), key=lambda timed: timed.place)


def _finite(time: Any) -> float | None:
    if not isinstance(time, (int, float)):
        return None
    try:
        seconds = float(time)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None


def as_span(item: Any) -> Span | None:
    """Return an item as a span of the store, or None if the item is not a valid span.

    The item may be a span of the store, of Agent-lightning or of the OpenTelemetry SDK, or a JSON object.
    """
    if isinstance(item, Span):
        return item if _is_sound(item) else None
    try:
        if hasattr(item, "get_span_context"):
            # A missing id becomes an empty text.
            attributes: dict[str, Any] = {**item.resource.attributes, **(item.attributes or {})}
            number = str(attributes.get(SPAN_SEQUENCE_ID, 0))
            span = Span.from_opentelemetry(
                item,
                rollout_id=str(attributes.get(ROLLOUT_ID, "")),
                attempt_id=str(attributes.get(ATTEMPT_ID, "")),
                sequence_id=int(number) if number.isdecimal() else 0,
            )
            return span if _is_sound(span) else None
        fields = item.model_dump() if isinstance(item, BaseModel) else item
        return Span.model_validate(fields) if isinstance(fields, Mapping) else None
    except (ValidationError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_sound(span: Span) -> bool:
    """Return whether the fields of a span have the right types. A caller may have built the span without validation."""
    fields = vars(span)
    texts = (fields.get(name) for name in ("rollout_id", "attempt_id", "span_id", "name"))
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(fields.get("parent_id"), (str, type(None)))
        and type(fields.get("sequence_id")) is int
        and isinstance(fields.get("attributes"), Mapping)
        and all(isinstance(name, str) for name in fields["attributes"])
        and fields.keys() >= {"start_time", "end_time", "trace_id"}
    )
