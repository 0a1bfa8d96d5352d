"""Runners of agents execute tasks, and runners of pipelines execute runs, from one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from store.errors import Unsupported
from store.interface.delegating import DelegatingRuns, DelegatingStore
from store.interface.runs import StoreRuns
from store.interface.store import Store
from store.models import AttemptedRollout, LightningStoreCapabilities, Phase, PhaseGraph, Rollout, ScopeKind
from store.testing.samples import make_prompt
from store.training import Pipeline, PipelineRunner, Step
from tests.training.doing import returning, running

GRAPH = PhaseGraph(
    name="desk",
    version="1",
    scope_kinds={"ticker": ScopeKind()},
    phases=[Phase(name="debate", scope_kind="ticker", nodes=["Bull"])],
)
INPUT = {"tickers": ["RIG"]}


def desk() -> PipelineRunner:
    pipeline = Pipeline(GRAPH)

    @pipeline.phase("debate")
    async def debate(step: Step) -> None:  # pyright: ignore[reportUnusedFunction]
        async with step.node("Bull") as call:
            call.response = step.scope

    return PipelineRunner(pipeline, poll_interval=0.5, interval_jitter=0)


@asynccontextmanager
async def serving(store: Store, runner: PipelineRunner) -> AsyncGenerator[None]:
    task = asyncio.create_task(runner.serve(store))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(store: Store, *rollouts: Rollout) -> list[str]:
    finished = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in rollouts], timeout=60)
    return [rollout.status for rollout in finished]


class WithoutKinds(DelegatingStore):
    """A store that claims only from the front of the queue."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def target(self) -> Store:
        return self._inner

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._inner.capabilities

    @property
    def runs(self) -> StoreRuns:
        return _RunsWithoutKinds(self._inner.runs)


class _RunsWithoutKinds(DelegatingRuns):
    async def claim(self, *_: Any, **__: Any) -> list[AttemptedRollout]:
        raise Unsupported("runs.claim", "WithoutKinds")


async def test_a_pipeline_leaves_tasks_in_the_queue(live: Store) -> None:
    tasks = [await live.enqueue_rollout({"question": "2+2"}, mode="train")]
    async with serving(live, desk()):
        tasks.append(await live.enqueue_rollout(INPUT))
        await live.add_resources({"phases": GRAPH})
        tasks.append(await live.enqueue_rollout(INPUT, mode="val"))
        assert await ended(live, await live.enqueue_rollout(INPUT)) == ["succeeded"]
    for task in tasks:
        rollout = await live.get_rollout_by_id(task.rollout_id)
        assert rollout is not None
        assert (rollout.status, isinstance(rollout, AttemptedRollout)) == ("queuing", False)


async def test_a_pipeline_puts_tasks_back_with_a_reason_without_claims_by_kind(memory: Store) -> None:
    task = await memory.enqueue_rollout({"question": "2+2"}, mode="train")
    await memory.add_resources({"phases": GRAPH})
    run = await memory.enqueue_rollout(INPUT)
    async with serving(WithoutKinds(memory), desk()):
        assert await ended(memory, run) == ["succeeded"]
    rollout = await memory.get_rollout_by_id(task.rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    assert rollout.status == "requeuing"
    assert (rollout.attempt.status, (rollout.attempt.metadata or {}).get("reason")) == ("failed", "mismatch")
    errors = [event for event in await memory.log.history(task.rollout_id) if "runs of 'desk'" in str(event)]
    assert errors
    async with running(memory, returning(1.0)):
        assert await ended(memory, task) == ["succeeded"]


async def test_an_agent_puts_runs_back_for_their_pipeline(memory: Store, caplog: pytest.LogCaptureFixture) -> None:
    await memory.add_resources({"phases": GRAPH})
    run = await memory.enqueue_rollout(INPUT)
    task = await memory.enqueue_rollout("task", resources_id=(await memory.add_resources(make_prompt())).resources_id)
    async with running(memory, returning(1.0)):
        assert await ended(memory, task) == ["succeeded"]
        async with serving(memory, desk()):
            assert await ended(memory, run) == ["succeeded"]
    assert "it is a run of the pipeline 'desk'" in caplog.text
    assert (await memory.runs.query_events(run.rollout_id, kind="result")).items
