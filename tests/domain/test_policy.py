"""The rules of retries and of the watchdog; a check of due attempts equals a check of all attempts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.domain import retry
from store.domain.commands import Sweep
from store.domain.events import AttemptStatusChanged
from store.domain.retry import Overdue
from tests.domain.story import (
    NOW,
    SECOND,
    Story,
    amend,
    attempt,
    config,
    enqueue,
    record,
    release,
    report,
    span,
    start,
)


def seconds(micros: int) -> float:
    return micros / SECOND


class TestRetries:
    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    @pytest.mark.parametrize(
        "tries,limits,expected",
        [
            (1, {"max_attempts": 2}, "failed"),
            (1, {"max_attempts": 2, "retry": True}, "requeuing"),
            (2, {"max_attempts": 2, "retry": True}, "failed"),
            (3, {"max_attempts": 2, "retry": True}, "failed"),
            (1, {"max_attempts": 1, "retry": True}, "failed"),
        ],
    )
    def test_an_end_is_tried_again_if_it_is_listed_and_attempts_are_left(
        self, story: Story, status: str, tries: int, limits: dict[str, Any], expected: str
    ) -> None:
        story.tell(start())
        state = story.attempt()
        state.tries, state.status = tries, status
        listed = [status] if limits.get("retry") else []
        assert (
            retry.status_after(state, config(max_attempts=limits["max_attempts"], retry_condition=listed)) == expected
        )

    @pytest.mark.parametrize("status", ["preparing", "running", "succeeded"])
    def test_other_statuses_are_taken_over_whatever_is_listed(self, story: Story, status: str) -> None:
        story.tell(start())
        story.attempt().status = status
        assert retry.status_after(story.attempt(), config(max_attempts=9, retry_condition=[status])) == status


class TestTimeout:
    def test_it_must_be_passed_not_just_reached(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        assert retry.judge(story.rollout(), NOW + 10 * SECOND) is None
        assert retry.judge(story.rollout(), NOW + 10 * SECOND + 1) == Overdue("timeout", 10.0, None)

    def test_zero_is_passed_by_the_next_moment(self, story: Story) -> None:
        story.tell(start(timeout_seconds=0.0))
        assert story.sweep() == 1
        assert story.statuses() == ("failed", "timeout")

    def test_it_counts_from_the_start_of_the_attempt_not_of_the_rollout(self, story: Story) -> None:
        story.tell(enqueue("r1", timeout_seconds=10.0))
        story.passes(60).claim()
        assert story.passes(10).sweep() == 0
        assert story.passes(1).sweep() == 1

    def test_signs_of_life_do_not_extend_it(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        story.passes(9).tell(record(span(1)))
        assert story.passes(2).sweep() == 1
        assert story.facts[0] == AttemptStatusChanged(
            attempt_id="a1",
            from_="running",
            to="timeout",
            reason="timeout",
            limit=10.0,
            last_sign=seconds(NOW + 9 * SECOND),
        )

    def test_it_comes_before_silence(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0, unresponsive_seconds=1.0))
        story.passes(11).sweep()
        assert story.attempt().status == "timeout"


class TestSilence:
    def test_it_counts_from_the_start_while_there_was_no_sign(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        assert retry.judge(story.rollout(), NOW + 5 * SECOND) is None
        assert retry.judge(story.rollout(), NOW + 5 * SECOND + 1) == Overdue("unresponsive", 5.0, None)

    def test_it_counts_from_the_last_sign(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.passes(4).tell(record(span(1)))
        assert story.passes(5).sweep() == 0
        assert story.passes(1).sweep() == 1
        assert story.attempt().status == "unresponsive"

    def test_a_sign_at_zero_is_none(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.tell(report(None, last_heartbeat_time=0.0))
        assert story.passes(5).sweep() == 0

    def test_an_explicit_sign_may_go_back(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.tell(report(None, last_heartbeat_time=seconds(NOW) - 6))
        assert story.watch["r1"] == NOW - SECOND
        assert story.sweep() == 1

    def test_an_explicit_sign_beside_other_fields_may_go_back_too(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.tell(report(None, last_heartbeat_time=seconds(NOW) - 6, metadata={}))
        assert story.sweep() == 1

    def test_of_two_signs_the_one_written_last_counts(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.tell(report(None, last_heartbeat_time=seconds(NOW) + 100))
        story.tell(record(span(1)))
        assert story.attempt().sign_of_life == story.attempt().last_heartbeat_time
        story.tell(report(None, last_heartbeat_time=seconds(NOW) + 50))
        assert story.attempt().sign_of_life == seconds(NOW) + 50

    def test_span_overrides_a_heartbeat_from_the_future(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        story.tell(report(None, last_heartbeat_time=seconds(NOW) + 3600))
        story.tell(record(span(1)))
        assert story.passes(6).sweep() == 1


class TestJudgedRollouts:
    @pytest.mark.parametrize("status", ["queuing", "requeuing", "succeeded", "failed", "cancelled"])
    def test_only_rollouts_that_are_preparing_or_running_are_judged(self, story: Story, status: str) -> None:
        story.tell(start(timeout_seconds=1.0))
        story.tell(amend(status=status))
        assert (story.passes(9).sweep(everything=True), story.watch) == (0, {})

    def test_only_the_latest_attempt_is_judged(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        story.passes(8).tell(attempt("a2"))
        assert story.passes(8).sweep() == 0
        assert story.passes(8).sweep() == 1
        assert story.statuses() == ("failed", "preparing", "timeout")

    def test_the_status_of_the_attempt_itself_does_not_matter(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        story.tell(report("failed"))
        story.tell(amend(status="running"))
        assert story.passes(11).sweep() == 1
        assert story.statuses() == ("failed", "timeout")

    def test_an_attempt_given_up_before_still_moves_a_rollout_that_was_opened_again(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        story.passes(11).sweep()
        story.tell(amend(status="running"))
        assert story.sweep() == 1
        assert [fact.type for fact in story.facts] == ["rollout.status_changed"]
        assert story.rollout().status == "failed"

    def test_a_rollout_without_attempts_is_not_judged(self, story: Story) -> None:
        story.tell(enqueue("r1", timeout_seconds=1.0))
        story.tell(amend(status="running"))
        assert story.passes(9).sweep(everything=True) == 0


class TestConsequences:
    def test_the_attempt_the_rollout_and_the_worker_change_in_this_order(self, story: Story) -> None:
        story.tell(start(worker_id="w1", timeout_seconds=1.0, max_attempts=2, retry_condition=["timeout"]))
        story.passes(2).sweep()
        assert [event.fact.type for event in story.events] == [
            "attempt.status_changed",
            "rollout.status_changed",
            "worker.status_changed",
        ]
        assert story.causes == [None, "attempt.status_changed", "attempt.status_changed"]
        assert {event.actor for event in story.events} == {"watchdog"}
        assert (story.rollout().status, story.queue, story.worker().status) == ("requeuing", ["r1"], "unknown")
        assert story.attempt().end_at is None

    def test_rollouts_are_given_up_in_the_order_they_were_created_each_at_a_stamp_of_its_own(
        self, story: Story
    ) -> None:
        story.tell(start("r1", timeout_seconds=9.0, max_attempts=2, retry_condition=["timeout"]))
        story.tell(start("r2", timeout_seconds=3.0, max_attempts=2, retry_condition=["timeout"]))
        story.passes(20).sweep()
        assert (story.queue, [event.at - story.now for event in story.events]) == (["r1", "r2"], [0, 0, 1, 1])

    def test_sweep_finds_an_attempt_made_overdue_in_the_same_batch(self, story: Story) -> None:
        story.tell(start(unresponsive_seconds=5.0))
        together = Story()
        together.tell(start(unresponsive_seconds=5.0), report(None, last_heartbeat_time=1.0))
        story.tell(report(None, last_heartbeat_time=1.0))
        story.sweep()
        late = Story()
        late.tell(start(unresponsive_seconds=5.0), report(None, last_heartbeat_time=1.0), Sweep(actor="watchdog"))
        assert late.statuses() == story.statuses() == ("failed", "unresponsive")


SHORT = st.sampled_from([None, 0.0, 2.0, 5.5, -3.0, 1e300, -1e300])


def limited(timeout: float | None, silence: float | None) -> dict[str, Any]:
    """Return a config with these limits that tries again."""
    again = ["timeout", "unresponsive"]
    return config(timeout_seconds=timeout, unresponsive_seconds=silence, max_attempts=3, retry_condition=again)


CONFIGS = st.builds(limited, SHORT, SHORT)
IDS = st.sampled_from(["r1", "r2"])
STATUSES = st.sampled_from(["queuing", "preparing", "running", "failed", "succeeded", "requeuing"])
SIGNS = st.sampled_from([0.0, -1e300, 1e300, -7.5, -1.0, 0.5, 3.0, 40.0])
DEEDS: st.SearchStrategy[tuple[str, Any, Any]] = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([0.5, 2.0, 6.0, -4.0]), st.none()),
    st.tuples(st.just("sweep"), st.none(), st.none()),
    st.tuples(st.just("sweep"), st.none(), st.none()),
    st.tuples(st.just("span"), IDS, st.none()),
    st.tuples(st.just("sign"), IDS, SIGNS),
    st.tuples(st.just("sign and more"), IDS, SIGNS),
    st.tuples(st.just("config"), IDS, CONFIGS),
    st.tuples(st.just("status"), IDS, STATUSES),
    st.tuples(st.just("report"), IDS, st.sampled_from(["running", "timeout", "failed"])),
    st.tuples(st.just("claim"), st.none(), st.none()),
    st.tuples(st.just("claim and release"), st.none(), st.none()),
    st.tuples(st.just("attempt"), IDS, st.none()),
)


Deed = Callable[[Story, Any, Any], Any]


def sweeps(story: Story, *_: Any) -> None:
    everything = story.copy()
    everything.sweep(everything=True)
    story.sweep()
    assert story.events == everything.events


def records(story: Story, rollout_id: str, _: Any) -> None:
    latest = story.rollout(rollout_id).latest
    if latest is not None:
        number = len(story.working_set.spans)
        story.tell(record(span(number, latest.attempt_id, rollout_id)))


def reports(story: Story, rollout_id: str, **fields: Any) -> None:
    if story.rollout(rollout_id).latest is not None:
        story.tell(report(fields.pop("status", None), "latest", rollout_id, **fields))


def sign(story: Story, value: float) -> float:
    """Return a time near the story's, or one that is far from any."""
    return value if abs(value) > 1e9 else seconds(story.now) + value


def gives_back(story: Story, *_: Any) -> None:
    for claimed in story.claim("w2"):
        story.tell(release(claimed))


DO: dict[str, Deed] = {
    "time": lambda story, what, _: story.passes(what),
    "sweep": sweeps,
    "span": records,
    "sign": lambda story, what, value: reports(story, what, last_heartbeat_time=sign(story, value)),
    "sign and more": lambda story, what, value: reports(
        story, what, last_heartbeat_time=sign(story, value), metadata={}
    ),
    "config": lambda story, what, value: story.tell(amend(what, config=value)),
    "status": lambda story, what, value: story.tell(amend(what, status=value)),
    "report": lambda story, what, value: reports(story, what, status=value),
    "claim": lambda story, _, __: story.claim("w2"),
    "claim and release": gives_back,
    "attempt": lambda story, what, _: story.tell(attempt(f"b{len(story.log)}", what)),
}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(first=CONFIGS, second=CONFIGS, deeds=st.lists(DEEDS, max_size=25))
@pytest.mark.slow
def test_each_sweep_equals_the_scan_of_everything(
    first: dict[str, Any], second: dict[str, Any], deeds: list[tuple[str, Any, Any]]
) -> None:
    story = Story()
    story.tell(start("r1", worker_id="w1", **first))
    story.tell(enqueue("r2", **second))
    for deed, what, value in deeds:
        DO[deed](story, what, value)
        for state in story.working_set.rollouts.values():
            due = retry.check_at(state)
            if due is None:
                continue
            assert story.watch[state.rollout_id] <= due, f"{state.rollout_id} would be looked at too late"
            assert due == 0 or retry.judge(state, due) is None, "due before it is overdue"
            assert due >= 2**62 or retry.judge(state, due + 1) is not None, "overdue before it is due"


@pytest.mark.parametrize("limit", [math.nextafter(0, 1), 1e-7, 1e18, 1e300])
def test_limits_beyond_all_measure_are_kept_within_64_bits(story: Story, limit: float) -> None:
    story.tell(start(timeout_seconds=limit, unresponsive_seconds=limit))
    at = retry.check_at(story.rollout())
    assert at is not None
    assert 0 <= at < 2**63
