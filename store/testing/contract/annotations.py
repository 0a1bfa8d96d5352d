"""Contract of labels and notes of a rollout: both have a history, and do not change other data."""

from __future__ import annotations

import pytest

from store.errors import Invalid, NotFound, TooLarge
from store.interface.store import Store
from store.models import Span
from store.testing.contract.rollout_helpers import reread, started

__all__ = ["AnnotationsContract"]


class AnnotationsContract:
    """Tests of labels and notes."""

    pytestmark = pytest.mark.asyncio

    async def test_labels_are_added_and_removed_in_one_call(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, add_labels=["new", "good"])
        done = await store.annotations.annotate(rollout.rollout_id, add_labels=["bäd"], remove_labels=["new"])
        assert done.labels == ["bäd", "good"]
        assert (await store.annotations.query(rollout.rollout_id)).labels == ["bäd", "good"]

    async def test_labels_of_several_rollouts_are_read_together_at_every_moment(self, store: Store) -> None:
        both, early, never = [(await store.enqueue_rollout(number)).rollout_id for number in range(3)]
        await store.annotations.annotate(both, add_labels=["b", "a"])
        await store.annotations.annotate(early, add_labels=["a"])
        before = (await store.log.history(early))[-1].position
        await store.annotations.annotate(both, add_labels=["c"], remove_labels=["a"])
        await store.annotations.annotate(early, remove_labels=["a"])
        ids = [never, early, both, "ro-none"]
        assert await store.annotations.query_labels(ids) == {both: ["b", "c"]}
        assert await store.annotations.query_labels(ids, as_at=before) == {both: ["a", "b"], early: ["a"]}
        assert await store.annotations.query_labels(ids, as_at=before - 1) == {both: ["a", "b"]}
        assert await store.annotations.query_labels([]) == {}
        with pytest.raises(Invalid, match="1,001 ids"):
            await store.annotations.query_labels([f"ro-{number}" for number in range(1001)])

    async def test_annotation_without_change_is_not_recorded(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, add_labels=["good"])
        again = await store.annotations.annotate(rollout.rollout_id, add_labels=["good", "good"], remove_labels=["bad"])
        assert again.number is None
        assert again.labels == ["good"]
        assert [event.type for event in await store.log.history(rollout.rollout_id)] == [
            "rollout.enqueued",
            "rollout.annotated",
        ]

    async def test_annotation_event_contains_only_changed_labels(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, add_labels=["good"])
        await store.annotations.annotate(rollout.rollout_id, add_labels=["good", "fast"], remove_labels=["bad"])
        last = (await store.log.history(rollout.rollout_id))[-1]
        assert last.data == {"added": ["fast"], "removed": []}

    async def test_notes_are_kept_in_their_order_with_the_numbers_of_their_events(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        first = await store.annotations.annotate(rollout.rollout_id, "looks\nodd — ✓")
        await store.annotations.annotate(rollout.rollout_id, add_labels=["good"])
        second = await store.annotations.annotate(rollout.rollout_id, "was the proxy", remove_labels=["good"])
        state = await store.annotations.query(rollout.rollout_id)
        assert [(note.number, note.text) for note in state.notes] == [(2, "looks\nodd — ✓"), (4, "was the proxy")]
        assert (first.number, second.number) == (2, 4)
        history = {event.number: event for event in await store.log.history(rollout.rollout_id)}
        assert [(note.at, note.actor) for note in state.notes] == [(history[n].at, history[n].actor) for n in (2, 4)]

    async def test_note_refers_to_a_span_of_the_latest_attempt_that_has_it(self, store: Store) -> None:
        rollout = await started(store)
        ids = [rollout.attempt.attempt_id]
        for number in range(2):
            span = Span.from_attributes(
                attributes={}, rollout_id=rollout.rollout_id, attempt_id=ids[-1], sequence_id=1, name="call",
                span_id="00000000000000aa",
            )  # fmt: skip
            await store.add_span(span)
            if number == 0:
                ids.append((await store.start_attempt(rollout.rollout_id)).attempt.attempt_id)
        annotations = store.annotations
        await annotations.annotate(rollout.rollout_id, "latest", span_id="00000000000000aa")
        await annotations.annotate(rollout.rollout_id, "first", span_id="00000000000000aa", attempt_id=ids[0])
        await annotations.annotate(rollout.rollout_id, "of the rollout")
        notes = (await annotations.query(rollout.rollout_id)).notes
        assert [(note.text, note.span_id, note.attempt_id) for note in notes] == [
            ("latest", "00000000000000aa", ids[1]),
            ("first", "00000000000000aa", ids[0]),
            ("of the rollout", None, None),
        ]
        with pytest.raises(NotFound, match="Span none"):
            await annotations.annotate(rollout.rollout_id, "x", span_id="none")
        with pytest.raises(NotFound, match="attempt at-none"):
            await annotations.annotate(rollout.rollout_id, "x", span_id="00000000000000aa", attempt_id="at-none")
        with pytest.raises(Invalid, match="needs a note"):
            await annotations.annotate(rollout.rollout_id, add_labels=["x"], span_id="00000000000000aa")
        with pytest.raises(Invalid, match="needs a span_id"):
            await annotations.annotate(rollout.rollout_id, "x", attempt_id=ids[0])
        assert len((await annotations.query(rollout.rollout_id)).notes) == 3

    async def test_adding_the_same_note_twice_stores_two_notes(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, "again")
        await store.annotations.annotate(rollout.rollout_id, "again")
        assert [note.text for note in (await store.annotations.query(rollout.rollout_id)).notes] == ["again", "again"]

    async def test_a_limit_returns_the_last_notes(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        for text in ("a", "b", "c"):
            await store.annotations.annotate(rollout.rollout_id, text)
        state = await store.annotations.query(rollout.rollout_id, limit=2)
        assert [note.text for note in state.notes] == ["b", "c"]
        assert (await store.annotations.query(rollout.rollout_id, limit=0)).notes == []

    async def test_annotations_of_a_past_moment_can_be_read(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, "first", add_labels=["good", "new"])
        await store.annotations.annotate(rollout.rollout_id, "second", remove_labels=["new"])
        then = await store.annotations.query(rollout.rollout_id, at=2)
        assert then.labels == ["good", "new"]
        assert [note.text for note in then.notes] == ["first"]
        position = (await store.log.history(rollout.rollout_id))[0].position
        before = await store.annotations.query(rollout.rollout_id, as_at=position)
        assert (before.labels, before.notes) == ([], [])

    async def test_annotating_does_not_change_the_status_the_queue_or_the_end_time(self, store: Store) -> None:
        waiting = await store.enqueue_rollout("x")
        ended = await started(store)
        await store.update_attempt(ended.rollout_id, "latest", "succeeded")
        before = [await reread(store, rollout) for rollout in (waiting, ended)]
        for rollout in (waiting, ended):
            await store.annotations.annotate(rollout.rollout_id, "seen", add_labels=["seen"])
        assert [await reread(store, rollout) for rollout in (waiting, ended)] == before
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.rollout_id == waiting.rollout_id

    async def test_an_annotation_is_not_a_heartbeat(self, store: Store) -> None:
        rollout = await started(store, unresponsive_seconds=60)
        await store.annotations.annotate(rollout.rollout_id, "still there?")
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert attempt.last_heartbeat_time is None
        assert attempt.status == "preparing"

    async def test_a_rollout_that_does_not_exist_cannot_be_annotated(self, store: Store) -> None:
        with pytest.raises(NotFound, match="ro-nobody"):
            await store.annotations.annotate("ro-nobody", "hello")
        with pytest.raises(NotFound, match="ro-nobody"):
            await store.annotations.query("ro-nobody")

    @pytest.mark.parametrize(
        "label", ["", " good", "good\t", "two\nlines", "bell\x07", "nul\x00", "line\u2028end"], ids=repr
    )
    async def test_a_label_must_be_one_trimmed_line(self, store: Store, label: str) -> None:
        rollout = await store.enqueue_rollout("x")
        with pytest.raises(Invalid) as refused:
            await store.annotations.annotate(rollout.rollout_id, add_labels=["fine", label])
        assert refused.value.field == "add_labels[1]"
        assert (await store.annotations.query(rollout.rollout_id)).labels == []

    async def test_long_labels_and_notes_are_refused(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        await store.annotations.annotate(rollout.rollout_id, "n" * 65_536, add_labels=["é" * 32])
        with pytest.raises(TooLarge) as refused:
            await store.annotations.annotate(rollout.rollout_id, add_labels=["é" * 33])
        assert refused.value.field == "add_labels[0]"
        with pytest.raises(TooLarge) as refused:
            await store.annotations.annotate(rollout.rollout_id, "n" * 65_537)
        assert refused.value.field == "note"

    async def test_a_rollout_has_at_most_sixty_four_labels(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        labels = [f"label {number:02}" for number in range(64)]
        await store.annotations.annotate(rollout.rollout_id, add_labels=labels)
        with pytest.raises(Invalid, match="64"):
            await store.annotations.annotate(rollout.rollout_id, add_labels=["one more"])
        swapped = await store.annotations.annotate(
            rollout.rollout_id, add_labels=["one more"], remove_labels=labels[:1]
        )
        assert swapped.labels == [*labels[1:], "one more"]

    async def test_empty_or_contradictory_annotation_is_refused(self, store: Store) -> None:
        rollout = await store.enqueue_rollout("x")
        with pytest.raises(Invalid, match="give a note"):
            await store.annotations.annotate(rollout.rollout_id)
        with pytest.raises(Invalid, match="empty"):
            await store.annotations.annotate(rollout.rollout_id, "  \n")
        with pytest.raises(Invalid, match="remove it from one"):
            await store.annotations.annotate(rollout.rollout_id, add_labels=["good"], remove_labels=["good"])
        with pytest.raises(Invalid, match="list"):
            await store.annotations.annotate(rollout.rollout_id, add_labels="good")
