"""Contract of queries for spans.

Queries for spans have the same rules as other queries, with one exception. With `filter_logic="or"` and no filter, a
query for spans finds nothing, but other queries find everything.
"""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.models import AttemptedRollout
from store.testing.contract.rollout_helpers import reread, started
from store.testing.samples import make_span

__all__ = ["SpanQueriesContract"]


class SpanQueriesContract:
    """Tests of `query_spans`."""

    pytestmark = pytest.mark.asyncio

    async def traced(self, store: Store) -> AttemptedRollout:
        """Store three spans that differ in every field for which a query has a filter."""
        rollout = await started(store)
        await store.add_many_spans(
            [
                make_span(rollout.attempt, 3, span_id="s-root", trace_id="t-1", name="agent", start_time=10.0),
                make_span(
                    rollout.attempt,
                    1,
                    span_id="s-call",
                    trace_id="t-1",
                    parent_id="s-root",
                    name="llm.call",
                    start_time=None,
                ),
                make_span(
                    rollout.attempt,
                    2,
                    span_id="s-tool",
                    trace_id="t-2",
                    parent_id="s-call",
                    name="tool.call",
                    start_time=5.0,
                ),
            ]
        )
        return rollout

    async def span_ids(self, store: Store, rollout: AttemptedRollout, **filters: Any) -> list[str]:
        return [span.span_id for span in await store.query_spans(rollout.rollout_id, **filters)]

    async def test_spans_are_listed_by_their_number(self, store: Store) -> None:
        rollout = await self.traced(store)
        assert await self.span_ids(store, rollout) == ["s-call", "s-tool", "s-root"]
        assert await self.span_ids(store, rollout, sort_order="desc") == ["s-root", "s-tool", "s-call"]

    async def test_spans_are_filtered_exactly_and_by_parts(self, store: Store) -> None:
        rollout = await self.traced(store)
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"trace_id": "t-1"}, ["s-call", "s-root"]),
            ({"trace_id_contains": "t-"}, ["s-call", "s-tool", "s-root"]),
            ({"trace_id_contains": "T-"}, []),
            ({"span_id": "s-tool"}, ["s-tool"]),
            ({"span_id": "s-"}, []),
            ({"span_id_contains": "oo"}, ["s-tool", "s-root"]),
            ({"parent_id": "s-root"}, ["s-call"]),
            ({"parent_id": ""}, []),
            ({"parent_id_contains": "s-"}, ["s-call", "s-tool"]),
            ({"parent_id_contains": ""}, ["s-call", "s-tool"]),
            ({"name": "agent"}, ["s-root"]),
            ({"name_contains": ".call"}, ["s-call", "s-tool"]),
            ({"name_contains": ""}, ["s-call", "s-tool", "s-root"]),
            ({"name_contains": "%"}, []),
            ({"name_contains": ".call", "trace_id": "t-2"}, ["s-tool"]),
            ({"name_contains": ".call", "trace_id": "t-1", "filter_logic": "or"}, ["s-call", "s-tool", "s-root"]),
            ({"name": "agent", "name_contains": "tool", "filter_logic": "or"}, ["s-tool", "s-root"]),
            ({"name": "agent", "name_contains": "tool"}, []),
            ({"filter_logic": "or"}, []),
            ({"filter_logic": "and"}, ["s-call", "s-tool", "s-root"]),
        ]
        for filters, expected in cases:
            assert await self.span_ids(store, rollout, **filters) == expected, filters

    async def test_or_applies_only_within_the_rollout_and_the_attempt(self, store: Store) -> None:
        rollout, other = await self.traced(store), await self.traced(store)
        second = await store.start_attempt(rollout.rollout_id)
        await store.add_span(make_span(second.attempt, 9, span_id="s-second", name="agent"))
        either: dict[str, Any] = {"name": "agent", "trace_id": "t-2", "filter_logic": "or"}
        assert await self.span_ids(store, rollout, **either) == ["s-tool", "s-root", "s-second"]
        first_id = rollout.attempt.attempt_id
        assert await self.span_ids(store, rollout, attempt_id=first_id, **either) == ["s-tool", "s-root"]
        assert await self.span_ids(store, other, **either) == ["s-tool", "s-root"]

    async def test_spans_of_one_attempt_or_of_the_latest_attempt_can_be_queried(self, store: Store) -> None:
        rollout = await self.traced(store)
        second = await store.start_attempt(rollout.rollout_id)
        await store.add_span(make_span(second.attempt, 2, span_id="s-second"))
        assert await self.span_ids(store, rollout, attempt_id="latest") == ["s-second"]
        assert await self.span_ids(store, rollout, attempt_id=second.attempt.attempt_id) == ["s-second"]
        assert len(await self.span_ids(store, rollout, attempt_id=rollout.attempt.attempt_id)) == 3
        assert len(await self.span_ids(store, rollout)) == 4

    async def test_spans_of_an_unknown_rollout_or_attempt_are_an_empty_page(self, store: Store) -> None:
        for attempt_id in [None, "latest", "at-none"]:
            queued = await store.enqueue_rollout(1)
            for rollout_id in ("ro-none", queued.rollout_id):
                page = await store.query_spans(rollout_id, attempt_id, limit=5, offset=2)
                assert (list(page), page.limit, page.offset, page.total) == ([], 5, 2, 0)

    async def test_spans_are_paged_after_filtering_and_sorting(self, store: Store) -> None:
        rollout = await self.traced(store)
        page = await store.query_spans(rollout.rollout_id, trace_id_contains="t-", limit=1, offset=1)
        assert [span.span_id for span in page] == ["s-tool"]
        assert (page.limit, page.offset, page.total) == (1, 1, 3)
        none = await store.query_spans(rollout.rollout_id, limit=0)
        assert (list(none), none.total) == ([], 3)

    async def test_spans_are_sorted_by_their_scalar_fields(self, store: Store) -> None:
        rollout = await self.traced(store)
        cases: list[tuple[str, list[str], list[str]]] = [
            ("start_time", ["s-tool", "s-root", "s-call"], ["s-call", "s-root", "s-tool"]),
            ("parent_id", ["s-root", "s-tool", "s-call"], ["s-call", "s-tool", "s-root"]),
            ("name", ["s-root", "s-call", "s-tool"], ["s-tool", "s-call", "s-root"]),
            ("trace_id", ["s-root", "s-call", "s-tool"], ["s-tool", "s-root", "s-call"]),
        ]
        for field, rising, falling in cases:
            assert await self.span_ids(store, rollout, sort_by=field) == rising
            assert await self.span_ids(store, rollout, sort_by=field, sort_order="desc") == falling

    async def test_spans_with_equal_numbers_are_ordered_by_time_and_then_by_arrival(self, store: Store) -> None:
        rollout = await started(store)
        times: list[tuple[str, float | None, float | None]] = [
            ("never", None, None),
            ("late", 9.0, 9.5),
            ("open", 5.0, None),
            ("long", 5.0, 8.0),
            ("short", 5.0, 6.0),
            ("short-again", 5.0, 6.0),
            ("never-again", None, None),
        ]
        spans = [make_span(rollout.attempt, 4, span_id=span_id, start_time=a, end_time=b) for span_id, a, b in times]
        await store.add_many_spans(spans)
        await store.add_span(make_span(rollout.attempt, 3, span_id="before", start_time=99.0))
        expected = ["before", "short", "short-again", "long", "open", "late", "never", "never-again"]
        assert await self.span_ids(store, rollout) == expected

    async def test_spans_with_equal_numbers_in_several_attempts_are_ordered_by_time(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id)
        await store.add_span(make_span(second.attempt, 1, span_id="later", start_time=7.0))
        await store.add_span(make_span(rollout.attempt, 1, span_id="earlier", start_time=3.0))
        assert await self.span_ids(store, rollout) == ["earlier", "later"]

    async def test_span_query_does_not_change_the_rollout(self, store: Store) -> None:
        rollout = await self.traced(store)
        before = await reread(store, rollout)
        await store.query_spans(rollout.rollout_id)
        assert await reread(store, rollout) == before

    async def test_spans_of_several_rollouts_are_ordered_by_rollout_and_number(self, store: Store) -> None:
        rollouts = [await self.traced(store) for _ in range(3)]
        alone = [list(await store.query_spans(rollout.rollout_id)) for rollout in rollouts]
        ids = [rollout.rollout_id for rollout in rollouts]
        assert ids == sorted(ids)
        assert all(alone)
        page = await store.query_spans([ids[2], "ro-none", ids[0], ids[2]])
        assert list(page) == [*alone[0], *alone[2]]
        assert page.total == len(page)
        assert list(await store.query_spans([ids[1]])) == alone[1]
        assert list(await store.query_spans([])) == []
        falling = await store.query_spans(ids[:2], sort_order="desc", limit=len(alone[0]) + 1)
        numbers = [(span.rollout_id, span.sequence_id) for span in falling]
        assert numbers == sorted(numbers, key=lambda pair: (pair[0], -pair[1]))
        assert falling.total == len(alone[0]) + len(alone[1])
        names = await store.query_spans(ids, sort_by="name")
        assert [span.name for span in names] == sorted(span.name for spans in alone for span in spans)

    async def test_spans_of_the_latest_attempts_of_several_rollouts_can_be_queried(self, store: Store) -> None:
        rollouts = [await self.traced(store) for _ in range(3)]
        ids = [rollout.rollout_id for rollout in rollouts]
        second = await store.start_attempt(ids[1])
        empty = await store.start_attempt(ids[2])
        await store.add_span(make_span(second.attempt, 50, span_id="of the second"))
        expected = [*await store.query_spans(ids[0], "latest"), *await store.query_spans(ids[1], "latest")]
        assert list(await store.query_spans(ids, "latest")) == expected
        assert expected[-1].span_id == "of the second"
        assert list(await store.query_spans(ids, empty.attempt.attempt_id)) == []
        paginated_result = await store.query_spans(
            ids, "latest", name_contains="", filter_logic="or", offset=1, limit=2
        )
        assert list(paginated_result) == expected[1:3]
        assert paginated_result.total == len(expected)

    async def test_a_query_of_spans_has_a_limited_number_of_rollouts(self, store: Store) -> None:
        assert (await store.query_spans([f"ro-{number}" for number in range(1000)])).total == 0
        with pytest.raises(Invalid, match=r"1,001 rollouts.*split the list") as refused:
            await store.query_spans([f"ro-{number}" for number in range(1001)])
        assert refused.value.field == "rollout_id"
        for bad in ([7], [None], ["ro-1", b"x"]):
            with pytest.raises(Invalid, match="rollout_id"):
                await store.query_spans(bad)  # pyright: ignore[reportArgumentType]
