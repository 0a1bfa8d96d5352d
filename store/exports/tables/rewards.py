"""The table `rewards`: every recorded value of a reward, and every score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SCORES as READ_SCORES
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID
from store.semconv import PRIMARY, summarise


def reward_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's rewards: first the recorded rewards, then the scores."""
    recorded = [
        (
            span.rollout_id,
            span.attempt_id,
            span.span_id,
            span.sequence_id,
            span.end_time if span.end_time is not None else span.start_time,
            name,
            value,
            place == 0,
            None,
        )
        for span in record.span_models
        for place, (name, value) in enumerate(summarise(span.name, span.attributes).rewards)
    ]
    if not record.is_last:
        return recorded
    return recorded + [
        (
            score.rollout_id,
            score.attempt_id,
            None,
            None,
            score.at,
            name,
            value,
            name == PRIMARY,
            f"{score.name}@{score.version}",
        )
        for score in record.scores
        for name, value in score.rewards.items()
    ]


REWARDS: Final = Table(
    "rewards",
    "One row for each value of a reward that a span or a score records.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("span_id", "text", "The span; null for a score."),
        TableColumn("sequence_id", "int64", "The number of the span in its rollout; null for a score."),
        TableColumn("time", "timestamp", "The end of the span, or its start; the time of a score."),
        TableColumn("name", "text", "The name of the dimension; `primary` without a name.", is_nullable=False),
        TableColumn("value", "float64", "The value.", is_nullable=False),
        TableColumn(
            "is_primary", "bool", "Whether the value is the primary one of its span or score.", is_nullable=False
        ),
        TableColumn(
            "reward_version", "text", "The version of a score, such as `helpful@v2`; null for a recorded value."
        ),
    ),
    reward_rows,
    reads=frozenset({READ_SPANS, READ_SCORES}),
)
