"""The table of the format otlp. Each row is a span as a JSON request of OTLP. Decision 102."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import ATTEMPTS, SCORES, SPANS
from store.exports.tables.columns import json_text
from store.models import AttributeValue
from store.otel.encode import OtlpSpan, as_json, otlp_span
from store.semconv import (
    ATTEMPT_NUMBER,
    ATTEMPT_REWARD,
    ATTEMPT_STATUS,
    GROUP_KEY,
    INPUT,
    METADATA,
    MODE,
    RESOURCES_ID,
    STEP_KEY,
)

READS: Final = frozenset({SPANS, ATTEMPTS, SCORES})
_OWN: Final = "rollbook."


def otlp_spans(record: RolloutRecord) -> list[OtlpSpan]:
    """Return the spans of a rollout as OTLP, with attributes that describe the rollout and the attempt."""
    rollout = record.rollout
    of_rollout: dict[str, AttributeValue | None] = {
        GROUP_KEY: record.group,
        STEP_KEY: record.step,
        MODE: rollout.mode,
        RESOURCES_ID: rollout.resources_id,
    }
    of_attempts: dict[str, Mapping[str, AttributeValue | None]] = {
        attempt.attempt_id: of_rollout
        | {
            ATTEMPT_NUMBER: attempt.sequence_id,
            ATTEMPT_STATUS: attempt.status,
            ATTEMPT_REWARD: attempt.reward,
        }
        for attempt in map(record.with_reward, record.attempts)
    }
    # The keys that begin with `rollbook.` are exported as attributes, or describe the import of the rollout.
    metadata = {name: value for name, value in (rollout.metadata or {}).items() if not name.startswith(_OWN)}
    of_first = {INPUT: _json(rollout.input), METADATA: _json(metadata or None)} if record.is_first else {}
    spans: list[OtlpSpan] = []
    for row in record.spans:
        spans.append(otlp_span(row, {**of_attempts.get(row.attempt_id, of_rollout), **of_first}))
        of_first = {}
    return spans


def _json(value: Any) -> str | None:
    text = json_text(value)
    return None if text is None else text.decode()


def _rows(record: RolloutRecord) -> Sequence[Row]:
    return [(as_json([span]),) for span in otlp_spans(record)]


OTLP: Final = Table(
    "otlp",
    "One row for each span, in the order of their numbers in the rollout. The only table of `otlp`.",
    (TableColumn("request", "json", "An `ExportTraceServiceRequest` with the span.", is_nullable=False),),
    _rows,
    reads=READS,
    bulk=(0,),
    is_row_per_span=True,
)
