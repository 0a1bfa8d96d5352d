"""The table `trajectories` of the format atif: one document for each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.atif.writing import ExportedAttempt
from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import ATTEMPTS, ERRORS, SCORES, SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, json_text
from store.models import Span


def trajectory_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout: one for each attempt, with its document."""
    spans: dict[str, list[Span]] = {}
    for span in record.span_models:
        spans.setdefault(span.attempt_id, []).append(span)
    rows: list[Row] = []
    for attempt in map(record.with_reward, record.attempts):
        about = ExportedAttempt(
            record.rollout,
            attempt,
            spans.get(attempt.attempt_id, ()),
            record.error_of(attempt),
            record.group,
            record.step,
        )
        document = about.document()
        header = about.header
        rows.append(
            (
                header["rollout"]["rollout_id"],
                header["attempt"]["attempt_id"],
                header["attempt"]["number"],
                header["attempt"]["status"],
                record.group,
                record.step,
                attempt.reward,
                json_text(document),
            )
        )
    return rows


TRAJECTORIES: Final = Table(
    "trajectories",
    "One document for each attempt.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("number", "int64", "The number of the attempt in its rollout, from 1.", is_nullable=False),
        TableColumn("status", "text", "The status of the attempt.", is_nullable=False),
        TableColumn("group_id", "text", "`rollbook.group` of the metadata."),
        TableColumn("step", "int64", "`rollbook.step` of the metadata."),
        TableColumn("reward", "float64", "The final reward of the attempt."),
        TableColumn("document", "json", "The document.", is_nullable=False),
    ),
    trajectory_rows,
    reads=frozenset({ATTEMPTS, ERRORS, SCORES, SPANS}),
    bulk=(7,),
)
