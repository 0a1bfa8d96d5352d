"""The table `spans`. Its rows are the rows that `StoreLog.take_spans` passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, SPAN_ID


def span_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's spans."""
    return record.spans


SPANS: Final = Table(
    "spans",
    "One row for each span, in the order of their numbers in the rollout.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("sequence_id", "int64", "The number of the span in its rollout.", is_nullable=False),
        TableColumn("trace_id", "text", "The trace.", is_nullable=False),
        SPAN_ID,
        TableColumn("parent_id", "text", "The parent span."),
        TableColumn("name", "text", "The name.", is_nullable=False),
        TableColumn("status_code", "text", "`UNSET`, `OK` or `ERROR`.", is_nullable=False),
        TableColumn("status_message", "text", "The description of the status."),
        TableColumn("start_time", "timestamp", "The start."),
        TableColumn("end_time", "timestamp", "The end."),
        TableColumn("attributes", "json", "The attributes by name."),
        TableColumn("events", "json", "The list of the span's events."),
        TableColumn("links", "json", "The list of the span's links."),
        TableColumn("resource", "json", "The producer of the span."),
        TableColumn("extra", "json", "The other fields of the span, such as `context` and `kind`."),
    ),
    span_rows,
    reads=frozenset({READ_SPANS}),
    bulk=(11, 12),
    is_row_per_span=True,
)
