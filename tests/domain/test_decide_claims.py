"""Facts that follow from a claim and from its release."""

from __future__ import annotations

import pytest

from store.domain.commands import Command
from store.domain.events import (
    AttemptStarted,
    ClaimReleased,
)
from store.domain.working_set import EVERYTHING, NeedsHeads
from store.errors import NotFound
from tests.domain.story import (
    RETRY,
    Story,
    amend,
    attempt,
    claim,
    enqueue,
    moved,
    record,
    release,
    report,
    span,
)


class TestClaims:
    def test_oldest_rollout_is_claimed_first(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        story.tell(enqueue("r3"))
        assert [view.rollout.row[0] for view in story.claim(limit=2)] == ["r1", "r2"]
        assert [view.rollout.row[0] for view in story.claim(limit=2)] == ["r3"]
        assert story.claim() == []

    def test_a_claim_starts_an_attempt_and_then_moves_the_rollout(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.claim("w1")
        assert story.facts[:2] == [
            AttemptStarted(attempt_id="a1", sequence=1, via="dequeue", worker_id="w1"),
            moved("queuing", "preparing", "claimed"),
        ]
        assert story.causes == [None, "attempt.started", None, "attempt.started"]

    def test_each_claimed_rollout_has_a_stamp_of_its_own(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        story.passes(1).claim(limit=2)
        assert [event.at - story.now for event in story.events] == [0, 0, 1, 1]

    def test_a_rollout_claimed_again_keeps_the_end_of_an_earlier_end(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.tell(amend(status="failed"))
        ended = story.rollout().end_at
        story.tell(amend(status="queuing"))
        story.passes(5).claim()
        assert (story.rollout().status, story.rollout().end_at) == ("preparing", ended)

    @pytest.mark.parametrize("status", ["preparing", "running", "failed", "succeeded", "cancelled"])
    def test_a_rollout_that_leaves_the_queue_loses_its_place(self, story: Story, status: str) -> None:
        story.tell(enqueue("r1", "r2"))
        story.tell(amend(status=status))
        story.tell(amend(status="requeuing"))
        assert story.queue == ["r2", "r1"]
        assert [view.rollout.row[0] for view in story.claim(limit=3)] == ["r2", "r1"]

    def test_between_the_two_waiting_statuses_the_place_is_kept(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        story.tell(amend(status="requeuing"))
        assert (story.rollout().status, story.queue) == ("requeuing", ["r1", "r2"])

    def test_heads_cancelled_in_the_same_batch_are_passed_over(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2", "r3"))
        (claimed,) = story.tell(amend("r1", status="cancelled"), amend("r2", status="cancelled"), claim(["a1"], "w1"))
        assert claimed.rollout.row[0] == "r3"

    def test_rollout_requeued_in_the_batch_is_claimed_last_and_once(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        claims = story.tell(amend("r1", status="cancelled"), amend("r1", status="queuing"), claim(["a1", "a2", "a3"]))
        assert [view.rollout.row[0] for view in claims] == ["r2", "r1"]

    def test_claim_beyond_the_loaded_heads_asks_for_more_and_changes_nothing(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.working_set.heads_until = story.rollout().queue_place or ()
        with pytest.raises(NeedsHeads):
            story.tell(claim(["a1", "a2"], "w1"))
        assert (story.events, story.working_set.workers, story.queue) == ([], {}, ["r1"])
        story.working_set.heads_until = EVERYTHING
        assert len(story.claim(limit=2)) == 1


class TestReleasedClaims:
    def test_a_released_claim_puts_the_rollout_back_at_its_old_place(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        (claimed,) = story.claim("w1")
        story.tell(enqueue("r3"))
        assert story.tell(release(claimed)) is True
        assert (story.queue, story.rollout().status, story.rollout().attempt_count) == (
            ["r1", "r2", "r3"],
            "queuing",
            0,
        )
        assert story.working_set.queue_reordered
        released = story.facts[0]
        assert released == ClaimReleased(
            attempt_id="a1", sequence=1, from_="preparing", to="queuing", queued_at=claimed.queued_at
        )
        assert story.causes[0] == "attempt.started"

    def test_the_next_claim_reuses_the_sequence_under_another_id(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        (claimed,) = story.claim()
        story.tell(release(claimed))
        story.claim()
        assert (story.attempt("a2").sequence_id, story.rollout().attempt_count) == (1, 1)
        assert story.rollout().latest is story.attempt("a2")

    def test_no_attempt_of_the_budget_is_used_up(self, story: Story) -> None:
        story.tell(enqueue("r1", max_attempts=2, retry_condition=["failed"]))
        for _ in range(5):
            story.tell(release(story.claim()[0]))
        story.claim()
        story.tell(report("failed"))
        assert story.rollout().status == "requeuing"

    def test_late_spans_of_a_released_attempt_find_no_attempt(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.tell(release(story.claim()[0]))
        with pytest.raises(NotFound, match=r"^Attempt a1 not found for rollout r1$"):
            story.tell(record(span(4)))
        assert (story.events, story.working_set.counters) == ([], {"r1": 4})

    def test_its_worker_is_idle_and_forgets_it(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.tell(release(story.claim("w1")[0]))
        worker = story.worker()
        assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == ("idle", None, None)
        assert story.causes == ["attempt.started", "claim.released"]

    def test_a_worker_that_has_gone_on_to_another_attempt_is_left_alone(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        first, _ = story.claim("w1", limit=2)
        story.tell(release(first))
        assert (story.worker().status, story.worker().current_rollout_id) == ("busy", "r2")

    @pytest.mark.parametrize(
        "since",
        [
            record(span()),
            report("running"),
            report(metadata={}),
            report(last_heartbeat_time=5.0),
            attempt("a9"),
            amend(status="cancelled"),
            amend(status="queuing"),
        ],
        ids=["span", "report", "amended", "heartbeat", "superseded", "cancelled", "queued again"],
    )
    def test_a_claim_is_not_released_once_something_has_happened(self, story: Story, since: Command) -> None:
        story.tell(enqueue("r1"))
        (claimed,) = story.claim("w1")
        story.tell(since)
        before = story.copy()
        assert story.tell(release(claimed)) is False
        assert story.events == []
        assert story.working_set.rollouts == before.working_set.rollouts

    def test_a_claim_is_released_once(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        (claimed,) = story.claim()
        assert story.tell(release(claimed)) is True
        assert [event.fact.type for event in story.events] == ["claim.released"]
        assert story.tell(release(claimed)) is True
        assert story.events == []

    def test_a_released_retry_leaves_the_attempt_before_it_the_latest(self, story: Story) -> None:
        story.tell(enqueue("r1", **RETRY))
        story.claim()
        story.tell(report("failed"))
        story.tell(release(story.claim()[0]))
        assert (story.rollout().status, story.rollout().latest) == ("requeuing", story.attempt("a1"))
