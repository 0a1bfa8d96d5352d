"""Contract of arguments of a wrong type: the store raises an error that contains the argument's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from store.errors import Invalid
from store.interface.store import Store
from store.testing.contract.rollout_helpers import reread, started
from store.testing.samples import make_sdk_span

__all__ = ["WrongKindsContract"]

NOT_TEXT: Sequence[Any] = (7, True, 1.5, b"x", ["x"], {"a": 1}, object())
NOT_INTEGER: Sequence[Any] = ("1", True, 1.5, b"1", [1], object())
NOT_SECONDS: Sequence[Any] = ("1", True, b"1", [1], object(), 10**400)
NOT_TEXTS: Sequence[Any] = (7, True, 1.5, "text", b"x", {"a": 1}, object(), [7], [None], [b"x"])
NOT_OBJECTS: Sequence[Any] = (7, True, None, "text", b"x", {"a": 1}, object(), [7], [None])
NOT_PAIRS: Sequence[Any] = (*NOT_OBJECTS, ["ab"], [("a",)], [("a", "b", "c")], [("a", 1)], [(1, "b")])

Case = tuple[str, Callable[[Any], Awaitable[Any]], Sequence[Any]]


async def expect_refused(cases: Sequence[Case]) -> None:
    """Check that each call refuses each value with an error that contains the argument's name."""
    for field, call, values in cases:
        for value in values:
            with pytest.raises(Invalid) as refused:
                await call(value)
            assert refused.value.field.startswith(field), (field, value, refused.value)
            assert isinstance(refused.value, ValueError)


class WrongKindsContract:
    """Tests that every store refuses arguments of a wrong type, and that such calls change nothing."""

    pytestmark = pytest.mark.asyncio

    async def test_ids_must_be_text(self, store: Store) -> None:
        rollout = await started(store)
        ro = rollout.rollout_id
        span = make_sdk_span()
        none = (*NOT_TEXT, None)
        await expect_refused(
            [
                ("rollout_id", store.get_rollout_by_id, none),
                ("rollout_id", store.query_attempts, none),
                ("rollout_id", store.get_latest_attempt, none),
                # A list of texts names several rollouts.
                ("rollout_id", store.query_spans, [value for value in none if value != ["x"]]),
                ("rollout_id", store.start_attempt, none),
                ("rollout_id", lambda value: store.update_rollout(value, status="running"), none),
                ("rollout_id", lambda value: store.update_attempt(value, "latest", status="running"), none),
                ("rollout_id", lambda value: store.add_otel_span(value, "at", span), none),
                ("rollout_id", lambda value: store.get_next_span_sequence_id(value, "at"), none),
                ("attempt_id", lambda value: store.update_attempt(ro, value, status="running"), none),
                ("attempt_id", lambda value: store.add_otel_span(ro, value, span), none),
                ("attempt_id", lambda value: store.get_next_span_sequence_id(ro, value), none),
                ("attempt_id", lambda value: store.query_spans(ro, value), NOT_TEXT),
                ("resources_id", store.get_resources_by_id, none),
                ("resources_id", lambda value: store.update_resources(value, {}), none),
                ("resources_id", lambda value: store.start_rollout(1, resources_id=value), NOT_TEXT),
                ("worker_id", store.get_worker_by_id, none),
                ("worker_id", store.update_worker, none),
                ("worker_id", store.dequeue_rollout, NOT_TEXT),
                ("worker_id", lambda value: store.start_attempt(ro, value), NOT_TEXT),
            ]
        )
        assert await reread(store, rollout) == rollout
        assert await store.get_next_span_sequence_id(ro, "at") == 1

    async def test_filter_values_must_be_text(self, store: Store) -> None:
        ro = (await started(store)).rollout_id
        fields = ["trace_id", "span_id_contains", "parent_id", "name_contains"]
        spans: list[Case] = [(f, lambda value, f=f: store.query_spans(ro, **{f: value}), NOT_TEXT) for f in fields]
        await expect_refused(
            [
                *spans,
                ("rollout_id_contains", lambda value: store.query_rollouts(rollout_id_contains=value), NOT_TEXT),
                ("rollout_id_in", lambda value: store.query_rollouts(rollout_id_in=value), NOT_TEXTS),
                ("status_in", lambda value: store.query_rollouts(status_in=value), NOT_TEXTS),
                ("status_in", lambda value: store.query_workers(status_in=value), NOT_TEXTS),
                ("worker_id_contains", lambda value: store.query_workers(worker_id_contains=value), NOT_TEXT),
                ("resources_id", lambda value: store.query_resources(resources_id=value), NOT_TEXT),
            ]
        )

    async def test_arguments_of_a_page_must_have_the_right_types(self, store: Store) -> None:
        ro = (await started(store)).rollout_id
        queries: list[Callable[..., Awaitable[Any]]] = [
            store.query_rollouts,
            partial(store.query_attempts, ro),
            partial(store.query_spans, ro),
            store.query_resources,
            store.query_workers,
        ]
        for query in queries:
            await expect_refused(
                [
                    ("limit", lambda value, query=query: query(limit=value), (*NOT_INTEGER, None)),
                    ("offset", lambda value, query=query: query(offset=value), (*NOT_INTEGER, None)),
                    ("sort_by", lambda value, query=query: query(sort_by=value), NOT_TEXT),
                    ("sort_order", lambda value, query=query: query(sort_order=value), (*NOT_TEXT, None)),
                ]
            )
        words = (*NOT_TEXT, None, "xor")
        await expect_refused(
            [
                ("filter_logic", lambda value: store.query_rollouts(filter_logic=value), words),
                ("filter_logic", lambda value: store.query_spans(ro, filter_logic=value), words),
                ("filter_logic", lambda value: store.query_workers(filter_logic=value), words),
            ]
        )

    async def test_durations_must_be_numbers(self, store: Store) -> None:
        rollout = await started(store)
        ro = rollout.rollout_id
        await expect_refused(
            [
                ("wait_seconds", lambda value: store.dequeue_rollout(wait_seconds=value), (*NOT_SECONDS, None)),
                ("wait_seconds", lambda value: store.dequeue_many_rollouts(wait_seconds=value), (*NOT_SECONDS, None)),
                ("timeout", lambda value: store.wait_for_rollouts([ro], timeout=value), NOT_SECONDS),
                (
                    "last_heartbeat_time",
                    lambda value: store.update_attempt(ro, "latest", last_heartbeat_time=value),
                    (*NOT_SECONDS, None),
                ),
            ]
        )
        assert await reread(store, rollout) == rollout

    async def test_counts_and_span_numbers_must_be_integers(self, store: Store) -> None:
        ro = (await started(store)).rollout_id
        span = make_sdk_span()
        await expect_refused(
            [
                ("limit", store.dequeue_many_rollouts, (*NOT_INTEGER, None)),
                ("sequence_id", lambda value: store.add_otel_span(ro, "at", span, value), NOT_INTEGER),
            ]
        )

    async def test_arguments_for_several_items_must_be_lists(self, store: Store) -> None:
        rollout = await started(store)
        await expect_refused(
            [
                ("rollouts", store.enqueue_many_rollouts, NOT_OBJECTS),
                ("span", store.add_many_spans, NOT_OBJECTS),
                ("rollout_attempt_ids", store.get_many_span_sequence_ids, NOT_PAIRS),
                ("rollout_ids", lambda value: store.wait_for_rollouts(value, timeout=0), (*NOT_TEXTS, None)),
            ]
        )
        assert (await store.query_rollouts()).total == 1
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "any") == 1

    async def test_readable_span_must_be_a_span_of_the_sdk(self, store: Store) -> None:
        rollout = await started(store)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        await expect_refused(
            [("readable_span", lambda value: store.add_otel_span(*ids, value), (*NOT_TEXT, None, "x"))]
        )
        assert (await store.query_spans(rollout.rollout_id)).total == 0
