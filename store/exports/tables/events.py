"""The table `events`: the events of each rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import EVENTS as READ_EVENTS
from store.exports.tables.columns import ROLLOUT_ID, json_text


def event_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's events."""
    return [
        (
            record.rollout.rollout_id,
            event.number,
            event.position,
            event.at,
            event.type,
            event.shape,
            event.actor,
            event.cause,
            json_text(event.data),
            json_text(event.body),
            event.body_hash,
        )
        for event in record.events
    ]


EVENTS: Final = Table(
    "events",
    "One row for each event of a rollout, its attempts and its spans, in the order of the log for each rollout.",
    (
        ROLLOUT_ID,
        TableColumn("number", "int64", "The number of the event in the rollout's history, from 1.", is_nullable=False),
        TableColumn("position", "int64", "The position of the event in the log.", is_nullable=False),
        TableColumn("at", "timestamp", "When the store recorded the event.", is_nullable=False),
        TableColumn("type", "text", "The type, such as `span.recorded`.", is_nullable=False),
        TableColumn("shape", "int64", "The version of the fields with which the event was written.", is_nullable=False),
        TableColumn("actor", "text", "The caller."),
        TableColumn("cause", "int64", "The position of the event that caused this one."),
        TableColumn("data", "json", "Ids, enumerations, numbers and hashes; times are integer microseconds."),
        TableColumn("body", "json", "The payload by field; null without payload, or if it was removed."),
        TableColumn("body_hash", "text", "The SHA-256 of the payload as recorded, in hex."),
    ),
    event_rows,
    reads=frozenset({READ_EVENTS}),
    bulk=(8, 9),
)
