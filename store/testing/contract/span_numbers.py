"""Contract of span numbers: the numbers that a store returns for a rollout have no gaps, and no number is repeated."""

from __future__ import annotations

import pytest

from store.errors import NotFound
from store.interface.store import Store
from store.testing.contract.rollout_helpers import started
from store.testing.samples import make_sdk_span, make_span

__all__ = ["SpanNumbersContract"]


class SpanNumbersContract:
    """Tests of `get_next_span_sequence_id` and `get_many_span_sequence_ids`.

    A span may also be stored with a number of the caller's choice; the tests check the effect on later numbers.
    """

    pytestmark = pytest.mark.asyncio

    async def test_numbers_start_at_one_and_rise_by_one(self, store: Store) -> None:
        rollout = await started(store)
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        assert [await store.get_next_span_sequence_id(*ids) for _ in range(4)] == [1, 2, 3, 4]

    async def test_the_attempts_of_a_rollout_share_its_numbers(self, store: Store) -> None:
        rollout = await started(store)
        second = await store.start_attempt(rollout.rollout_id)
        first_id, second_id = rollout.attempt.attempt_id, second.attempt.attempt_id
        drawn = [
            await store.get_next_span_sequence_id(rollout.rollout_id, attempt_id)
            for attempt_id in (first_id, second_id, first_id)
        ]
        assert drawn == [1, 2, 3]

    async def test_each_rollout_has_its_own_span_numbers(self, store: Store) -> None:
        first, second = await started(store), await started(store)
        assert await store.get_next_span_sequence_id(first.rollout_id, first.attempt.attempt_id) == 1
        assert await store.get_next_span_sequence_id(second.rollout_id, second.attempt.attempt_id) == 1

    async def test_an_unknown_attempt_uses_the_numbers_of_its_rollout(self, store: Store) -> None:
        rollout = await started(store)
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "at-none") == 1
        assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 2

    async def test_an_unknown_rollout_has_numbers_of_its_own(self, store: Store) -> None:
        assert await store.get_next_span_sequence_id("ro-none", "at-none") == 1
        assert await store.get_next_span_sequence_id("ro-none", "at-other") == 2
        assert await store.get_rollout_by_id("ro-none") is None

    async def test_many_numbers_are_drawn_as_if_one_by_one(self, store: Store) -> None:
        a, b = await started(store), await started(store)
        pairs = [(a.rollout_id, "1"), (b.rollout_id, "1"), (a.rollout_id, "2"), (a.rollout_id, "1")]
        drawn = await store.get_many_span_sequence_ids(pairs)
        assert isinstance(drawn, list)
        assert drawn == [1, 1, 2, 3]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [4, 2, 5, 6]

    async def test_numbers_stay_dense_over_many_draws_and_spans(self, store: Store) -> None:
        rollout = await started(store)
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        drawn: list[int] = []
        for size in (1, 30, 1, 1, 40, 1, 64):
            drawn += await store.get_many_span_sequence_ids([ids] * size)
            span = await store.add_otel_span(*ids, make_sdk_span())
            assert span is not None
            drawn.append(span.sequence_id)
        assert drawn == [*range(1, 146)]

    async def test_a_call_without_pairs_returns_no_numbers(self, store: Store) -> None:
        assert list(await store.get_many_span_sequence_ids([])) == []

    async def test_the_next_number_is_greater_than_an_explicit_number(self, store: Store) -> None:
        rollout = await started(store)
        await store.add_span(make_span(rollout.attempt, 100))
        assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 101

    async def test_zero_and_negative_numbers_are_stored_and_the_next_number_is_one(self, store: Store) -> None:
        for number in [0, -7]:
            rollout = await started(store)
            await store.add_span(make_span(rollout.attempt, number))
            (span,) = await store.query_spans(rollout.rollout_id)
            assert span.sequence_id == number
            assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 1

    async def test_a_lower_explicit_number_does_not_lower_the_next_number(self, store: Store) -> None:
        rollout = await started(store)
        for number in (10, 3):
            await store.add_span(make_span(rollout.attempt, number))
        assert [span.sequence_id for span in await store.query_spans(rollout.rollout_id)] == [3, 10]
        assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 11

    async def test_the_number_of_a_duplicate_span_raises_the_next_number(self, store: Store) -> None:
        rollout = await started(store)
        await store.add_span(make_span(rollout.attempt, 1, span_id="same"))
        await store.add_span(make_span(rollout.attempt, 40, span_id="same"))
        assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 41

    async def test_the_number_of_a_refused_span_raises_the_next_number(self, store: Store) -> None:
        rollout = await started(store)
        with pytest.raises(NotFound):
            await store.add_span(make_span(rollout.attempt, 20, attempt_id="at-none"))
        assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 21
        with pytest.raises(NotFound):
            await store.add_span(make_span(rollout.attempt, 30, rollout_id="ro-none"))
        assert await store.get_next_span_sequence_id("ro-none", "at-none") == 31

    async def test_many_spans_raise_the_next_number_of_each_rollout(self, store: Store) -> None:
        first, second = await started(store), await started(store)
        await store.add_many_spans(
            [
                make_span(first.attempt, 9),
                make_span(second.attempt, 3),
                make_span(first.attempt, 4),
                make_span(second.attempt, 5),
            ]
        )
        pairs = [(first.rollout_id, first.attempt.attempt_id), (second.rollout_id, second.attempt.attempt_id)]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [10, 6]

    async def test_a_refused_group_raises_the_next_number_and_a_later_group_does_not(self, store: Store) -> None:
        rollout, later = await started(store), await started(store)
        with pytest.raises(NotFound):
            await store.add_many_spans(
                [make_span(rollout.attempt, 9, attempt_id="at-none"), make_span(later.attempt, 9)]
            )
        pairs = [(rollout.rollout_id, "any"), (later.rollout_id, "any")]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [10, 1]
