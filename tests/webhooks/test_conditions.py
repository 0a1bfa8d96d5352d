"""Conditions of webhooks: one message until a condition has cleared, on both databases."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from store.errors import Invalid
from store.models import EnqueueRolloutRequest, RunEvent
from store.models.scanners import NewScan, NewScanner, ScanError
from store.sql.store import SQLStore
from store.testing.clock import ManualClock
from store.testing.samples import make_span
from store.webhooks import conditions
from store.webhooks.conditions import CONDITIONS, parse_conditions
from store.webhooks.records import Webhooks
from store.webhooks.signing import new_secret
from tests.conftest import POSTGRES, SQLITE

BASE = "http://host/p/one"


@pytest.fixture(params=[SQLITE, POSTGRES])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    kind = request.param
    return f"sqlite:///{tmp_path / 'rollbook.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncGenerator[SQLStore]:
    async with await SQLStore.open(url, clock=clock) as opened:
        yield opened


@pytest.fixture
async def webhooks(store: SQLStore, url: str, clock: ManualClock) -> AsyncGenerator[Webhooks]:
    async with Webhooks.opened(url, clock=clock) as opened:
        yield opened


async def watch(webhooks: Webhooks, *texts: str) -> None:
    await webhooks.add("http://10.0.0.1/", new_secret(), parse_conditions(list(texts)))


async def messages(webhooks: Webhooks) -> list[tuple[str, dict[str, Any]]]:
    """Check the conditions twice, and return the type and the data of new messages."""
    before = {row.delivery_id for row in await webhooks.deliveries(100)}
    await webhooks.check(BASE)
    await webhooks.check(BASE)
    rows = [row for row in await webhooks.deliveries(100) if row.delivery_id not in before]
    return [(row.type, json.loads(row.body)["data"]) for row in reversed(rows)]


async def end_rollout(store: SQLStore, clock: ManualClock, *, status: Any = "succeeded", reward: float | None) -> str:
    clock.advance(1)
    rollout = await store.start_rollout("secret input")
    if reward is not None:
        attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
        await store.add_span(make_span(rollout.attempt, 1, name="agentlightning.annotation", attributes=attributes))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
    return rollout.rollout_id


async def test_stuck_queue_is_reported_once_until_a_worker_requests_work(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await watch(webhooks, "stuck_queue:seconds=60")
    start = clock() / 1e6
    for _ in range(2):
        await store.enqueue_rollout("secret input")
    assert await messages(webhooks) == []
    clock.advance(90)
    [(kind, data)] = await messages(webhooks)
    assert (kind, data["waiting"]) == ("queue.stuck", 2)
    assert data["waiting_since"] == pytest.approx(start, abs=1)
    assert await messages(webhooks) == []
    await store.dequeue_rollout()
    assert await messages(webhooks) == []
    clock.advance(90)
    assert [kind for kind, _ in await messages(webhooks)] == ["queue.stuck"]


async def test_failure_rate_and_reward_drop_are_reported_once_until_they_clear(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await watch(webhooks, "failure_rate:rollouts=2,above=0.5", "reward_drop:rollouts=2,by=0.4")
    for reward in (1.0, 0.9):
        await end_rollout(store, clock, reward=reward)
    assert await messages(webhooks) == []
    for _ in range(2):
        await end_rollout(store, clock, status="failed", reward=0.5)
    kinds = dict(await messages(webhooks))
    assert kinds["failure_rate.high"] == {"failed": 2, "rollouts": 2, "above": 0.5}
    assert kinds["reward_mean.dropped"] == {"mean": 0.5, "mean_before": pytest.approx(0.95), "rollouts": 2, "by": 0.4}
    for _ in range(2):
        await end_rollout(store, clock, reward=0.9)
    assert await messages(webhooks) == []
    for _ in range(2):
        await end_rollout(store, clock, status="failed", reward=None)
    assert [kind for kind, _ in await messages(webhooks)] == ["failure_rate.high"]


async def test_condition_without_stored_settings_has_the_defaults_and_an_unknown_one_is_skipped(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await webhooks.add("http://10.0.0.1/", new_secret(), {"other": {}, "stuck_queue": {}})
    await store.enqueue_rollout(1)
    clock.advance(299)
    assert await messages(webhooks) == []
    clock.advance(2)
    assert [kind for kind, _ in await messages(webhooks)] == ["queue.stuck"]


async def test_idle_training_is_reported_once_after_its_last_rollout(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await end_rollout(store, clock, reward=None)
    clock.advance(1)
    await watch(webhooks, "training_idle:seconds=60")
    clock.advance(90)
    # A webhook reports no idle time that began before it.
    assert await messages(webhooks) == []
    for _ in range(2):
        await end_rollout(store, clock, reward=None)
        open_rollout = await store.start_rollout(1)
        clock.advance(90)
        assert await messages(webhooks) == []
        await store.update_attempt(open_rollout.rollout_id, open_rollout.attempt.attempt_id, status="succeeded")
        clock.advance(90)
        assert [kind for kind, _ in await messages(webhooks)] == ["training.idle"]


async def test_ended_run_is_reported_once_without_its_payload(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await watch(webhooks, "run_ended")
    await end_rollout(store, clock, reward=None)
    clock.advance(1)
    run = await store.start_rollout("secret input")
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [RunEvent(kind="note")])
    assert await messages(webhooks) == []
    await store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="succeeded")
    [(kind, data)] = await messages(webhooks)
    assert (kind, data["rollout_id"], data["status"]) == ("pipeline_run.ended", run.rollout_id, "succeeded")
    [row] = await webhooks.deliveries(9)
    assert json.loads(row.body)["url"] == f"{BASE}/ui/runs/{run.rollout_id}"
    assert "secret" not in row.body


async def test_runs_that_end_while_the_clock_stands_still_are_reported_once(
    store: SQLStore, webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "_MOST_RUNS", 2)
    await watch(webhooks, "run_ended")
    runs = [await store.start_rollout(number) for number in range(5)]
    for run in runs:
        await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [RunEvent(kind="note")])
    ids: list[str] = []
    for part in (runs[1:], runs[:1]):
        await asyncio.gather(
            *[store.update_attempt(run.rollout_id, run.attempt.attempt_id, status="succeeded") for run in part]
        )
        ids += [data["rollout_id"] for _, data in await messages(webhooks)]
    ids += [data["rollout_id"] for _, data in await messages(webhooks)]
    assert sorted(ids) == sorted(run.rollout_id for run in runs)


@pytest.mark.parametrize("url", [SQLITE], indirect=True)
async def test_failure_rate_counts_a_rollout_that_was_created_long_before_its_end(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock
) -> None:
    await watch(webhooks, "failure_rate:rollouts=1,above=0.5")
    first = await store.start_rollout(0)
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)] * 5_000)
    clock.advance(1)
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    assert [kind for kind, _ in await messages(webhooks)] == ["failure_rate.high"]


@pytest.mark.parametrize("scanner", ["hacks", "hacks@v2"])
async def test_scanner_rate_counts_the_rollouts_that_ended_last_with_a_result_of_the_newest_version(
    store: SQLStore, webhooks: Webhooks, clock: ManualClock, scanner: str
) -> None:
    await watch(webhooks, f"scanner_rate/{scanner}:rollouts=2,above=0.5")
    for version in ("v3", "v2"):
        await store.scanners.add(NewScanner(name="hacks", version=version, kind="search", definition={"query": "x"}))
    assert await messages(webhooks) == []

    async def scan(version: str, *, is_match: bool | None) -> None:
        rollout_id = await end_rollout(store, clock, reward=None)
        attempt_id = (await store.query_attempts(rollout_id))[0].attempt_id
        error = ScanError(type="ValueError", message="no") if is_match is None else None
        result = NewScan(rollout_id=rollout_id, attempt_id=attempt_id, is_match=is_match, error=error)
        await store.scanners.record("hacks", version, [result])

    await scan("v2", is_match=True)
    await scan("v2", is_match=False)
    # Neither another version nor an error counts.
    await scan("v3", is_match=True)
    await scan("v2", is_match=None)
    assert await messages(webhooks) == []
    for _ in range(2):
        await scan("v2", is_match=True)
    [(kind, data)] = await messages(webhooks)
    assert (kind, data) == ("scanner_rate.high", {"scanner": "hacks@v2", "matches": 2, "rollouts": 2, "above": 0.5})
    assert json.loads((await webhooks.deliveries(1))[0].body)["url"] == f"{BASE}/ui/scanners?scanner=hacks%40v2"
    await scan("v2", is_match=False)
    assert await messages(webhooks) == []


async def test_two_servers_add_a_message_once(
    store: SQLStore, webhooks: Webhooks, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch(webhooks, "stuck_queue:seconds=60")
    await store.enqueue_rollout(1)
    clock.advance(90)
    async with Webhooks.opened(url, clock=clock) as other:
        stale = await other.all()

        async def read_earlier() -> Any:
            return stale

        # The second server has read the states before the first one stores them.
        monkeypatch.setattr(other, "all", read_earlier)
        await webhooks.check(BASE)
        await other.check(BASE)
    assert len(await webhooks.deliveries(9)) == 1


@pytest.mark.parametrize(
    "text",
    [
        *(
            "scanner",
            "scanner_rate",
            "scanner_rate/a@b@c",
            "stuck_queue/a",
            "stuck_queue:rollouts=1",
            "stuck_queue:seconds=nan",
            "failure_rate:above=1",
        ),
        *("failure_rate:rollouts=0", "failure_rate:rollouts=1.5", "reward_drop:by=x", "run_ended:seconds=1"),
    ],
)
def test_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_conditions([text])
    assert len(parse_conditions([])) == 5


def test_documentation_lists_all_conditions_with_their_settings_and_messages() -> None:
    page = (Path(__file__).parents[2] / "docs/webhooks.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:/SCANNER)?` \|.*\|([^|]*)\| `([\w.]+)` \|$", page, re.MULTILINE)
    assert {name: (settings.strip(), message) for name, settings, message in rows} == {
        name: (", ".join(f"`{key}={value:g}`" for key, value in kind.defaults.items()), kind.type)
        for name, kind in CONDITIONS.items()
    }
