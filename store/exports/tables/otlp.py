"""The table of the format otlp: spans as OpenTelemetry's requests in JSON. Decision 96."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import ATTEMPTS, SPANS
from store.models import AttributeValue
from store.otel.encode import OtlpSpan, as_json, otlp_span
from store.semconv import ATTEMPT_NUMBER, ATTEMPT_REWARD, GROUP_KEY, MODE, RESOURCES_ID, STEP_KEY

READS: Final = frozenset({SPANS, ATTEMPTS})


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
        attempt.attempt_id: of_rollout | {ATTEMPT_NUMBER: attempt.sequence_id, ATTEMPT_REWARD: attempt.reward}
        for attempt in record.attempts
    }
    return [otlp_span(row, of_attempts.get(row.attempt_id, of_rollout)) for row in record.spans]


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
