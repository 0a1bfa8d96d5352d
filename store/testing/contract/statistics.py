"""Contract of statistics and capabilities."""

from __future__ import annotations

import pytest

from store.interface.store import Store
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_llm, make_span

__all__ = ["StatisticsContract"]


class StatisticsContract:
    """Tests of `statistics` and `capabilities`."""

    pytestmark = pytest.mark.asyncio

    async def test_an_empty_store_counts_nothing(self, store: Store) -> None:
        statistics = await store.statistics()
        assert {name: number for name, number in statistics.items() if name.startswith("total_")} == {
            "total_rollouts": 0,
            "total_attempts": 0,
            "total_spans": 0,
            "total_resources": 0,
            "total_workers": 0,
        } | {name: number for name, number in statistics.items() if name == "total_span_bytes"}

    async def test_everything_is_counted_once(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        await store.enqueue_rollout(1)
        await store.start_attempt(rollout.rollout_id, worker_id="w2")
        await store.update_worker("w1", {})
        span = make_span(rollout.attempt)
        await store.add_many_spans([span, span, make_span(rollout.attempt), make_span(rollout.attempt)])
        added = await store.add_resources(make_llm())
        await store.update_resources(added.resources_id, make_llm())
        statistics = await store.statistics()
        counted = {name: statistics.get(f"total_{name}") for name in ("rollouts", "attempts", "spans", "resources")}
        assert counted == {"rollouts": 2, "attempts": 2, "spans": 3, "resources": 1}
        assert statistics.get("total_workers") == 2

    async def test_statistics_contain_the_name_and_a_rising_uptime(self, store: Store) -> None:
        first, second = await store.statistics(), await store.statistics()
        assert first.get("name")
        uptimes = first.get("uptime"), second.get("uptime")
        assert uptimes[0] is not None
        assert uptimes[1] is not None
        assert 0 < uptimes[0] < uptimes[1]

    async def test_capabilities_are_flags_and_include_async_safe(self, store: Store) -> None:
        capabilities = store.capabilities
        assert set(capabilities) <= {"thread_safe", "async_safe", "zero_copy", "otlp_traces"}
        assert all(isinstance(flag, bool) for flag in capabilities.values())
        assert capabilities.get("async_safe") is True
