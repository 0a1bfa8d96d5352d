"""Answers become models. Most are small and validated; spans come by the hundred and are taken at the server's word."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

import orjson

from store.models import PaginatedResult, Span
from store.sql.mapping.rollouts import span_model

_ROW: Final = (
    "rollout_id",
    "attempt_id",
    "span_id",
    "sequence_id",
    "trace_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
)
_row = itemgetter(*_ROW)


def decode_span_page(text: bytes) -> PaginatedResult[Span]:
    """Return a page of spans, in a fifth of the time that validating them takes: who answers has validated them.

    Raises:
        LookupError: something is missing.
        TypeError: something is of another kind.
        orjson.JSONDecodeError: it is no JSON.
    """
    page = orjson.loads(text)
    items = [_span(item) for item in page["items"]]
    return PaginatedResult(items=items, limit=page["limit"], offset=page["offset"], total=page["total"])


def _span(given: dict[str, Any]) -> Span:
    row = _row(given)
    for name in _ROW:
        del given[name]
    # Statuses are always there; only the rows of a table may lack them.
    return span_model((*row, "UNSET", None), given)
