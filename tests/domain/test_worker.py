"""The status of a worker follows from its attempts."""

from __future__ import annotations

from typing import Any

import pytest

from store.domain import worker
from store.domain.events import Event, Fact, WorkerSeen, WorkerStatusChanged
from store.errors import Corrupt
from tests.domain.story import NOW, Story, amend, attempt, beat, claim, enqueue, record, release, report, span, start


def as_seen(story: Story, worker_id: str = "w1") -> tuple[Any, ...]:
    state = story.worker(worker_id)
    return state.status, state.current_rollout_id, state.current_attempt_id


class TestFollowing:
    @pytest.mark.parametrize(
        "status,expected",
        [
            ("preparing", ("busy", "r1", "a1")),
            ("running", ("busy", "r1", "a1")),
            ("succeeded", ("idle", None, None)),
            ("failed", ("idle", None, None)),
            ("timeout", ("unknown", None, None)),
            ("unresponsive", ("unknown", None, None)),
        ],
    )
    def test_status_of_a_worker_follows_its_attempt(
        self, story: Story, status: str, expected: tuple[str, str | None, str | None]
    ) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report(status))
        assert as_seen(story) == expected

    def test_busy_and_idle_times_are_stamped_where_the_status_changes(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        assert (story.worker().last_busy_at, story.worker().last_idle_at) == (NOW, None)
        story.passes(4).tell(report("unresponsive"))
        assert (story.worker().last_busy_at, story.worker().last_idle_at) == (NOW, story.now)

    def test_a_worker_is_seen_before_anything_happens_to_it(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        assert story.facts[2:] == [
            WorkerSeen(),
            WorkerStatusChanged(from_="unknown", to="busy", rollout_id="r1", attempt_id="a1"),
        ]

    def test_a_mere_refresh_of_a_time_is_no_fact(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.passes(3).tell(report("preparing"))
        assert (story.events, story.signals().last_busy_at, story.worker().last_busy_at) == ([], story.now, NOW)

    def test_another_attempt_of_a_busy_worker_is_a_fact(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.passes(3).tell(attempt("a2", worker_id="w1"))
        assert story.facts[-1] == WorkerStatusChanged(from_="busy", to="busy", rollout_id="r1", attempt_id="a2")
        assert story.worker().last_busy_at == story.now

    def test_a_worker_that_is_given_an_attempt_follows_its_present_status(self, story: Story) -> None:
        story.tell(start())
        story.tell(report("succeeded"))
        story.tell(report(None, worker_id="w1"))
        assert as_seen(story) == ("idle", None, None)

    def test_taking_an_attempt_from_a_worker_leaves_that_worker_as_it_was(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report(None, worker_id="w2"))
        assert (as_seen(story), as_seen(story, "w2")) == (("busy", "r1", "a1"), ("busy", "r1", "a1"))
        story.tell(report("failed"))
        assert (as_seen(story), as_seen(story, "w2")) == (("busy", "r1", "a1"), ("idle", None, None))

    def test_attempt_without_worker_changes_no_worker(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report("failed", worker_id=""))
        assert (story.attempt().worker_id, as_seen(story), list(story.working_set.workers)) == (
            "",
            ("busy", "r1", "a1"),
            ["w1"],
        )

    @pytest.mark.parametrize("fields", [{"metadata": {}}, {"last_heartbeat_time": 5.0}, {"worker_id": ""}])
    def test_other_fields_alone_do_not_touch_workers(self, story: Story, fields: dict[str, Any]) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(claim(["x"], "w1"))
        before = as_seen(story)
        story.tell(report(None, **fields))
        assert as_seen(story) == before
        assert not [fact for fact in story.facts if fact.type.startswith("worker")]

    def test_neither_spans_nor_updates_of_the_rollout_touch_workers(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(report("timeout"))
        story.tell(record(span(1)))
        story.tell(amend(status="running"))
        assert as_seen(story) == ("unknown", None, None)


class TestClaiming:
    def test_worker_with_several_claims_is_busy_with_the_last(self, story: Story) -> None:
        story.tell(enqueue("r1", "r2"))
        story.claim("w1", limit=3)
        assert as_seen(story) == ("busy", "r2", "a2")
        assert story.signals().last_dequeue_at == story.worker().last_busy_at == NOW + 3

    def test_worker_without_a_claim_is_idle_and_keeps_its_last_attempt(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.passes(2).tell(claim(["x"], "w1"))
        assert as_seen(story) == ("idle", "r1", "a1")
        assert (story.worker().last_idle_at, story.signals().last_dequeue_at) == (story.now, story.now)

    def test_poll_of_an_idle_worker_only_updates_its_dequeue_time(self, story: Story) -> None:
        story.tell(claim(["x"], "w1"))
        idle_at = story.worker().last_idle_at
        story.passes(2).tell(claim(["x"], "w1"))
        assert (story.events, story.worker().last_idle_at) == ([], idle_at)
        assert (story.signals().last_dequeue_at, story.signals().last_idle_at) == (story.now, None)

    def test_starting_a_rollout_or_an_attempt_is_no_dequeue(self, story: Story) -> None:
        story.tell(start(worker_id="w1"))
        story.tell(attempt("a2", worker_id="w1"))
        assert "w1" not in story.working_set.worker_signals

    def test_a_claim_without_a_worker_knows_none(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        story.claim()
        story.claim()
        assert story.working_set.workers == {}

    def test_a_released_claim_leaves_no_current_attempt(self, story: Story) -> None:
        story.tell(enqueue("r1"))
        (claimed,) = story.claim("w1")
        story.tell(amend(metadata={}), release(claimed))
        assert as_seen(story) == ("idle", None, None)


class TestHeartbeats:
    def test_the_first_heartbeat_of_an_unknown_worker_is_a_fact(self, story: Story) -> None:
        story.tell(beat("w1", '{"gpu":1}'))
        assert (story.facts, story.worker().status) == ([WorkerSeen()], "unknown")
        assert (story.signals().last_heartbeat_at, story.signals().heartbeat_stats) == (NOW, '{"gpu":1}')

    def test_later_heartbeats_are_signals_and_keep_the_last_statistics(self, story: Story) -> None:
        story.tell(beat("w1", '{"gpu":1}'))
        story.passes(2).tell(beat("w1"))
        assert (story.events, story.signals().last_heartbeat_at) == ([], story.now)
        assert story.signals().heartbeat_stats == '{"gpu":1}'

    def test_a_workers_heartbeat_is_no_sign_of_life_of_its_attempt(self, story: Story) -> None:
        story.tell(start(worker_id="w1", unresponsive_seconds=5.0))
        story.passes(4).tell(beat("w1"))
        assert story.attempt().sign_of_life is None
        assert story.passes(2).sweep() == 1


def logged(fact: Fact, version: int) -> Event:
    return Event(version, "worker/w1", version, 0, NOW, None, None, fact)


class TestEvolution:
    def test_a_worker_that_was_never_seen_cannot_change(self) -> None:
        with pytest.raises(Corrupt):
            worker.evolve(None, logged(WorkerStatusChanged(from_="unknown", to="busy"), 1))

    def test_a_worker_is_seen_for_the_first_time_once(self) -> None:
        with pytest.raises(Corrupt):
            worker.evolve(worker.evolve(None, logged(WorkerSeen(), 1)), logged(WorkerSeen(), 2))

    @pytest.mark.parametrize("stated,version", [("busy", 2), ("unknown", 3)])
    def test_a_change_that_does_not_follow_is_refused(self, stated: str, version: int) -> None:
        state = worker.evolve(None, logged(WorkerSeen(), 1))
        with pytest.raises(Corrupt):
            worker.evolve(state, logged(WorkerStatusChanged(from_=stated, to="idle"), version))
