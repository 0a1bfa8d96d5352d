"""Conversion of database rows and payload to spans."""

from __future__ import annotations

from store.db.queries.bodies import payload
from store.models import Span
from store.models.trusted import Row, span_model


def span_of_page(row: Row) -> Span:
    """Return the span in a row of `pages.spans`: the table's columns, and codec and bytes of the body."""
    return span_model(row, payload(row[-2], row[-1]))
