"""Documented uses of the store of Agent-lightning 0.3 work here with one changed import.

Each test executes one documented use with Agent-lightning's names, arguments and results. Apart from the URL of the
store on disk, no test uses features that only Rollbook has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import store as agl

REWARD = "agentlightning.reward.0.value"


POSTGRES_IN_TORTURE = pytest.param("postgres", id="postgres", marks=[pytest.mark.postgres, pytest.mark.torture_only])
"""`tests/contract` shows on both databases that these calls do the same."""


@pytest.fixture(params=["memory", "sqlite", POSTGRES_IN_TORTURE])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The URL of the store of the examples; None for Agent-lightning's constructor."""
    match request.param:
        case "memory":
            return None
        case "sqlite":
            return f"sqlite:///{tmp_path / 'run.db'}"
        case _:
            url: str = request.getfixturevalue("postgres_url")
            return url


@pytest.fixture
async def lightning(url: str | None) -> AsyncIterator[agl.LightningStore]:
    """The store of the examples."""
    if url is None:
        opened: agl.LightningStore = agl.InMemoryLightningStore(scan_debounce_seconds=0)
    else:
        opened = await agl.open_store(url, scan_debounce_seconds=0)
    yield opened
    await opened.close()


async def succeed(lightning: agl.LightningStore, claimed: agl.AttemptedRollout, reward: float) -> None:
    """Do what a runner does after its agent: one span with the reward, then the outcome."""
    number = await lightning.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id)
    await lightning.add_span(
        agl.Span.from_attributes(
            attributes={REWARD: reward},
            rollout_id=claimed.rollout_id,
            attempt_id=claimed.attempt.attempt_id,
            sequence_id=number,
            name="agentlightning.annotation",
        )
    )
    await lightning.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


async def test_a_rollout_from_the_queue_to_its_end(lightning: agl.LightningStore) -> None:
    queued = await lightning.enqueue_rollout(
        input={"question": "How many legs has a spider?"},
        mode="train",
        config=agl.RolloutConfig(
            timeout_seconds=60, unresponsive_seconds=15, max_attempts=3, retry_condition=["timeout", "unresponsive"]
        ),
        metadata={"source": "quiz"},
    )
    assert queued.status == "queuing"

    claimed = await lightning.dequeue_rollout(worker_id="runner-1")
    assert claimed is not None
    assert (claimed.rollout_id, claimed.status, claimed.attempt.sequence_id) == (queued.rollout_id, "preparing", 1)

    await succeed(lightning, claimed, 1.0)
    ended = await lightning.get_rollout_by_id(queued.rollout_id)
    assert isinstance(ended, agl.AttemptedRollout)
    assert (ended.status, ended.attempt.status, ended.attempt.worker_id) == ("succeeded", "succeeded", "runner-1")
    assert await lightning.dequeue_rollout(worker_id="runner-1") is None


async def test_a_failed_attempt_is_tried_again(lightning: agl.LightningStore) -> None:
    config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
    queued = await lightning.enqueue_rollout("flaky", config=config)
    first = await lightning.dequeue_rollout()
    assert first is not None
    await lightning.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
    waiting = await lightning.get_rollout_by_id(queued.rollout_id)
    assert waiting is not None
    assert waiting.status == "requeuing"

    second = await lightning.dequeue_rollout()
    assert second is not None
    assert (second.rollout_id, second.attempt.sequence_id) == (first.rollout_id, 2)
    await lightning.update_attempt(second.rollout_id, "latest", status="failed")
    attempts = await lightning.query_attempts(queued.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "failed"]
    ended = await lightning.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
    assert [rollout.status for rollout in ended] == ["failed"]


async def test_a_silent_attempt_is_given_up_and_tried_again(lightning: agl.LightningStore) -> None:
    config = agl.RolloutConfig(unresponsive_seconds=0.05, max_attempts=2, retry_condition=["unresponsive"])
    queued = await lightning.enqueue_rollout("slow", config=config)
    assert await lightning.dequeue_rollout() is not None
    await asyncio.sleep(0.1)
    again = await lightning.dequeue_rollout()
    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (queued.rollout_id, 2)
    (given_up,) = [attempt for attempt in await lightning.query_attempts(queued.rollout_id) if attempt.sequence_id == 1]
    assert given_up.status == "unresponsive"


async def test_an_algorithm_publishes_a_prompt_and_learns_from_the_rewards(lightning: agl.LightningStore) -> None:
    async def runner() -> None:
        while (claimed := await lightning.dequeue_rollout(worker_id="runner")) is not None:
            assert claimed.resources_id is not None
            update = await lightning.get_resources_by_id(claimed.resources_id)
            assert update is not None
            prompt = update.resources["main_prompt"]
            assert isinstance(prompt, agl.PromptTemplate)
            await succeed(lightning, claimed, float(len(prompt.template)))

    async def algorithm() -> dict[str, float]:
        rewards: dict[str, float] = {}
        for template in ("Answer {question}", "Think, then answer {question}"):
            resources: agl.NamedResources = {"main_prompt": agl.PromptTemplate(template=template, engine="f-string")}
            update = await lightning.add_resources(resources)
            rollout = await lightning.enqueue_rollout(
                input={"question": "1+1"}, mode="train", resources_id=update.resources_id
            )
            await runner()
            (ended,) = await lightning.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=10)
            spans = await lightning.query_spans(ended.rollout_id, attempt_id="latest")
            value = spans[-1].attributes[REWARD]
            assert isinstance(value, float)
            rewards[template] = value
        return rewards

    rewards = await algorithm()
    assert max(rewards, key=lambda template: rewards[template]) == "Think, then answer {question}"


async def test_resources_are_versioned_and_runners_get_the_latest(lightning: agl.LightningStore) -> None:
    resources: agl.NamedResources = {
        "policy": agl.LLM(
            endpoint="http://localhost:8000/v1",
            model="a-model",
            sampling_parameters={"temperature": 0.7, "max_tokens": 100},
        ),
        "system_prompt": agl.PromptTemplate(template="You answer in one word.", engine="f-string"),
    }
    first = await lightning.add_resources(resources)
    second = await lightning.update_resources(
        first.resources_id, {"policy": agl.LLM(endpoint="http://localhost:8001/v1", model="a-model-2")}
    )
    assert (first.version, second.version) == (1, 2)
    assert second.create_time == first.create_time
    latest = await lightning.get_latest_resources()
    assert latest == second
    queued = await lightning.enqueue_rollout("uses the latest")
    assert queued.resources_id == first.resources_id
    assert (await lightning.query_resources()).total == 1


async def test_spans_of_a_tracer_arrive_in_order(lightning: agl.LightningStore) -> None:
    claimed = await lightning.start_rollout(input="traced", worker_id="runner")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("agent")
    with (
        tracer.start_as_current_span("agent"),
        tracer.start_as_current_span("chat", attributes={"gen_ai.response.id": "r"}),
    ):
        pass
    for finished in exporter.get_finished_spans():
        await lightning.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, finished)
    spans = await lightning.query_spans(claimed.rollout_id)
    assert [(span.name, span.sequence_id) for span in spans] == [("chat", 1), ("agent", 2)]
    assert spans[0].parent_id == spans[1].span_id
    running = await lightning.get_latest_attempt(claimed.rollout_id)
    assert running is not None
    assert (running.status, running.last_heartbeat_time is None) == ("running", False)


async def test_sequence_ids_are_handed_out_in_bulk_and_spans_too(lightning: agl.LightningStore) -> None:
    one = await lightning.start_rollout("one")
    two = await lightning.start_rollout("two")
    pairs = [(rollout.rollout_id, rollout.attempt.attempt_id) for rollout in (one, two, one)]
    numbers = await lightning.get_many_span_sequence_ids(pairs)
    assert numbers == [1, 1, 2]
    spans = [
        agl.Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=number)
        for (rollout_id, attempt_id), number in zip(pairs, numbers, strict=True)
    ]
    assert len(await lightning.add_many_spans(spans)) == 3
    assert await lightning.add_many_spans(spans) == []


async def test_a_batch_is_queued_claimed_and_paged_through(lightning: agl.LightningStore) -> None:
    requests = [agl.EnqueueRolloutRequest(input={"number": number}, mode="val") for number in range(5)]
    queued = await lightning.enqueue_many_rollouts(requests)
    claimed = await lightning.dequeue_many_rollouts(limit=3, worker_id="runner")
    assert [rollout.rollout_id for rollout in claimed] == [rollout.rollout_id for rollout in queued[:3]]
    page = await lightning.query_rollouts(
        status_in=["queuing"], sort_by="start_time", sort_order="desc", limit=1, offset=0
    )
    assert (page.total, page[0].rollout_id) == (2, queued[4].rollout_id)


async def test_a_rollout_is_cancelled_and_its_fields_replaced(lightning: agl.LightningStore) -> None:
    queued = await lightning.enqueue_rollout("unwanted", metadata={"a": 1})
    updated = await lightning.update_rollout(queued.rollout_id, metadata={"b": 2})
    assert (updated.metadata, updated.input) == ({"b": 2}, "unwanted")
    cancelled = await lightning.update_rollout(queued.rollout_id, status="cancelled")
    assert cancelled.end_time is not None
    assert await lightning.dequeue_rollout() is None
    with pytest.raises(ValueError, match=r"Item.*does not exist"):
        await lightning.update_rollout("ro-unknown", status="cancelled")


async def test_a_worker_beats_and_is_seen_at_work(lightning: agl.LightningStore) -> None:
    await lightning.update_worker("runner", heartbeat_stats={"cpu": 0.5})
    await lightning.enqueue_rollout("task")
    claimed = await lightning.dequeue_rollout(worker_id="runner")
    assert claimed is not None
    busy = await lightning.get_worker_by_id("runner")
    assert busy is not None
    assert (busy.status, busy.current_rollout_id, busy.heartbeat_stats) == ("busy", claimed.rollout_id, {"cpu": 0.5})
    await lightning.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    idle = await lightning.query_workers(status_in=["idle"])
    assert [worker.worker_id for worker in idle] == ["runner"]


async def test_store_reports_its_capabilities_and_statistics(lightning: agl.LightningStore) -> None:
    assert lightning.capabilities.get("async_safe")
    assert lightning.capabilities.get("thread_safe")
    assert not lightning.capabilities.get("otlp_traces")
    await lightning.start_rollout("task", worker_id="runner")
    statistics = await lightning.statistics()
    totals = {name: statistics.get(f"total_{name}") for name in ("rollouts", "attempts", "spans", "workers")}
    assert totals == {"rollouts": 1, "attempts": 1, "spans": 0, "workers": 1}
