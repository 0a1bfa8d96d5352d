"""Stuck rollouts and workers are listed with the reason, and no others."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from store.dashboard.views.stuck import stuck
from store.db.queries.overview import Active, Overview, QueuedRollout, WorkerTotals

NOW = 1_750_000_000_000_000
ENDLESS = "it has no limit for silence, so nothing ends it."


def an_active(*, began: float, sign: float | None = None, elsewhere: str | None = "ro-1", **config: Any) -> Active:
    """Return a rollout that began, and gave its last sign of life, so many seconds ago."""
    sign_at = None if sign is None else NOW / 1e6 - sign
    text = orjson.dumps({"timeout_seconds": None, "unresponsive_seconds": None, **config}).decode()
    return Active("ro-1", "running", text, "at-1", 1, "w-1", NOW - int(began * 1e6), sign_at, elsewhere)


def seen(*active: Active, waits: float | None = None, asked: float | None = None) -> Overview:
    """Return a store with these rollouts, one that has waited so long, and workers that asked so long ago."""
    waiting = [] if waits is None else [QueuedRollout("ro-2", "queuing", NOW - int(waits * 1e6), 0)]
    workers = WorkerTotals(1, 0, None if asked is None else NOW - int(asked * 1e6))
    return Overview(NOW, {}, [], 0, None, active, len(waiting), waiting, workers, None)


@pytest.mark.parametrize(
    "active, reason",
    [
        (an_active(began=50, timeout_seconds=40), "Past its time limit of 40 s: it has run for 50 s."),
        (an_active(began=90, sign=70, unresponsive_seconds=60), "No sign of life for 1 min 10 s; its limit is 1 min."),
        (an_active(began=90, unresponsive_seconds=60), "No sign of life for 1 min 30 s; its limit is 1 min."),
        (
            an_active(began=900, sign=600),
            f"No sign of life for 10 min; {ENDLESS}",
        ),
        (
            an_active(began=900, sign=600, timeout_seconds=3600),
            "No sign of life for 10 min; it has no limit for silence, so its time limit of 1 h will end it.",
        ),
        (
            an_active(began=900, sign=600, elsewhere="ro-9"),
            f"No sign of life for 10 min, and its worker is on another rollout; {ENDLESS}",
        ),
        (
            an_active(began=900, sign=600, elsewhere=None),
            f"No sign of life for 10 min, and its worker is idle; {ENDLESS}",
        ),
    ],
)
def test_an_attempt_that_is_overdue_or_silent_is_named_with_the_reason(active: Active, reason: str) -> None:
    (entry,) = stuck(seen(active))
    assert (entry.rollout_id, entry.attempt, entry.worker_id, entry.reason) == ("ro-1", 1, "w-1", reason)


@pytest.mark.parametrize(
    "active",
    [
        an_active(began=30, timeout_seconds=40),
        an_active(began=9000, sign=50, unresponsive_seconds=60),
        # Its own limit is longer than what is thought of as long.
        an_active(began=9000, sign=600, unresponsive_seconds=3600),
        an_active(began=9000, sign=10),
    ],
)
def test_an_attempt_within_its_limits_is_not_named(active: Active) -> None:
    assert not list(stuck(seen(active)))


@pytest.mark.parametrize(
    "waits, asked, reason",
    [
        (90, None, "Waits for 1 min 30 s; no worker has ever requested work."),
        (90, 7200, "Waits for 1 min 30 s; no worker has requested work for 2 h."),
    ],
)
def test_rollout_waiting_without_active_workers_is_stuck(waits: float, asked: float | None, reason: str) -> None:
    (entry,) = stuck(seen(waits=waits, asked=asked))
    assert (entry.rollout_id, entry.reason) == ("ro-2", reason)


@pytest.mark.parametrize("waits, asked", [(10, None), (9000, 5)])
def test_rollout_waiting_for_its_turn_is_not_stuck(waits: float, asked: float | None) -> None:
    assert not list(stuck(seen(waits=waits, asked=asked)))


@pytest.mark.parametrize("sign, since", [(1.79e308, [0]), (-1.79e308, [])])
def test_a_sign_of_life_may_name_any_time(sign: float, since: list[int]) -> None:
    """Whoever reports one says when it was."""
    assert [entry.since for entry in stuck(seen(an_active(began=900, sign=sign)))] == since
