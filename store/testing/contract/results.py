"""Contract of results: pages are sequences, and changing a result does not change the store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from store.interface.store import Store
from store.models import PaginatedResult
from store.testing.contract.rollout_helpers import attempt_of, reread, started, worker_of
from store.testing.samples import make_llm, make_span

__all__ = ["ResultsContract"]


class ResultsContract:
    """Tests of pages, and of the immutability of results."""

    pytestmark = pytest.mark.asyncio

    async def test_page_is_a_sequence_of_items_with_limit_and_offset(self, store: Store) -> None:
        rollouts = [await store.enqueue_rollout(number) for number in range(4)]
        page = await store.query_rollouts(limit=3, offset=1)
        assert (page.limit, page.offset, page.total) == (3, 1, 4)
        assert len(page) == 3
        assert page[0] == rollouts[1]
        assert list(page[1:]) == rollouts[2:]
        assert list(page) == list(page.items) == rollouts[1:]
        assert page != rollouts[1:]

    async def test_a_page_without_limit_has_the_limit_minus_one(self, store: Store) -> None:
        page = await store.query_rollouts()
        assert (page.limit, page.offset, page.total, len(page)) == (-1, 0, 0, 0)

    async def test_the_repr_of_a_page_contains_its_range_and_its_first_item(self, store: Store) -> None:
        pages: list[PaginatedResult[Any]] = [await store.query_workers(limit=2, offset=5)]
        for number in range(3):
            await store.update_worker(f"w{number}", {})
        pages += [await store.query_workers(limit=2, offset=2), await store.query_workers()]
        worker = await worker_of(store, "w2")
        first = await worker_of(store, "w0")
        assert [repr(item) for item in pages] == [
            "<PaginatedResult (5:7 of 0) empty>",
            f"<PaginatedResult (2:4 of 3) {worker!r}>",
            f"<PaginatedResult (0: of 3) [{first!r}, ...]>",
        ]

    async def test_the_fields_of_a_result_cannot_be_set(self, store: Store) -> None:
        rollout = await started(store, worker_id="w1")
        span = await store.add_span(make_span(rollout.attempt))
        resources = await store.add_resources(make_llm())
        worker = await worker_of(store, "w1")
        page = await store.query_rollouts()
        fields: list[tuple[Any, str]] = [
            (rollout, "status"),
            (rollout.attempt, "status"),
            (rollout.config, "max_attempts"),
            (span, "name"),
            (resources, "version"),
            (resources.resources["llm"], "resource_type"),
            (worker, "status"),
            (page, "total"),
        ]
        for result, field in fields:
            before = getattr(result, field)
            with pytest.raises((ValueError, AttributeError, TypeError)):
                setattr(result, field, "changed")
            assert getattr(result, field) == before

    async def test_changing_a_result_does_not_change_the_store(self, store: Store) -> None:
        begun = await store.start_rollout({"list": [1]}, metadata={"list": [1]})
        await store.update_attempt(begun.rollout_id, "latest", metadata={"list": [1]})
        await store.add_span(make_span(begun.attempt, attributes={"list": [1]}))
        await store.update_worker("w1", {"list": [1]})
        for _ in range(2):
            rollout = await reread(store, begun)
            attempt = await attempt_of(store, begun)
            (span,) = await store.query_spans(begun.rollout_id)
            worker = await worker_of(store, "w1")
            held: list[Any] = [
                rollout.input,
                rollout.metadata,
                attempt.metadata,
                span.attributes,
                worker.heartbeat_stats,
            ]
            assert [item["list"] for item in held] == [[1]] * 5
            for item in held:
                with suppress(TypeError, AttributeError):
                    item["list"].append(2)
                    item["more"] = 1
