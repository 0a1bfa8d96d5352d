"""LangGraph's conformance tests of checkpointers, all capabilities, on both databases. Acceptance scenario 62."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any

import pytest

from store import open_store
from store.integrations.langgraph import RollbookSaver
from tests.threads.langgraph_samples import ON_BOTH

# Without types; it is asked for four things.
_suite: Any = import_module("langgraph.checkpoint.conformance")
_capabilities: Any = import_module("langgraph.checkpoint.conformance.capabilities")


@ON_BOTH
@pytest.mark.slow
async def test_the_saver_is_all_that_langgraph_asks_for(store_url: str) -> None:
    async def savers() -> AsyncGenerator[RollbookSaver]:
        async with await open_store(store_url) as store:
            yield RollbookSaver(store)

    report = await _suite.validate(_suite.checkpointer_test(name="RollbookSaver")(savers))
    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert failures == []
    assert set(report.results) == {capability.value for capability in _capabilities.ALL_CAPABILITIES}
    assert all(result.detected for result in report.results.values())
    assert report.passed_all()
    assert sum(result.tests_passed for result in report.results.values()) >= 81
    async with await open_store(store_url) as store:
        verified, rebuilt = await store.log.verify(), await store.log.rebuild()
    assert verified.differences == []
    assert rebuilt.written == {}
    assert verified.rows["thread_checkpoints"] > 100
