"""An algorithm gets the recorded rollouts of a training again, in their order, without agents and without writing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from opentelemetry import trace

from store import open_store
from store.errors import Conflict, Invalid, NotFound, Unsupported
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, PromptTemplate, Span
from store.models.queries import RolloutQuery
from store.replaying import ReplayStore
from store.training import Baseline, Plan, Trainer, algo, emit_reward, follow, rollout
from store.training.execution import RunnersGone

TASKS = [{"n": number} for number in range(6)]
RESOURCES: dict[str, Any] = {"prompt": PromptTemplate(template="count", engine="f-string")}


@rollout
def counter(task: dict[str, int]) -> float:
    """Call a model, as its recording looks, and return a reward. Small numbers take longer."""
    number = task["n"]
    time.sleep(0.003 * (6 - number))
    tokens: dict[str, Any] = {"prompt_token_ids": [1, number], "response_token_ids": [number, 2]}
    with trace.get_tracer(__name__).start_as_current_span("openai.chat.completion", attributes=tokens):
        time.sleep(0.001)
    if number == 5:
        raise ValueError("cannot count")
    emit_reward(number / 10)
    return number / 10


class Learning:
    """An algorithm that learns from each rollout as it ends, and remembers what it learned."""

    def __init__(self) -> None:
        self.lessons: list[tuple[str, float | None, bytes]] = []
        self.resources: list[str] = []

        @algo
        async def learn(store: Store, adapter: Any, train_dataset: Any) -> None:
            plan = Plan("counting", seed=3)
            for step in range(2):
                weights = PromptTemplate(template=f"weights after {len(self.lessons)}", engine="f-string")
                published = await plan.publish(store, {"prompt": weights}, step=step)
                self.resources.append(published.resources_id)
                rollouts = await plan.enqueue(
                    store, train_dataset, epoch=step, resources_id=published.resources_id, replicas=2
                )
                async for ended in plan.finished(store, rollouts):
                    spans = await store.query_spans(ended.rollout_id, "latest")
                    lesson = orjson.dumps([vars(triplet) for triplet in adapter.adapt(spans)])
                    self.lessons.append((ended.rollout_id, ended.reward, lesson))

        self.algorithm = learn


async def fit(algorithm: Any, store: Store, tasks: Any = TASKS, **settings: Any) -> Any:
    trainer = Trainer(algorithm=algorithm, store=store, **settings)
    return await asyncio.to_thread(trainer.fit, counter, tasks, quiet=True)


@pytest.fixture
async def source(tmp_path: Any) -> AsyncIterator[Store]:
    """A store with six recorded rollouts of a baseline."""
    async with await open_store(f"sqlite:///{tmp_path / 'rollbook.db'}") as store:
        await fit(Baseline(), store, strategy="shm", initial_resources=RESOURCES)
        yield store


async def test_replayed_algorithm_learns_the_same_in_the_same_order(durable_url: str) -> None:
    async with await open_store(durable_url) as store:
        recorded, replayed = Learning(), Learning()
        report = await fit(recorded.algorithm, store, strategy="shm", n_runners=3)
        moment = await store.log.position()
        async with await open_store(durable_url, read_only=True) as source:
            again = await fit(replayed.algorithm, ReplayStore(source))
        assert len(recorded.lessons) == 24
        first = {lesson[0] for lesson in recorded.lessons[:12]}
        # Rollouts that ended while the recorded algorithm was busy were read in the order of its plan.
        ended = {rollout.rollout_id: rollout.end_time or 0.0 for rollout in await store.query_rollouts()}
        in_order = sorted(recorded.lessons, key=lambda lesson: (lesson[0] not in first, ended[lesson[0]]))
        assert replayed.lessons == in_order
        assert replayed.resources == recorded.resources
        assert (again.rollouts, again.drops) == (report.rollouts, {"failed": 4})
        assert [row.mean for row in again.rewards] == [row.mean for row in report.rewards]
        assert await store.log.position() == moment


async def test_baseline_gets_recorded_rollouts_by_their_inputs(source: Store) -> None:
    report = await fit(Baseline(span_verbosity="none"), ReplayStore(source))
    assert (report.rollouts, report.drops) == (6, {"failed": 1})
    with pytest.raises(NotFound, match=r'no recording of the task {"n":9} \(mode train\): none of the 6'):
        await fit(Baseline(), ReplayStore(source), [{"n": 9}])
    with pytest.raises(NotFound, match=r"all 1 with this input were replayed"):
        await fit(Baseline(n_epochs=2), ReplayStore(source))
    with pytest.raises(RunnersGone, match="ReplayStore has no dequeue"):
        await fit(Baseline(), ReplayStore(source), strategy="shm")


async def test_algorithm_may_wait_by_reading_the_rollouts_that_have_ended(source: Store) -> None:
    store = ReplayStore(source)
    for task in TASKS:
        await store.enqueue_rollout(task, mode="train")
    reads = [await store.query_rollouts(status_in=["succeeded", "failed"]) for _ in range(4 * len(TASKS))]
    ended = reads[-1]
    assert {rollout.rollout_id for rollout in ended} == {
        rollout.rollout_id for rollout in await source.query_rollouts()
    }


async def test_query_selects_the_recordings(source: Store) -> None:
    failed = ReplayStore(source, RolloutQuery(status_in=["failed"]))
    await fit(Baseline(), failed, [{"n": 5}])
    with pytest.raises(NotFound, match="none of the 1 recordings"):
        await fit(Baseline(), failed, [{"n": 4}])
    await source.enqueue_rollout({"n": 7}, mode="train")
    with pytest.raises(NotFound, match="has this input, but has not ended: queuing"):
        await fit(Baseline(), ReplayStore(source), [{"n": 7}])


async def test_rollouts_wait_until_the_algorithm_waits(source: Store) -> None:
    store = ReplayStore(source)
    first, second = [await store.enqueue_rollout(task, mode="train") for task in TASKS[:2]]
    recorded = {rollout.rollout_id: rollout for rollout in await source.query_rollouts()}
    assert (await store.query_rollouts(status_in=["queuing"])).total == 2
    assert len(await store.query_spans([first.rollout_id, second.rollout_id])) == 0
    assert await store.get_latest_attempt(first.rollout_id) is None
    assert (await store.query_attempts(first.rollout_id)).total == 0
    (ended,) = await store.wait_for_rollouts([first.rollout_id], timeout=0)
    assert (ended.status, ended.reward) == ("succeeded", 0.0)
    assert await store.get_rollout_by_id(first.rollout_id) == recorded[first.rollout_id]
    assert (await store.query_spans(first.rollout_id)).items == (await source.query_spans(first.rollout_id)).items
    assert (await store.query_attempts(first.rollout_id)).total == 1
    # An algorithm that only reads gets the end after some reads.
    reads = [await store.get_rollout_by_id(second.rollout_id) for _ in range(4)]
    assert [None if read is None else read.status for read in reads[:3:2]] == ["queuing", "running"]
    assert reads[3] == recorded[second.rollout_id]
    again = await store.update_rollout(second.rollout_id, status="requeuing")
    assert (again.status, again.end_time) == ("requeuing", None)
    assert [rollout.status for rollout in await store.wait_for_rollouts([second.rollout_id])] == ["succeeded"]
    assert (await store.query_rollouts(reward_min=0.05)).total == 1
    assert (await store.query_rollouts(sort_by="reward", limit=1, offset=1)).items == [recorded[second.rollout_id]]
    async for batch in follow(store, min_rollouts=2):
        assert [rollout.rollout_id for rollout in batch.rollouts] == [first.rollout_id, second.rollout_id]
        break


async def test_algorithm_sees_resources_of_the_start_and_its_own(source: Store) -> None:
    await source.update_resources("later", RESOURCES)
    store = ReplayStore(source)
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest == await source.get_resources_by_id(latest.resources_id)
    assert await store.get_resources_by_id("later") is None
    changed = await store.update_resources(latest.resources_id, {})
    assert (changed.version, changed.create_time) == (2, latest.create_time)
    added = await store.add_resources(RESOURCES)
    assert await store.get_latest_resources() == added
    page = await store.query_resources(sort_by="version", sort_order="desc", limit=1)
    assert (page.items, page.total) == ([changed], 2)
    assert (await source.query_resources()).total == 2


async def test_several_tasks_are_enqueued_all_or_none(source: Store) -> None:
    store = ReplayStore(source)
    requests = [EnqueueRolloutRequest(input=task, mode="train") for task in (TASKS[0], TASKS[1], {"n": 9})]
    with pytest.raises(NotFound):
        await store.enqueue_many_rollouts(requests)
    assert (await store.statistics()).get("total_rollouts") == 0
    assert len(await store.enqueue_many_rollouts(requests[:2])) == 2


async def test_calls_that_a_replay_cannot_answer_are_refused(source: Store) -> None:
    store = ReplayStore(source)
    (known, *_) = await source.query_rollouts()
    span = Span.from_attributes(rollout_id="r", attempt_id="a", sequence_id=1, attributes={})
    calls = [
        store.add_span(span),
        store.add_many_spans([span]),
        store.start_rollout({"n": 0}),
        store.update_attempt(known.rollout_id, "latest", "failed"),
        store.update_rollout(known.rollout_id, metadata={}),
        store.query_rollouts(as_at=3),
        store.query_rollouts(mode_in=["val"], filter_logic="or"),
        store.annotations.annotate(known.rollout_id, "a note"),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="ReplayStore has no"):
            await call
    with pytest.raises(NotFound):
        await store.update_rollout(known.rollout_id, status="requeuing")
    with pytest.raises(Invalid, match="no cursor of a replay"):
        async for _ in store.log.tail("elsewhere"):
            pass


async def test_plan_key_with_another_input_is_a_conflict(source: Store) -> None:
    keyed = await source.start_rollout({"n": 0}, metadata={"rollbook.key": "k"})
    await source.update_attempt(keyed.rollout_id, "latest", "succeeded")
    store = ReplayStore(source)
    with pytest.raises(Conflict, match="has another input"):
        await store.enqueue_rollout({"n": 1}, metadata={"rollbook.key": "k"})
    first = await store.enqueue_rollout({"n": 0}, metadata={"rollbook.key": "k"})
    assert first.rollout_id == keyed.rollout_id
    assert (await store.enqueue_rollout({"n": 0}, metadata={"rollbook.key": "k"})).rollout_id == keyed.rollout_id
