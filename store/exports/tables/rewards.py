"""The table `rewards`: every recorded value of a reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, SPAN_ID
from store.semconv import summarise


def reward_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's rewards."""
    return [
        (
            span.rollout_id,
            span.attempt_id,
            span.span_id,
            span.sequence_id,
            span.end_time if span.end_time is not None else span.start_time,
            name,
            value,
            place == 0,
        )
        for span in record.span_models
        for place, (name, value) in enumerate(summarise(span.name, span.attributes).rewards)
    ]


REWARDS: Final = Table(
    "rewards",
    "One row for each value of a reward that a span records.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        SPAN_ID,
        TableColumn("sequence_id", "int64", "The number of the span in its rollout.", is_nullable=False),
        TableColumn("time", "timestamp", "The end of the span, or its start."),
        TableColumn("name", "text", "The name of the dimension; `primary` without a name.", is_nullable=False),
        TableColumn("value", "float64", "The value.", is_nullable=False),
        TableColumn("is_primary", "bool", "Whether the value is the primary one of its span.", is_nullable=False),
    ),
    reward_rows,
    reads=frozenset({READ_SPANS}),
)
