"""Facts that follow from a command on a rollout or an attempt: the rules of the contract, one claim each."""

from __future__ import annotations

from typing import Any

import pytest

from store.domain.commands import Command
from store.domain.events import (
    AttemptAmended,
    AttemptStarted,
    RolloutAmended,
)
from store.errors import Conflict, NotFound
from tests.domain.story import (
    NOW,
    RETRY,
    Story,
    amend,
    attempt,
    beat,
    became,
    claim,
    config,
    enqueue,
    moved,
    new,
    number,
    publish,
    record,
    report,
    span,
    start,
)


class TestCreation:
    def test_an_enqueued_rollout_waits_without_an_attempt(self, story: Story) -> None:
        story.tell(enqueue("r1", mode="val", group="g", step=3))
        state = story.rollout()
        assert (state.status, state.attempt_count, state.start_at, state.end_at) == ("queuing", 0, NOW, None)
        assert (state.mode, state.group_id, state.step, story.queue) == ("val", "g", 3, ["r1"])

    def test_items_of_one_call_keep_their_order_and_have_stamps_of_their_own(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2", "r3"))
        assert story.queue == ["r1", "r2", "r3"]
        assert [event.at - NOW for event in story.events] == [0, 1, 2]
        assert {event.command for event in story.events} == {0}

    def test_a_started_rollout_and_its_attempt_start_at_one_instant_past_the_queue(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        assert (story.statuses(), story.queue) == (("preparing", "preparing"), [])
        assert story.rollout().start_at == story.attempt().start_at == NOW
        assert [event.fact.type for event in story.events] == [
            "rollout.started",
            "attempt.started",
            "worker.seen",
            "worker.status_changed",
        ]
        assert story.causes == [None, None, None, "attempt.started"]
        assert {event.actor for event in story.events} == {"worker:w1"}

    def test_without_resources_a_rollout_takes_the_latest_and_pins_their_version(self, story: Story) -> None:
        story.tell(publish("rs1"))
        story.tell(publish("rs2"))
        story.tell(publish("rs1"))
        story.tell(enqueue("r1"))
        assert (story.rollout().resources_id, story.rollout().resources_version) == ("rs1", 2)

    def test_unknown_resources_are_recorded_without_a_version(self, story: Story) -> None:
        story.tell(publish("rs1"))
        story.tell(enqueue("r1", resources_id="other"))
        assert (story.rollout().resources_id, story.rollout().resources_version) == ("other", None)

    def test_an_attempt_pins_the_version_its_rollouts_resources_have_by_then(self, story: Story) -> None:
        story.tell(publish("rs1"))
        story.tell(enqueue("r1"))
        story.tell(publish("rs1"))
        story.claim()
        assert (story.rollout().resources_version, story.attempt().resources_version) == (1, 2)


class TestPlanKeys:
    def test_an_equal_plan_returns_the_rollout_that_exists_and_writes_nothing(self, story: Story) -> None:
        story.tell(enqueue("r1", plan_key="k"))
        (view,) = story.tell(enqueue("r2", plan_key="k"))
        assert (view.row[0], story.events, story.queue) == ("r1", [], ["r1"])

    def test_an_equal_plan_returns_the_rollout_whatever_became_of_it(self, story: Story) -> None:
        story.tell(enqueue("r1", plan_key="k"))
        story.tell(amend(status="cancelled"))
        (view,) = story.tell(enqueue("r2", plan_key="k"))
        assert (view.row[0], view.attempt, story.queue) == ("r1", None, [])

    def test_one_key_twice_in_a_call_is_one_rollout(self, story: Story) -> None:
        views = story.tell(enqueue(new("r1", plan_key="k"), new("r2"), new("r3", plan_key="k")))
        assert [view.row[0] for view in views] == ["r1", "r2", "r1"]
        assert story.queue == ["r1", "r2"]

    def test_another_input_under_the_key_refuses_the_whole_call(self, story: Story) -> None:
        story.tell(enqueue("r1", plan_key="k"))
        with pytest.raises(Conflict, match="r1"):
            story.tell(enqueue(new("r2"), new("r3", plan_key="k", input_sha256="11" * 32)))
        assert (story.events, story.queue) == ([], ["r1"])

    def test_another_input_under_a_key_of_the_same_call_refuses_it(self, story: Story) -> None:
        with pytest.raises(Conflict, match="an earlier item"):
            story.tell(enqueue(new("r1", plan_key="k"), new("r2", plan_key="k", input_sha256="11" * 32)))
        assert story.events == []

    def test_the_input_compared_is_the_one_at_creation(self, story: Story) -> None:
        story.tell(enqueue("r1", plan_key="k"))
        story.tell(amend(input="another"))
        (view,) = story.tell(enqueue("r2", plan_key="k"))
        assert view.row[0] == "r1"

    def test_a_rollout_cannot_be_started_under_a_key_that_is_held(self, story: Story) -> None:
        story.tell(enqueue("r1", plan_key="k"))
        with pytest.raises(Conflict, match="r1"):
            story.tell(start("r2", plan_key="k", worker_id="w1"))
        assert (story.events, story.working_set.workers) == ([], {})


class TestAttempts:
    @pytest.mark.parametrize("status", ["queuing", "running", "succeeded", "failed", "cancelled", "requeuing"])
    def test_an_attempt_may_be_started_whatever_the_status(self, story: Story, status: str) -> None:
        story.tell(enqueue("r1"))
        story.tell(amend(status=status))
        story.tell(attempt("a1", worker_id="w1"))
        assert story.statuses() == ("preparing", "preparing")
        assert story.facts[:2] == [
            AttemptStarted(attempt_id="a1", sequence=1, via="start", worker_id="w1"),
            moved(status, "preparing", "attempt"),
        ]
        assert (story.queue, story.worker().status) == ([], "busy")

    def test_earlier_attempts_stay_as_they_are(self, story: Story) -> None:
        story.tell(start())
        story.tell(record(span()))
        story.tell(attempt("a2"))
        assert story.statuses() == ("preparing", "running", "preparing")

    def test_an_unknown_rollout_has_no_attempts_to_start(self, story: Story) -> None:
        with pytest.raises(NotFound, match=r"^Rollout r1 not found$"):
            story.tell(attempt("a1", worker_id="w1"))
        assert (story.events, story.working_set.workers) == ([], {})

    def test_update_attempt_names_the_missing_rollout_then_the_attempt(self, story: Story) -> None:
        with pytest.raises(NotFound, match=r"^Rollout r1 not found$"):
            story.tell(report("failed"))
        story.tell(enqueue("r1"))
        with pytest.raises(NotFound, match=r"^No attempts found for rollout r1$"):
            story.tell(report("failed", "a7"))
        story.claim()
        with pytest.raises(NotFound, match=r"^Attempt a7 not found for rollout r1$"):
            story.tell(report("failed", "a7"))

    def test_latest_is_the_attempt_with_the_greatest_sequence(self, story: Story) -> None:
        story.tell(start())
        story.tell(attempt("a0"))
        story.tell(report("failed"))
        assert (story.attempt("a0").status, story.attempt("a1").status) == ("failed", "preparing")


class TestPropagation:
    @pytest.mark.parametrize("status", ["preparing", "running", "succeeded"])
    def test_rollout_takes_the_status_of_its_latest_attempt(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(report(status))
        assert story.statuses() == (status, status)

    def test_the_status_of_the_rollout_is_caused_by_that_of_the_attempt(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report("succeeded"))
        assert story.facts[:2] == [
            became("a1", "preparing", "succeeded", "reported"),
            moved("preparing", "succeeded", "attempt"),
        ]
        assert story.causes == [None, "attempt.status_changed", "attempt.status_changed"]

    def test_both_ends_are_stamped(self, story: Story) -> None:
        story.tell(start())
        story.passes(7).tell(report("failed"))
        assert story.attempt().end_at == story.rollout().end_at == story.now

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    def test_an_unsuccessful_end_within_the_budget_is_queued_again(self, story: Story, status: str) -> None:
        story.tell(start(max_attempts=2, retry_condition=[status]))
        story.tell(enqueue("r2"))
        story.tell(report(status))
        assert (story.rollout().status, story.rollout().end_at, story.queue) == ("requeuing", None, ["r2", "r1"])

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    def test_an_unsuccessful_end_beyond_the_budget_fails(self, story: Story, status: str) -> None:
        story.tell(start(max_attempts=1, retry_condition=[status]))
        story.tell(report(status))
        assert story.rollout().status == "failed"

    @pytest.mark.parametrize("status", ["timeout", "unresponsive", "preparing", "running"])
    def test_status_without_an_observed_end_has_no_end_time(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(report(status))
        assert story.attempt().end_at is None

    def test_an_attempt_that_is_not_the_latest_moves_nothing(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(attempt("a2"))
        story.tell(report("failed", "a1"))
        assert (story.facts, story.rollout().status) == ([became("a1", "preparing", "failed", "reported")], "preparing")

    @pytest.mark.parametrize("fields", [{"metadata": {}}, {"worker_id": "w2"}, {}, {"last_heartbeat_time": 1.0}])
    def test_without_a_status_a_cancelled_rollout_stays_cancelled(self, story: Story, fields: dict[str, Any]) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(amend(status="cancelled"))
        story.tell(report(None, **fields))
        assert story.statuses() == ("cancelled", "preparing")

    def test_an_explicit_status_moves_even_a_rollout_that_has_ended(self, story: Story) -> None:
        story.tell(start())
        story.tell(report("timeout"))
        assert story.rollout().status == "failed"
        story.tell(report("succeeded"))
        assert story.statuses() == ("succeeded", "succeeded")

    def test_a_success_reported_late_takes_the_retry_off_the_queue(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(report("timeout"))
        story.tell(report("succeeded"))
        assert (story.queue, story.claim()) == ([], [])

    def test_an_attempt_that_ends_again_is_stamped_again_but_its_rollout_is_not(self, story: Story) -> None:
        story.tell(start())
        story.tell(report("succeeded"))
        ended = story.rollout().end_at
        story.passes(5).tell(report("succeeded"))
        assert story.facts == [became("a1", "succeeded", "succeeded", "reported")]
        assert (story.attempt().end_at, story.rollout().end_at) == (story.now, ended)


class TestAmendments:
    def test_only_changed_fields_are_recorded(self, story: Story) -> None:
        story.tell(start(mode="train"))
        story.tell(amend(mode="train", config=config(max_attempts=4), resources_id=None))
        assert story.facts == [RolloutAmended(fields=["config"], config=config(max_attempts=4))]

    def test_none_is_a_value(self, story: Story) -> None:
        story.tell(publish("rs1"))
        story.tell(start(mode="train"))
        story.tell(amend(mode=None, resources_id=None, metadata=None))
        assert story.facts == [RolloutAmended(fields=["mode", "resources_id", "metadata"])]
        assert (story.rollout().mode, story.rollout().resources_id) == (None, None)

    def test_other_resources_pin_the_version_they_have_now(self, story: Story) -> None:
        story.tell(start())
        story.tell(publish("rs1"))
        story.tell(publish("rs1"))
        story.tell(amend(resources_id="rs1"))
        assert (story.rollout().resources_id, story.rollout().resources_version) == ("rs1", 2)

    def test_a_status_comes_after_the_fields_of_the_same_call_at_one_stamp(self, story: Story) -> None:
        story.tell(start())
        story.passes(3).tell(amend(status="cancelled", mode="test"))
        assert [event.fact.type for event in story.events] == ["rollout.amended", "rollout.status_changed"]
        assert {event.at for event in story.events} == {story.now}

    @pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
    def test_repeated_end_is_stamped_again(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(amend(status=status))
        story.passes(9).tell(amend(status=status))
        assert story.facts == [moved(status, status, "manual")]
        assert story.rollout().end_at == story.now

    def test_an_end_is_not_cleared_by_opening_again(self, story: Story) -> None:
        story.tell(start())
        story.tell(amend(status="failed"))
        story.passes(1).tell(amend(status="running"))
        assert (story.rollout().status, story.rollout().end_at) == ("running", NOW + 1)

    def test_attempts_and_workers_are_left_alone(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(amend(status="cancelled"))
        assert (story.statuses(), story.worker().status) == (("cancelled", "preparing"), "busy")

    def test_an_unknown_rollout_is_named_by_its_key(self, story: Story) -> None:
        with pytest.raises(NotFound, match=r"^Item does not exist with primary key\(s\): rollout_id='r1'$"):
            story.tell(amend(status="failed"))

    def test_metadata_of_an_attempt_is_a_fact_of_its_rollouts_stream(self, story: Story) -> None:
        story.tell(start())
        story.tell(report(None, metadata={}))
        assert story.facts == [AttemptAmended(attempt_id="a1", fields=["metadata"])]
        assert story.attempt().metadata_position == story.events[0].position

    def test_a_bare_heartbeat_is_no_fact(self, story: Story) -> None:
        story.tell(start())
        story.tell(report(None, last_heartbeat_time=12.5))
        assert (story.events, story.attempt().sign_of_life) == ([], 12.5)

    def test_a_heartbeat_beside_other_fields_is_a_fact(self, story: Story) -> None:
        story.tell(start())
        story.tell(report(None, last_heartbeat_time=12.5, metadata={}))
        assert story.facts == [
            AttemptAmended(attempt_id="a1", fields=["last_heartbeat_time", "metadata"], last_heartbeat_time=12.5)
        ]


class TestUnchangedFields:
    @pytest.mark.parametrize(
        "command",
        [
            amend(),
            amend(status="preparing"),
            amend(mode=None, config=config(), resources_id=None),
            report(),
            report("preparing", "a1"),
            report(None, worker_id="w1"),
            report("preparing", worker_id="w1"),
            claim(["a9"], "idle"),
            claim(["a9"]),
            beat("w1"),
            number("r1", "unknown"),
            record(span(1)),
            record(span(1, name="other"), span(1)),
        ],
    )
    def test_a_call_that_changes_nothing_writes_nothing(self, story: Story, command: Command) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(claim(["a8"], "idle"))
        story.tell(record(span(1)))
        story.tell(report("preparing"), number("r1"))
        before = story.copy()
        story.passes(1).tell(command)
        assert story.events == []
        assert (story.working_set.rollouts, story.working_set.workers) == (
            before.working_set.rollouts,
            before.working_set.workers,
        )

    def test_a_sweep_that_finds_everybody_alive_writes_nothing(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0))
        assert (story.passes(10).sweep(everything=True), story.events) == (0, [])

    def test_command_without_events_uses_no_timestamp(self, story: Story) -> None:
        story.tell(beat("w1"), number("r"), enqueue("r1"), beat("w1"), enqueue("r2"))
        assert [(event.fact.type, event.at - NOW, event.command) for event in story.events] == [
            ("worker.seen", 0, 0),
            ("rollout.enqueued", 1, 2),
            ("rollout.enqueued", 2, 4),
        ]
