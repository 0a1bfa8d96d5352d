"""Pickled adapters give the same results in other processes."""

from __future__ import annotations

import copy
import pickle
from multiprocessing import get_context
from typing import Any

import pytest

from store.training import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from tests.training.traced import two_agents

ADAPTERS: list[Any] = [
    TracerTraceToTriplet(),
    TracerTraceToTriplet(agent_match="writer", llm_call_match="chat", reward_match="first_sibling"),
    TracerTraceToTriplet(strict_upstream=True),
    LlmProxyTraceToTriplet(),
    LlmProxyTraceToTriplet(strict_upstream=True),
    TraceToMessages(),
]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=range(len(ADAPTERS)))
def test_a_copy_gives_the_same(adapter: Any) -> None:
    spans = two_agents()
    for copied in (pickle.loads(pickle.dumps(adapter)), copy.deepcopy(adapter)):
        assert copied.adapt(spans) == adapter.adapt(spans)


@pytest.mark.slow
def test_a_process_that_is_spawned_gives_the_same() -> None:
    adapter = TracerTraceToTriplet(agent_match="writer")
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(adapter.adapt, (two_agents(),)) == adapter.adapt(two_agents())
