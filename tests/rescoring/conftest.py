"""Stores with rollouts to score."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from multiprocessing import forkserver
from typing import Any

import pytest

# This module names the modules that the fork server imports first.
import tests.faults.processes  # noqa: F401  # pyright: ignore[reportUnusedImport]
from store import Span, open_store
from store.interface.store import Store


async def add_rollouts(store: Store, numbers: Iterable[int]) -> list[str]:
    """Add rollouts that have ended, each with a call, the number as its input and half of it as its reward."""
    return [await _add_rollout(store, number) for number in numbers]


async def _add_rollout(store: Store, number: int) -> str:
    metadata = {"rollbook.step": number // 2, "rollbook.group": f"g{number % 2}"}
    rollout = await store.start_rollout({"n": number}, mode="train", metadata=metadata)
    ids: dict[str, Any] = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    texts = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "say a number",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": f"it is {number}",
    }
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": number / 2}
    await store.add_many_spans(
        [
            Span.from_attributes(**ids, sequence_id=1, name="openai.chat.completion", attributes=texts),
            Span.from_attributes(**ids, sequence_id=2, name="agentlightning.annotation", attributes=reward),
        ]
    )
    await store.update_attempt(rollout.rollout_id, "latest", "succeeded")
    return rollout.rollout_id


@pytest.fixture
async def filled_url(durable_url: str) -> str:
    """The URL of a store with ten rollouts that have ended and one that has not."""
    async with await open_store(durable_url) as store:
        await add_rollouts(store, range(10))
        await store.start_rollout({"n": 10})
    return durable_url


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes that run functions from one that has imported the package, instead of starting interpreters.

    They share no threads or connections with this process. The tests of the command and of kills start interpreters.
    """
    forkserver.ensure_running()
    monkeypatch.setattr("store.rescoring.pool._SPAWN", multiprocessing.get_context("forkserver"))
