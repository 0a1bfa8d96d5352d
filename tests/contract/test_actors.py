"""The events of an attempt have its worker as their actor."""

from __future__ import annotations

import pytest

from store.interface.store import Store
from store.models import AttemptError, RunEvent
from store.runtime import context
from store.testing.samples import make_span


async def actors(store: Store, rollout_id: str) -> dict[str, str | None]:
    """Return the last actor of each type of event."""
    return {event.type: event.actor for event in await store.log.history(rollout_id)}


async def test_spans_run_events_and_reports_are_of_the_worker(store: Store) -> None:
    claimed = await store.start_rollout("task", worker_id="w")
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    await store.add_span(make_span(claimed.attempt, 1))
    await store.runs.append_events(rollout_id, attempt_id, [RunEvent(kind="log", message="x")])
    await store.update_attempt(rollout_id, attempt_id, status="failed", metadata={"a": 1})
    by_type = await actors(store, rollout_id)
    assert set(by_type.values()) == {"worker:w"}, by_type


@pytest.mark.parametrize("caller, actor", [("cli", "cli"), ("key:k", "worker:w"), (None, "worker:w")])
async def test_a_known_caller_is_the_actor_of_its_report(store: Store, caller: str | None, actor: str) -> None:
    claimed = await store.start_rollout("task", worker_id="w")
    acting = context.actor.set(caller)
    await store.update_attempt(claimed.rollout_id, "latest", status="failed")
    context.actor.reset(acting)
    assert (await actors(store, claimed.rollout_id))["attempt.status_changed"] == actor


async def test_silence_is_not_reported_by_the_silent_worker(store: Store) -> None:
    claimed = await store.start_rollout("task", worker_id="w")
    error = AttemptError(type="gone", message="its process is gone")
    await store.update_attempt(claimed.rollout_id, "latest", status="unresponsive", error=error)
    assert (await actors(store, claimed.rollout_id))["attempt.status_changed"] is None
