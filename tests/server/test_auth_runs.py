"""Rights to read a run, to work on it, and to run a part of it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.interface.store import Store
from store.testing import ManualClock
from tests.runs.trading_runs import auto_run
from tests.server.keyed import Keyed, keyed_server


@pytest.fixture
async def keyed(store: Store, store_url: str, clock: ManualClock) -> AsyncIterator[Keyed]:
    async with keyed_server(store, store_url, clock) as keyed:
        yield keyed


async def test_run_routes_require_the_role_of_their_task(keyed: Keyed, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    reader, runner, algorithm = [await keyed.key(role) for role in ("reader", "runner", "algorithm")]
    at = f"/rollouts/{run.rollout_id}"
    events = f"{at}/attempts/{run.attempt.attempt_id}/events"
    said: Any = {"events": [{"kind": "log"}]}
    part: Any = {"phase": "risk", "scopes": ["RIG"], "confirm_side_effects": True}
    asked: list[tuple[str | None, str, str, Any, int]] = [
        (None, "GET", f"{at}/events", None, 401),
        (reader, "GET", f"{at}/events", None, 200),
        (reader, "POST", f"{at}/forks:plan", part, 200),
        (reader, "POST", events, said, 403),
        (runner, "POST", events, said, 201),
        (runner, "POST", f"{at}/forks", part, 403),
        (runner, "POST", f"{at}/resume", {}, 403),
        (runner, "POST", f"{at}/head", {"attempt_id": run.attempt.attempt_id}, 403),
        (algorithm, "POST", f"{at}/forks", part, 201),
    ]
    for key, method, path, body, status in asked:
        answer = await keyed.ask(key, method, path, **({} if body is None else {"json": body}))
        assert answer.status == status, (method, path, answer)


async def test_fork_of_one_key_is_not_repeated_to_another_key(keyed: Keyed, store: Store) -> None:
    run = await auto_run(store, tickers=["RIG"])
    one, other = [await keyed.key("algorithm") for _ in range(2)]
    part: Any = {"phase": "risk", "scopes": ["RIG"], "confirm_side_effects": True}
    asked: list[tuple[str, int]] = [(one, 201), (one, 201), (other, 409)]
    for key, status in asked:
        path = f"/rollouts/{run.rollout_id}/forks"
        answer = await keyed.ask(key, "POST", path, json=part, headers={"Idempotency-Key": "same"})
        assert answer.status == status, answer
    assert (await store.query_attempts(run.rollout_id)).total == 2
