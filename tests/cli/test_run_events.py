"""Every event of a run has a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from store.domain.run_events import RUN_FACTS
from store.narration.run_events import TYPES, describe

WHERE: dict[str, Any] = {"attempt_id": "at-1", "scope": "RIG"}


def test_every_event_type_of_runs_has_a_description() -> None:
    assert {fact.type for fact in RUN_FACTS} == TYPES


@pytest.mark.parametrize(
    "type_,data,sentence",
    [
        (
            "run.event",
            {
                **WHERE,
                "kind": "result",
                "node_id": "Trader",
                "status": "success",
                "metrics": {"latency_ms": 812.5, "model": "m", "tokens_in": 1200, "tokens_out": 3},
            },
            "attempt 1: Trader RIG: result, success, 812 ms, m, 1,200 → 3 tokens",
        ),
        ("run.event", {"attempt_id": "at-1", "kind": "log"}, "attempt 1: log"),
        ("phase.started", {**WHERE, "phase": "risk"}, "attempt 1: phase risk of RIG begun"),
        (
            "phase.skipped",
            {"attempt_id": "at-1", "phase": "portfolio", "cascade": True, "reason": "decided"},
            "attempt 1: phase portfolio skipped (cascade): decided",
        ),
        (
            "checkpoint.saved",
            {**WHERE, "checkpoint_id": "cp-1", "name": "c", "after_phase": "risk"},
            "attempt 1: checkpoint c of RIG saved after risk",
        ),
        (
            "checkpoint.rejected",
            {**WHERE, "name": "c", "reason": "plan is empty"},
            "attempt 1: checkpoint c of RIG not saved: plan is empty",
        ),
        (
            "artifact.saved",
            {**WHERE, "artifact_id": "ar-1", "name": "report"},
            "attempt 1: report of RIG saved as ar-1",
        ),
        ("artifact.retracted", {"artifact_id": "ar-1", "reason": "wrong day"}, "ar-1 retracted: wrong day"),
        (
            "attempt.forked",
            {
                "attempt_id": "at-2",
                "kind": "rerun",
                "base": 1,
                "base_version": 9,
                "masks": [],
                "phase": "risk",
                "scopes": ["RIG", "TSDD"],
                "cascade": ["portfolio"],
                "degraded": {"reason": "checkpoint_missing"},
            },
            "attempt 1 is a rerun on attempt 1: risk of RIG, TSDD, then portfolio, from further back than requested",
        ),
        ("rollout.head_moved", {"from": 2, "to": 1}, "head moved from attempt 2 to attempt 1"),
    ],
)
def test_run_event_is_described_in_a_sentence(type_: str, data: dict[str, Any], sentence: str) -> None:
    assert describe(type_, data, "attempt 1") == sentence
