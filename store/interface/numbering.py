"""Recording of spans that the store numbers. Some stores number and record in one call, others need two calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from store.interface.store import Store
from store.models import Span
from store.semconv import ORIGINAL_SPAN_ID


@runtime_checkable
class Numbering(Protocol):
    """A store that numbers and records spans in one call."""

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Record spans, and return the index in `spans` and the sequence id of each new span.

        Args:
            spans: the spans.
            number: whether the store assigns the sequence ids, instead of using those of the spans.

        Raises:
            SpanConflict: spans with the same keys and other content are stored already. All other spans are stored.
            StoreError: another error of `add_many_spans`.
        """
        ...


async def record(store: Store, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Store spans with the next sequence ids of their rollouts; return (index, sequence id) of each new span.

    Raises:
        SpanConflict: spans with the same keys and other content are stored already. All other spans are stored.
        StoreError: another error of `add_many_spans`.
    """
    if isinstance(store, Numbering):
        return await store.record_spans(spans, number=True)
    numbers = await store.get_many_span_sequence_ids([(span.rollout_id, span.attempt_id) for span in spans])
    numbered = [span.model_copy(update={"sequence_id": number}) for span, number in zip(spans, numbers, strict=True)]
    places = {_key(span): index for index, span in reversed(list(enumerate(numbered)))}
    stored = await store.add_many_spans(numbered)
    return [(places[_key(span)], span.sequence_id) for span in stored]


def _key(span: Span) -> tuple[str, str, object]:
    # A span that is stored under a derived id has its original id in an attribute.
    return span.attempt_id, span.trace_id, span.attributes.get(ORIGINAL_SPAN_ID, span.span_id)
