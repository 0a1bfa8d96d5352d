"""Every event has a sentence without internal terms."""

from __future__ import annotations

from typing import Any

import pytest

from store.cli.output.times import local
from store.domain.events import FACTS
from store.models import HistoryEvent
from store.narration.events import DESCRIBED_TYPES, Narrator

AT = 1_750_000_000.0


def event(type_: str, /, at: float = AT, **data: Any) -> HistoryEvent:
    # `from` is a keyword of Python.
    told = {name.rstrip("_"): value for name, value in data.items()}
    return HistoryEvent(number=1, position=1, at=at, type=type_, actor=None, cause=None, data=told, body=None)


def test_every_event_type_has_a_description() -> None:
    assert set(FACTS) == DESCRIBED_TYPES


STARTED = event("attempt.started", attempt_id="at-1", sequence=1, via="dequeue", worker_id="worker-2")


@pytest.mark.parametrize(
    "told, sentence",
    [
        (
            event(
                *("rollout.enqueued",),
                input_sha256="0",
                mode="train",
                resources_id="rs-1",
                resources_version=2,
                group="g",
                step=3,
                config={"timeout_seconds": 60, "max_attempts": 3, "retry_condition": ["failed", "timeout"]},
            ),
            (
                "enqueued, for train, with rs-1 version 2, group g, step 3, timeout 1 min 00 s, up to 3 attempts, "
                "retry if failed or timeout"
            ),
        ),
        (event("rollout.enqueued", input_sha256="0", config={}), "enqueued"),
        (event("rollout.started", input_sha256="0", config={}), "started without the queue"),
        (
            event("rollout.amended", fields=["input", "mode", "resources_id"], mode="val"),
            "input replaced, mode set to val, resources cleared",
        ),
        (event("rollout.amended", fields=["config"], config={}), "config set to the defaults"),
        (
            event("reward.scored", attempt_id="at-1", name="a", version="v2", value=0.5, dimensions=[["tone", -1.0]]),
            "attempt 1: scored by a@v2: 0.5, tone -1",
        ),
        (
            event("reward.scored", attempt_id="at-1", name="a", version="v2", error={"type": "E", "message": "m"}),
            "attempt 1: scored by a@v2: E: m",
        ),
        (event("metrics.logged", step=3, values=[["kl", 0.25], ["loss", "NaN"]]), "step 3: kl 0.25, loss NaN"),
        (event("span.numbers_reserved", first=33, until=64), "span numbers 33 to 64 reserved"),
        (
            event("rollout.status_changed", from_="queuing", to="preparing", reason="claimed"),
            "queuing → preparing: a worker claimed it",
        ),
        (
            event("rollout.status_changed", from_="running", to="requeuing", reason="attempt"),
            "running → requeuing: to be retried",
        ),
        (
            event("rollout.status_changed", from_="failed", to="failed", reason="manual"),
            "failed again, ended now",
        ),
        (STARTED, "attempt 1 claimed by worker-2 → preparing"),
        (event("attempt.started", attempt_id="at-9", sequence=2, via="start"), "attempt 2 started → preparing"),
        (
            event(
                *("attempt.status_changed",),
                at=AT + 3.4,
                attempt_id="at-1",
                from_="preparing",
                to="unresponsive",
                reason="unresponsive",
                limit=3,
            ),
            "attempt 1 unresponsive: silent for 3.40 s (limit 3 s)",
        ),
        (
            event(
                *("attempt.status_changed",),
                at=AT + 5,
                attempt_id="at-1",
                from_="running",
                to="unresponsive",
                reason="unresponsive",
                limit=3,
                last_sign=AT + 1.5,
            ),
            "attempt 1 unresponsive: silent for 3.50 s (limit 3 s)",
        ),
        (
            event(
                *("attempt.status_changed",),
                at=AT + 90,
                attempt_id="at-1",
                from_="running",
                to="timeout",
                reason="timeout",
                limit=60,
                last_sign=AT + 89,
            ),
            "attempt 1 timeout: ran for 1 min 30 s (limit 1 min 00 s)",
        ),
        (
            event("attempt.status_changed", attempt_id="at-1", from_="preparing", to="running", reason="span"),
            "attempt 1 preparing → running: a span arrived",
        ),
        (
            event("attempt.status_changed", attempt_id="at-1", from_="running", to="failed", reason="reported"),
            "attempt 1 reported failed",
        ),
        (
            event("attempt.status_changed", attempt_id="at-7", from_="running", to="failed", reason="reported"),
            "attempt at-7 reported failed",
        ),
        (
            event("attempt.amended", attempt_id="at-1", fields=["worker_id", "metadata"], worker_id="worker-3"),
            "attempt 1: worker set to worker-3, metadata replaced",
        ),
        (
            event("claim.released", attempt_id="at-1", sequence=1, from_="preparing", to="requeuing", queued_at=4),
            "claim of attempt 1 undone, its client disconnected → requeuing, at its previous place in the queue",
        ),
        (
            event(
                *("span.recorded",),
                attempt_id="at-1",
                sequence_id=4,
                trace_id="t",
                span_id="s",
                name="rank",
                status_code="ERROR",
                status_message="boom",
                start=AT,
                end=AT + 0.012,
                rewards=[["primary", 0.5], ["style", 1]],
                model="small",
                tokens_in=1200,
                tokens_out=33,
            ),
            'attempt 1: span 4 "rank", 12.0 ms, ERROR (boom), reward 0.5, style 1, small, 1,200 → 33 tokens',
        ),
        (event("resources.published", version=1), "version 1 published"),
        (event("resources.replaced", version=2), "version 2 published"),
        (event("worker.seen"), "seen for the first time"),
        (
            event("worker.status_changed", from_="idle", to="busy", rollout_id="ro-1", attempt_id="at-1"),
            "idle → busy with ro-1 at-1",
        ),
        (event("worker.status_changed", from_="busy", to="idle", rollout_id="ro-1"), "busy → idle"),
        (
            event("body.dropped", position=12, policy="older than 30 days"),
            "payload of the event at position 12 deleted: older than 30 days",
        ),
        (
            event("store.bodies_dropped", policy="older than 30d", count=1200, first=7, last=9000),
            "payload of 1,200 events from position 7 to 9000 deleted: older than 30d",
        ),
        (
            event("store.blobs_dropped", policy="redact", count=2, reason="asked for"),
            "2 blobs of deleted payload deleted: redact (asked for)",
        ),
        (event("moon.landed", crew=3), '{"crew":3}'),
    ],
)
def test_event_is_described_in_a_sentence(told: HistoryEvent, sentence: str) -> None:
    narrator = Narrator(local)
    narrator.describe(STARTED)
    assert narrator.describe(told) == sentence
