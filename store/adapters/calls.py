"""Recordings of one call by several spans."""

from __future__ import annotations

from collections.abc import Iterable

from store.model_calls.recorded import response_id
from store.models import Span

__all__ = ["repeated_calls"]


def repeated_calls(spans: Iterable[Span]) -> dict[tuple[str, str], Span]:
    """Return the spans that record a call that an earlier span of their attempt records already.

    A proxy and the instrumentation of an agent may both record a call. Their spans contain the same response id.

    Returns:
        By attempt id and span id, the span that recorded the call first, in the order of sequence numbers.
    """
    first: dict[tuple[str, str], Span] = {}
    repeated: dict[tuple[str, str], Span] = {}
    for span in sorted(spans, key=lambda span: span.sequence_id):
        answer = response_id(span.attributes)
        if answer is not None:
            recorded = first.setdefault((span.attempt_id, answer), span)
            if recorded is not span:
                repeated[span.attempt_id, span.span_id] = recorded
    return repeated
