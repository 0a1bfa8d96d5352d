"""The response to the call that ends an attempt: conversion of the result to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.errors import Incompatible, StoreError
from store.models import Span
from store.models.calls import FinishResponse
from store.models.finished_attempts import FinishedAttempt
from store.models.spans import with_ids
from store.wire.encoding import Decoder, decoder, dumps
from store.wire.errors import error_body, named_error

_decode: Decoder[FinishResponse] = decoder(FinishResponse)


def encode(finished: FinishedAttempt) -> bytes:
    """Return a result as the JSON of `FinishResponse`."""
    stored = [
        {"index": index, "sequence_id": span.sequence_id, "span_id": span.span_id, "parent_id": span.parent_id}
        for index, span in enumerate(finished.spans)
        if isinstance(span, Span)
    ]
    refused = [
        {"index": index, "error": error_body(error)}
        for index, error in enumerate(finished.spans)
        if isinstance(error, StoreError)
    ]
    attempt, claimed = finished.attempt, finished.claimed
    return dumps(
        {
            "spans": stored,
            "refused_spans": refused,
            "attempt": None if isinstance(attempt, StoreError) else attempt,
            "attempt_error": error_body(attempt) if isinstance(attempt, StoreError) else None,
            "claimed": None if isinstance(claimed, StoreError) else claimed,
            "claim_error": error_body(claimed) if isinstance(claimed, StoreError) else None,
        }
    )


def decode(text: bytes, spans: Sequence[Span]) -> FinishedAttempt:
    """Return the result in a response.

    Args:
        text: the response.
        spans: the spans of the request.

    Raises:
        LookupError: the response has an index that the request does not have.
        pydantic.ValidationError: the response has another form.
    """
    finished = _decode(text)
    results: list[Span | StoreError | None] = [None] * len(spans)
    for stored in finished.spans:
        span = spans[stored.index]
        if (stored.span_id, stored.parent_id) != (span.span_id, span.parent_id):
            span = with_ids(span, stored.span_id, stored.parent_id)
        is_numbered = span.sequence_id == stored.sequence_id
        results[stored.index] = span if is_numbered else span.model_copy(update={"sequence_id": stored.sequence_id})
    for refused in finished.refused_spans:
        results[refused.index] = _error(refused.error)
    attempt = finished.attempt or _error(finished.attempt_error or {})
    claimed = finished.claimed if finished.claim_error is None else _error(finished.claim_error)
    return FinishedAttempt(results, attempt, claimed)


def _error(fields: Mapping[str, Any]) -> StoreError:
    """Return the error in a response. A client that does not know its type must not repeat the call."""
    return named_error(fields) or Incompatible(
        f"the server answered finish_attempt with {dict(fields)}", "use the version of the server"
    )
