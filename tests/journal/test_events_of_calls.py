"""The events that calls append agree with the table in docs/log.md."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from store import Store
from store.models import NamedResources, NewScore, PromptTemplate, RolloutConfig, RunEvent
from store.models.scanners import NewScan, NewScanner
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span

PAGE = Path(__file__).parents[2] / "docs" / "log.md"
RESOURCES: NamedResources = {"prompt": PromptTemplate(template="{question}", engine="f-string")}
ALTERNATIVES = frozenset({"runs.append_events", "runs.save_checkpoint"})
"""Calls for which the table lists alternatives."""

Call = Callable[[], Awaitable[object]]


def table() -> dict[str, list[str]]:
    """Return the types of events that each call of the table appends."""
    section = PAGE.read_text().partition("## What each call appends")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    return {call.replace("`", ""): re.findall(r"`([a-z_]+\.[a-z_]+)`", appended) for call, appended in rows}


async def test_each_call_appends_the_documented_events(store: Store, clock: ManualClock) -> None:
    assert isinstance(store, SQLStore)
    measured: dict[str, list[str]] = {}

    async def measure(name: str, call: Call) -> None:
        position = await store.core.position()
        await call()
        # The only stream of commits is the log; what follows the position is what the call has appended.
        measured[name] = [event.type async for event in store.log.tail() if event.position > position]

    keyed = {"rollbook.key": "plan/1"}
    await measure("enqueue_rollout", lambda: store.enqueue_rollout("task", metadata=keyed))
    await measure("enqueue_rollout, known plan key", lambda: store.enqueue_rollout("task", metadata=keyed))
    await measure("dequeue_rollout", store.dequeue_rollout)
    await measure("dequeue_rollout, empty queue", store.dequeue_rollout)
    await measure("dequeue_rollout, empty queue, new worker", lambda: store.dequeue_rollout("idle"))
    await measure("dequeue_rollout, empty queue, idle worker", lambda: store.dequeue_rollout("idle"))
    assert store.queue.empty_polls == 3
    await store.enqueue_rollout("task")
    claimed = await store.dequeue_many_rollouts(1)
    await measure("a claim whose client has disconnected", lambda: store.queue.release_claims(claimed))
    (next_rollout,) = await store.dequeue_many_rollouts(1)
    attempt = next_rollout.attempt
    await measure("runs.release_claim", lambda: store.runs.release_claim(attempt.rollout_id, attempt.attempt_id))
    await measure("dequeue_rollout, new worker", lambda: store.dequeue_rollout("busy"))

    silent = RolloutConfig(unresponsive_seconds=10.0)
    overdue = await store.start_rollout("task", config=silent)
    clock.advance(60)
    await measure("an overdue attempt, found by a sweep", lambda: store.get_rollout_by_id(overdue.rollout_id))

    started = await store.start_rollout("task")
    await measure("start_rollout", lambda: store.start_rollout("task"))
    rollout_id, attempt_id = started.rollout_id, started.attempt.attempt_id
    spans = [make_span(started.attempt, number) for number in (1, 2)]
    draw = "get_next_span_sequence_id"
    for name in ("the first of a block", "a later one of a block"):
        await measure(f"{draw}, {name}", lambda: store.get_next_span_sequence_id(rollout_id, attempt_id))
    await measure(f"{draw}, unknown rollout", lambda: store.get_next_span_sequence_id("ro-none", attempt_id))
    await measure("add_span, the first of an attempt", lambda: store.add_span(spans[0]))
    await measure("add_span, a later one", lambda: store.add_span(spans[1]))
    await measure("add_span, repeated", lambda: store.add_span(spans[1]))
    await measure(
        "update_attempt, last_heartbeat_time",
        lambda: store.update_attempt(rollout_id, attempt_id, last_heartbeat_time=clock.seconds),
    )
    await measure("update_attempt, metadata", lambda: store.update_attempt(rollout_id, attempt_id, metadata={"a": 1}))
    await measure("annotations.annotate", lambda: store.annotations.annotate(rollout_id, add_labels=["odd"]))
    scores = [NewScore(rollout_id=rollout_id, attempt_id=attempt_id, name="a", version="v1", value=1)]
    for name in ("annotations.record_scores", "annotations.record_scores, repeated"):
        await measure(name, lambda: store.annotations.record_scores(scores))
    scanner = NewScanner(name="a", version="v1", kind="search", definition={"query": "a"})
    await measure("scanners.add", lambda: store.scanners.add(scanner))
    scans = [NewScan(rollout_id=rollout_id, attempt_id=attempt_id, is_match=True)]
    for name in ("scanners.record", "scanners.record, repeated"):
        await measure(name, lambda: store.scanners.record("a", "v1", scans))
    event = RunEvent(kind="log", node_id="node", scope="scope", message="text")
    await measure("runs.append_events", lambda: store.runs.append_events(rollout_id, attempt_id, [event]))
    await measure(
        "runs.save_checkpoint",
        lambda: store.runs.save_checkpoint(rollout_id, attempt_id, scope="scope", name="report", state={"a": 1}),
    )
    await measure(
        "runs.save_artifact",
        lambda: store.runs.save_artifact(rollout_id, attempt_id, scope="scope", name="report", content="text"),
    )
    (artifact,) = await store.runs.query_artifacts(rollout_id)
    await measure("runs.retract_artifact", lambda: store.runs.retract_artifact(rollout_id, artifact.artifact_id))
    await measure("update_attempt, status", lambda: store.update_attempt(rollout_id, attempt_id, status="succeeded"))
    await measure("start_attempt", lambda: store.start_attempt(rollout_id))
    await measure("update_rollout, fields", lambda: store.update_rollout(rollout_id, mode="val"))
    await measure("update_rollout, status", lambda: store.update_rollout(rollout_id, status="cancelled"))

    await measure("update_worker, new worker", lambda: store.update_worker("new"))
    await measure("update_worker, known worker", lambda: store.update_worker("new"))
    await measure("log_metrics", lambda: store.log_metrics(1, {"loss": 0.5}))
    published = await store.add_resources(RESOURCES)
    await measure("add_resources", lambda: store.add_resources(RESOURCES))
    await measure("update_resources, known id", lambda: store.update_resources(published.resources_id, RESOURCES))
    last = await store.start_rollout("task")
    await store.add_span(make_span(last.attempt, 1))
    await measure(
        "finish_attempt with a span and a status",
        lambda: store.finish_attempt(
            last.rollout_id, last.attempt.attempt_id, "succeeded", spans=[make_span(last.attempt, 2)]
        ),
    )
    drained = await store.start_rollout("task")
    await store.add_span(make_span(drained.attempt, 1))
    await measure(
        "finish_attempt with requeue",
        lambda: store.finish_attempt(drained.rollout_id, drained.attempt.attempt_id, "failed", requeue=True),
    )
    await measure("any read", store.query_rollouts)

    stated = table()
    assert measured.keys() == stated.keys()
    for name, types in measured.items():
        if name in ALTERNATIVES:
            assert len(types) == 1
            assert set(types) <= set(stated[name])
        else:
            assert (name, types) == (name, stated[name])
