"""Facts that follow from spans, their numbers and resources."""

from __future__ import annotations

from typing import Any

import pytest

from store.domain.commands import NewSpan
from store.domain.events import (
    Fact,
    ResourcesPublished,
    ResourcesReplaced,
    SpanNumbersReserved,
    SpanRecorded,
)
from store.errors import NotFound
from tests.domain.story import (
    NOW,
    RETRY,
    SECOND,
    Story,
    amend,
    attempt,
    became,
    moved,
    number,
    publish,
    record,
    report,
    span,
    start,
)


def call(number: int, attempt_id: str = "a1", *, response_id: str = "r-1", **fields: Any) -> NewSpan:
    """Return a span of a call to a model."""
    return span(number, attempt_id, response_id=response_id, **fields)


def tokens(story: Story) -> tuple[int, int]:
    state = story.working_set.rollouts["r1"]
    return state.tokens_in, state.tokens_out


def counted_before(story: Story) -> list[list[int] | None]:
    return [event.fact.counted_before for event in story.log if isinstance(event.fact, SpanRecorded)]


class TestSpans:
    def test_the_first_span_makes_attempt_and_rollout_run(self, story: Story) -> None:
        story.tell(start())
        story.passes(2).tell(record(span(1)))
        assert story.facts[1:] == [
            became("a1", "preparing", "running", "span"),
            moved("preparing", "running", "span"),
        ]
        assert story.causes == [None, "span.recorded", "span.recorded"]
        assert story.attempt().sign_of_life == story.now / SECOND

    def test_later_spans_are_signs_of_life_and_nothing_else(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(span(1)))
        story.passes(4).tell(record(span(2)))
        assert [event.fact.type for event in story.events] == ["span.recorded"]
        assert story.attempt().last_heartbeat_time == story.now / SECOND

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
    def test_a_late_span_does_not_revive_an_attempt_that_is_over(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(report(status))
        before = story.statuses()
        story.passes(1).tell(record(span(1)))
        assert (story.statuses(), len(story.events)) == (before, 1)
        assert story.attempt().last_heartbeat_time == story.now / SECOND

    @pytest.mark.parametrize("status", ["failed", "timeout"])
    def test_a_late_span_does_not_kill_a_pending_retry(self, story: Story, status: str) -> None:
        story.tell(start(**RETRY))
        story.tell(report(status))
        story.tell(record(span(1)))
        assert (story.statuses(), story.queue) == (("requeuing", status), ["r1"])
        assert len(story.claim()) == 1

    def test_a_span_of_an_attempt_that_fell_silent_recovers_it_and_takes_the_retry_back(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(report("unresponsive"))
        story.tell(record(span(1)))
        assert (story.statuses(), story.queue, story.claim()) == (("running", "running"), [], [])

    def test_a_span_of_an_attempt_that_was_replaced_moves_only_that_attempt(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(report("unresponsive"))
        story.tell(attempt("a2"))
        story.tell(record(span(1)))
        assert story.statuses() == ("preparing", "running", "preparing")

    @pytest.mark.parametrize("status", ["queuing", "succeeded", "failed", "cancelled"])
    def test_a_span_leaves_other_statuses_of_the_rollout_alone(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(amend(status=status))
        story.tell(record(span(1)))
        assert story.statuses() == (status, "running")

    def test_spans_touch_no_worker(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report("unresponsive"))
        story.passes(1).tell(record(span(1)))
        assert story.worker().status == "unknown"

    def test_a_span_recorded_twice_is_no_sign_of_life(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(span(1)))
        assert story.passes(5).tell(record(span(7, span_id="s1"))).numbers == []
        assert (story.events, story.working_set.counters) == ([], {"r1": 7})
        assert story.attempt().last_heartbeat_time == NOW / SECOND + 1e-6

    def test_of_two_with_one_key_the_first_counts(self, story: Story) -> None:
        story.tell(start())
        assert story.tell(record(span(1, span_id="x"), span(2, span_id="x"), span(3))).numbers == [(0, 1), (2, 3)]

    def test_new_spans_before_a_repeated_one_are_returned(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(span(1)))
        assert story.tell(record(span(2), span(1), span(3))).numbers == [(0, 2), (2, 3)]

    def test_spans_of_one_call_go_group_by_group_with_stamps_of_their_own(self, story: Story) -> None:
        story.tell(start())
        story.tell(attempt("a2"))
        recorded = story.passes(1).tell(record(span(1, "a2"), span(2, "a1"), span(3, "a2")))
        assert recorded.numbers == [(0, 1), (2, 3), (1, 2)]
        stamps = [event.at - story.now for event in story.events if isinstance(event.fact, SpanRecorded)]
        assert stamps == [0, 1, 2]

    def test_groups_before_an_unknown_one_stand_and_those_after_it_are_not_tried(self, story: Story) -> None:
        story.tell(start())
        with pytest.raises(NotFound, match=r"^Attempt a7 not found for rollout r1$"):
            story.tell(record(span(2), span(9, "a7"), span(5, "a1", "r2"), span(3)))
        assert [event.fact.type for event in story.events].count("span.recorded") == 2
        assert story.working_set.counters == {"r1": 9}

    @pytest.mark.parametrize("is_known", [True, False])
    def test_a_refused_span_leaves_nothing_but_the_counter(self, story: Story, is_known: bool) -> None:
        if is_known:
            story.tell(start())
        before = story.copy()
        with pytest.raises(NotFound):
            story.tell(record(span(6, "a7")))
        assert (story.events, story.working_set.counters) == ([], {"r1": 6})
        assert (story.working_set.rollouts, story.working_set.spans) == (
            before.working_set.rollouts,
            before.working_set.spans,
        )

    def test_the_tokens_of_a_call_that_two_spans_record_are_counted_once(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(call(1, tokens_in=3, tokens_out=4)))
        story.tell(record(call(2, tokens_in=3, tokens_out=4)))
        assert tokens(story) == (3, 4)
        assert counted_before(story) == [None, [3, 4]]

    def test_also_in_one_batch(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(call(1, tokens_in=3, tokens_out=4), call(2, tokens_in=3, tokens_out=4)))
        assert tokens(story) == (3, 4)

    def test_a_span_with_more_tokens_of_the_call_adds_the_rest(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(call(1, tokens_in=3)))
        story.tell(record(call(2, tokens_in=2, tokens_out=4)))
        story.tell(record(call(3, tokens_in=5, tokens_out=4)))
        assert tokens(story) == (5, 4)
        assert counted_before(story) == [None, [2, 0], [3, 4]]

    def test_a_span_of_a_call_whose_earlier_spans_have_no_tokens_is_an_ordinary_span(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(call(1), call(2, tokens_in=2, tokens_out=4), call(3)))
        assert (tokens(story), counted_before(story)) == ((2, 4), [None, None, None])

    def test_calls_with_other_answers_or_without_one_and_those_of_other_attempts_count_each(self, story: Story) -> None:
        story.tell(start())
        story.tell(attempt("a2"))
        used: dict[str, Any] = {"tokens_in": 1, "tokens_out": 2}
        story.tell(record(call(1, **used), call(2, response_id="r-2", **used), span(3, **used), span(4, **used)))
        story.tell(record(call(5, "a2", **used)))
        assert (tokens(story), counted_before(story)) == ((5, 10), [None] * 5)

    def test_rewards_and_tokens_are_summed_up_in_the_rollout(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(span(1, tokens_in=3, rewards=[["primary", 0.5], ["style", 0.1]]), span(2, tokens_out=4)))
        state = story.rollout()
        assert (state.spans, state.tokens_in, state.tokens_out, state.last_reward) == (2, 3, 4, 0.5)


class TestSpanNumbers:
    def test_numbers_are_dense_per_rollout_known_or_not(self, story: Story) -> None:
        assert story.tell(number("r1", "r2", "r1", "r1")) == [1, 1, 2, 3]
        assert story.events == []
        story.tell(start("r2"))
        assert story.tell(number("r1", "r2", "r1", "r2")) == [4, 2, 5, 3]
        assert story.facts == [SpanNumbersReserved(first=2, until=33)]

    def test_one_fact_reserves_a_block(self, story: Story) -> None:
        story.tell(start())
        facts: list[Fact] = []
        for expected in range(1, 66):
            assert story.tell(number("r1")) == [expected]
            facts += story.facts
        assert facts == [
            SpanNumbersReserved(first=1, until=32),
            SpanNumbersReserved(first=33, until=64),
            SpanNumbersReserved(first=65, until=96),
        ]

    def test_draw_larger_than_a_block_reserves_exactly_its_numbers(self, story: Story) -> None:
        story.tell(start())
        assert story.tell(number(*["r1"] * 30)) == [*range(1, 31)]
        assert story.tell(number(*["r1"] * 40)) == [*range(31, 71)]
        assert story.facts == [SpanNumbersReserved(first=31, until=70)]
        assert story.tell(number("r1")) == [71]
        assert story.facts == [SpanNumbersReserved(first=71, until=102)]

    def test_a_draw_within_the_block_takes_no_time_and_leaves_the_rollout_as_it_is(self, story: Story) -> None:
        story.tell(start())
        story.tell(number("r1"))
        before = story.copy()
        story.passes(1).tell(number("r1"))
        assert (story.events, story.working_set.rollouts) == ([], before.working_set.rollouts)

    def test_a_reservation_changes_only_the_last_event_of_the_rollout(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        before, watched = story.copy().rollout(), dict(story.watch)
        story.passes(1).tell(number("r1"))
        (event,) = story.events
        assert event.cause is None
        after = story.rollout()
        assert (after.stream_version, after.last_position) == (event.version, event.position)
        after.stream_version, after.last_position = before.stream_version, before.last_position
        assert (after, story.watch) == (before, watched)

    def test_two_calls_of_a_batch_share_a_block(self, story: Story) -> None:
        story.tell(start())
        assert story.tell(number("r1"), number("r1", "r1")) == [2, 3]
        assert story.facts == [SpanNumbersReserved(first=1, until=32)]

    def test_the_rollouts_of_one_call_have_stamps_of_their_own(self, story: Story) -> None:
        story.tell(start(), start("r2"))
        story.passes(1).tell(number("r1", "r2", "r1"))
        assert [(event.stream, event.at - story.now) for event in story.events] == [
            ("rollout/r1", 0),
            ("rollout/r2", 1),
        ]

    def test_spans_need_no_reservation_and_draws_continue_after_them(self, story: Story) -> None:
        story.tell(start())
        story.tell(number("r1"))
        story.tell(record(*(span(0, span_id=f"s{index}") for index in range(40)), number=True))
        assert {event.fact.type for event in story.events if event.fact.type != "span.recorded"} == {
            "attempt.status_changed",
            "rollout.status_changed",
        }
        assert story.tell(number("r1")) == [42]
        assert story.facts == [SpanNumbersReserved(first=42, until=73)]

    @pytest.mark.parametrize("sequence_id,following", [(100, 101), (0, 1), (-4, 1)])
    def test_an_explicit_number_raises_the_counter_and_never_lowers_it(
        self, story: Story, sequence_id: int, following: int
    ) -> None:
        story.tell(start())
        story.tell(record(span(sequence_id)))
        assert story.tell(number("r1")) == [following]
        story.tell(record(span(-9)))
        assert story.tell(number("r1")) == [following + 1]

    def test_a_span_without_a_number_draws_the_next(self, story: Story) -> None:
        story.tell(start())
        story.tell(number("r1"))
        assert story.tell(record(span(0), number=True)).numbers == [(0, 2)]
        fact = story.facts[0]
        assert isinstance(fact, SpanRecorded)
        assert fact.sequence_id == 2

    def test_a_repeated_span_without_a_number_draws_none(self, story: Story) -> None:
        story.tell(start())
        again = [span(0, span_id=span_id) for span_id in ("x", "x", "y")]
        assert story.tell(record(*again, number=True)).numbers == [(0, 1), (2, 2)]
        assert story.tell(record(*again, span(0, span_id="z"), number=True)).numbers == [(3, 3)]

    def test_a_number_drawn_for_a_refused_span_is_spent(self, story: Story) -> None:
        with pytest.raises(NotFound):
            story.tell(record(span(0), number=True))
        assert story.tell(number("r1")) == [2]

    def test_attempts_of_one_rollout_share_its_numbers(self, story: Story) -> None:
        story.tell(start())
        story.tell(attempt("a2"))
        story.tell(record(span(0, "a1", span_id="x"), number=True))
        assert story.tell(record(span(0, "a2", span_id="y"), number=True)).numbers == [(0, 2)]


class TestResources:
    def test_versions_count_per_id_and_the_last_written_is_the_latest(self, story: Story) -> None:
        story.tell(publish("rs1"))
        assert story.facts == [ResourcesPublished(version=1)]
        story.tell(publish("rs2"))
        story.passes(3).tell(publish("rs1"))
        assert story.facts == [ResourcesReplaced(version=2)]
        state = story.working_set.resources["rs1"]
        assert (state.create_at, state.update_at, story.working_set.latest_resources) == (NOW, story.now, "rs1")
        assert story.working_set.resources["rs2"].version == 1
