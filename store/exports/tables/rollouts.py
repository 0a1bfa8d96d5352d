"""The tables `rollouts` and `attempts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import ATTEMPTS as READ_ATTEMPTS
from store.exports.source import LABELS as READ_LABELS
from store.exports.source import SCORES as READ_SCORES
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, json_text


def rollout_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the row of a rollout."""
    if not record.is_first:
        return ()
    rollout, latest = record.rollout, record.latest_attempt
    row = (
        rollout.rollout_id,
        record.group,
        record.step,
        rollout.mode,
        rollout.status,
        rollout.start_time,
        rollout.end_time,
        rollout.resources_id,
        json_text(rollout.input),
        json_text(rollout.metadata),
        json_text(rollout.config.model_dump()),
        None if latest is None else latest.attempt_id,
        0 if latest is None else latest.sequence_id,
        rollout.reward,
        json_text(rollout.rewards),
        record.labels,
    )
    return (row,)


def attempt_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's attempts."""
    if not record.is_first:
        return ()
    return [
        (
            attempt.rollout_id,
            attempt.attempt_id,
            attempt.sequence_id,
            attempt.status,
            attempt.start_time,
            attempt.end_time,
            attempt.worker_id,
            json_text(attempt.metadata),
            attempt.reward,
            json_text(attempt.rewards),
        )
        for attempt in map(record.with_reward, record.attempts)
    ]


ROLLOUTS: Final = Table(
    "rollouts",
    "One row for each rollout.",
    (
        ROLLOUT_ID,
        TableColumn("group_id", "text", "`rollbook.group` of the metadata."),
        TableColumn("step", "int64", "`rollbook.step` of the metadata."),
        TableColumn("mode", "text", "`train`, `val` or `test`."),
        TableColumn("status", "text", "The status.", is_nullable=False),
        TableColumn("start_time", "timestamp", "When the rollout was created.", is_nullable=False),
        TableColumn("end_time", "timestamp", "When the rollout last ended."),
        TableColumn("resources_id", "text", "The resources that the rollout was given."),
        TableColumn("input", "json", "The task."),
        TableColumn("metadata", "json", "The metadata."),
        TableColumn("config", "json", "Limits of attempts and conditions of retries."),
        TableColumn("attempt_id", "text", "The latest attempt."),
        TableColumn("attempts", "int64", "The number of the latest attempt; 0 without one.", is_nullable=False),
        TableColumn("reward", "float64", "The final reward of the latest attempt."),
        TableColumn("rewards", "json", "By name, the last value of each reward of the latest attempt."),
        TableColumn("labels", "texts", "The labels, sorted."),
    ),
    rollout_rows,
    reads=frozenset({READ_LABELS}),
    bulk=(8, 9),
)
ATTEMPTS: Final = Table(
    "attempts",
    "One row for each attempt of a rollout.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("number", "int64", "The number of the attempt in its rollout, from 1.", is_nullable=False),
        TableColumn("status", "text", "The status.", is_nullable=False),
        TableColumn("start_time", "timestamp", "When the attempt was started.", is_nullable=False),
        TableColumn("end_time", "timestamp", "When the attempt succeeded or failed."),
        TableColumn("worker_id", "text", "The worker that executed the attempt."),
        TableColumn("metadata", "json", "The metadata."),
        TableColumn("reward", "float64", "The final reward of the attempt."),
        TableColumn("rewards", "json", "By name, the last value of each reward of the attempt."),
    ),
    attempt_rows,
    reads=frozenset({READ_ATTEMPTS, READ_SCORES}),
    bulk=(7,),
)
