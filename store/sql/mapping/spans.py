"""Conversion of database rows and payload to spans."""

from __future__ import annotations

from store.db.dialect import NamedRow
from store.db.queries.bodies import payload
from store.models import Span
from store.models.trusted import span_model


def span_of_page(row: NamedRow) -> Span:
    """Return the span in a row of `pages.spans`."""
    return span_model(row, payload(row.codec, row.body))
