"""The baseline algorithm runs all tasks in order and survives any result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import LLM, AttemptedRollout, NamedResources
from store.testing.samples import make_span
from store.training.algorithms.baseline import Baseline

RESOURCES: NamedResources = {"main_llm": LLM(endpoint="http://127.0.0.1:9", model="m")}


class Adapter:
    """Names spans, and refuses to be given none."""

    def adapt(self, source: Any, /) -> Any:
        """Return the names."""
        if not source:
            raise ValueError("no spans")
        return [span.name for span in source]


async def work(store: Store, seen: list[AttemptedRollout], *, spans: bool) -> None:
    """Succeed at what is enqueued, and remember it."""
    while True:
        claimed = await store.dequeue_rollout("w", wait_seconds=5)
        if claimed is not None:
            seen.append(claimed)
            if spans:
                await store.add_span(make_span(claimed.attempt))
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")


@asynccontextmanager
async def worked(store: Store, *, spans: bool = True) -> AsyncGenerator[list[AttemptedRollout]]:
    """Have somebody work on a store."""
    seen: list[AttemptedRollout] = []
    working = asyncio.create_task(work(store, seen, spans=spans))
    try:
        yield seen
    finally:
        working.cancel()
        await asyncio.wait({working})


def baseline(store: Store, **settings: Any) -> Baseline:
    """Return a baseline on a store."""
    algorithm = Baseline(**settings)
    algorithm.set_store(store)
    return algorithm


async def test_every_task_of_every_epoch_is_run_in_order(live: Store) -> None:
    async with worked(live) as seen, asyncio.timeout(60):
        await baseline(live, n_epochs=2, max_queue_length=1).run([1, 2, 3], [4])
    assert [(rollout.input, rollout.mode) for rollout in seen] == 2 * [
        (1, "train"),
        (2, "train"),
        (3, "train"),
        (4, "val"),
    ]
    assert [rollout.status for rollout in await live.query_rollouts()] == 8 * ["succeeded"]


async def test_queue_does_not_exceed_max_queue_length(memory: Store) -> None:
    training = asyncio.create_task(baseline(memory, max_queue_length=2).run(range(9)))
    claimed = 0
    while claimed < 9:
        waiting = await memory.query_rollouts(status_in=["queuing"])
        assert waiting.total <= 3, "one more is enqueued while two wait"
        rollout = await memory.dequeue_rollout(wait_seconds=5)
        assert rollout is not None
        claimed += 1
        await memory.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await training


async def test_a_rollout_without_spans_is_fine(memory: Store, caplog: pytest.LogCaptureFixture) -> None:
    mine, adapter = baseline(memory), Adapter()
    mine.set_adapter(adapter)
    async with worked(memory, spans=False):
        await mine.run([1])
    assert "cannot be adapted" not in caplog.text


async def test_an_adapter_that_fails_is_logged_and_the_run_goes_on(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def adapt(self, source: Any, /) -> Any:
            raise KeyError("role")

    mine, adapter = baseline(memory), Failing()
    mine.set_adapter(adapter)
    async with worked(memory) as seen:
        await mine.run([1, 2])
    assert len(seen) == 2
    assert caplog.text.count("cannot be adapted") == 2


async def test_attempts_spans_and_adapted_data_are_logged(memory: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "store.training")
    mine, adapter = baseline(memory, span_verbosity="key_values"), Adapter()
    mine.set_adapter(adapter)
    async with worked(memory):
        await mine.run(None, [1])
    assert "attempt 1 by w: succeeded, 1 spans" in caplog.text
    assert "adapts to ['step']" in caplog.text


async def test_initial_resources_are_published_before_the_first_task(memory: Store) -> None:
    mine = baseline(memory)
    mine.set_initial_resources(RESOURCES)
    async with worked(memory) as seen:
        await mine.run([1])
    assert [rollout.resources_id for rollout in seen] == ["default"]
    update = await memory.get_latest_resources()
    assert update is not None
    assert update.resources == RESOURCES


async def test_without_tasks_it_says_so_and_returns(memory: Store, caplog: pytest.LogCaptureFixture) -> None:
    await baseline(memory).run()
    assert "pass a train_dataset or a val_dataset" in caplog.text


def test_settings_that_make_no_sense_are_refused_by_name() -> None:
    cases: list[dict[str, Any]] = [
        {"train_split": 1.0},
        {"n_epochs": 0},
        {"max_queue_length": -1},
        {"span_verbosity": "all"},
    ]
    for settings in cases:
        with pytest.raises(Invalid, match=next(iter(settings))):
            Baseline(**settings)
