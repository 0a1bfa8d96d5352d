"""Facts that follow from annotations of a rollout."""

from __future__ import annotations

import pytest

from store.domain.annotations import AnnotateRollout, AnnotationView
from store.domain.events import Event, RolloutAnnotated
from store.domain.rollout import evolve
from store.domain.statuses import MOST_LABELS
from store.errors import Corrupt, Invalid, NotFound
from tests.domain.story import BODY, Story, claim, config, enqueue


def annotate(*added: str, remove: tuple[str, ...] = (), noted: bool = False) -> AnnotateRollout:
    body = BODY if noted else None
    return AnnotateRollout(rollout_id="r1", added=list(added), removed=list(remove), body=body, actor="cli")


def test_an_annotation_is_one_event_with_its_actor(story: Story) -> None:
    story.tell(enqueue("r1"))
    assert story.tell(annotate("b", "a", noted=True)) == AnnotationView(["a", "b"], 2)
    (event,) = story.events
    assert event.fact == RolloutAnnotated(added=["b", "a"], removed=[], noted=True)
    assert (event.actor, event.body) == ("cli", BODY)


def test_only_changed_labels_are_recorded(story: Story) -> None:
    story.tell(enqueue("r1"))
    story.tell(annotate("a", "b"))
    assert story.tell(annotate("a", remove=("c",))) == AnnotationView(["a", "b"], None)
    assert story.facts == []
    story.tell(annotate("a", "c", remove=("b", "d")))
    assert story.facts == [RolloutAnnotated(added=["c"], removed=["b"])]


def test_calls_of_one_batch_see_each_others_labels(story: Story) -> None:
    story.tell(enqueue("r1"))
    assert story.tell(annotate("a"), annotate("a", "b"), annotate(remove=("a",))) == AnnotationView(["b"], 4)
    assert [event.fact for event in story.events] == [
        RolloutAnnotated(added=["a"], removed=[]),
        RolloutAnnotated(added=["b"], removed=[]),
        RolloutAnnotated(added=[], removed=["a"]),
    ]


def test_the_watchdog_hears_nothing_of_it(story: Story) -> None:
    story.tell(enqueue("r1", config=config(timeout_seconds=60.0)))
    story.tell(claim(["a1"], "w1"))
    watched = dict(story.watch)
    story.passes(30).tell(annotate("a", noted=True))
    assert story.watch == watched
    assert story.attempt().last_heartbeat_time is None


def test_a_claim_that_is_given_back_goes_back_all_the_same(story: Story) -> None:
    story.tell(enqueue("r1"))
    (taken,) = story.claim("w1")
    story.tell(annotate("a"))
    assert story.attempt().last_position == taken.claim_position


def test_a_rollout_carries_no_more_labels_than_it_may(story: Story) -> None:
    story.tell(enqueue("r1"))
    story.tell(annotate(*(f"l{number}" for number in range(MOST_LABELS))))
    with pytest.raises(Invalid, match="65"):
        story.tell(annotate("more"))
    assert story.tell(annotate("more", remove=("l0",))).version == 3


def test_an_unknown_rollout_is_named(story: Story) -> None:
    with pytest.raises(NotFound, match="r1"):
        story.tell(annotate("a"))


@pytest.mark.parametrize("fact", [RolloutAnnotated(["a"], []), RolloutAnnotated([], ["b"])], ids=["added", "removed"])
def test_a_change_that_does_not_follow_is_corrupt(story: Story, fact: RolloutAnnotated) -> None:
    story.tell(enqueue("r1"))
    story.tell(annotate("a"))
    state = story.rollout()
    event = Event(9, "rollout/r1", 3, 0, story.now, None, None, fact)
    with pytest.raises(Corrupt, match="rollout/r1"):
        evolve(state, event)


def test_a_state_without_its_labels_takes_any_change(story: Story) -> None:
    story.tell(enqueue("r1"))
    state = story.rollout()
    state.labels = None
    assert (
        evolve(state, Event(9, "rollout/r1", 2, 0, story.now, None, None, RolloutAnnotated([], ["b"]))).labels is None
    )
