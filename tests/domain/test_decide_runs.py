"""Facts that follow from events of a run, from forks, and from moving the head."""

from __future__ import annotations

import pytest

from store.domain.decide_runs import AppendedEvents, GroundMoved
from store.domain.events import AttemptStarted, Event
from store.domain.rollout import RolloutState, evolve
from store.domain.run_commands import ForkPrecondition
from store.domain.run_events import ArtifactRetracted, HeadMoved
from store.domain.views import ATTEMPT_COLUMNS, ROLLOUT_COLUMNS, RolloutView
from store.errors import AttemptActive, Conflict, Corrupt, NotFound
from store.projections import rollouts as rollout_projection
from tests.domain.run_story import (
    OTHER_BODY,
    artifact,
    checkpoint,
    events,
    fork,
    move_head,
    phase,
    rejected,
    retract,
)
from tests.domain.story import (
    BODY,
    RETRY,
    SECOND,
    Story,
    attempt,
    became,
    enqueue,
    moved,
    record,
    release,
    report,
    span,
    start,
)


def lineage(story: Story) -> list[tuple[int, int, int | None, int | None]]:
    """Sequence id, rerun_seq, base and tries of each attempt that stands."""
    attempts = [one for one in story.rollout().attempts.values() if one.released_position is None]
    return [(one.sequence_id, one.rerun_seq, one.base, one.tries) for one in attempts]


def ended(story: Story, status: str = "succeeded") -> Story:
    """A rollout whose first attempt told of two nodes and ended."""
    story.tell(start(**RETRY))
    story.tell(events("Trader", "Judge"))
    story.tell(report(status))
    return story


class TestTelling:
    def test_the_first_event_makes_attempt_and_rollout_run_after_all_of_its_call(self, story: Story) -> None:
        story.tell(start())
        answer = story.passes(2).tell(events("Trader", "Judge"))
        assert story.facts[2:] == [
            became("a1", "preparing", "running", "event"),
            moved("preparing", "running", "event"),
        ]
        assert story.causes == [None, None, "run.event", "run.event"]
        assert answer == AppendedEvents(3, 4, "events", is_repeated=False)
        assert story.attempt().sign_of_life == story.events[-1].at / SECOND

    @pytest.mark.parametrize("command", [phase(), checkpoint(), rejected(), artifact()], ids=lambda c: c.kind)
    def test_all_that_an_attempt_tells_is_a_sign_of_life(self, command: object) -> None:
        story = Story()
        story.tell(start())
        story.passes(3).tell(command)  # pyright: ignore[reportArgumentType] (any command)
        assert story.statuses() == ("running", "running")
        assert story.attempt().last_heartbeat_time == story.now / SECOND

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
    def test_a_late_event_does_not_revive_an_attempt_that_is_over(self, story: Story, status: str) -> None:
        story.tell(start())
        story.tell(report(status))
        before = story.statuses()
        story.passes(1).tell(events("Trader"))
        assert (story.statuses(), len(story.events)) == (before, 1)

    def test_an_event_of_an_attempt_that_fell_silent_takes_the_retry_back(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(report("unresponsive"))
        story.tell(events("Trader"))
        assert (story.statuses(), story.queue, story.claim()) == (("running", "running"), [], [])

    def test_events_of_one_call_are_stamped_apart_and_numbered_without_holes(self, story: Story) -> None:
        story.tell(start())
        answer: AppendedEvents = story.tell(events("a", "b", "c"))
        assert answer.versions == [3, 4, 5]
        assert [event.version for event in story.events[:3]] == answer.versions
        assert len({event.at for event in story.events[:3]}) == 3

    @pytest.mark.parametrize("rollout_id,attempt_id", [("r9", "a1"), ("r1", "a9")])
    def test_missing_rollout_or_attempt_is_named_and_nothing_recorded(
        self, story: Story, rollout_id: str, attempt_id: str
    ) -> None:
        story.tell(start())
        with pytest.raises(NotFound, match="9"):
            story.tell(events("Trader", rollout_id=rollout_id, attempt_id=attempt_id))
        assert story.events == []

    @pytest.mark.parametrize("command", [events("x"), phase(), checkpoint(), rejected(), artifact()])
    def test_it_changes_only_the_columns_that_are_written_for_it(self, command: object) -> None:
        story = Story()
        story.tell(start())
        story.tell(events("first"))
        before, one = rollout_projection.rollout(story.rollout()), rollout_projection.attempt(story.attempt())
        story.passes(1).tell(command)  # pyright: ignore[reportArgumentType] (any command)
        after, other = rollout_projection.rollout(story.rollout()), rollout_projection.attempt(story.attempt())
        changed = {name for name, a, b in zip(ROLLOUT_COLUMNS, before, after, strict=True) if a != b}
        assert changed <= set(rollout_projection.ROLLOUT_AFTER_RUN)
        changed = {name for name, a, b in zip(ATTEMPT_COLUMNS, one, other, strict=True) if a != b}
        assert changed <= set(rollout_projection.ATTEMPT_AFTER_SPAN)

    def test_only_the_latest_attempt_moves_its_rollout(self, story: Story) -> None:
        story.tell(start())
        story.tell(attempt("a2"))
        story.tell(events("Trader"))
        assert story.statuses() == ("preparing", "running", "preparing")


class TestKeys:
    def test_a_call_repeated_under_its_key_does_nothing_and_answers_the_same(self, story: Story) -> None:
        story.tell(start())
        first: AppendedEvents = story.tell(events("a", "b", key="k"))
        again: AppendedEvents = story.tell(events("a", "b", key="k"))
        assert (again.versions, again.is_repeated, story.events) == (first.versions, True, [])

    def test_also_in_the_same_batch(self, story: Story) -> None:
        story.tell(start())
        again: AppendedEvents = story.tell(events("a", key="k"), events("a", key="k"))
        assert (again.versions, again.is_repeated) == ([3], True)

    def test_a_key_counts_for_one_rollout(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        story.claim(limit=2)
        story.tell(events("a", key="k"))
        assert not story.tell(events("a", rollout_id="r2", attempt_id="a2", key="k")).is_repeated

    def test_a_key_of_another_kind_of_call_is_refused(self, story: Story) -> None:
        story.tell(start())
        story.tell(events("a", key="k"))
        with pytest.raises(Conflict, match="'k'"):
            story.tell(checkpoint(key="k"))
        with pytest.raises(Conflict, match="'k'"):
            story.tell(move_head("a1", "k"))

    def test_a_key_of_another_attempt_is_refused(self, story: Story) -> None:
        story.tell(start())
        story.tell(events("a", key="k"))
        story.tell(attempt("a2"))
        with pytest.raises(Conflict, match="'k'"):
            story.tell(events("a", attempt_id="a2", key="k"))

    def test_a_rejected_checkpoint_stays_rejected_under_its_key(self, story: Story) -> None:
        story.tell(start())
        story.tell(rejected(key="k"))
        assert story.tell(checkpoint(key="k")).kind == "checkpoint.rejected"
        assert story.events == []


class TestBlobs:
    def test_a_body_that_recurs_is_stored_once(self, story: Story) -> None:
        story.tell(start())
        story.tell(checkpoint("c1"), checkpoint("c2"), artifact("x1"), checkpoint("c3", body=OTHER_BODY))
        assert story.working_set.new_blobs == {"01" * 32: BODY, "02" * 32: OTHER_BODY}

    def test_existing_blob_is_not_stored_again(self, story: Story) -> None:
        story.tell(start())
        story.working_set.blobs.add("01" * 32)
        story.tell(checkpoint())
        assert story.working_set.new_blobs == {}


class TestArtifacts:
    def test_a_retracted_artifact_is_retracted_once(self, story: Story) -> None:
        story.tell(start())
        story.tell(artifact())
        saved = story.tell(retract())
        assert story.facts == [ArtifactRetracted(artifact_id="x1", reason="wrong")]
        assert (story.tell(retract()), story.events) == (saved, [])

    def test_an_artifact_that_is_not_there_is_named(self, story: Story) -> None:
        story.tell(start())
        with pytest.raises(NotFound, match="x9"):
            story.tell(retract("x9"))


class TestForks:
    def test_a_fork_starts_an_attempt_on_top_of_its_base(self, story: Story) -> None:
        ended(story)
        before = story.rollout().stream_version
        fork(story, "a2")
        assert [event.fact.type for event in story.events] == [
            "attempt.started",
            "attempt.forked",
            "attempt.amended",
            "rollout.status_changed",
        ]
        assert story.statuses() == ("preparing", "succeeded", "preparing")
        assert lineage(story) == [(1, 0, None, 1), (2, 1, 1, 1)]
        forked = story.attempt("a2")
        assert (forked.fork_version, forked.base_version, story.rollout().head) == (before + 2, before, 2)
        assert forked.metadata_position == story.events[2].position

    def test_a_fork_while_an_attempt_is_active_is_refused(self, story: Story) -> None:
        story.tell(start())
        story.tell(events("Trader"))
        with pytest.raises(AttemptActive, match="attempt 1"):
            fork(story, "a2")
        assert story.events == []

    def test_superseding_fails_the_active_attempt_and_frees_its_worker(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(events("Trader"))
        fork(story, "a2", supersede=True, worker_id="w2")
        assert story.facts[0] == became("a1", "running", "failed", "superseded")
        assert story.statuses() == ("preparing", "failed", "preparing")
        assert (story.worker("w1").status, story.worker("w2").current_attempt_id) == ("idle", "a2")

    def test_late_events_of_a_superseded_attempt_are_stored_and_change_nothing(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(events("Trader"))
        fork(story, "a2", supersede=True)
        bound, before = story.attempt("a2").base_version, (story.statuses(), story.rollout().head)
        late: AppendedEvents = story.tell(events("Judge"))
        assert ((story.statuses(), story.rollout().head), len(story.events)) == (before, 1)
        assert bound is not None
        assert late.first > bound

    def test_a_fork_takes_a_waiting_rollout_off_the_queue(self, story: Story) -> None:
        ended(story, "failed")
        assert story.queue == ["r1"]
        fork(story, "a2")
        assert (story.queue, story.statuses()) == ([], ("preparing", "failed", "preparing"))
        assert story.claim() == []

    @pytest.mark.parametrize("change", [events("late"), phase(), checkpoint(), artifact(), move_head("a1")])
    def test_a_fork_whose_ground_has_moved_does_nothing(self, change: object) -> None:
        story = ended(Story())
        fork(story, "a2")
        story.tell(report("failed", "a2"))
        stood = ForkPrecondition(story.rollout().head, story.rollout().run_version or 0)
        story.tell(change)  # pyright: ignore[reportArgumentType] (any command)
        now = ForkPrecondition(story.rollout().head, story.rollout().run_version or 0)
        assert fork(story, "a3", ground=stood) == GroundMoved(now)
        assert story.events == []
        assert isinstance(fork(story, "a3", ground=now), RolloutView)

    def test_a_span_of_a_node_moves_the_ground_and_another_does_not(self, story: Story) -> None:
        ended(story)
        stood = ForkPrecondition(story.rollout().head, story.rollout().run_version or 0)
        story.tell(record(span(1)))
        assert story.rollout().run_version == stood.run_version
        story.tell(record(span(2, node_id="Trader", kind="result")))
        assert isinstance(fork(story, "a2", ground=stood), GroundMoved)

    def test_the_same_request_starts_one_attempt(self, story: Story) -> None:
        ended(story)
        first = fork(story, "a2", request_id="q")
        again = fork(story, "a3", request_id="q")
        assert isinstance(first, RolloutView)
        assert isinstance(again, RolloutView)
        assert first.attempt is not None
        assert again.attempt is not None
        assert (again.attempt.row[1], first.attempt.row[1], story.events) == ("a2", "a2", [])

    def test_a_base_that_is_not_there_is_named(self, story: Story) -> None:
        ended(story)
        with pytest.raises(NotFound, match="attempt 7"):
            fork(story, "a2", base=7)

    def test_a_rerun_has_a_greater_number_than_any_before_and_a_resume_that_of_its_base(self, story: Story) -> None:
        ended(story)
        for name, base, kind in (("a2", 1, "rerun"), ("a3", 1, "resume"), ("a4", 3, "branch"), ("a5", 2, "resume")):
            fork(story, name, base=base, kind=kind)
            story.tell(report("succeeded", name))
        assert lineage(story) == [
            (1, 0, None, 1),
            (2, 1, 1, 1),
            (3, 0, 1, 2),
            (4, 2, 3, 1),
            (5, 1, 2, 2),
        ]


class TestRetries:
    def test_a_watchdog_retry_of_a_rerun_is_the_same_rerun_again(self, story: Story) -> None:
        story.tell(start(timeout_seconds=10.0, **RETRY))
        story.tell(events("Trader"))
        story.tell(report("succeeded"))
        fork(story, "a2")
        assert story.passes(11).sweep() == 1
        assert story.statuses() == ("requeuing", "succeeded", "timeout")
        story.claim()
        of_rerun, of_retry = story.attempt("a2"), story.attempt("a3")
        assert lineage(story)[1:] == [(2, 1, 1, 1), (3, 1, 1, 2)]
        assert (of_retry.fork_version, of_retry.base_version) == (of_rerun.fork_version, of_rerun.base_version)
        assert story.rollout().head == 3

    def test_the_budget_counts_the_attempts_of_one_rerun(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        for name in ("a2", "a3"):
            story.tell(report("failed", name))
            assert story.rollout().status == "requeuing"
            story.claim()
        story.tell(report("failed", "a4"))
        assert story.statuses() == ("failed", "succeeded", "failed", "failed", "failed")

    def test_a_retry_of_the_first_attempt_starts_from_nothing(self, story: Story) -> None:
        ended(story, "failed")
        story.claim()
        assert lineage(story) == [(1, 0, None, 1), (2, 0, None, 2)]
        assert story.attempt("a2").fork_version is None

    def test_an_attempt_started_by_hand_after_a_rerun_is_a_retry_of_it(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        story.tell(report("succeeded", "a2"))
        story.tell(attempt("a3"))
        assert lineage(story)[2] == (3, 1, 1, 2)


class TestHead:
    def test_every_start_moves_the_head(self, story: Story) -> None:
        story.tell(enqueue("r1", **RETRY))
        assert story.rollout().head is None
        story.claim()
        assert story.rollout().head == 1
        story.tell(attempt("a2"))
        assert story.rollout().head == 2

    def test_a_released_claim_puts_the_head_back(self, story: Story) -> None:
        ended(story, "failed")
        (claimed,) = story.claim()
        assert story.rollout().head == 2
        story.tell(release(claimed))
        assert (story.rollout().head, story.queue) == (1, ["r1"])

    def test_a_claim_released_after_the_head_went_elsewhere_leaves_it_there(self, story: Story) -> None:
        story.tell(start(**RETRY))
        story.tell(report("failed"))
        story.claim()
        story.tell(report("failed", "a2"))
        (claimed,) = story.claim()
        story.tell(move_head("a1"))
        story.tell(release(claimed))
        assert story.rollout().head == 1

    def test_moving_the_head_changes_neither_status_nor_queue(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        story.tell(report("failed", "a2"))
        before = (story.statuses(), story.queue)
        story.tell(move_head("a1", "q"))
        assert story.facts == [HeadMoved(from_=2, to=1, request_id="q")]
        assert (story.rollout().head, (story.statuses(), story.queue)) == (1, before)

    def test_moving_it_to_where_it_is_or_by_the_same_request_does_nothing(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        story.tell(move_head("a2"))
        assert story.events == []
        story.tell(move_head("a1", "q"))
        story.tell(move_head("a2"))
        story.tell(move_head("a1", "q"))
        assert (story.events, story.rollout().head) == ([], 2)

    def test_it_goes_to_no_attempt_that_was_released(self, story: Story) -> None:
        ended(story, "failed")
        (claimed,) = story.claim()
        story.tell(release(claimed))
        with pytest.raises(NotFound, match="a2"):
            story.tell(move_head("a2"))

    def test_a_fork_of_the_head_moved_back_is_based_there(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        story.tell(report("succeeded", "a2"))
        story.tell(move_head("a1"))
        fork(story, "a3", base=1)
        assert lineage(story)[2] == (3, 2, 1, 1)
        assert story.attempt("a3").head_before == 1


def follow(story: Story, fact: object) -> RolloutState:
    state = story.rollout()
    event = Event(9999, "rollout/r1", state.stream_version + 1, 0, story.now, None, None, fact)  # pyright: ignore[reportArgumentType]
    return evolve(state, event)


class TestCorruption:
    def test_a_head_that_moves_from_elsewhere_is_corrupt(self, story: Story) -> None:
        with pytest.raises(Corrupt, match="head"):
            follow(ended(story), HeadMoved(from_=2, to=1))

    def test_a_head_that_moves_to_no_attempt_is_corrupt(self, story: Story) -> None:
        with pytest.raises(Corrupt, match="head"):
            follow(ended(story), HeadMoved(from_=1, to=2))

    def test_a_fork_of_itself_is_corrupt(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        fact = next(event.fact for event in story.events if event.fact.type == "attempt.forked")
        fact.base = 2  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(Corrupt, match="fork"):
            follow(story, fact)

    def test_an_event_of_an_attempt_that_never_started_is_corrupt(self, story: Story) -> None:
        ended(story)
        with pytest.raises(Corrupt, match="a9"):
            follow(story, events("x", attempt_id="a9").items[0].fact)

    def test_a_started_attempt_says_which_rerun_it_is(self, story: Story) -> None:
        ended(story)
        fork(story, "a2")
        started = story.facts[0]
        assert isinstance(started, AttemptStarted)
        assert (started.via, started.rerun_seq, started.sequence) == ("fork", 1, 2)
